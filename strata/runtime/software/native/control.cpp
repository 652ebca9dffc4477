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

// Reads a choice by its name; notes the failure where there is no such name.
template <class Enum, std::size_t N, std::size_t Bytes>
bool read_choice(const char* what, const char (&field)[Bytes], const char* const (&names)[N], Enum* out) {
  const std::string given(field, strnlen(field, Bytes));
  if (find_name(names, given.c_str(), out)) return true;
  std::string allowed = names[0];
  for (std::size_t i = 1; i < N; ++i) allowed += std::string(i + 1 < N ? ", " : " and ") + names[i];
  control_failure(std::string(what) + "='" + given + "': " + allowed + " are allowed");
  return false;
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

void no_such_stream(const void* handle) {
  char text[64];
  std::snprintf(text, sizeof text, "stream=%p: not a stream of the software runtime", handle);
  control_failure(text);
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
  const Configuration now = strata::software::configuration();
  std::memset(configuration, 0, sizeof *configuration);
  put(configuration->schedule, kScheduleNames[static_cast<std::size_t>(now.schedule)]);
  configuration->seed = now.seed;
  configuration->pinned_limit = now.pinned_limit;
  configuration->device_memory = now.device_memory;
  configuration->devices = now.devices;
  configuration->idle_ms = static_cast<std::int32_t>(now.idle_ns / 1'000'000);
  configuration->max_pending = now.max_pending;
  put(configuration->batch, kBatchNames[static_cast<std::size_t>(now.batch)]);
  put(configuration->batch_reads, kBatchReadsNames[static_cast<std::size_t>(now.batch_reads)]);
  configuration->batch_calls = now.batch_calls;
  put(configuration->registration, kRegistrationNames[static_cast<std::size_t>(now.registration)]);
  return 0;
}

int strata_sw_set_configuration(const strata_sw_configuration* configuration) {
  if (!control_ready()) return -1;
  Configuration wanted;
  if (!read_choice("schedule", configuration->schedule, kScheduleNames, &wanted.schedule) ||
      !read_choice("batch", configuration->batch, kBatchNames, &wanted.batch) ||
      !read_choice("batch_reads", configuration->batch_reads, kBatchReadsNames, &wanted.batch_reads) ||
      !read_choice("registration", configuration->registration, kRegistrationNames, &wanted.registration)) {
    return -1;
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
  every_stream([&](const Stream& stream) {
    const std::uint64_t done = stream.done.load();  // read first: never more than `tail`
    live->pending_operations += stream.tail.load() - done;
  });
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

int strata_sw_reset_calls(void) { return when_ready(reset_call_counts); }

int strata_sw_stop_host_functions(int32_t timeout_ms) {
  if (!control_ready()) return -1;
  if (stop_host_functions(std::int64_t{timeout_ms} * 1'000'000)) return 0;
  return control_failure("a host function is still running after " + std::to_string(timeout_ms) + " ms");
}

uint64_t strata_sw_hold(const void* stream) {
  if (!control_ready()) return 0;
  Stream* found = find_stream(stream);
  const std::uint64_t number = found == nullptr ? 0 : hold_stream(*found);
  if (number == 0) no_such_stream(stream);
  return number;
}

int strata_sw_release(uint64_t hold) {
  if (!control_ready()) return -1;
  if (release_hold(hold)) return 0;
  return control_failure("hold=" + std::to_string(hold) + ": released already, or never made");
}

}  // extern "C"
