// HIP's single copies and fills.
#include "address.hpp"
#include "context.hpp"

using namespace strata_cuda;

hipError_t hipMemcpy(void* dst, const void* src, size_t bytes, hipMemcpyKind kind) {
  STRATA_ENTER(enter);
  if (bytes == 0) return hipSuccess;
  if (dst == nullptr || src == nullptr) return failed(hipErrorInvalidValue);
  STRATA_ENTER(enter_context);
  switch (kind) {
    case hipMemcpyHostToDevice: return settle(driver.cuMemcpyHtoD(device_address(dst), src, bytes));
    case hipMemcpyDeviceToHost: return settle(driver.cuMemcpyDtoH(dst, device_address(src), bytes));
    case hipMemcpyDeviceToDevice:
    case hipMemcpyDeviceToDeviceNoCU:
      return settle(driver.cuMemcpyDtoD(device_address(dst), device_address(src), bytes));
    case hipMemcpyHostToHost:
    case hipMemcpyDefault: return settle(driver.cuMemcpy(device_address(dst), device_address(src), bytes));
    default: return failed(hipErrorInvalidMemcpyDirection);
  }
}

hipError_t hipMemcpyAsync(void* dst, const void* src, size_t bytes, hipMemcpyKind kind, hipStream_t stream) {
  STRATA_ENTER(enter);
  if (bytes == 0) return hipSuccess;
  if (dst == nullptr || src == nullptr) return failed(hipErrorInvalidValue);
  STRATA_ENTER(enter_context);
  CUstream queue = reinterpret_cast<CUstream>(stream);
  switch (kind) {
    case hipMemcpyHostToDevice:
      return settle(driver.cuMemcpyHtoDAsync(device_address(dst), src, bytes, queue));
    case hipMemcpyDeviceToHost:
      return settle(driver.cuMemcpyDtoHAsync(dst, device_address(src), bytes, queue));
    case hipMemcpyDeviceToDevice:
    case hipMemcpyDeviceToDeviceNoCU:
      return settle(driver.cuMemcpyDtoDAsync(device_address(dst), device_address(src), bytes, queue));
    case hipMemcpyHostToHost:
    case hipMemcpyDefault:
      return settle(driver.cuMemcpyAsync(device_address(dst), device_address(src), bytes, queue));
    default: return failed(hipErrorInvalidMemcpyDirection);
  }
}

hipError_t hipMemsetAsync(void* dst, int value, size_t bytes, hipStream_t stream) {
  STRATA_ENTER(enter);
  if (bytes == 0) return hipSuccess;
  if (dst == nullptr) return failed(hipErrorInvalidValue);
  STRATA_ENTER(enter_context);
  return settle(driver.cuMemsetD8Async(device_address(dst), static_cast<unsigned char>(value), bytes,
                                       reinterpret_cast<CUstream>(stream)));
}
