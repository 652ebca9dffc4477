// From the driver's statuses to HIP's, and the per-thread last error.
#pragma once

#include "driver.hpp"

namespace strata_cuda {

// HIP took its numbers from CUDA: where both name a failure they mostly share the number, and a failure that
// HIP does not know keeps the driver's. The exceptions are in the table behind this function.
hipError_t from_driver(CUresult status);

// Remembers a failure as this thread's last error and returns it.
STRATA_COLD hipError_t failed(hipError_t status);

// Ends a call with the driver's answer.
inline hipError_t settle(CUresult status) {
  return STRATA_LIKELY(status == kCudaSuccess) ? hipSuccess : failed(from_driver(status));
}

}  // namespace strata_cuda
