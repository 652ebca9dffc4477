// Control functions about configuration, what is alive and what was called.

#include "control.h"

#include <cstdio>
#include <cstring>

#include "control_support.hpp"
#include "holds.hpp"
#include "memory.hpp"

namespace strata::software {

namespace {

thread_local std::string* t_problem = nullptr;

void end_problem(void* problem) {
  delete static_cast<std::string*>(problem);
  t_problem = nullptr;
}

template <std::size_t N>
std::string field_text(const char (&field)[N]) {
  return std::string(field, strnlen(field, N));
}

}  // namespace

int control_failure(std::string problem) {
  if (t_problem == nullptr) {
    t_problem = new std::string;
    at_thread_end(end_problem, t_problem);
  }
  *t_problem = std::move(problem);
  return -1;
}

void control_success() noexcept {
  if (t_problem != nullptr) t_problem->clear();
}

bool control_ready() {
  if (mode_has(kModeUnborn)) create_runtime();
  if (mode_has(kModeRefused) && g_refusal.load() == hipErrorContextIsDestroyed) {
    control_failure("this process was forked from one that had used the runtime");
    return false;
  }
  control_success();
  return true;
}

}  // namespace strata::software

using namespace strata::software;

extern "C" {

const char* strata_sw_problem(void) {
  return t_problem == nullptr || t_problem->empty() ? environment_problem().c_str() : t_problem->c_str();
}

int strata_sw_get_configuration(strata_sw_configuration* configuration) {
  if (!control_ready()) return -1;
  Runtime& rt = runtime();
  std::lock_guard<std::mutex> lock(rt.mutex);
  const Configuration& now = rt.configuration;
  std::memset(configuration, 0, sizeof *configuration);
  std::snprintf(configuration->schedule, sizeof configuration->schedule, "%s", schedule_name(now.schedule));
  configuration->seed = now.seed;
  configuration->pinned_limit = now.pinned_limit;
  configuration->device_memory = now.device_memory;
  configuration->devices = now.devices;
  configuration->idle_ms = static_cast<std::int32_t>(now.idle_ns / 1'000'000);
  configuration->max_pending = now.max_pending;
  std::snprintf(configuration->batch, sizeof configuration->batch, "%s", batch_name(now.batch));
  std::snprintf(configuration->batch_reads, sizeof configuration->batch_reads, "%s",
                batch_reads_name(now.batch_reads));
  configuration->batch_calls = now.batch_calls;
  std::snprintf(configuration->registration, sizeof configuration->registration, "%s",
                registration_name(now.registration));
  return 0;
}

int strata_sw_set_configuration(const strata_sw_configuration* configuration) {
  if (!control_ready()) return -1;
  Configuration wanted;
  const std::string schedule = field_text(configuration->schedule);
  if (!schedule_of(schedule.c_str(), &wanted.schedule)) {
    return control_failure("schedule='" + schedule +
                           "': eager, lazy, random, copies-first, compute-first, timed and null are allowed");
  }
  const std::string batch = field_text(configuration->batch);
  if (!batch_of(batch.c_str(), &wanted.batch)) {
    return control_failure("batch='" + batch + "': full, no-attributes and unsupported are allowed");
  }
  const std::string reads = field_text(configuration->batch_reads);
  if (!batch_reads_of(reads.c_str(), &wanted.batch_reads)) {
    return control_failure("batch_reads='" + reads + "': stream and call are allowed");
  }
  const std::string registration = field_text(configuration->registration);
  if (!registration_of(registration.c_str(), &wanted.registration)) {
    return control_failure("registration='" + registration + "': refuses and accepts are allowed");
  }
  if (configuration->idle_ms < 0) {
    return control_failure("idle_ms=" + std::to_string(configuration->idle_ms) + ": 0 and more is allowed");
  }
  wanted.seed = configuration->seed;
  wanted.pinned_limit = configuration->pinned_limit;
  wanted.device_memory = configuration->device_memory;
  wanted.devices = configuration->devices;
  wanted.max_pending = configuration->max_pending;
  wanted.batch_calls = configuration->batch_calls;
  wanted.idle_ns = std::int64_t{configuration->idle_ms} * 1'000'000;
  std::string problem;
  return apply_configuration(wanted, &problem) ? 0 : control_failure(problem);
}

int strata_sw_get_live(strata_sw_live* live) {
  if (!control_ready()) return -1;
  Runtime& rt = runtime();
  const MemoryUse use = memory_use();
  *live = strata_sw_live{};
  live->streams = rt.streams.live();
  live->events = rt.events.live();
  live->device_allocations = use.device_allocations;
  live->device_bytes = use.device_bytes;
  live->pinned_allocations = use.pinned_allocations;
  live->pinned_bytes = use.pinned_bytes;
  live->registered_ranges = use.registered_ranges;
  live->registered_bytes = use.registered_bytes;
  live->executor_threads = executor_threads();
  for (std::uint32_t place = 0; place < rt.streams.size(); ++place) {
    const Stream& stream = *rt.streams.at(place);
    const std::uint64_t done = stream.done.load();  // read first: never more than `tail`
    live->pending_operations += stream.tail.load() - done;
  }
  live->blocked_submissions = blocked_submissions();
  return 0;
}

const char* strata_sw_call_name(size_t index) {
  return index < kFnCount ? fn_name(static_cast<Fn>(index)) : nullptr;
}

int strata_sw_calls(uint64_t* counts, size_t count) {
  if (!control_ready()) return -1;
  const auto now = call_counts();
  for (std::size_t i = 0; i < count && i < kFnCount; ++i) counts[i] = now[i];
  return 0;
}

int strata_sw_reset_calls(void) {
  if (!control_ready()) return -1;
  reset_call_counts();
  return 0;
}

int strata_sw_stop_host_functions(int32_t timeout_ms) {
  if (!control_ready()) return -1;
  if (stop_host_functions(std::int64_t{timeout_ms} * 1'000'000)) return 0;
  return control_failure("a host function is still running after " + std::to_string(timeout_ms) + " ms");
}

uint64_t strata_sw_hold(const void* stream) {
  if (!control_ready()) return 0;
  Stream* found = find_stream(stream);
  const std::uint64_t number = found == nullptr ? 0 : hold_stream(*found);
  if (number == 0) {
    char text[64];
    std::snprintf(text, sizeof text, "stream=%p: not a stream of the software runtime", stream);
    control_failure(text);
  }
  return number;
}

int strata_sw_release(uint64_t hold) {
  if (!control_ready()) return -1;
  if (release_hold(hold)) return 0;
  return control_failure("hold=" + std::to_string(hold) + ": released already, or never made");
}

}  // extern "C"
