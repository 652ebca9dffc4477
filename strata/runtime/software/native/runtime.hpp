// The process' one runtime: configuration, devices, tables of handles.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "event.hpp"
#include "slots.hpp"
#include "stream.hpp"

namespace strata::software {

constexpr int kMaxDevices = 4;

enum class Schedule : std::uint8_t { Eager, Lazy, Random, CopiesFirst, ComputeFirst, Timed, Null };

const char* schedule_name(Schedule schedule) noexcept;
bool schedule_of(const char* name, Schedule* out) noexcept;

struct Configuration {
  Schedule schedule = Schedule::Eager;
  std::uint64_t seed = 1;
  std::uint64_t pinned_limit = UINT64_MAX;
  std::uint64_t device_memory = std::uint64_t{16} << 30;
  int devices = 1;
  std::int64_t idle_ns = 100'000'000;  // demand schedules: pending work runs after that long without a call
};

struct Runtime {
  std::mutex mutex;  // configuration changes
  Configuration configuration;
  std::atomic<Schedule> schedule{Schedule::Eager};
  std::atomic<int> devices{1};
  SlotTable<Stream, 0x5357> streams;  // "SW"
  SlotTable<Event, 0x5345> events;    // "SE"
  Stream* null_streams[kMaxDevices] = {};
};

// Made at the first call and never destroyed: threads may run when static destructors do.
extern Runtime* g_runtime;
void create_runtime();
inline Runtime& runtime() noexcept { return *g_runtime; }

// The stream behind a handle: nullptr and hipStreamLegacy are the current device's null stream.
Stream* find_stream(const void* handle) noexcept;
inline Event* find_event(const void* handle) noexcept { return runtime().events.find(handle); }

// Nothing submitted is unfinished.
bool nothing_pending();

// Applies a configuration, or says why not.
bool apply_configuration(const Configuration& wanted, std::string* problem);

// What is wrong with the environment; empty if nothing is.
const std::string& environment_problem();

}  // namespace strata::software
