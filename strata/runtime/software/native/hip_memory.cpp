// Allocation, registration and what a pointer is.

#define STRATA_HIP_DECLARE_FUNCTIONS 1
#include <hip/hip_client.h>

#include <cstring>

#include "calls.hpp"
#include "checker.hpp"
#include "memory.hpp"
#include "runtime.hpp"

using namespace strata::software;

namespace {

constexpr int kInvalidDevice = -2;                // hipInvalidDeviceId
constexpr unsigned kHostMallocCoherent = 0x40000000;
constexpr unsigned kHostMallocNonCoherent = 0x80000000;
constexpr unsigned kHostMallocFlags = 0xf0000007;   // portable, mapped, write-combined; uncached, NUMA, coherence
constexpr unsigned kHostAllocFlags = 0x10000007;
constexpr unsigned kRegisterCoarseGrained = 0x8;
constexpr unsigned kRegisterUncached = 0x80000000;
constexpr unsigned kHostRegisterFlags = 0x8000000f;

template <class T>
hipError_t put(void* data, T value) {
  std::memcpy(data, &value, sizeof value);
  return hipSuccess;
}

bool is_base(const void* address, MemoryKind kind) {
  const MemoryRange range = describe_range(address);
  return range.kind == kind && !range.leaving && range.base == reinterpret_cast<std::uintptr_t>(address);
}

// What is given back may still be in use, by the streams of any device: hipFree and hipHostFree are implicit
// synchronizations. Wait, and tell the checker.
void settle(const Call& call, const void* address) {
  const Captured captured = call.checked() ? checker_capture_device(-1) : nullptr;
  wait_device(-1);
  if (!call.checked()) return;
  checker_join(captured);
  checker_free(address);
}

// AMD's runtime: what contradicts itself is an error. Host memory is coherent or not; what is not coarse-grained
// is uncached.
bool contradictory(unsigned flags, unsigned one, unsigned other) { return (flags & one) != 0 && (flags & other) != 0; }

hipError_t allocate_host(void** ptr, std::size_t bytes, unsigned flags, unsigned known) {
  if (ptr == nullptr) return hipErrorInvalidValue;
  *ptr = nullptr;
  if ((flags & ~known) != 0 || contradictory(flags, kHostMallocCoherent, kHostMallocNonCoherent)) {
    return hipErrorInvalidValue;
  }
  return bytes == 0 ? hipSuccess : allocate_pinned(t_thread.device, bytes, flags, ptr);
}

hipError_t free_host(const Call& call, void* ptr) {
  if (ptr == nullptr) return hipSuccess;
  if (!is_base(ptr, MemoryKind::Pinned)) return hipErrorInvalidValue;
  settle(call, ptr);
  return release_memory(ptr, MemoryKind::Pinned);
}

}  // namespace

