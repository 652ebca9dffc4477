#include "helpers.hpp"

#include <condition_variable>
#include <deque>
#include <mutex>

#include "platform.hpp"

namespace strata::software {

namespace {

struct Job {
  void (*body)(void*);
  void* argument;
};

struct Helpers {
  std::mutex mutex;
  std::condition_variable work;
  std::deque<Job> jobs;
  std::size_t idle = 0;
};

Helpers& helpers() {
  static Helpers* const kept = new Helpers;
  return *kept;
}

void run_helper(void*) {
  Helpers& h = helpers();
  std::unique_lock<std::mutex> lock(h.mutex);
  for (;;) {
    while (h.jobs.empty()) {
      ++h.idle;
      h.work.wait(lock);
      --h.idle;
    }
    const Job job = h.jobs.front();
    h.jobs.pop_front();
    lock.unlock();
    job.body(job.argument);
    lock.lock();
  }
}

}  // namespace

void run_on_helper(void (*body)(void*), void* argument) {
  Helpers& h = helpers();
  std::unique_lock<std::mutex> lock(h.mutex);
  h.jobs.push_back({body, argument});
  // A helper that was woken but has not run yet still counts as idle: compare with all jobs.
  const bool enough = h.idle >= h.jobs.size();
  h.work.notify_one();
  lock.unlock();
  while (!enough && !start_thread(run_helper, nullptr, "strata-sw-host")) sleep_until_ns(now_ns() + 1'000'000);
}

}  // namespace strata::software
