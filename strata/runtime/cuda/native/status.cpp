#include "status.hpp"

#include "../../hip_statuses.hpp"

namespace strata_cuda {
namespace {

thread_local hipError_t last_error = hipSuccess;

// Numbers that differ though the meaning is the same.
constexpr struct {
  CUresult driver;
  int hip;
} kRenumbered[] = {
    {kCudaInvalidClusterSize, 1054},
};

// Under three numbers of HIP's (911, 912, 916) the driver reports something else: those get the driver's own name.
const strata_hip::StatusText* find_status(int status) {
  const bool another = status == 911 || status == 912 || status == 916;
  return another ? nullptr : strata_hip::find_status(status);
}

using DriverText = CUresult(STRATA_CUDA_CALL*)(CUresult, const char**);

// The driver's words for a status that HIP does not have. Does not open the driver: such a status can only
// have come from one that is open.
const char* ask_driver(DriverText Driver::*function, hipError_t status, const char* otherwise) {
  if (phase.load(std::memory_order_acquire) != Phase::ready) return otherwise;
  const char* text = nullptr;
  CUresult answer = (driver.*function)(static_cast<CUresult>(status), &text);
  return answer == kCudaSuccess && text != nullptr ? text : otherwise;
}

}  // namespace

hipError_t from_driver(CUresult status) {
  for (const auto& entry : kRenumbered) {
    if (entry.driver == status) return static_cast<hipError_t>(entry.hip);
  }
  return static_cast<hipError_t>(status);
}

hipError_t failed(hipError_t status) {
  if (status != hipErrorNotReady) last_error = status;  // HIP 7: an answer, no error
  return status;
}

}  // namespace strata_cuda

using namespace strata_cuda;

hipError_t hipGetLastError(void) {
  hipError_t status = last_error;
  last_error = hipSuccess;
  return status;
}

hipError_t hipPeekAtLastError(void) { return last_error; }

const char* hipGetErrorName(hipError_t status) {
  const strata_hip::StatusText* entry = find_status(static_cast<int>(status));
  return entry != nullptr ? entry->name : ask_driver(&Driver::cuGetErrorName, status, "hipErrorUnknown");
}

const char* hipGetErrorString(hipError_t status) {
  const strata_hip::StatusText* entry = find_status(static_cast<int>(status));
  return entry != nullptr ? entry->text : ask_driver(&Driver::cuGetErrorString, status, "unknown error");
}
