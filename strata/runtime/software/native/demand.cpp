#include "demand.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "costs.hpp"
#include "helpers.hpp"
#include "mode.hpp"
#include "platform.hpp"
#include "runtime.hpp"

namespace strata::software {

namespace {

constexpr unsigned kQueriesPerStep = 8;

struct Scheduler {
  std::mutex mutex;
  std::condition_variable changed;  // an operation completed, a latch opened
  std::uint64_t random = 1;
  std::atomic<std::int64_t> idle_ns{0};
  std::uint64_t activity = 0;  // grows with every operation that was submitted or run
  bool ticker = false;  // the thread exists
  bool dormant = false;  // ... and waits for something to run
  std::condition_variable ticker_wake;
};

Scheduler& scheduler() {
  static Scheduler* const kept = new Scheduler;
  return *kept;
}

Schedule schedule() { return runtime().schedule.load(std::memory_order_relaxed); }

// Everything below: with the scheduler's lock held.

void wake_ticker(Scheduler& s) {
  if (!s.dormant) return;
  s.dormant = false;
  s.ticker_wake.notify_one();
}

std::uint64_t draw(Scheduler& s, std::uint64_t bound) {  // splitmix64
  std::uint64_t z = (s.random += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return (z ^ (z >> 31)) % bound;
}

Op* head_of(Stream& stream) {
  if (stream.host_function_running || stream.head == stream.queue.size()) return nullptr;
  return &stream.queue[stream.head];
}

bool runnable(Stream& stream) {
  const Op* op = head_of(stream);
  return op != nullptr && op->ready() && (!op->latch || op->latch->open());
}

// The stream whose head must run for `wanted` to come nearer; nullptr if that is blocked or done.
// Visits no stream twice: what an operation waits for was submitted before it.
Stream* needed_stream(Dependency wanted) {
  while (!wanted.satisfied()) {
    Op* op = head_of(*wanted.stream);
    if (op == nullptr || (op->latch && !op->latch->open())) return nullptr;
    Dependency missing;
    op->every_dependency([&](const Dependency& dependency) {
      if (dependency.satisfied()) return true;
      missing = dependency;
      return false;
    });
    if (missing.stream == nullptr) return wanted.stream;
    wanted = missing;
  }
  return nullptr;
}

void finish_head(Scheduler& s, Stream& stream, std::uint64_t seq) {
  bool recycle = false;
  {
    std::lock_guard<std::mutex> lock(stream.mutex);
    if (++stream.head == stream.queue.size()) {
      stream.queue.clear();
      stream.head = 0;
    } else if (stream.head >= 1024 && stream.head * 2 >= stream.queue.size()) {
      stream.queue.erase(stream.queue.begin(), stream.queue.begin() + static_cast<std::ptrdiff_t>(stream.head));
      stream.head = 0;
    }
    complete(stream, seq);
    recycle = stream.destroyed && stream.idle();
  }
  if (recycle) runtime().streams.recycle(&stream);
  ++s.activity;
  wake_ticker(s);
  s.changed.notify_all();
}

bool has_goals();
void pursue_goals(Scheduler& s);

struct HostFunctionRun {
  Stream* stream;
  Op op;
};

void run_host_function(void* opaque) {
  std::unique_ptr<HostFunctionRun> run(static_cast<HostFunctionRun*>(opaque));
  perform_with_costs(*run->stream, run->op);
  Scheduler& s = scheduler();
  std::lock_guard<std::mutex> lock(s.mutex);
  run->stream->host_function_running = false;
  finish_head(s, *run->stream, run->op.seq);
  if (has_goals()) pursue_goals(s);
}

void run_head(Scheduler& s, Stream& stream) {
  Op& op = stream.queue[stream.head];
  if (op.kind == OpKind::HostFunction && !mode_has(kModeLost)) {
    stream.host_function_running = true;
    run_on_helper(run_host_function, new HostFunctionRun{&stream, std::move(op)});
    return;
  }
  perform_with_costs(stream, op);
  finish_head(s, stream, op.seq);
}

void run_some_at_random(Scheduler& s) {
  for (std::uint64_t steps = draw(s, 4); steps != 0; --steps) {
    std::vector<Stream*> candidates;
    every_stream([&](Stream& stream) {
      if (runnable(stream)) candidates.push_back(&stream);
    });
    if (candidates.empty()) return;
    const std::uint64_t chosen = draw(s, candidates.size() + 1);
    if (chosen < candidates.size()) run_head(s, *candidates[chosen]);
  }
}

// Runs what streams have as their goal, as far as it goes now.
void pursue_goals(Scheduler& s) {
  bool progress = true;
  while (progress) {
    progress = false;
    every_stream([&](Stream& stream) {
      while (Stream* needed = needed_stream({&stream, stream.goal})) {
        run_head(s, *needed);
        progress = true;
      }
    });
  }
}

bool has_goals() { return schedule() == Schedule::CopiesFirst || schedule() == Schedule::ComputeFirst; }

// A record behind favoured work runs as early as that work; waits and other records when needed.
void set_goal(Stream& stream, const Op& op, std::uint64_t seq) {
  const bool host_to_device = op.kind == OpKind::Copy && op.direction == Direction::HostToDevice;
  const bool work = op.kind == OpKind::Copy || op.kind == OpKind::Memset || op.kind == OpKind::HostFunction ||
                    op.kind == OpKind::Delay;
  if (work) stream.favoured = host_to_device == (schedule() == Schedule::CopiesFirst);
  if (stream.favoured && (work || op.kind == OpKind::Record)) stream.goal = seq;
}

Stream* any_runnable() {
  Stream* found = nullptr;
  every_stream([&](Stream& stream) {
    if (found == nullptr && runnable(stream)) found = &stream;
  });
  return found;
}

// A device works on while the host waits for it in ways that are no HIP call.
void run_ticker(void*) {
  Scheduler& s = scheduler();
  std::unique_lock<std::mutex> lock(s.mutex);
  for (;;) {
    const std::uint64_t seen = s.activity;
    const std::int64_t idle = s.idle_ns.load();
    if (idle == 0 || !mode_has(kModeDemand) || any_runnable() == nullptr) {
      s.dormant = true;
      s.ticker_wake.wait(lock);
      s.dormant = false;
      continue;
    }
    s.ticker_wake.wait_for(lock, std::chrono::nanoseconds(idle));
    if (s.activity != seen || s.idle_ns.load() == 0) continue;
    // In the eager schedule the queues are their executors' alone.
    while (Stream* stream = mode_has(kModeDemand) ? any_runnable() : nullptr) {
      const std::uint64_t before = s.activity;
      run_head(s, *stream);
      const std::uint64_t after = s.activity;
      lock.unlock();  // whoever waits for the lock goes first
      sleep_until_ns(now_ns() + 20'000);
      lock.lock();
      if (s.activity != after && after != before) break;  // the program moves again
    }
  }
}

void start_ticker(Scheduler& s) {
  if (!s.ticker && s.idle_ns.load() != 0) s.ticker = start_thread(run_ticker, nullptr, "strata-sw-idle");
  wake_ticker(s);
}

}  // namespace

void seed_demand(std::uint64_t seed, std::int64_t idle_ns) {
  Scheduler& s = scheduler();
  std::lock_guard<std::mutex> lock(s.mutex);
  s.random = seed;
  s.idle_ns.store(idle_ns);
  wake_ticker(s);
}

void demand_on_call() {
  Scheduler& s = scheduler();
  std::lock_guard<std::mutex> lock(s.mutex);
  if (schedule() == Schedule::Random) run_some_at_random(s);
  if (has_goals()) pursue_goals(s);
}

hipError_t demand_submit(Stream& stream, Op&& op, std::uint64_t* seq) {
  Scheduler& s = scheduler();
  std::lock_guard<std::mutex> lock(s.mutex);
  if (has_goals()) set_goal(stream, op, stream.tail.load(std::memory_order_relaxed) + 1);
  const hipError_t status = submit_on_demand(stream, std::move(op), seq);
  if (status != hipSuccess) return status;
  ++s.activity;
  start_ticker(s);
  if (has_goals()) pursue_goals(s);
  return hipSuccess;
}

void demand_force(Stream& stream, std::uint64_t seq) {
  Scheduler& s = scheduler();
  const Dependency wanted{&stream, seq};
  std::unique_lock<std::mutex> lock(s.mutex);
  while (!wanted.satisfied()) {
    if (schedule() == Schedule::Random) run_some_at_random(s);
    if (Stream* needed = needed_stream(wanted)) {
      run_head(s, *needed);
    } else if (!wanted.satisfied()) {
      wake_ticker(s);
      s.changed.wait(lock);
    }
  }
}

void demand_query(Stream& stream, std::uint64_t seq, std::atomic<unsigned>* fruitless) {
  const unsigned asked = fruitless->fetch_add(1);
  if (asked % kQueriesPerStep != kQueriesPerStep - 1) return;
  // Twice as many operations each further time: a program that polls for much is not kept for ever.
  unsigned steps = 1u << std::min(asked / kQueriesPerStep, 10u);
  Scheduler& s = scheduler();
  std::lock_guard<std::mutex> lock(s.mutex);
  while (steps-- > 0) {
    Stream* needed = needed_stream({&stream, seq});
    if (needed == nullptr && stream.null_stream) {
      every_stream([&](Stream& other) {
        if (needed == nullptr && other.blocking && other.device == stream.device) {
          needed = needed_stream({&other, other.tail.load()});
        }
      });
    }
    if (needed == nullptr) return;
    run_head(s, *needed);
  }
}

void demand_poke() {
  if (!mode_has(kModeDemand)) return;
  Scheduler& s = scheduler();
  std::lock_guard<std::mutex> lock(s.mutex);
  if (has_goals()) pursue_goals(s);
  wake_ticker(s);
  s.changed.notify_all();
}

void demand_drain() {
  if (!mode_has(kModeDemand)) return;
  Scheduler& s = scheduler();
  std::lock_guard<std::mutex> lock(s.mutex);
  while (Stream* stream = any_runnable()) run_head(s, *stream);
  s.changed.notify_all();
}

}  // namespace strata::software
