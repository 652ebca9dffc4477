// HIP's streams: the driver's own handles.
#include <cstdint>

#include "context.hpp"

using namespace strata_cuda;

namespace {

// 0 and 1 (hipStreamLegacy) are the null stream, 2 (hipStreamPerThread) the calling thread's own: the driver gives
// these numbers the same meaning, so they are handed on as they are. Each is the current device's; none ends.
bool is_implicit(hipStream_t stream) { return reinterpret_cast<std::uintptr_t>(stream) <= 2; }

CUstream queue_of(hipStream_t stream) { return reinterpret_cast<CUstream>(stream); }

}  // namespace

hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned int flags) {
  STRATA_ENTER(enter_context);
  if (stream == nullptr) return failed(hipErrorInvalidValue);
  return settle(driver.cuStreamCreate(reinterpret_cast<CUstream*>(stream), flags));
}

hipError_t hipStreamDestroy(hipStream_t stream) {
  STRATA_ENTER(enter_context);
  if (is_implicit(stream)) return failed(hipErrorInvalidHandle);
  return settle(driver.cuStreamDestroy(queue_of(stream)));
}

hipError_t hipStreamSynchronize(hipStream_t stream) {
  STRATA_ENTER(enter_context);
  return settle(driver.cuStreamSynchronize(queue_of(stream)));
}

hipError_t hipStreamQuery(hipStream_t stream) {
  STRATA_ENTER(enter_context);
  return settle(driver.cuStreamQuery(queue_of(stream)));
}

hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned int flags) {
  STRATA_ENTER(enter_context);
  if (event == nullptr) return failed(hipErrorInvalidHandle);
  return settle(driver.cuStreamWaitEvent(queue_of(stream), reinterpret_cast<CUevent>(event), flags));
}

hipError_t hipStreamGetDevice(hipStream_t stream, int* device) {
  STRATA_ENTER(enter_context);
  if (device == nullptr) return failed(hipErrorInvalidValue);
  if (is_implicit(stream)) return current_device(device);
  CUcontext context = nullptr;
  CUresult status = driver.cuStreamGetCtx(queue_of(stream), &context);
  if (status != kCudaSuccess) return settle(status);
  // The driver tells the device of the current context only.
  status = driver.cuCtxPushCurrent(context);
  if (status != kCudaSuccess) return settle(status);
  CUdevice handle = 0;
  status = driver.cuCtxGetDevice(&handle);
  CUcontext popped = nullptr;
  CUresult restored = driver.cuCtxPopCurrent(&popped);
  if (status != kCudaSuccess) return settle(status);
  if (restored != kCudaSuccess) return settle(restored);
  return ordinal_of(handle, device);
}

hipError_t hipLaunchHostFunc(hipStream_t stream, hipHostFn_t fn, void* user_data) {
  STRATA_ENTER(enter_context);
  if (fn == nullptr) return failed(hipErrorInvalidValue);
  return settle(driver.cuLaunchHostFunc(queue_of(stream), reinterpret_cast<CUhostFn>(fn), user_data));
}
