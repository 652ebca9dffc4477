#include "operation.hpp"

#include <cstring>

#include "calls.hpp"
#include "checker.hpp"
#include "costs.hpp"
#include "event.hpp"
#include "faults.hpp"
#include "memory.hpp"
#include "platform.hpp"
#include "stream.hpp"

namespace strata::software {

void Latch::release() {
  std::lock_guard<std::mutex> lock(mutex);
  released = true;
  changed.notify_all();
}

void Latch::wait() {
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [this] { return released; });
}

bool Latch::open() {
  std::lock_guard<std::mutex> lock(mutex);
  return released;
}

namespace {

std::atomic<bool> g_stopped{false};
std::atomic<int> g_running{0};

void run_host_function(Op& op) {
  g_running.fetch_add(1);
  if (!g_stopped.load()) {
    const ActorScope scope(op.actor);
    op.function(op.argument);
  }
  g_running.fetch_sub(1);
}

void stamp(const Op& op) {
  std::lock_guard<std::mutex> lock(op.event->time_mutex);
  if (op.event->record == op.record) op.event->time_ns = now_ns();
}

}  // namespace

bool stop_host_functions(std::int64_t timeout_ns) {
  const std::int64_t deadline = now_ns() + timeout_ns;
  g_stopped.store(true);
  if (mode_has(kModeRefused)) return true;  // a child: who ran one when it was forked is not in it
  while (g_running.load() != 0) {
    if (now_ns() >= deadline) return false;
    sleep_until_ns(now_ns() + 100'000);
  }
  return true;
}

void perform(Stream& stream, Op& op) {
  if (op.kind == OpKind::Free) {  // on a lost device too
    if (mode_has(kModeChecker)) checker_forget(op.target);
    release_memory(op.target, MemoryKind::Device);
    return;
  }
  if (mode_has(kModeLost)) {
    op.snapshot.reset();
    return;
  }
  switch (op.kind) {
    case OpKind::Copy:
      if (copy_fault_armed() && copy_fails(stream, op.seq)) break;
      if (!time_is_simulated()) {
        std::memmove(op.target, op.snapshot ? op.snapshot.get() : op.source, op.bytes);
      }
      op.snapshot.reset();
      break;
    case OpKind::Memset:
      if (!time_is_simulated()) std::memset(op.target, op.value, op.bytes);
      break;
    case OpKind::HostFunction:
      run_host_function(op);
      break;
    case OpKind::Record:
      if (op.event != nullptr) stamp(op);
      break;
    case OpKind::Wait:
    case OpKind::Marker:
    case OpKind::Hold:
    case OpKind::Delay:
    case OpKind::Free:
      break;
  }
}

}  // namespace strata::software
