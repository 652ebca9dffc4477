// Allocation, registration and what a pointer is.

#include "calls.hpp"
#include "checker.hpp"
#include "memory.hpp"
#include "runtime.hpp"

using namespace strata::software;

namespace {

constexpr int kInvalidDevice = -2;                // hipInvalidDeviceId
constexpr unsigned kHostMallocFlags = 0xe0000007;  // portable, mapped, write-combined; NUMA, coherence
constexpr unsigned kHostRegisterFlags = 0x8000000f;

bool is_base(const void* address, MemoryKind kind) {
  const MemoryRange range = describe_range(address);
  return range.kind == kind && range.base == reinterpret_cast<std::uintptr_t>(address);
}

// What is given back may still be in use: wait, and tell the checker.
void settle(const Call& call, const void* address, int device) {
  const Captured captured = call.checked() ? checker_capture_device(device) : nullptr;
  wait_device(device);
  if (!call.checked()) return;
  checker_join(captured);
  checker_free(address);
}

}  // namespace

extern "C" {

hipError_t hipMalloc(void** ptr, size_t bytes) {
  const Call call(Fn::Malloc, nullptr, nullptr, nullptr, bytes);
  if (call.answered()) return call.status();
  if (ptr == nullptr) return call.finish(hipErrorInvalidValue);
  *ptr = nullptr;
  if (bytes == 0) return call.finish(hipSuccess);
  return call.finish(allocate_device(t_thread.device, bytes, ptr));
}

// Freeing waits for the device, whose operations may still use the memory.
hipError_t hipFree(void* ptr) {
  const Call call(Fn::Free, nullptr, nullptr, ptr);
  if (call.answered()) return call.status();
  if (ptr == nullptr) return call.finish(hipSuccess);
  if (!is_base(ptr, MemoryKind::Device)) return call.finish(hipErrorInvalidValue);
  settle(call, ptr, describe_range(ptr).device);
  return call.finish(release_memory(ptr, MemoryKind::Device));
}

hipError_t hipHostMalloc(void** ptr, size_t bytes, unsigned int flags) {
  const Call call(Fn::HostMalloc, nullptr, nullptr, nullptr, bytes);
  if (call.answered()) return call.status();
  if (ptr == nullptr) return call.finish(hipErrorInvalidValue);
  *ptr = nullptr;
  if ((flags & ~kHostMallocFlags) != 0) return call.finish(hipErrorInvalidValue);
  if (bytes == 0) return call.finish(hipSuccess);
  return call.finish(allocate_pinned(t_thread.device, bytes, flags, ptr));
}

hipError_t hipHostFree(void* ptr) {
  const Call call(Fn::HostFree, nullptr, nullptr, ptr);
  if (call.answered()) return call.status();
  if (ptr == nullptr) return call.finish(hipSuccess);
  if (!is_base(ptr, MemoryKind::Pinned)) return call.finish(hipErrorInvalidValue);
  settle(call, ptr, -1);
  return call.finish(release_memory(ptr, MemoryKind::Pinned));
}

hipError_t hipHostRegister(void* ptr, size_t bytes, unsigned int flags) {
  const Call call(Fn::HostRegister, nullptr, nullptr, ptr, bytes);
  if (call.answered()) return call.status();
  if (ptr == nullptr || bytes == 0 || (flags & ~kHostRegisterFlags) != 0) {
    return call.finish(hipErrorInvalidValue);
  }
  return call.finish(register_range(t_thread.device, ptr, bytes, flags));
}

hipError_t hipHostUnregister(void* ptr) {
  const Call call(Fn::HostUnregister, nullptr, nullptr, ptr);
  if (call.answered()) return call.status();
  if (ptr == nullptr) return call.finish(hipErrorInvalidValue);
  if (!is_base(ptr, MemoryKind::Registered)) return call.finish(hipErrorHostMemoryNotRegistered);
  settle(call, ptr, -1);
  return call.finish(unregister_range(ptr));
}

hipError_t hipPointerGetAttributes(hipPointerAttribute_t* attributes, const void* ptr) {
  const Call call(Fn::PointerGetAttributes, nullptr, nullptr, ptr);
  if (call.answered()) return call.status();
  if (attributes == nullptr || ptr == nullptr) return call.finish(hipErrorInvalidValue);
  const MemoryRange range = describe_range(ptr);
  *attributes = hipPointerAttribute_t{};
  attributes->allocationFlags = range.flags;
  void* const address = const_cast<void*>(ptr);
  if (range.on_device()) {
    attributes->type = hipMemoryTypeDevice;
    attributes->device = range.device;
    attributes->devicePointer = address;
  } else if (range.pinned()) {
    attributes->type = hipMemoryTypeHost;
    attributes->device = range.device;
    attributes->devicePointer = address;
    attributes->hostPointer = address;
  } else {
    attributes->type = hipMemoryTypeUnregistered;
    attributes->device = kInvalidDevice;
  }
  return call.finish(hipSuccess);
}

}  // extern "C"
