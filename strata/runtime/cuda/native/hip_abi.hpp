// The HIP ABI that this library implements, with its functions declared for export.
#pragma once

#define STRATA_HIP_DECLARE_FUNCTIONS
#include "hip/hip_runtime.h"

#if defined(__GNUC__)
#define STRATA_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define STRATA_COLD __attribute__((noinline, cold))
#else
#define STRATA_LIKELY(condition) (condition)
#define STRATA_COLD __declspec(noinline)
#endif
