#define STRATA_HIP_DECLARE_FUNCTIONS 1
#include <hip/hip_runtime.h>

#include "../../hip_statuses.hpp"

extern "C" const char* hipGetErrorName(hipError_t status) {
  const strata_hip::StatusText* entry = strata_hip::find_status(status);
  return entry != nullptr ? entry->name : "hipErrorUnknown";
}

extern "C" const char* hipGetErrorString(hipError_t status) {
  const strata_hip::StatusText* entry = strata_hip::find_status(status);
  return entry != nullptr ? entry->text : "unknown error";
}
