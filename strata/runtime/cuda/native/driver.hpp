// The driver library: opened once per process, at the first call that needs it.
#pragma once

#include <atomic>

#include "driver_api.hpp"
#include "hip_abi.hpp"

namespace strata_cuda {

// The resolved symbols. Written once while the phase is `opening`, read-only afterwards.
struct Driver {
#define STRATA_CUDA_MEMBER(name, symbol, parameters) CUresult(STRATA_CUDA_CALL* name) parameters;
  STRATA_CUDA_REQUIRED(STRATA_CUDA_MEMBER)
  STRATA_CUDA_OPTIONAL(STRATA_CUDA_MEMBER)
#undef STRATA_CUDA_MEMBER
};

enum class Phase : int {
  untouched,  // no call yet
  opening,    // one thread opens the library, others wait
  ready,      // library, symbols and at least one device are there
  unusable,   // something is missing; driver_problem() says what
  forked,     // this process is a child of one in which the phase was opening or ready
};

extern Driver driver;
extern std::atomic<Phase> phase;

// Opens the driver if that was not tried yet; the status that calls have to return, not yet recorded as
// last error. Safe from any thread.
hipError_t open_driver();

// Why the driver cannot be used, as one sentence; empty where it can. Valid after open_driver().
const char* driver_problem();

// Number of devices and their driver handles; valid once the phase is `ready`.
int device_count();
CUdevice device_handle(int ordinal);

}  // namespace strata_cuda
