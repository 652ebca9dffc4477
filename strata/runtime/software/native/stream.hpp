// Streams: numbered operations, who waits for them, and the thread that runs them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "operation.hpp"
#include "slots.hpp"

namespace strata::software {

struct StreamCosts;

struct Stream : Slot {
  std::atomic<int> device{0};
  std::atomic<bool> blocking{false};  // takes part in the null stream's ordering
  std::atomic<int> priority{0};       // kept and told; all streams run alike
  bool null_stream = false;           // set once, before any use

  std::atomic<std::uint64_t> tail{0};  // last operation submitted
  std::atomic<std::uint64_t> done{0};  // last operation completed, in order

  // Operations that no executor took yet: [head, queue.size()).
  std::mutex mutex;
  std::condition_variable work;
  std::vector<Op> queue;
  std::size_t head = 0;
  bool executor = false;   // a thread runs this stream
  bool sleeping = false;   // ... and waits for work
  bool retiring = false;   // the executor ends once the queue is empty
  bool destroyed = false;  // the place is recycled once the queue is empty
  bool host_function_running = false;  // demand schedules only

  // Who waits for completions.
  std::mutex done_mutex;
  std::condition_variable done_changed;
  std::atomic<std::uint64_t> wake_at{UINT64_MAX};

  // An operation that failed when it ran, until a synchronization reported it.
  std::atomic<std::uint64_t> failed_seq{0};
  std::atomic<int> failed_status{0};

  // Demand schedules: operations up to here run as soon as they can.
  std::uint64_t goal = 0;
  bool favoured = false;  // the last operation that moves bytes or computes was of the favoured kind
  std::atomic<unsigned> fruitless{0};

  std::atomic<StreamCosts*> costs{nullptr};  // made at first use, kept

  bool idle() const noexcept {
    return done.load(std::memory_order_acquire) == tail.load(std::memory_order_acquire);
  }
};

inline bool Dependency::satisfied() const noexcept {
  return stream->done.load(std::memory_order_acquire) >= seq;
}

// Returns once the stream holds fewer operations than a stream may (`max_pending`): a driver whose queues are
// full blocks its caller. Called with no lock held. Threads that submit to one stream at once may each add one
// operation beyond the limit.
void make_room(Stream& stream);
std::uint64_t blocked_submissions();  // threads that wait there now

// Queues an operation behind the stream's others and gives it its number. Captures what the null
// stream's rules ask for. Waits for room first.
hipError_t submit(Stream& stream, Op&& op);

// The same beyond the limit: for the runtime's own operations, and where the caller made room. Tells the number.
hipError_t submit_at_once(Stream& stream, Op&& op, std::uint64_t* seq);

// The same under the demand scheduler's lock; for that scheduler alone.
hipError_t submit_on_demand(Stream& stream, Op&& op, std::uint64_t* seq);

// Queues the operation and returns when it has completed. Runs it on the calling thread if nothing
// precedes it.
hipError_t submit_and_wait(Stream& stream, Op&& op);

// As submit(), but if nothing precedes the operation it has run when this returns.
hipError_t submit_or_run(Stream& stream, Op&& op, std::uint64_t* seq);

// Is there anything that an operation submitted now would have to wait for?
bool drained(Stream& stream);

// Returns when operation `seq` has completed; forces it in demand schedules.
void wait_done(Stream& stream, std::uint64_t seq);

// Marks `seq` complete and wakes who waits for it. In order, by whoever ran it.
void complete(Stream& stream, std::uint64_t seq);

// The status that synchronizing with operation `seq` reports; `clear` forgets it once reported.
hipError_t stream_status(Stream& stream, std::uint64_t seq, bool clear);

// Waits for everything submitted so far on a device (-1: on all).
hipError_t synchronize_device(int device);
// The same without reporting what failed.
void wait_device(int device);

// Legacy rules: what the null stream of a device and its blocking streams wait for.
void capture_null_rules(Stream& stream, Op& op);

void end_stream(Stream& stream);       // after its handle was retired
bool start_executor(Stream& stream);   // stream.mutex held
void retire_executors();               // ends all idle executors, waits until they are gone
std::uint64_t executor_threads();

}  // namespace strata::software
