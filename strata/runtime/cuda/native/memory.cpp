// HIP's allocations, page-locking and pointer attributes.
#include "address.hpp"
#include "context.hpp"

using namespace strata_cuda;

namespace {

// Portable, mapped and write-combined have the driver's values. HIP's two coherence flags ask for what host
// memory is here anyway (coherent), or allow less; anything else cannot be honoured.
constexpr unsigned int kHostMallocDriverFlags = 0x7;
constexpr unsigned int kHostMallocCoherent = 0x40000000u;
constexpr unsigned int kHostMallocNonCoherent = 0x80000000u;

// Portable, mapped, I/O memory and read-only: the driver's values.
constexpr unsigned int kHostRegisterDriverFlags = 0xf;

hipMemoryType memory_type(unsigned int driver_type, bool managed) {
  if (managed) return hipMemoryTypeManaged;
  switch (driver_type) {
    case kCudaMemoryHost: return hipMemoryTypeHost;
    case kCudaMemoryDevice: return hipMemoryTypeDevice;
    case kCudaMemoryArray: return hipMemoryTypeArray;
    case kCudaMemoryUnified: return hipMemoryTypeUnified;
    default: return hipMemoryTypeUnregistered;
  }
}

}  // namespace

hipError_t hipMalloc(void** ptr, size_t bytes) {
  STRATA_ENTER(enter_context);
  if (ptr == nullptr) return failed(hipErrorInvalidValue);
  *ptr = nullptr;
  if (bytes == 0) return hipSuccess;
  CUdeviceptr address = 0;
  CUresult status = driver.cuMemAlloc(&address, bytes);
  if (status == kCudaSuccess) *ptr = host_pointer(address);
  return settle(status);
}

hipError_t hipFree(void* ptr) {
  STRATA_ENTER(enter_context);
  if (ptr == nullptr) return hipSuccess;
  return settle(driver.cuMemFree(device_address(ptr)));
}

hipError_t hipHostMalloc(void** ptr, size_t bytes, unsigned int flags) {
  STRATA_ENTER(enter_context);
  if (ptr == nullptr) return failed(hipErrorInvalidValue);
  *ptr = nullptr;
  constexpr unsigned int both = kHostMallocCoherent | kHostMallocNonCoherent;
  if ((flags & ~(kHostMallocDriverFlags | both)) != 0 || (flags & both) == both) {
    return failed(hipErrorInvalidValue);
  }
  if (bytes == 0) return hipSuccess;
  return settle(driver.cuMemHostAlloc(ptr, bytes, flags & kHostMallocDriverFlags));
}

hipError_t hipHostFree(void* ptr) {
  STRATA_ENTER(enter_context);
  if (ptr == nullptr) return hipSuccess;
  return settle(driver.cuMemFreeHost(ptr));
}

hipError_t hipHostRegister(void* ptr, size_t bytes, unsigned int flags) {
  STRATA_ENTER(enter_context);
  if (ptr == nullptr || bytes == 0 || (flags & ~kHostRegisterDriverFlags) != 0) {
    return failed(hipErrorInvalidValue);
  }
  return settle(driver.cuMemHostRegister(ptr, bytes, flags));
}

hipError_t hipHostUnregister(void* ptr) {
  STRATA_ENTER(enter_context);
  if (ptr == nullptr) return failed(hipErrorInvalidValue);
  return settle(driver.cuMemHostUnregister(ptr));
}

hipError_t hipPointerGetAttributes(hipPointerAttribute_t* attributes, const void* ptr) {
  STRATA_ENTER(enter_context);
  if (attributes == nullptr || ptr == nullptr) return failed(hipErrorInvalidValue);

  // One query for all: it answers for memory that the driver does not know too, with zeros.
  unsigned int driver_type = 0;
  CUdeviceptr on_device = 0;
  void* on_host = nullptr;
  unsigned int managed = 0;
  int ordinal = -1;
  int wanted[] = {kPointerMemoryType, kPointerDevicePointer, kPointerHostPointer, kPointerIsManaged,
                  kPointerDeviceOrdinal};
  void* answers[] = {&driver_type, &on_device, &on_host, &managed, &ordinal};
  CUresult status = driver.cuPointerGetAttributes(5, wanted, answers, device_address(ptr));
  if (status != kCudaSuccess) return settle(status);

  hipMemoryType type = memory_type(driver_type, (managed & 0xff) != 0);
  bool known = type != hipMemoryTypeUnregistered;
  attributes->type = type;
  attributes->device = known ? ordinal : -1;
  attributes->devicePointer = known ? host_pointer(on_device) : nullptr;
  attributes->hostPointer = known ? on_host : nullptr;
  attributes->isManaged = type == hipMemoryTypeManaged ? 1 : 0;
  attributes->allocationFlags = 0;
  return hipSuccess;
}