extern "C" {

hipError_t hipMalloc(void** ptr, size_t bytes) {
  STRATA_SW_ENTER(call, Fn::Malloc, nullptr, nullptr, nullptr, bytes);
  if (ptr == nullptr) return call.finish(hipErrorInvalidValue);
  *ptr = nullptr;
  if (bytes == 0) return call.finish(hipSuccess);
  return call.finish(allocate_device(t_thread.device, bytes, ptr));
}

// Freeing waits for the device, whose operations may still use the memory.
hipError_t hipFree(void* ptr) {
  STRATA_SW_ENTER(call, Fn::Free, nullptr, nullptr, ptr);
  if (ptr == nullptr) return call.finish(hipSuccess);
  if (!is_base(ptr, MemoryKind::Device)) return call.finish(hipErrorInvalidValue);
  settle(call, ptr);
  return call.finish(release_memory(ptr, MemoryKind::Device));
}

// The memory is there at once: that is earlier than the stream's order asks for.
hipError_t hipMallocAsync(void** ptr, size_t bytes, hipStream_t stream) {
  STRATA_SW_ENTER(call, Fn::MallocAsync, stream, nullptr, nullptr, bytes);
  if (ptr == nullptr) return call.finish(hipErrorInvalidValue);
  const Stream* found = find_stream(stream);
  if (found == nullptr) return call.finish(no_stream(stream));
  *ptr = nullptr;
  if (bytes == 0) return call.finish(hipSuccess);
  return call.finish(allocate_device(found->device, bytes, ptr));
}

// Waits for nothing: the memory goes when the stream comes to it.
hipError_t hipFreeAsync(void* ptr, hipStream_t stream) {
  STRATA_SW_ENTER(call, Fn::FreeAsync, stream, nullptr, ptr);
  Stream* found = find_stream(stream);
  if (found == nullptr) return call.finish(no_stream(stream));
  if (ptr == nullptr || !is_base(ptr, MemoryKind::Device) || !mark_leaving(ptr)) {
    return call.finish(hipErrorInvalidValue);
  }
  Op op;
  op.kind = OpKind::Free;
  op.target = ptr;
  op.bytes = describe_range(ptr).end - reinterpret_cast<std::uintptr_t>(ptr);
  if (call.checked()) checker_free_in_stream(*found, stream, op);
  return call.finish(submit(*found, std::move(op)));
}

hipError_t hipHostMalloc(void** ptr, size_t bytes, unsigned int flags) {
  const Call call(Fn::HostMalloc, nullptr, nullptr, nullptr, bytes);
  return call.answered() ? call.status() : call.finish(allocate_host(ptr, bytes, flags, kHostMallocFlags));
}

hipError_t hipHostAlloc(void** ptr, size_t bytes, unsigned int flags) {
  const Call call(Fn::HostAlloc, nullptr, nullptr, nullptr, bytes);
  return call.answered() ? call.status() : call.finish(allocate_host(ptr, bytes, flags, kHostAllocFlags));
}

hipError_t hipHostFree(void* ptr) {
  const Call call(Fn::HostFree, nullptr, nullptr, ptr);
  return call.answered() ? call.status() : call.finish(free_host(call, ptr));
}

hipError_t hipFreeHost(void* ptr) {
  const Call call(Fn::FreeHost, nullptr, nullptr, ptr);
  return call.answered() ? call.status() : call.finish(free_host(call, ptr));
}

hipError_t hipHostGetDevicePointer(void** device_ptr, void* host_ptr, unsigned int flags) {
  STRATA_SW_ENTER(call, Fn::HostGetDevicePointer, nullptr, nullptr, host_ptr);
  if (device_ptr == nullptr || host_ptr == nullptr || flags != 0 || !find_range(host_ptr).pinned()) {
    return call.finish(hipErrorInvalidValue);
  }
  *device_ptr = host_ptr;
  return call.finish(hipSuccess);
}

hipError_t hipHostGetFlags(unsigned int* flags, void* host_ptr) {
  STRATA_SW_ENTER(call, Fn::HostGetFlags, nullptr, nullptr, host_ptr);
  if (flags == nullptr || host_ptr == nullptr) return call.finish(hipErrorInvalidValue);
  const MemoryRange range = describe_range(host_ptr);
  if (!range.pinned()) return call.finish(hipErrorInvalidValue);
  *flags = range.flags;
  return call.finish(hipSuccess);
}

hipError_t hipHostRegister(void* ptr, size_t bytes, unsigned int flags) {
  STRATA_SW_ENTER(call, Fn::HostRegister, nullptr, nullptr, ptr, bytes);
  if (ptr == nullptr || bytes == 0 || (flags & ~kHostRegisterFlags) != 0 ||
      contradictory(flags, kRegisterCoarseGrained, kRegisterUncached)) {
    return call.finish(hipErrorInvalidValue);
  }
  return call.finish(register_range(t_thread.device, ptr, bytes, flags));
}

hipError_t hipHostUnregister(void* ptr) {
  STRATA_SW_ENTER(call, Fn::HostUnregister, nullptr, nullptr, ptr);
  if (ptr == nullptr) return call.finish(hipErrorInvalidValue);
  if (!is_base(ptr, MemoryKind::Registered)) return call.finish(hipErrorHostMemoryNotRegistered);
  settle(call, ptr);
  return call.finish(unregister_range(ptr));
}

hipError_t hipPointerGetAttributes(hipPointerAttribute_t* attributes, const void* ptr) {
  STRATA_SW_ENTER(call, Fn::PointerGetAttributes, nullptr, nullptr, ptr);
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

// The attributes that say something here; the others are refused.
hipError_t hipPointerGetAttribute(void* data, hipPointer_attribute attribute, void* ptr) {
  STRATA_SW_ENTER(call, Fn::PointerGetAttribute, nullptr, nullptr, ptr);
  if (data == nullptr || ptr == nullptr) return call.finish(hipErrorInvalidValue);
  const MemoryRange range = describe_range(ptr);
  if (range.kind == MemoryKind::Pageable) return call.finish(hipErrorInvalidValue);
  switch (attribute) {
    case HIP_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return call.finish(put<unsigned>(data, range.on_device() ? hipMemoryTypeDevice : hipMemoryTypeHost));
    case HIP_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return call.finish(put<void*>(data, ptr));
    case HIP_POINTER_ATTRIBUTE_HOST_POINTER:
      return range.on_device() ? call.finish(hipErrorInvalidValue) : call.finish(put<void*>(data, ptr));
    case HIP_POINTER_ATTRIBUTE_IS_MANAGED:
      return call.finish(put<bool>(data, false));
    case HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return call.finish(put<int>(data, range.device));
    case HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return call.finish(put<void*>(data, reinterpret_cast<void*>(range.base)));
    case HIP_POINTER_ATTRIBUTE_RANGE_SIZE:
      return call.finish(put<std::size_t>(data, range.end - range.base));
    case HIP_POINTER_ATTRIBUTE_MAPPED:
      return call.finish(put<bool>(data, true));
    default:
      return call.finish(hipErrorInvalidValue);
  }
}

}  // extern "C"
