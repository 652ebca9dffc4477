#include "runtime.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "calls.hpp"
#include "checker.hpp"
#include "costs.hpp"
#include "demand.hpp"
#include "memory.hpp"
#include "platform.hpp"

namespace strata::software {

Runtime* g_runtime = nullptr;

namespace {

std::mutex& birth_mutex() {
  static std::mutex* const kept = new std::mutex;
  return *kept;
}

std::string& problem_text() {
  static std::string* const kept = new std::string;
  return *kept;
}

void refuse_in_child() {
  // Whatever the parent's threads held is held for ever here; nothing of it is touched again.
  g_refusal.store(hipErrorContextIsDestroyed);
  g_mode.store(kModeRefused);
}

bool read_number(const char* variable, std::uint64_t minimum, std::uint64_t maximum, std::uint64_t* out) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return true;
  char* end = nullptr;
  errno = 0;
  const unsigned long long value = std::strtoull(text, &end, 10);
  const bool digits = *text >= '0' && *text <= '9';
  if (!digits || *end != '\0' || errno != 0 || value < minimum || value > maximum) {
    problem_text() = std::string(variable) + "=" + text + ": an integer from " + std::to_string(minimum) +
                     " to " + std::to_string(maximum) + " is allowed";
    return false;
  }
  *out = value;
  return true;
}

template <class Enum, std::size_t N>
bool read_name(const char* variable, const char* const (&names)[N], Enum* out) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0' || find_name(names, text, out)) return true;
  problem_text() = std::string(variable) + "=" + text + ": allowed are";
  for (const char* name : names) problem_text() += std::string(" ") + name;
  return false;
}

bool read_environment(Configuration* configuration) {
  std::uint64_t devices = 1, idle_ms = 100;
  const bool ok = read_name("STRATA_SOFTWARE_SCHEDULE", kScheduleNames, &configuration->schedule) &&
                  read_name("STRATA_SOFTWARE_BATCH", kBatchNames, &configuration->batch) &&
                  read_name("STRATA_SOFTWARE_BATCH_READS", kBatchReadsNames, &configuration->batch_reads) &&
                  read_name("STRATA_SOFTWARE_REGISTRATION", kRegistrationNames, &configuration->registration) &&
                  read_number("STRATA_SOFTWARE_BATCH_CALLS", 0, UINT64_MAX, &configuration->batch_calls) &&
                  read_number("STRATA_SOFTWARE_MAX_PENDING", 0, UINT64_MAX, &configuration->max_pending) &&
                  read_number("STRATA_SOFTWARE_SEED", 0, UINT64_MAX, &configuration->seed) &&
                  read_number("STRATA_SOFTWARE_PINNED_LIMIT", 0, UINT64_MAX, &configuration->pinned_limit) &&
                  read_number("STRATA_SOFTWARE_DEVICE_MEMORY", 0, UINT64_MAX, &configuration->device_memory) &&
                  read_number("STRATA_SOFTWARE_DEVICES", 0, kMaxDevices, &devices) &&
                  read_number("STRATA_SOFTWARE_IDLE_MS", 0, 3'600'000, &idle_ms);
  configuration->devices = static_cast<int>(devices);
  configuration->idle_ns = static_cast<std::int64_t>(idle_ms) * 1'000'000;
  return ok;
}

bool runs_on_demand(Schedule schedule) {
  return schedule == Schedule::Lazy || schedule == Schedule::Random || schedule == Schedule::CopiesFirst ||
         schedule == Schedule::ComputeFirst;
}

void adopt(Runtime& rt, const Configuration& wanted) {
  rt.configuration = wanted;
  rt.schedule.store(wanted.schedule);
  rt.devices.store(wanted.devices);
  rt.max_pending.store(wanted.max_pending);
  rt.batch.store(wanted.batch);
  rt.batch_reads.store(wanted.batch_reads);
  rt.batch_calls_left.store(wanted.batch_calls);
  rt.registration.store(wanted.registration);
  g_time_is_simulated.store(wanted.schedule == Schedule::Timed);
  reset_stream_clocks();
  // Before the scheduler's lock is taken and given back: nobody runs operations on demand from then on.
  set_mode(kModeDemand, runs_on_demand(wanted.schedule));
  seed_demand(wanted.seed, wanted.idle_ns);
  set_mode(kModeNull, wanted.schedule == Schedule::Null);
  set_mode(kModeNoDevice, wanted.devices == 0);
  update_cost_mode();
}

