// Which device and context a call runs on.
//
// The driver's current context of the calling thread is the truth, because torch changes it on the same
// threads. Where a thread has none, the primary context of the thread's device (hipSetDevice, else 0) is
// made current: it is the one that torch uses, so streams, events and memory are shared with it.
#pragma once

#include "status.hpp"

namespace strata_cuda {

// Cold ends of the two functions below: both record the failure they return.
STRATA_COLD hipError_t enter_slowly();
STRATA_COLD hipError_t adopt_context(CUresult status);

// Begins a call that needs the driver, but no context.
inline hipError_t enter() {
  return STRATA_LIKELY(phase.load(std::memory_order_acquire) == Phase::ready) ? hipSuccess : enter_slowly();
}

// Begins a call that needs a context.
inline hipError_t enter_context() {
  if (!STRATA_LIKELY(phase.load(std::memory_order_acquire) == Phase::ready)) {
    hipError_t status = enter_slowly();
    if (status != hipSuccess) return status;
  }
  CUcontext current = nullptr;
  CUresult status = driver.cuCtxGetCurrent(&current);
  return STRATA_LIKELY(status == kCudaSuccess && current != nullptr) ? hipSuccess : adopt_context(status);
}

// The device of the calling thread; the driver must be open. A failure is recorded.
hipError_t current_device(int* device);

// Makes the device's primary context current on the calling thread; the driver must be open.
hipError_t set_device(int device);

// The ordinal of a driver's device handle.
hipError_t ordinal_of(CUdevice handle, int* device);

}  // namespace strata_cuda

// Leaves a HIP function early where the call cannot begin. The failure is recorded already.
#define STRATA_ENTER(begin)                                    \
  do {                                                         \
    hipError_t entered = begin();                              \
    if (!STRATA_LIKELY(entered == hipSuccess)) return entered; \
  } while (0)
