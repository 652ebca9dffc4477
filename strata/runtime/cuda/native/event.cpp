// HIP's events: the driver's own handles. The disable-timing flag has the driver's value.
//
// The blocking-sync flag is honoured here and not by the driver, whose blocking events raise an interrupt
// each time they complete: the device pays that at every record, also where nobody waits on the host.
#include <algorithm>
#include <chrono>
#include <thread>

#include "context.hpp"

using namespace strata_cuda;

namespace {

CUevent event_of(hipEvent_t event) { return reinterpret_cast<CUevent>(event); }

// Spins for as long as a hand-over takes, then sleeps in growing steps: the waiting thread leaves its
// processor to others.
[[maybe_unused]] constexpr std::chrono::microseconds kSpin{15}, kFirstSleep{10}, kLongestSleep{100};

CUresult wait_until_done(CUevent event) {
  using clock = std::chrono::steady_clock;
  const auto spin_end = clock::now() + kSpin;
  [[maybe_unused]] auto pause = kFirstSleep;
  for (;;) {
    const CUresult status = driver.cuEventQuery(event);
    if (status != static_cast<CUresult>(hipErrorNotReady)) return status;
    if (clock::now() < spin_end) continue;
#if defined(_WIN32)
    std::this_thread::yield();  // the shortest sleep there is many copies long: up to 15.6 ms
#else
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestSleep);
#endif
  }
}

}  // namespace

hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned int flags) {
  STRATA_ENTER(enter_context);
  if (event == nullptr) return failed(hipErrorInvalidValue);
  return settle(driver.cuEventCreate(reinterpret_cast<CUevent*>(event), flags & ~hipEventBlockingSync));
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
  return settle(wait_until_done(event_of(event)));
}

hipError_t hipEventElapsedTime(float* ms, hipEvent_t start, hipEvent_t stop) {
  STRATA_ENTER(enter_context);
  if (ms == nullptr) return failed(hipErrorInvalidValue);
  if (start == nullptr || stop == nullptr) return failed(hipErrorInvalidHandle);
  return settle(driver.cuEventElapsedTime(ms, event_of(start), event_of(stop)));
}
