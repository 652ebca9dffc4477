// Native threads and the two things they wait on. Declared to Cython in strata/engine/threads.pxd.
//
// No function here touches Python, and none throws: a caller may hold no GIL.
#ifndef STRATA_THREADS_HPP
#define STRATA_THREADS_HPP

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <mutex>
#include <new>
#include <thread>

#include "strata/thread_start.hpp"

#if defined(_M_X64) || defined(_M_IX86)
#include <intrin.h>
#endif

namespace strata {

inline int64_t now_ns() noexcept {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

// What a wait of at most `asked` counts for, where time without progress is summed up. A process that was stopped, frozen
// or suspended meanwhile has waited longer by the clock: that was no time in which anything could have moved.
inline int64_t time_waited(int64_t began, int64_t asked) noexcept {
  constexpr int64_t kLate = 20'000'000;  // what a loaded machine may wake a waiter late
  const int64_t elapsed = now_ns() - began;
  return elapsed - kLate > asked ? asked + kLate : elapsed;
}

inline void cpu_relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(_M_X64) || defined(_M_IX86)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

inline void pause_briefly() noexcept { std::this_thread::sleep_for(std::chrono::microseconds(100)); }

// A few microseconds: longer than a hand-over between two running threads, far shorter than a
// time slice, so that a machine with few cores loses nothing.
constexpr int kSpins = 64;

constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

// A counter that one thread advances and others wait for. It only grows within a request.
//
// The advancing side pays one atomic read-modify-write; it takes the lock only where a waiter's
// target was reached. `wanted` is the lowest target anybody sleeps on: whoever comes second of
// (waiter's exchange, advancer's fetch_add) sees the other's write, since both are
// read-modify-writes of the same atomic; so no wake-up is lost.
class Watermark {
 public:
  int64_t get() const noexcept { return value_.load(std::memory_order_acquire); }

  // Only while nobody waits.
  void reset(int64_t v) noexcept { value_.store(v, std::memory_order_release); }

  void advance(int64_t v) noexcept {
    value_.store(v, std::memory_order_release);
    if (wanted_.fetch_add(0, std::memory_order_acq_rel) <= v) wake();
  }

  // Until the value reaches `target` (true), or `stop` is set, or the time is over (false).
  bool wait(int64_t target, const std::atomic<int>& stop, int64_t timeout_ns) noexcept {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (get() >= target) return true;
      if (stop.load(std::memory_order_acquire)) return false;
      cpu_relax();
    }
    const bool timed = timeout_ns != kForever;
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::nanoseconds(timed ? timeout_ns : 0);
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      if (target < wanted_.load(std::memory_order_relaxed))
        wanted_.exchange(target, std::memory_order_acq_rel);
      else
        wanted_.fetch_add(0, std::memory_order_acq_rel);
      if (get() >= target) return true;
      if (stop.load(std::memory_order_acquire)) return false;
      if (!timed) {
        changed_.wait(lock);
      } else if (changed_.wait_until(lock, deadline) == std::cv_status::timeout) {
        return get() >= target;
      }
    }
  }

  // Every waiter looks at its target and its stop flag again.
  void wake() noexcept {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      // Sleepers that are not served by this value put their target back before they sleep again.
      wanted_.exchange(std::numeric_limits<int64_t>::max(), std::memory_order_acq_rel);
    }
    changed_.notify_all();
  }

 private:
  std::atomic<int64_t> value_{0};
  std::atomic<int64_t> wanted_{std::numeric_limits<int64_t>::max()};
  std::mutex mutex_;
  std::condition_variable changed_;
};

// For conditions that are no single counter. The waiter prepares, looks at its condition once
// more, then waits; whoever changes the condition notifies. Without a waiter a notification costs one atomic.
class Condition {
 public:
  uint64_t prepare() noexcept {
    waiters_.fetch_add(1, std::memory_order_acq_rel);
    return notifications_.load(std::memory_order_acquire);
  }
  void cancel() noexcept { waiters_.fetch_sub(1, std::memory_order_acq_rel); }

  // `seen` is what prepare() returned; ends the preparation. False when the time was over first.
  bool wait(uint64_t seen, int64_t timeout_ns) noexcept {
    bool notified = true;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      auto changed = [&] { return notifications_.load(std::memory_order_acquire) != seen; };
      if (timeout_ns == kForever)
        changed_.wait(lock, changed);
      else
        notified = changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), changed);
    }
    cancel();
    return notified;
  }

  void notify() noexcept {
    if (waiters_.fetch_add(0, std::memory_order_acq_rel) == 0) return;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      notifications_.fetch_add(1, std::memory_order_acq_rel);
    }
    changed_.notify_all();
  }

 private:
  std::atomic<int> waiters_{0};
  std::atomic<uint64_t> notifications_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

struct ThreadName {
  char text[kThreadNameBytes];
};

// A native thread. It blocks every signal from its first instruction on, and has its name before it runs
// `run`. `start` is false where the system gives no thread. The thread marks its own end, so that a join
// that would hang on a driver call can be given up for a detach.
class Thread {
 public:
  bool start(void (*run)(void*), void* argument, const ThreadName& name) noexcept {
    try {
      SignalsBlocked inherited;
      thread_ = std::thread([run, argument, name] {
        name_this_thread(name.text);
        run(argument);
      });
#if defined(__linux__)
      // Here as well: who looks at the process's threads once this returns finds it by its name.
      pthread_setname_np(thread_.native_handle(), name.text);
#endif
      return true;
    } catch (...) {
      return false;
    }
  }
  void join() noexcept {
    if (thread_.joinable()) thread_.join();
  }
  void detach() noexcept {
    if (thread_.joinable()) thread_.detach();
  }

 private:
  std::thread thread_;
};

template <class T>
T* make() noexcept {
  try {
    return new T();
  } catch (...) {
    return nullptr;
  }
}
template <class T>
T* make_array(size_t n) noexcept {
  try {
    return new T[n]();
  } catch (...) {
    return nullptr;
  }
}
template <class T>
void destroy(T* p) noexcept {
  delete p;
}
template <class T>
void destroy_array(T* p) noexcept {
  delete[] p;
}

}  // namespace strata
#endif
