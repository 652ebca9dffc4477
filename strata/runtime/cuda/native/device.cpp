// HIP's device functions.
#include "context.hpp"

using namespace strata_cuda;

namespace {

bool is_device(int device) { return device >= 0 && device < device_count(); }

// The driver's number of an attribute that strata asks for; -1 for any other.
int driver_attribute(hipDeviceAttribute_t attribute) {
  switch (attribute) {
    case hipDeviceAttributeIntegrated: return kCudaIntegrated;
    case hipDeviceAttributeAsyncEngineCount: return kCudaAsyncEngineCount;
    case hipDeviceAttributePciBusId: return kCudaPciBusId;
    case hipDeviceAttributePciDeviceId: return kCudaPciDeviceId;
    case hipDeviceAttributePciDomainID: return kCudaPciDomainId;
    case hipDeviceAttributeUnifiedAddressing: return kCudaUnifiedAddressing;
    default: return -1;
  }
}

hipError_t driver_version(int* version) {
  STRATA_ENTER(enter);
  if (version == nullptr) return failed(hipErrorInvalidValue);
  return settle(driver.cuDriverGetVersion(version));
}

}  // namespace

hipError_t hipGetDeviceCount(int* count) {
  if (count != nullptr) *count = 0;
  STRATA_ENTER(enter);
  if (count == nullptr) return failed(hipErrorInvalidValue);
  *count = device_count();
  return hipSuccess;
}

hipError_t hipGetDevice(int* device) {
  STRATA_ENTER(enter);
  if (device == nullptr) return failed(hipErrorInvalidValue);
  return current_device(device);
}

hipError_t hipSetDevice(int device) {
  STRATA_ENTER(enter);
  if (!is_device(device)) return failed(hipErrorInvalidDevice);
  return set_device(device);
}

hipError_t hipDeviceGetName(char* name, int len, int device) {
  STRATA_ENTER(enter);
  if (!is_device(device)) return failed(hipErrorInvalidDevice);
  if (name == nullptr || len <= 0) return failed(hipErrorInvalidValue);
  return settle(driver.cuDeviceGetName(name, len, device_handle(device)));
}

hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attr, int device) {
  STRATA_ENTER(enter);
  if (value == nullptr) return failed(hipErrorInvalidValue);
  if (!is_device(device)) return failed(hipErrorInvalidDevice);
  int attribute = driver_attribute(attr);
  if (attribute < 0) return failed(hipErrorInvalidValue);
  return settle(driver.cuDeviceGetAttribute(value, attribute, device_handle(device)));
}

hipError_t hipDeviceSynchronize(void) {
  STRATA_ENTER(enter_context);
  return settle(driver.cuCtxSynchronize());
}

// Both report the driver's version (1000 * major + 10 * minor): there is no other runtime behind this one.
hipError_t hipRuntimeGetVersion(int* version) { return driver_version(version); }

hipError_t hipDriverGetVersion(int* version) { return driver_version(version); }

hipError_t hipMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  STRATA_ENTER(enter_context);
  if (free_bytes == nullptr && total_bytes == nullptr) return failed(hipErrorInvalidValue);
  size_t free_now = 0;
  size_t total = 0;
  CUresult status = driver.cuMemGetInfo(&free_now, &total);
  if (status == kCudaSuccess && free_bytes != nullptr) *free_bytes = free_now;
  if (status == kCudaSuccess && total_bytes != nullptr) *total_bytes = total;
  return settle(status);
}
