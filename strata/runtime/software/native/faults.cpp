#include "faults.hpp"

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>

#include "demand.hpp"
#include "holds.hpp"
#include "runtime.hpp"

namespace strata::software {

std::atomic<bool> g_copy_fault_armed{false};

namespace {

struct Armed {
  Injection injection;
  std::uint64_t seen = 0;
  bool fired = false;
};

struct Faults {
  std::mutex mutex;
  std::map<std::uint64_t, Armed> injections;
  std::uint64_t last_injection = 0;
  bool logging = false;
  std::vector<LoggedCall> log;
  std::set<std::string> roles;  // never shrinks: threads point into it

  std::condition_variable hangs_released;
  std::uint64_t hang_generation = 0;
  std::uint64_t hanging = 0;

  std::uint64_t copies_left = 0;
  int copy_status = hipSuccess;
  bool copy_sticky = false;
};

Faults& faults() {
  static Faults* const kept = new Faults;
  return *kept;
}

void update_mode(const Faults& f) {
  bool waiting = f.logging;
  for (const auto& [number, armed] : f.injections) waiting = waiting || !armed.fired;
  set_mode(kModeHooks, waiting);
}

// With the lock held: the injection that this call triggers.
const Injection* trigger(Faults& f, const CallSite& site, const std::string& thread) {
  const Injection* triggered = nullptr;
  for (auto& [number, armed] : f.injections) {
    const Injection& wanted = armed.injection;
    if (armed.fired || wanted.fn != site.fn || (!wanted.thread.empty() && wanted.thread != thread)) continue;
    if (armed.seen + 1 == wanted.nth && triggered != nullptr) continue;  // one strikes at a time
    if (++armed.seen != wanted.nth) continue;
    armed.fired = true;
    triggered = &wanted;
  }
  return triggered;
}

// Sets the device lost without taking the demand scheduler's lock, which the caller may hold.
void declare_loss(int status) {
  g_refusal.store(status);
  set_mode(kModeLost, true);
  open_all_latches();
}

}  // namespace

bool intercept(const CallSite& site, hipError_t* status) {
  Faults& f = faults();
  const std::string thread = thread_role();
  std::unique_lock<std::mutex> lock(f.mutex);
  const Injection* found = trigger(f, site, thread);
  if (f.logging) {
    LoggedCall call;
    call.number = f.log.size() + 1;
    call.site = site;
    call.thread = thread;
    call.thread_number = thread_number();
    for (int i = 0; i < 3; ++i) call.label[i] = t_thread.label[i];
    call.intercepted = found != nullptr;
    f.log.push_back(std::move(call));
  }
  if (found == nullptr) return false;
  const Injection injection = *found;
  update_mode(f);
  if (injection.action == FaultAction::Hang) {
    const std::uint64_t generation = f.hang_generation;
    ++f.hanging;
    f.hangs_released.wait(lock, [&] { return f.hang_generation != generation; });
    --f.hanging;
    if (injection.status == hipSuccess) return false;  // goes on as if nothing had been
  }
  *status = injection.action == FaultAction::Ignore ? hipSuccess : static_cast<hipError_t>(injection.status);
  return true;
}

std::uint64_t inject(const Injection& injection) {
  Faults& f = faults();
  std::lock_guard<std::mutex> lock(f.mutex);
  f.injections[++f.last_injection].injection = injection;
  update_mode(f);
  return f.last_injection;
}

bool injection_fired(std::uint64_t number, bool* fired) {
  Faults& f = faults();
  std::lock_guard<std::mutex> lock(f.mutex);
  const auto found = f.injections.find(number);
  if (found == f.injections.end()) return false;
  *fired = found->second.fired;
  return true;
}

void clear_injections() {
  Faults& f = faults();
  std::lock_guard<std::mutex> lock(f.mutex);
  f.injections.clear();
  f.copies_left = 0;
  g_copy_fault_armed.store(false);
  update_mode(f);
}

std::uint64_t hanging_calls() {
  std::lock_guard<std::mutex> lock(faults().mutex);
  return faults().hanging;
}

void release_hangs() {
  Faults& f = faults();
  std::lock_guard<std::mutex> lock(f.mutex);
  ++f.hang_generation;
  f.hangs_released.notify_all();
}

void log_calls(bool on) {
  Faults& f = faults();
  std::lock_guard<std::mutex> lock(f.mutex);
  if (on) f.log.clear();
  f.logging = on;
  update_mode(f);
}

std::vector<LoggedCall> call_log() {
  std::lock_guard<std::mutex> lock(faults().mutex);
  return faults().log;
}

std::string thread_role() {
  if (t_thread.role != nullptr) return t_thread.role;
  char name[32];
  thread_name(name, sizeof name);
  return name;
}

void set_thread_role(const char* role) {
  if (role == nullptr || *role == '\0') {
    t_thread.role = nullptr;
    return;
  }
  std::lock_guard<std::mutex> lock(faults().mutex);
  t_thread.role = faults().roles.insert(role).first->c_str();
}

void fail_copy(std::uint64_t nth, int status, bool sticky) {
  Faults& f = faults();
  std::lock_guard<std::mutex> lock(f.mutex);
  f.copies_left = nth;
  f.copy_status = status;
  f.copy_sticky = sticky;
  g_copy_fault_armed.store(true);
}

bool copy_fails(Stream& stream, std::uint64_t seq) {
  int status = hipSuccess;
  {
    Faults& f = faults();
    std::lock_guard<std::mutex> lock(f.mutex);
    if (f.copies_left == 0 || --f.copies_left != 0) return false;
    g_copy_fault_armed.store(false);
    status = f.copy_status;
    if (!f.copy_sticky) {
      stream.failed_status.store(status);
      stream.failed_seq.store(seq);
      return true;
    }
  }
  declare_loss(status);
  return true;
}

void lose_device(int status) {
  declare_loss(status);
  demand_drain();
}

bool restore_device() {
  if (!mode_has(kModeLost)) return false;
  open_all_latches();
  demand_drain();
  wait_device(-1);  // without effect, but to the end
  set_mode(kModeLost, false);
  g_refusal.store(hipSuccess);
  return true;
}

}  // namespace strata::software
