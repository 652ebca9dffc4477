#include "driver.hpp"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#if !defined(_WIN32)
#include <pthread.h>
#endif

#include "control.hpp"
#include "shared_library.hpp"

namespace strata_cuda {

Driver driver = {};
std::atomic<Phase> phase{Phase::untouched};

namespace {

#if defined(_WIN32)
constexpr const char* kDefaultLibrary = "nvcuda.dll";
#else
constexpr const char* kDefaultLibrary = "libcuda.so.1";
#endif

struct Opened {
  hipError_t status = hipSuccess;
  char problem[2048] = "";
  int devices = 0;
  CUdevice* handles = nullptr;
};

Opened opened;

// Callers that arrive while another thread opens the driver. Leaked, so that no destructor runs at exit
// under threads that still wait.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
};

Gate& gate() {
  static Gate* instance = new Gate;
  return *instance;
}

constexpr const char* kForkProblem =
    "the CUDA driver was opened before this process was forked: a child cannot use it "
    "(fork before the first use, or start the child with spawn)";

#if !defined(_WIN32)
void mark_child() {
  Phase now = phase.load(std::memory_order_relaxed);
  if (now == Phase::opening || now == Phase::ready) phase.store(Phase::forked, std::memory_order_relaxed);
}

// Registered when the library is loaded: a fork may come while another thread is opening the driver.
[[maybe_unused]] const int fork_watch = pthread_atfork(nullptr, nullptr, mark_child);
#endif

template <typename Function>
bool resolve(void* library, const char* symbol, Function& function) {
  void* address = find_symbol(library, symbol);
  static_assert(sizeof(function) == sizeof(address), "function pointers are plain addresses here");
  std::memcpy(&function, &address, sizeof(function));
  return address != nullptr;
}

// Resolves everything; appends each missing symbol's name to `missing`.
void resolve_all(void* library, char* missing, size_t bytes) {
  auto note = [&](const char* symbol) {
    size_t used = std::strlen(missing);
    std::snprintf(missing + used, bytes - used, "%s%s", used == 0 ? "" : ", ", symbol);
  };
#define STRATA_CUDA_RESOLVE(name, symbol, parameters) \
  if (!resolve(library, symbol, driver.name)) note(symbol);
  STRATA_CUDA_REQUIRED(STRATA_CUDA_RESOLVE)
#undef STRATA_CUDA_RESOLVE
#define STRATA_CUDA_RESOLVE(name, symbol, parameters) resolve(library, symbol, driver.name);
  STRATA_CUDA_OPTIONAL(STRATA_CUDA_RESOLVE)
#undef STRATA_CUDA_RESOLVE
}

// A failed start is told as "no device" or "no usable driver", never as the driver's own number: status 3
// among them means something else to HIP's callers.
hipError_t explain(const char* library, const char* call, CUresult status) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.cuGetErrorName(status, &name) != kCudaSuccess) name = nullptr;
  if (driver.cuGetErrorString(status, &text) != kCudaSuccess) text = nullptr;
  std::snprintf(opened.problem, sizeof(opened.problem),
                "the CUDA driver %s does not start: %s failed with %s (%d)%s%s", library, call,
                name != nullptr ? name : "an unnamed status", status, text != nullptr ? ": " : "",
                text != nullptr ? text : "");
  return status == kCudaNoDevice ? hipErrorNoDevice : hipErrorInsufficientDriver;
}

hipError_t start() {
  const char* library_name = std::getenv("STRATA_CUDA_DRIVER");
  if (library_name == nullptr || library_name[0] == '\0') library_name = kDefaultLibrary;

  char why[1024] = "";
  void* library = open_library(library_name, why, sizeof(why));
  if (library == nullptr) {
    std::snprintf(opened.problem, sizeof(opened.problem), "no CUDA driver: %s cannot be opened (%s)",
                  library_name, why);
    return hipErrorInsufficientDriver;
  }
  resolve_all(library, why, sizeof(why));
  if (why[0] != '\0') {
    std::snprintf(opened.problem, sizeof(opened.problem),
                  "the CUDA driver %s lacks %s: a driver for CUDA 10 or newer is needed", library_name, why);
    return hipErrorInsufficientDriver;
  }

  CUresult status = driver.cuInit(0);
  if (status != kCudaSuccess) return explain(library_name, "cuInit", status);
  int count = 0;
  status = driver.cuDeviceGetCount(&count);
  if (status != kCudaSuccess) return explain(library_name, "cuDeviceGetCount", status);
  if (count <= 0) {
    std::snprintf(opened.problem, sizeof(opened.problem), "the CUDA driver %s reports no device",
                  library_name);
    return hipErrorNoDevice;
  }
  opened.handles = new (std::nothrow) CUdevice[static_cast<size_t>(count)];
  if (opened.handles == nullptr) {
    std::snprintf(opened.problem, sizeof(opened.problem), "no memory for the handles of %d CUDA devices",
                  count);
    return hipErrorOutOfMemory;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    status = driver.cuDeviceGet(&opened.handles[ordinal], ordinal);
    if (status != kCudaSuccess) return explain(library_name, "cuDeviceGet", status);
  }
  opened.devices = count;
  return hipSuccess;
}

}  // namespace

hipError_t open_driver() {
  Phase now = phase.load(std::memory_order_acquire);
  if (now == Phase::ready) return hipSuccess;
  if (now == Phase::untouched && phase.compare_exchange_strong(now, Phase::opening)) {
    opened.status = start();
    std::lock_guard<std::mutex> lock(gate().mutex);
    phase.store(opened.status == hipSuccess ? Phase::ready : Phase::unusable, std::memory_order_release);
    gate().changed.notify_all();
    return opened.status;
  }
  if (now == Phase::opening) {
    std::unique_lock<std::mutex> lock(gate().mutex);
    gate().changed.wait(lock, [] { return phase.load(std::memory_order_acquire) != Phase::opening; });
  }
  return phase.load(std::memory_order_acquire) == Phase::forked ? hipErrorContextIsDestroyed : opened.status;
}

const char* driver_problem() {
  return phase.load(std::memory_order_acquire) == Phase::forked ? kForkProblem : opened.problem;
}

int device_count() { return opened.devices; }

CUdevice device_handle(int ordinal) { return opened.handles[ordinal]; }

}  // namespace strata_cuda

const char* strata_cuda_problem(void) {
  strata_cuda::open_driver();
  return strata_cuda::driver_problem();
}

int strata_cuda_has_batch(void) {
  using namespace strata_cuda;
  if (open_driver() != hipSuccess) return 0;
  return driver.cuMemcpyBatchAsync13 != nullptr || driver.cuMemcpyBatchAsync12 != nullptr ? 1 : 0;
}
