// The entrance of every HIP function: counted, and let through, answered or refused.
#pragma once

#include <array>
#include <cstdint>

#include "mode.hpp"
#include "thread_state.hpp"

namespace strata::software {

#define STRATA_SW_FUNCTIONS(X) \
  X(GetDeviceCount)            \
  X(GetDevice)                 \
  X(SetDevice)                 \
  X(DeviceGetName)             \
  X(DeviceGetAttribute)        \
  X(DeviceSynchronize)         \
  X(RuntimeGetVersion)         \
  X(DriverGetVersion)          \
  X(MemGetInfo)                \
  X(GetLastError)              \
  X(PeekAtLastError)           \
  X(Malloc)                    \
  X(Free)                      \
  X(HostMalloc)                \
  X(HostFree)                  \
  X(HostRegister)              \
  X(HostUnregister)            \
  X(PointerGetAttributes)      \
  X(Memcpy)                    \
  X(MemcpyAsync)               \
  X(MemcpyBatchAsync)          \
  X(MemsetAsync)               \
  X(StreamCreateWithFlags)     \
  X(StreamDestroy)             \
  X(StreamSynchronize)         \
  X(StreamQuery)               \
  X(StreamWaitEvent)           \
  X(StreamGetDevice)           \
  X(LaunchHostFunc)            \
  X(EventCreateWithFlags)      \
  X(EventDestroy)              \
  X(EventRecord)               \
  X(EventQuery)                \
  X(EventSynchronize)          \
  X(EventElapsedTime)          \
  X(Init)                      \
  X(DeviceReset)               \
  X(GetDeviceProperties)       \
  X(DeviceGetStreamPriorityRange) \
  X(HostAlloc)                 \
  X(FreeHost)                  \
  X(HostGetDevicePointer)      \
  X(HostGetFlags)              \
  X(PointerGetAttribute)       \
  X(MallocAsync)               \
  X(FreeAsync)                 \
  X(Memset)                    \
  X(MemcpyHtoD)                \
  X(MemcpyDtoH)                \
  X(MemcpyDtoD)                \
  X(MemcpyHtoDAsync)           \
  X(MemcpyDtoHAsync)           \
  X(MemcpyDtoDAsync)           \
  X(MemcpyWithStream)          \
  X(MemcpyPeer)                \
  X(MemcpyPeerAsync)           \
  X(StreamCreate)              \
  X(StreamCreateWithPriority)  \
  X(StreamGetFlags)            \
  X(StreamGetPriority)         \
  X(EventCreate)

enum class Fn : std::uint8_t {
#define STRATA_SW_ENUM(name) name,
  STRATA_SW_FUNCTIONS(STRATA_SW_ENUM)
#undef STRATA_SW_ENUM
      kCount
};

constexpr std::size_t kFnCount = static_cast<std::size_t>(Fn::kCount);

const char* fn_name(Fn fn) noexcept;               // "hipMemcpyAsync"
bool fn_of(const char* name, Fn* out) noexcept;    // with or without the "hip"
std::array<std::uint64_t, kFnCount> call_counts(); // of all threads, since the last reset
void reset_call_counts();

// What a call is about, for the log of calls.
struct CallSite {
  Fn fn;
  const void* stream = nullptr;
  const void* event = nullptr;
  const void* address = nullptr;
  std::size_t bytes = 0;
};

constexpr bool is_copy(Fn fn) {
  return fn == Fn::Memcpy || fn == Fn::MemcpyAsync || fn == Fn::MemcpyBatchAsync || fn == Fn::MemcpyHtoD ||
         fn == Fn::MemcpyDtoH || fn == Fn::MemcpyDtoD || fn == Fn::MemcpyHtoDAsync || fn == Fn::MemcpyDtoHAsync ||
         fn == Fn::MemcpyDtoDAsync || fn == Fn::MemcpyWithStream || fn == Fn::MemcpyPeer ||
         fn == Fn::MemcpyPeerAsync;
}

// Accepted without effect in null mode.
constexpr bool accepted_in_null_mode(Fn fn) {
  return is_copy(fn) || fn == Fn::Memset || fn == Fn::MemsetAsync || fn == Fn::DeviceSynchronize || fn == Fn::StreamSynchronize || fn == Fn::StreamQuery ||
         fn == Fn::StreamWaitEvent || fn == Fn::LaunchHostFunc || fn == Fn::EventRecord ||
         fn == Fn::EventQuery || fn == Fn::EventSynchronize;
}

class Call {
 public:
  explicit Call(Fn fn, const void* stream = nullptr, const void* event = nullptr,
                const void* address = nullptr, std::size_t bytes = 0) {
    count(fn);
    const std::uint32_t bits = mode();
    if (bits == kModeNull && accepted_in_null_mode(fn)) {
      answered_ = true;
      return;
    }
    checked_ = (bits & kModeChecker) != 0;
    if (__builtin_expect(bits != 0, 0)) special(CallSite{fn, stream, event, address, bytes}, bits);
  }

  // The call is over before it began: return status().
  bool answered() const noexcept { return answered_; }
  hipError_t status() const noexcept { return status_; }

  // The happens-before checker wants to know of it.
  bool checked() const noexcept { return checked_; }

  // Every way out of a HIP function: stores a failure as the thread's last error.
  hipError_t finish(hipError_t status) const noexcept {
    if (status == hipSuccess) status = afterwards_;
    store_error(status);
    return status;
  }

 private:
  static void count(Fn fn) {
    if (__builtin_expect(t_thread.counts == nullptr, 0)) adopt_thread();
    std::atomic<std::uint64_t>& counter = t_thread.counts[static_cast<std::size_t>(fn)];
    counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  // HIP 7: "not ready" is an answer, no error, and is not stored.
  static void store_error(hipError_t status) noexcept {
    if (status != hipSuccess && status != hipErrorNotReady) t_thread.last_error = status;
  }

  static void adopt_thread();
  void special(const CallSite& site, std::uint32_t bits);
  void answer(hipError_t status) noexcept;

  bool answered_ = false;
  bool checked_ = false;
  hipError_t status_ = hipSuccess;
  hipError_t afterwards_ = hipSuccess;  // a lost device, reported by a call that still did its work
};

// Begins a HIP function, and leaves it where the call is answered already.
#define STRATA_SW_ENTER(call, ...) \
  const Call call(__VA_ARGS__);    \
  if (call.answered()) return call.status()

// The status of refused calls (kModeRefused, kModeLost), and how it comes about.
extern std::atomic<int> g_refusal;

}  // namespace strata::software
