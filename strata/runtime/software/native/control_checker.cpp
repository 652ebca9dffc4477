// Control functions of the happens-before checker.

#include <algorithm>

#include "checker.hpp"
#include "control.h"
#include "control_support.hpp"

using namespace strata::software;

namespace {

void describe(strata_sw_access& into, const AccessRecord& access, const std::string& stream) {
  put(into.operation, access.operation);
  put(into.stream, stream);
  put(into.thread, access.thread);
  into.stream_handle = access.stream;
  into.address = reinterpret_cast<const void*>(access.begin);
  into.bytes = access.end - access.begin;
  into.entry = access.label[0];
  into.slot = access.label[1];
  into.generation = access.label[2];
  into.serial = access.serial;
}

bool checking() noexcept { return mode_has(kModeChecker); }

}  // namespace

extern "C" {

int strata_sw_checker(int on) { return when_ready(on != 0 ? checker_start : checker_stop); }

void strata_sw_host_read(const void* address, size_t bytes) {
  if (checking()) checker_host_access(address, bytes, false);
}

void strata_sw_host_write(const void* address, size_t bytes) {
  if (checking()) checker_host_access(address, bytes, true);
}

void strata_sw_handover_release(const void* token) {
  if (checking()) checker_hand_over(token);
}

void strata_sw_handover_acquire(const void* token) {
  if (checking()) checker_take_over(token);
}

void strata_sw_label(int64_t entry, int64_t slot, int64_t generation) {
  t_thread.label[0] = entry;
  t_thread.label[1] = slot;
  t_thread.label[2] = generation;
}

void strata_sw_next_host_func_accesses(const strata_sw_range* ranges, size_t count) {
  if (!checking()) return;
  std::vector<AnnouncedAccess> accesses;
  for (std::size_t i = 0; i < count; ++i) {
    accesses.push_back({ranges[i].address, ranges[i].bytes, ranges[i].write != 0});
  }
  checker_next_host_function(std::move(accesses));
}

int strata_sw_name(const void* handle, const char* name) {
  if (!control_ready()) return -1;
  if (name == nullptr) return control_failure("name=NULL: a text is needed");
  checker_name(handle, name);
  return 0;
}

int64_t strata_sw_findings(strata_sw_finding* out, size_t capacity) {
  if (!control_ready()) return -1;
  const std::vector<Finding> found = findings();
  for (std::size_t i = 0; i < std::min(capacity, found.size()); ++i) {
    const Finding& from = found[i];
    strata_sw_finding& to = out[i];
    to = strata_sw_finding{};
    describe(to.earlier, *from.earlier, from.earlier_stream);
    describe(to.later, *from.later, from.later_stream);
    to.address = reinterpret_cast<const void*>(from.begin);
    to.bytes = from.end - from.begin;
    to.missing_event = from.missing_event;
    put(to.missing_name, from.missing_name);
    put(to.text, from.text);
  }
  return static_cast<std::int64_t>(found.size());
}

int64_t strata_sw_finding_count(void) {
  return control_ready() ? static_cast<std::int64_t>(finding_count()) : -1;
}

int strata_sw_clear_findings(void) { return when_ready(clear_findings); }

int64_t strata_sw_checked_accesses(void) {
  return control_ready() ? static_cast<std::int64_t>(checked_accesses()) : -1;
}

}  // extern "C"
