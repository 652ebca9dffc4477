// HIP's events: the driver's own handles. Blocking-sync and disable-timing flags have the driver's values.
#include "context.hpp"

using namespace strata_cuda;

namespace {

CUevent event_of(hipEvent_t event) { return reinterpret_cast<CUevent>(event); }

}  // namespace

hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned int flags) {
  STRATA_ENTER(enter_context);
  if (event == nullptr) return failed(hipErrorInvalidValue);
  return settle(driver.cuEventCreate(reinterpret_cast<CUevent*>(event), flags));
}

hipError_t hipEventDestroy(hipEvent_t event) {
  STRATA_ENTER(enter_context);
  if (event == nullptr) return failed(hipErrorInvalidHandle);
  return settle(driver.cuEventDestroy(event_of(event)));
}

hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
  STRATA_ENTER(enter_context);
  if (event == nullptr) return failed(hipErrorInvalidHandle);
  return settle(driver.cuEventRecord(event_of(event), reinterpret_cast<CUstream>(stream)));
}

hipError_t hipEventQuery(hipEvent_t event) {
  STRATA_ENTER(enter_context);
  if (event == nullptr) return failed(hipErrorInvalidHandle);
  return settle(driver.cuEventQuery(event_of(event)));
}

hipError_t hipEventSynchronize(hipEvent_t event) {
  STRATA_ENTER(enter_context);
  if (event == nullptr) return failed(hipErrorInvalidHandle);
  return settle(driver.cuEventSynchronize(event_of(event)));
}

hipError_t hipEventElapsedTime(float* ms, hipEvent_t start, hipEvent_t stop) {
  STRATA_ENTER(enter_context);
  if (ms == nullptr) return failed(hipErrorInvalidValue);
  if (start == nullptr || stop == nullptr) return failed(hipErrorInvalidHandle);
  return settle(driver.cuEventElapsedTime(ms, event_of(start), event_of(stop)));
}
