// The eager schedule's threads: one for each stream that has had an operation. Operations run as
// soon as what they depend on allows, beside the host.

#include <cstdio>

#include "costs.hpp"
#include "platform.hpp"
#include "runtime.hpp"

namespace strata::software {

namespace {

// Turns of waiting for the next operation before the thread sleeps, some microseconds.
constexpr int kIdleSpins = 200;

std::atomic<std::uint64_t> g_executors{0};

void wait_dependencies(const Op& op) {
  op.every_dependency([](const Dependency& dependency) {
    wait_done(*dependency.stream, dependency.seq);
    return true;
  });
  if (op.latch) op.latch->wait();
}

// True when there is work or the thread should end; false after a while without either.
bool spin_for_work(const Stream& stream) {
  for (int i = 0; i < kIdleSpins; ++i) {
    if (!stream.idle()) return true;
    cpu_relax();
  }
  return false;
}

void run_executor(void* argument) {
  Stream& stream = *static_cast<Stream*>(argument);
  std::vector<Op> batch;
  std::unique_lock<std::mutex> lock(stream.mutex);
  for (;;) {
    if (stream.queue.empty()) {
      if (stream.destroyed || stream.retiring) break;
      lock.unlock();
      const bool work = spin_for_work(stream);
      lock.lock();
      if (!work && stream.queue.empty() && !stream.destroyed && !stream.retiring) {
        stream.sleeping = true;
        stream.work.wait(lock, [&] { return !stream.sleeping || stream.destroyed || stream.retiring; });
        stream.sleeping = false;
      }
      continue;
    }
    batch.swap(stream.queue);
    lock.unlock();
    for (Op& op : batch) {
      wait_dependencies(op);
      perform_with_costs(stream, op);
      complete(stream, op.seq);
    }
    batch.clear();
    lock.lock();
  }
  stream.executor = false;
  const bool recycle = stream.destroyed;
  lock.unlock();
  if (recycle) runtime().streams.recycle(&stream);
  g_executors.fetch_sub(1, std::memory_order_release);
}

}  // namespace

bool start_executor(Stream& stream) {
  char name[16];
  std::snprintf(name, sizeof name, "strata-sw-%u", stream.place % 100000u);
  g_executors.fetch_add(1, std::memory_order_relaxed);
  stream.retiring = false;
  stream.executor = true;
  if (start_thread(run_executor, &stream, name)) return true;
  stream.executor = false;
  g_executors.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

void retire_executors() {
  every_stream([](Stream& stream) {
    std::lock_guard<std::mutex> lock(stream.mutex);
    if (!stream.executor) return;
    stream.retiring = true;
    stream.sleeping = false;
    stream.work.notify_one();
  });
  while (g_executors.load(std::memory_order_acquire) != 0) sleep_until_ns(now_ns() + 50'000);
}

std::uint64_t executor_threads() { return g_executors.load(std::memory_order_acquire); }

}  // namespace strata::software
