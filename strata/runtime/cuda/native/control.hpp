// What this library exports beside the HIP functions. Both calls open the driver if that was not tried yet,
// and are safe from any thread.
#pragma once

#include "hip_abi.hpp"

extern "C" {

// Why no device can be used, as one sentence: the library looked for and the loader's reason, a missing
// symbol, the status of cuInit, no device, or a fork. Empty where the runtime works. Never null; the text
// lives as long as the process.
STRATA_HIP_API const char* strata_cuda_problem(void);

// 1 where the driver has batched copies (CUDA 12.8 and newer), else 0.
STRATA_HIP_API int strata_cuda_has_batch(void);
}
