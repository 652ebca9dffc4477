// The process' one runtime: configuration, devices, tables of handles.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>

#include "event.hpp"
#include "slots.hpp"
#include "stream.hpp"

namespace strata::software {

constexpr int kMaxDevices = 4;

enum class Schedule : std::uint8_t { Eager, Lazy, Random, CopiesFirst, ComputeFirst, Timed, Null };

// What the library does with hipMemcpyBatchAsync, by versions of AMD's: ROCm 7.2.1 to 7.2.3 take no attributes.
enum class Batch : std::uint8_t { Full, NoAttributes, Unsupported };
enum class BatchReads : std::uint8_t { InStreamOrder, DuringTheCall };
// Of a range that is registered already.
enum class Registration : std::uint8_t { Refuses, Accepts };

// Their names, by their values.
constexpr const char* kScheduleNames[] = {"eager", "lazy", "random", "copies-first", "compute-first", "timed", "null"};
constexpr const char* kBatchNames[] = {"full", "no-attributes", "unsupported"};
constexpr const char* kBatchReadsNames[] = {"stream", "call"};
constexpr const char* kRegistrationNames[] = {"refuses", "accepts"};

template <class Enum, std::size_t N>
bool find_name(const char* const (&names)[N], const char* name, Enum* out) noexcept {
  for (std::size_t i = 0; i < N; ++i) {
    if (std::strcmp(names[i], name) == 0) {
      *out = static_cast<Enum>(i);
      return true;
    }
  }
  return false;
}

struct Configuration {
  Schedule schedule = Schedule::Eager;
  std::uint64_t seed = 1;
  std::uint64_t pinned_limit = UINT64_MAX;
  std::uint64_t device_memory = std::uint64_t{16} << 30;
  int devices = 1;
  std::int64_t idle_ns = 100'000'000;  // demand schedules: pending work runs after that long without a call
  std::uint64_t max_pending = 0;       // operations that a stream holds; 0: no limit
  Batch batch = Batch::Full;
  BatchReads batch_reads = BatchReads::InStreamOrder;
  std::uint64_t batch_calls = UINT64_MAX;  // that are served from when this was configured
  Registration registration = Registration::Refuses;
};

struct Runtime {
  std::mutex mutex;  // configuration changes
  Configuration configuration;
  std::atomic<Schedule> schedule{Schedule::Eager};
  std::atomic<int> devices{1};
  std::atomic<std::uint64_t> max_pending{0};
  std::atomic<Batch> batch{Batch::Full};
  std::atomic<BatchReads> batch_reads{BatchReads::InStreamOrder};
  std::atomic<std::uint64_t> batch_calls_left{UINT64_MAX};
  std::atomic<Registration> registration{Registration::Refuses};
  SlotTable<Stream, 0x5357> streams;  // "SW"
  SlotTable<Event, 0x5345> events;    // "SE"
  Stream* null_streams[kMaxDevices] = {};
};

// Made at the first call and never destroyed: threads may run when static destructors do.
extern Runtime* g_runtime;
void create_runtime();
inline Runtime& runtime() noexcept { return *g_runtime; }

inline Configuration configuration() {
  std::lock_guard<std::mutex> lock(runtime().mutex);
  return runtime().configuration;
}

template <class Visit>
void every_stream(Visit visit) {
  Runtime& rt = runtime();
  const std::uint32_t size = rt.streams.size();
  for (std::uint32_t place = 0; place < size; ++place) visit(*rt.streams.at(place));
}

// The stream behind a handle: nullptr and hipStreamLegacy are the current device's null stream,
// hipStreamPerThread is the calling thread's own one there.
Stream* find_stream(const void* handle) noexcept;
inline Event* find_event(const void* handle) noexcept { return runtime().events.find(handle); }

// Why there is none: a handle that was destroyed, or one that this runtime never made.
hipError_t no_stream(const void* handle) noexcept;
hipError_t no_event(const void* handle) noexcept;

// Makes a stream from a free place, without a handle yet; nullptr if there is none.
Stream* make_stream(int device, bool blocking, int priority);

// Nothing submitted is unfinished.
bool nothing_pending();

// Applies a configuration, or says why not.
bool apply_configuration(const Configuration& wanted, std::string* problem);

// What is wrong with the environment; empty if nothing is.
const std::string& environment_problem();

}  // namespace strata::software