// The environment counts as it was when the library was loaded.
struct AtLoad {
  Configuration configuration;
  bool ok = read_environment(&configuration);
};
const AtLoad& at_load() {
  static const AtLoad* const kept = new AtLoad;
  return *kept;
}
const AtLoad& g_read_at_load = at_load();

}  // namespace

void create_runtime() {
  std::lock_guard<std::mutex> lock(birth_mutex());
  if (!mode_has(kModeUnborn)) return;
  auto* rt = new Runtime;
  for (int device = 0; device < kMaxDevices; ++device) {
    Stream* stream = rt->streams.take();
    stream->device = device;
    stream->null_stream = true;
    rt->null_streams[device] = stream;
  }
  g_runtime = rt;
  adopt(*rt, at_load().configuration);
  at_fork(refuse_in_child);
  keep_library_mapped();
  if (!at_load().ok) {
    std::fprintf(stderr, "strata software runtime: %s\n", problem_text().c_str());
    g_refusal.store(hipErrorInvalidConfiguration);
    set_mode(kModeRefused, true);
  }
  set_mode(kModeUnborn, false);
}

const std::string& environment_problem() { return problem_text(); }

namespace {

// The streams that hipStreamPerThread means on one thread. What is queued still runs when the thread ends.
struct OwnStreams {
  Stream* of[kMaxDevices] = {};
  ~OwnStreams() {
    if (mode_has(kModeRefused)) return;  // a forked child: the parent's locks are not touched
    for (Stream* stream : of) {
      if (stream != nullptr) end_stream(*stream);
    }
  }
};
thread_local OwnStreams t_own;

Stream* own_stream() noexcept {
  // HIP: an implicit stream for each thread and device, made at its first use, ordered with the null stream.
  Stream*& own = t_own.of[t_thread.device];
  if (own == nullptr) own = make_stream(t_thread.device, true, 0);
  return own;
}

}  // namespace

Stream* find_stream(const void* handle) noexcept {
  const auto word = reinterpret_cast<std::uintptr_t>(handle);
  if (word <= 1) return runtime().null_streams[t_thread.device];
  if (word == 2) return own_stream();
  return runtime().streams.find(handle);
}

// AMD's runtime answers hipErrorContextIsDestroyed to a handle that it does not know (any more), and
// hipErrorInvalidHandle to none. HIP's text names the latter for any invalid one: it stays for foreign numbers.
hipError_t no_stream(const void* handle) noexcept {
  return runtime().streams.made(handle) ? hipErrorContextIsDestroyed : hipErrorInvalidHandle;
}

hipError_t no_event(const void* handle) noexcept {
  return runtime().events.made(handle) ? hipErrorContextIsDestroyed : hipErrorInvalidHandle;
}

Stream* make_stream(int device, bool blocking, int priority) {
  Stream* made = runtime().streams.take();
  if (made == nullptr) return nullptr;
  {
    std::lock_guard<std::mutex> lock(made->mutex);
    made->device = device;
    made->blocking = blocking;
    made->priority = priority;
    made->destroyed = false;
    made->retiring = false;
    made->favoured = false;
    made->failed_seq = 0;
    made->fruitless = 0;
  }
  reset_stream_clock(*made);
  if (mode_has(kModeChecker)) checker_stream_made(*made);
  return made;
}

bool nothing_pending() {
  bool nothing = true;
  every_stream([&](const Stream& stream) { nothing = nothing && stream.idle(); });
  return nothing;
}

bool apply_configuration(const Configuration& wanted, std::string* problem) {
  Runtime& rt = runtime();
  if (wanted.devices < 0 || wanted.devices > kMaxDevices) {
    *problem = "devices=" + std::to_string(wanted.devices) + ": 0 to " + std::to_string(kMaxDevices) + " are allowed";
    return false;
  }
  if (!nothing_pending()) {
    *problem = "the configuration cannot change while operations are pending: synchronize first";
    return false;
  }
  const MemoryUse use = memory_use();
  const bool in_use = rt.streams.live() != 0 || rt.events.live() != 0 || use.device_allocations != 0;
  if (wanted.devices < rt.devices.load() && in_use) {
    *problem = "devices=" + std::to_string(wanted.devices) +
               ": the number of devices cannot shrink while streams, events or device memory are live";
    return false;
  }
  retire_executors();
  std::lock_guard<std::mutex> lock(rt.mutex);
  adopt(rt, wanted);
  if (g_refusal.load() == hipErrorInvalidConfiguration && mode_has(kModeRefused)) {
    set_mode(kModeRefused, false);  // what the environment got wrong is replaced
    g_refusal.store(hipSuccess);
  }
  return true;
}

}  // namespace strata::software
