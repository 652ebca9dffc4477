#include "stream.hpp"

#include "calls.hpp"
#include "costs.hpp"
#include "demand.hpp"
#include "platform.hpp"
#include "runtime.hpp"

namespace strata::software {

namespace {

// Spinning pays where an answer is nearly there; two cores may be all there is.
constexpr int kSpins = 100;

std::atomic<std::uint64_t> g_blocked{0};

bool null_rules_satisfied(Stream& stream) {
  if (!stream.blocking && !stream.null_stream) return true;
  Op probe;
  capture_null_rules(stream, probe);
  return probe.first.stream == nullptr;
}

// With stream.mutex held: nothing is queued, running, or to be waited for.
bool nothing_precedes(Stream& stream, const Op& op) {
  return stream.idle() && op.ready() && !(op.latch && !op.latch->open());
}

hipError_t enqueue(Stream& stream, Op&& op, std::uint64_t* seq) {
  if (mode_has(kModeCosts)) op.submitted_ns = now_ns();
  const bool on_demand = mode_has(kModeDemand);
  bool wake = false;
  {
    std::lock_guard<std::mutex> lock(stream.mutex);
    if (stream.destroyed) return hipErrorInvalidHandle;
    if (!on_demand && !stream.executor && !start_executor(stream)) return hipErrorOperatingSystem;
    op.seq = stream.tail.load(std::memory_order_relaxed) + 1;
    *seq = op.seq;
    stream.queue.push_back(std::move(op));
    stream.tail.store(*seq, std::memory_order_release);
    wake = stream.sleeping;
    stream.sleeping = false;
  }
  if (wake) stream.work.notify_one();
  return hipSuccess;
}

// Runs the operation here if nothing precedes it. The stream's lock is held meanwhile, so that what
// other threads submit to it comes after.
bool run_here(Stream& stream, Op& op) {
  std::unique_lock<std::mutex> lock(stream.mutex);
  if (stream.destroyed || !nothing_precedes(stream, op)) return false;
  op.seq = stream.tail.load(std::memory_order_relaxed) + 1;
  stream.tail.store(op.seq, std::memory_order_release);
  if (mode_has(kModeCosts)) op.submitted_ns = now_ns();
  perform_with_costs(stream, op);
  complete(stream, op.seq);
  return true;
}

}  // namespace

void capture_null_rules(Stream& stream, Op& op) {
  if (stream.null_stream) {
    every_stream([&](Stream& other) {
      if (other.device == stream.device && other.blocking && !other.idle()) {
        op.depend_on({&other, other.tail.load(std::memory_order_acquire)});
      }
    });
  } else if (stream.blocking) {
    Stream* null_stream = runtime().null_streams[stream.device];
    if (!null_stream->idle()) {
      op.depend_on({null_stream, null_stream->tail.load(std::memory_order_acquire)});
    }
  }
}

void make_room(Stream& stream) {
  const std::uint64_t limit = runtime().max_pending.load(std::memory_order_relaxed);
  if (__builtin_expect(limit == 0, 1)) return;
  const auto full = [&] {
    const std::uint64_t done = stream.done.load(std::memory_order_acquire);  // first: it never passes `tail`
    return stream.tail.load(std::memory_order_acquire) - done >= limit;
  };
  if (!full()) return;
  g_blocked.fetch_add(1);
  while (full()) wait_done(stream, stream.tail.load(std::memory_order_acquire) + 1 - limit);
  g_blocked.fetch_sub(1);
}

std::uint64_t blocked_submissions() { return g_blocked.load(); }

hipError_t submit(Stream& stream, Op&& op) {
  make_room(stream);
  std::uint64_t seq = 0;
  return submit_at_once(stream, std::move(op), &seq);
}

hipError_t submit_at_once(Stream& stream, Op&& op, std::uint64_t* seq) {
  if (mode_has(kModeDemand)) return demand_submit(stream, std::move(op), seq);
  if (stream.blocking || stream.null_stream) capture_null_rules(stream, op);
  return enqueue(stream, std::move(op), seq);
}

hipError_t submit_on_demand(Stream& stream, Op&& op, std::uint64_t* seq) {
  if (stream.blocking || stream.null_stream) capture_null_rules(stream, op);
  return enqueue(stream, std::move(op), seq);
}

hipError_t submit_or_run(Stream& stream, Op&& op, std::uint64_t* seq) {
  make_room(stream);
  if (mode_has(kModeDemand)) return demand_submit(stream, std::move(op), seq);
  if (stream.blocking || stream.null_stream) capture_null_rules(stream, op);
  if (!run_here(stream, op)) return enqueue(stream, std::move(op), seq);
  *seq = op.seq;
  return hipSuccess;
}

hipError_t submit_and_wait(Stream& stream, Op&& op) {
  std::uint64_t seq = 0;
  const hipError_t status = submit_or_run(stream, std::move(op), &seq);
  if (status != hipSuccess) return status;
  wait_done(stream, seq);
  return stream_status(stream, seq, true);
}

bool drained(Stream& stream) { return stream.idle() && null_rules_satisfied(stream); }

void complete(Stream& stream, std::uint64_t seq) {
  stream.done.store(seq, std::memory_order_seq_cst);
  // A waiter sets wake_at, then looks at `done` again: one of us sees the other.
  if (seq < stream.wake_at.load(std::memory_order_seq_cst)) return;
  {
    std::lock_guard<std::mutex> lock(stream.done_mutex);
    stream.wake_at.store(UINT64_MAX, std::memory_order_seq_cst);
  }
  stream.done_changed.notify_all();
}

void wait_done(Stream& stream, std::uint64_t seq) {
  if (stream.done.load(std::memory_order_acquire) >= seq) return;
  if (mode_has(kModeDemand)) return demand_force(stream, seq);
  for (int i = 0; i < kSpins; ++i) {
    if (stream.done.load(std::memory_order_acquire) >= seq) return;
    cpu_relax();
  }
  std::unique_lock<std::mutex> lock(stream.done_mutex);
  for (;;) {
    if (stream.wake_at.load(std::memory_order_relaxed) > seq) {
      stream.wake_at.store(seq, std::memory_order_seq_cst);
    }
    if (stream.done.load(std::memory_order_seq_cst) >= seq) return;
    stream.done_changed.wait(lock);
  }
}

hipError_t stream_status(Stream& stream, std::uint64_t seq, bool clear) {
  if (mode_has(kModeLost)) return static_cast<hipError_t>(g_refusal.load());
  std::uint64_t failed = stream.failed_seq.load(std::memory_order_acquire);
  if (failed == 0 || failed > seq) return hipSuccess;
  const auto status = static_cast<hipError_t>(stream.failed_status.load(std::memory_order_relaxed));
  if (clear) stream.failed_seq.compare_exchange_strong(failed, 0);
  return status;
}

hipError_t synchronize_device(int device) {
  hipError_t first = hipSuccess;
  every_stream([&](Stream& stream) {
    if (device >= 0 && stream.device != device) return;
    const std::uint64_t seq = stream.tail.load(std::memory_order_acquire);
    wait_done(stream, seq);
    const hipError_t status = stream_status(stream, seq, true);
    if (first == hipSuccess) first = status;
  });
  return first;
}

void wait_device(int device) {
  every_stream([&](Stream& stream) {
    if (device < 0 || stream.device == device) wait_done(stream, stream.tail.load(std::memory_order_acquire));
  });
}

void end_stream(Stream& stream) {
  bool recycle = false;
  {
    std::lock_guard<std::mutex> lock(stream.mutex);
    stream.destroyed = true;
    stream.sleeping = false;
    // An executor recycles the place when it ends; on demand whoever runs the last operation does.
    recycle = !stream.executor && stream.idle();
    stream.work.notify_one();
  }
  if (recycle) runtime().streams.recycle(&stream);
}

}  // namespace strata::software
