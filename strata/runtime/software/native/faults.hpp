// Faults on purpose: calls that fail, are ignored or hang; copies that fail when they run; a device
// that is lost. And the log of calls that says which call is the n-th.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "calls.hpp"

namespace strata::software {

struct Stream;

enum class FaultAction : std::uint8_t { Fail, Ignore, Hang };

struct Injection {
  Fn fn = Fn::kCount;
  std::uint64_t nth = 1;  // counted from the injection on
  int status = hipSuccess;
  FaultAction action = FaultAction::Fail;
  std::string thread;  // only calls of threads of this role or name; empty: of all
};

struct LoggedCall {
  std::uint64_t number = 0;
  CallSite site{};
  std::string thread;  // role, else name
  std::uint64_t thread_number = 0;
  std::int64_t label[3] = {-1, -1, -1};
  bool intercepted = false;
};

// True if the call is over: `*status` is its answer.
bool intercept(const CallSite& site, hipError_t* status);

std::uint64_t inject(const Injection& injection);
bool injection_fired(std::uint64_t number, bool* fired);  // false: no such injection
void clear_injections();
std::uint64_t hanging_calls();
void release_hangs();

void log_calls(bool on);  // turning it on begins an empty log
std::vector<LoggedCall> call_log();

// The role or else the name of the calling thread.
std::string thread_role();
void set_thread_role(const char* role);

extern std::atomic<bool> g_copy_fault_armed;
inline bool copy_fault_armed() noexcept { return g_copy_fault_armed.load(std::memory_order_relaxed); }
// Arms one failure: the `nth` copy that runs from now fails with `status`; nothing of it is copied.
// Sticky: the device is lost with it. Else whoever synchronizes with the copy, or with what comes
// after it in its stream, gets the status, until a stream or device synchronization reported it.
void fail_copy(std::uint64_t nth, int status, bool sticky);
// Whether the copy that is about to run as operation `seq` is the one that fails; if so, it has.
bool copy_fails(Stream& stream, std::uint64_t seq);

// Every later call answers `status`; what is pending ends without effect.
void lose_device(int status);
// Drained and usable again. False if the device was not lost.
bool restore_device();

}  // namespace strata::software
