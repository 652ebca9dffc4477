#include "context.hpp"

namespace strata_cuda {
namespace {

thread_local int chosen_device = 0;

// Primary contexts that this runtime retained, by device. Never released: handles of it may be in use until
// the process ends.
constexpr int kCachedDevices = 64;
std::atomic<CUcontext> primaries[kCachedDevices];

CUresult primary_context(int device, CUcontext* context) {
  std::atomic<CUcontext>* cached = device < kCachedDevices ? &primaries[device] : nullptr;
  *context = cached != nullptr ? cached->load(std::memory_order_acquire) : nullptr;
  if (*context != nullptr) return kCudaSuccess;
  // Two threads may both retain: the driver counts, and gives both the same context.
  CUresult status = driver.cuDevicePrimaryCtxRetain(context, device_handle(device));
  if (status == kCudaSuccess && cached != nullptr) cached->store(*context, std::memory_order_release);
  return status;
}

}  // namespace

hipError_t enter_slowly() {
  hipError_t status = open_driver();
  return status == hipSuccess ? hipSuccess : failed(status);
}

hipError_t adopt_context(CUresult status) {
  if (status != kCudaSuccess) return failed(from_driver(status));
  return set_device(chosen_device);
}

hipError_t set_device(int device) {
  CUcontext context = nullptr;
  CUresult status = primary_context(device, &context);
  if (status == kCudaSuccess) status = driver.cuCtxSetCurrent(context);
  if (status == kCudaSuccess) chosen_device = device;
  return settle(status);
}

hipError_t ordinal_of(CUdevice handle, int* device) {
  for (int ordinal = 0; ordinal < device_count(); ++ordinal) {
    if (device_handle(ordinal) == handle) {
      *device = ordinal;
      return hipSuccess;
    }
  }
  return failed(hipErrorInvalidDevice);
}

hipError_t current_device(int* device) {
  CUcontext current = nullptr;
  CUresult status = driver.cuCtxGetCurrent(&current);
  if (status != kCudaSuccess) return failed(from_driver(status));
  if (current == nullptr) {
    *device = chosen_device;
    return hipSuccess;
  }
  CUdevice handle = 0;
  status = driver.cuCtxGetDevice(&handle);
  if (status != kCudaSuccess) return failed(from_driver(status));
  return ordinal_of(handle, device);
}

}  // namespace strata_cuda
