// Control functions about faults, costs and the log of calls.

#include <algorithm>

#include "control.h"
#include "control_support.hpp"
#include "costs.hpp"
#include "faults.hpp"

using namespace strata::software;

namespace {

bool cost_kind(const char* name, CostKind* kind) {
  if (name != nullptr && cost_of(name, kind)) return true;
  std::string allowed;
  for (std::size_t i = 0; i < kCostKinds; ++i) {
    allowed += std::string(" ") + cost_name(static_cast<CostKind>(i));
  }
  control_failure("kind='" + std::string(name == nullptr ? "" : name) + "': allowed are" + allowed);
  return false;
}

Stream* known_stream(const void* handle) {
  Stream* found = find_stream(handle);
  if (found == nullptr) no_such_stream(handle);
  return found;
}

}  // namespace

extern "C" {

int strata_sw_set_cost(const char* kind, int64_t host_ns, int64_t stream_ns) {
  CostKind found;
  if (!control_ready() || !cost_kind(kind, &found)) return -1;
  if (host_ns < 0 || stream_ns < 0) {
    return control_failure("host_ns=" + std::to_string(host_ns) + ", stream_ns=" + std::to_string(stream_ns) +
                           ": 0 and more is allowed");
  }
  set_cost(found, host_ns, stream_ns);
  return 0;
}

int strata_sw_set_byte_cost(double ns_per_byte) {
  if (!control_ready()) return -1;
  if (!(ns_per_byte >= 0.0 && ns_per_byte <= 1e6)) {
    return control_failure("ns_per_byte=" + std::to_string(ns_per_byte) + ": 0 to 1e6 is allowed");
  }
  set_byte_cost(ns_per_byte);
  return 0;
}

int strata_sw_clear_costs(void) { return when_ready(clear_costs); }

int strata_sw_spent(const char* kind, uint64_t* host_ns, uint64_t* stream_ns, uint64_t* operations) {
  CostKind found;
  if (!control_ready() || !cost_kind(kind, &found)) return -1;
  const CostTotals totals = cost_totals();
  const auto at = static_cast<std::size_t>(found);
  if (host_ns != nullptr) *host_ns = totals.host_ns[at];
  if (stream_ns != nullptr) *stream_ns = totals.stream_ns[at];
  if (operations != nullptr) *operations = totals.operations[at];
  return 0;
}

int64_t strata_sw_stream_clock(const void* stream) {
  if (!control_ready()) return -1;
  Stream* found = known_stream(stream);
  return found == nullptr ? -1 : stream_clock(*found);
}

int strata_sw_delay(const void* stream, int64_t ns) {
  if (!control_ready()) return -1;
  if (ns < 0) return control_failure("ns=" + std::to_string(ns) + ": 0 and more is allowed");
  Stream* found = known_stream(stream);
  if (found == nullptr) return -1;
  Op op;
  op.kind = OpKind::Delay;
  op.delay_ns = ns;
  const hipError_t status = submit(*found, std::move(op));
  return status == hipSuccess ? 0 : control_failure(std::string("the delay was refused: ") + hipGetErrorName(status));
}

uint64_t strata_sw_inject(const char* call, uint64_t nth, int status, const char* action, const char* thread) {
  if (!control_ready()) return 0;
  constexpr const char* kActions[] = {"fail", "ignore", "hang"};
  const auto refuse = [](const std::string& problem) {
    control_failure(problem);
    return std::uint64_t{0};
  };
  Injection injection;
  const std::string function = call == nullptr ? "" : call, what = action == nullptr ? "" : action;
  if (!fn_of(function.c_str(), &injection.fn)) {
    return refuse("call='" + function + "': no HIP function of this runtime");
  }
  if (nth == 0) return refuse("nth=0: calls are counted from 1");
  if (!find_name(kActions, what.c_str(), &injection.action)) {
    return refuse("action='" + what + "': fail, ignore and hang are allowed");
  }
  if (injection.action == FaultAction::Fail && status == hipSuccess) {
    return refuse("status=0: a call that fails needs a status");
  }
  injection.nth = nth;
  injection.status = status;
  if (thread != nullptr) injection.thread = thread;
  return inject(injection);
}

int strata_sw_injection_fired(uint64_t injection) {
  if (!control_ready()) return -1;
  bool fired = false;
  if (injection_fired(injection, &fired)) return fired ? 1 : 0;
  return control_failure("injection=" + std::to_string(injection) + ": cleared, or never made");
}

int strata_sw_clear_injections(void) { return when_ready(clear_injections); }

int64_t strata_sw_hanging_calls(void) {
  return control_ready() ? static_cast<std::int64_t>(hanging_calls()) : -1;
}

int strata_sw_release_hangs(void) { return when_ready(release_hangs); }

int strata_sw_fail_operation(uint64_t nth, int status, int sticky) {
  if (!control_ready()) return -1;
  if (nth == 0 || status == hipSuccess) {
    return control_failure("nth=" + std::to_string(nth) + ", status=" + std::to_string(status) +
                           ": both count from 1");
  }
  fail_copy(nth, status, sticky != 0);
  return 0;
}

int strata_sw_lose_device(int status) {
  if (!control_ready()) return -1;
  if (status == hipSuccess) return control_failure("status=0: a lost device needs a status");
  lose_device(status);
  return 0;
}

int strata_sw_restore_device(void) {
  if (!control_ready()) return -1;
  return restore_device() ? 0 : control_failure("the device is not lost");
}

int strata_sw_thread_role(const char* role) {
  return when_ready([=] { set_thread_role(role); });
}

int strata_sw_call_log(int on) {
  return when_ready([=] { log_calls(on != 0); });
}

int64_t strata_sw_logged_calls(strata_sw_logged_call* calls, size_t capacity) {
  if (!control_ready()) return -1;
  const std::vector<LoggedCall> log = call_log();
  for (std::size_t i = 0; i < std::min(capacity, log.size()); ++i) {
    const LoggedCall& from = log[i];
    strata_sw_logged_call& to = calls[i];
    to = strata_sw_logged_call{};
    to.number = from.number;
    to.function = fn_name(from.site.fn);
    to.stream = from.site.stream;
    to.event = from.site.event;
    to.address = from.site.address;
    to.bytes = from.site.bytes;
    to.entry = from.label[0];
    to.slot = from.label[1];
    to.generation = from.label[2];
    to.thread_number = from.thread_number;
    put(to.thread, from.thread);
    to.intercepted = from.intercepted ? 1 : 0;
  }
  return static_cast<std::int64_t>(log.size());
}

}  // extern "C"
