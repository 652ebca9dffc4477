// strata/threads.hpp by itself: hand-over between threads, sleeping waiters, time-outs, wake-ups.
#include <strata/threads.hpp>

#include <cstdio>
#include <cstdlib>

using namespace strata;

namespace {

#define WANT(condition)                                                   \
  do {                                                                    \
    if (!(condition)) {                                                   \
      std::printf("line %d: %s is not so\n", __LINE__, #condition);       \
      std::exit(1);                                                       \
    }                                                                     \
  } while (0)

constexpr int64_t kRounds = 20'000;

struct Ring {
  Watermark filled, read;
  Condition changed;
  std::atomic<int> stop{0};
  std::atomic<int64_t> seen{0};
};

void reader(void* opaque) {
  Ring& ring = *static_cast<Ring*>(opaque);
  for (int64_t k = 1; k <= kRounds; ++k) {
    WANT(ring.filled.wait(k, ring.stop, kForever));
    ring.read.advance(k);
  }
}

void sleeper(void* opaque) {
  Ring& ring = *static_cast<Ring*>(opaque);
  ring.seen.store(ring.filled.wait(kRounds + 1, ring.stop, kForever) ? 1 : 2);
}

void listener(void* opaque) {
  Ring& ring = *static_cast<Ring*>(opaque);
  for (;;) {
    const uint64_t seen = ring.changed.prepare();
    if (ring.stop.load() != 0) {
      ring.changed.cancel();
      return;
    }
    ring.changed.wait(seen, kForever);
  }
}

}  // namespace

int main() {
  Ring ring;
  Thread thread;
  WANT(thread.start(reader, &ring, ThreadName{"test"}));
  for (int64_t k = 1; k <= kRounds; ++k) {
    ring.filled.advance(k);
    WANT(ring.read.wait(k > 4 ? k - 4 : 0, ring.stop, kForever));  // a ring of four
  }
  thread.join();
  WANT(ring.read.get() == kRounds);

  const int64_t before = now_ns();
  WANT(!ring.filled.wait(kRounds + 1, ring.stop, 20'000'000));
  WANT(now_ns() - before >= 15'000'000);  // a clock's tick early at most

  Thread slow, listening;
  WANT(slow.start(sleeper, &ring, ThreadName{"test"}));
  WANT(listening.start(listener, &ring, ThreadName{"test"}));
  pause_briefly();
  ring.stop.store(1);
  ring.filled.wake();
  ring.changed.notify();
  slow.join();
  listening.join();
  WANT(ring.seen.load() == 2);

  const uint64_t seen = ring.changed.prepare();
  WANT(!ring.changed.wait(seen, 1'000'000));
  std::printf("%lld hand-overs, a time-out, a stop and a notification\n", static_cast<long long>(kRounds));
  return 0;
}
