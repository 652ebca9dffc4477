// Everything at once from several threads, for the sanitizers: arguments are a schedule and a seed.
// Exit status 0 if every call gave a status that the situation allows and the bytes of a
// synchronized pipeline came out right.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#define STRATA_HIP_DECLARE_FUNCTIONS 1
#include <hip/hip_runtime.h>

#include "control.h"

namespace {

constexpr std::size_t kBytes = 4096;
constexpr int kSlots = 8;
constexpr int kThreads = 4;
constexpr int kLives = 4;  // streams that each thread makes and destroys, one after the other

void fail(const char* what, int status) {
  std::fprintf(stderr, "%s: %d %s\n", what, status, hipGetErrorName(static_cast<hipError_t>(status)));
  std::exit(1);
}

#define WANT(call)                                            \
  do {                                                        \
    const hipError_t want_status = (call);                    \
    if (want_status != hipSuccess) fail(#call, want_status);  \
  } while (0)

struct World {
  hipStream_t streams[3];
  hipEvent_t events[6];
  char* device;
  char* pinned;
  std::atomic<int> host_functions{0};
};

void count(void* world) { static_cast<World*>(world)->host_functions.fetch_add(1); }

// Unsynchronized on purpose: each stream of a thread copies within a range of its own.
void mix(World& w, unsigned seed, int thread) {
  std::mt19937 draw(seed * 31 + static_cast<unsigned>(thread));
  char* device = w.device + thread * kLives * kBytes;
  char* pinned = w.pinned + thread * kBytes;
  std::vector<char> pageable(kBytes, 1);
  hipStream_t own;
  WANT(hipStreamCreateWithFlags(&own, draw() % 2));
  for (int i = 0; i < kLives * 100; ++i) {
    hipStream_t shared = w.streams[draw() % 3];
    hipEvent_t event = w.events[draw() % 6];
    switch (draw() % 14) {
      case 0: WANT(hipMemcpyAsync(device, pinned, kBytes, hipMemcpyHostToDevice, own)); break;
      case 1: WANT(hipMemcpyAsync(device, pageable.data(), kBytes, hipMemcpyHostToDevice, own)); break;
      case 2: WANT(hipMemsetAsync(device, i, kBytes, own)); break;
      case 3: WANT(hipEventRecord(event, shared)); break;
      case 4: WANT(hipStreamWaitEvent(shared, event, 0)); break;
      case 5: WANT(hipLaunchHostFunc(shared, count, &w)); break;
      case 6: WANT(hipEventSynchronize(event)); break;
      case 7: WANT(hipStreamSynchronize(draw() % 4 == 0 ? nullptr : shared)); break;
      case 8: (void)hipEventQuery(event); break;
      case 9: (void)hipStreamQuery(draw() % 4 == 0 ? nullptr : shared); break;
      case 10: {
        void* memory = nullptr;
        WANT(hipMalloc(&memory, 1000));
        WANT(hipFree(memory));
        break;
      }
      case 11: {
        hipEvent_t made;
        WANT(hipEventCreateWithFlags(&made, hipEventDefault));
        WANT(hipEventRecord(made, own));
        WANT(hipStreamWaitEvent(shared, made, 0));
        WANT(hipEventDestroy(made));
        break;
      }
      case 12: {
        const uint64_t latch = strata_sw_hold(shared);
        if (latch == 0 || strata_sw_release(latch) != 0) fail("hold", 0);
        break;
      }
      default: {
        strata_sw_live live;
        strata_sw_host_read(pinned, kBytes);
        strata_sw_handover_release(&w);
        strata_sw_handover_acquire(&w);
        if (strata_sw_get_live(&live) != 0) fail("live", 0);
      }
    }
    if (i % 100 == 99) {
      if (i + 1 < kLives * 100) device += kBytes;
      WANT(hipStreamDestroy(own));
      WANT(hipStreamCreateWithFlags(&own, draw() % 2));
    }
  }
  WANT(hipStreamDestroy(own));
}

struct Check {
  const char* slot;
  int expected;
  std::atomic<int>* wrong;
};

void look(void* opaque) {
  const Check* check = static_cast<Check*>(opaque);
  for (std::size_t k = 0; k < kBytes; ++k) {
    if (check->slot[k] != static_cast<char>(check->expected)) {
      check->wrong->fetch_add(1);
      return;
    }
  }
}

// A ring of slots and of host buffers, filled by an issuer and used by an engine, as strata does it.
void pipeline() {
  constexpr int kEntries = 300;
  constexpr int kBuffers = 3;
  hipStream_t copy, compute;
  hipEvent_t copied[kSlots], used[kSlots], done[kBuffers];
  char *slots, *buffers;
  WANT(hipStreamCreateWithFlags(&copy, hipStreamNonBlocking));
  WANT(hipStreamCreateWithFlags(&compute, hipStreamNonBlocking));
  for (auto* events : {copied, used}) {
    for (int k = 0; k < kSlots; ++k) WANT(hipEventCreateWithFlags(&events[k], hipEventDisableTiming));
  }
  for (hipEvent_t& event : done) WANT(hipEventCreateWithFlags(&event, hipEventDisableTiming));
  WANT(hipMalloc(reinterpret_cast<void**>(&slots), kSlots * kBytes));
  WANT(hipHostMalloc(reinterpret_cast<void**>(&buffers), kBuffers * kBytes, 0));
  std::atomic<int> issued{0}, consumed{0}, wrong{0};
  std::vector<Check> checks(kEntries);
  std::thread issuer([&] {
    strata_sw_thread_role("issuer");
    for (int i = 0; i < kEntries; ++i) {
      while (i + 1 > consumed.load(std::memory_order_acquire) + kSlots) std::this_thread::yield();
      char* buffer = buffers + i % kBuffers * kBytes;
      if (i >= kBuffers) WANT(hipEventSynchronize(done[i % kBuffers]));
      std::memset(buffer, i, kBytes);
      if (i >= kSlots) WANT(hipStreamWaitEvent(copy, used[i % kSlots], 0));
      WANT(hipMemcpyAsync(slots + i % kSlots * kBytes, buffer, kBytes, hipMemcpyHostToDevice, copy));
      WANT(hipEventRecord(done[i % kBuffers], copy));
      WANT(hipEventRecord(copied[i % kSlots], copy));
      issued.store(i + 1, std::memory_order_release);
    }
  });
  for (int i = 0; i < kEntries; ++i) {
    while (issued.load(std::memory_order_acquire) <= i) std::this_thread::yield();
    checks[static_cast<std::size_t>(i)] = {slots + i % kSlots * kBytes, i, &wrong};
    WANT(hipStreamWaitEvent(compute, copied[i % kSlots], 0));
    WANT(hipLaunchHostFunc(compute, look, &checks[static_cast<std::size_t>(i)]));
    WANT(hipEventRecord(used[i % kSlots], compute));
    consumed.store(i + 1, std::memory_order_release);
  }
  issuer.join();
  WANT(hipDeviceSynchronize());
  if (wrong.load() != 0) fail("wrong slots", wrong.load());
  for (auto* events : {copied, used}) {
    for (int k = 0; k < kSlots; ++k) WANT(hipEventDestroy(events[k]));
  }
  for (hipEvent_t event : done) WANT(hipEventDestroy(event));
  WANT(hipStreamDestroy(copy));
  WANT(hipStreamDestroy(compute));
  WANT(hipFree(slots));
  WANT(hipHostFree(buffers));
}

void configure(const char* schedule, unsigned seed) {
  strata_sw_configuration wanted;
  if (strata_sw_get_configuration(&wanted) != 0) fail("configuration", 0);
  std::snprintf(wanted.schedule, sizeof wanted.schedule, "%s", schedule);
  wanted.seed = seed;
  wanted.idle_ms = 1;  // the idle thread takes part
  if (strata_sw_set_configuration(&wanted) != 0) fail(strata_sw_problem(), 0);
}

}  // namespace

int main(int, char** arguments) {
  const unsigned seed = static_cast<unsigned>(std::atoi(arguments[2]));
  configure(arguments[1], seed);
  if (seed % 2 == 1) strata_sw_checker(1);
  if (seed % 3 == 2) strata_sw_set_cost("record", 100, 3000);
  if (seed % 4 == 3) strata_sw_call_log(1);
  World w;
  for (int k = 0; k < 3; ++k) WANT(hipStreamCreateWithFlags(&w.streams[k], k == 0 ? 0 : hipStreamNonBlocking));
  for (int k = 0; k < 6; ++k) WANT(hipEventCreateWithFlags(&w.events[k], k % 2 == 0 ? 0 : hipEventDisableTiming));
  WANT(hipMalloc(reinterpret_cast<void**>(&w.device), kThreads * kLives * kBytes));
  WANT(hipHostMalloc(reinterpret_cast<void**>(&w.pinned), kThreads * kBytes, 0));
  std::vector<std::thread> threads;
  for (int k = 0; k < kThreads; ++k) threads.emplace_back([&w, seed, k] { mix(w, seed, k); });
  for (std::thread& thread : threads) thread.join();
  WANT(hipDeviceSynchronize());
  pipeline();
  // Work is in flight when the device goes.
  for (int k = 0; k < 100; ++k) {
    WANT(hipMemcpyAsync(w.device + k % 3 * kBytes, w.pinned, kBytes, hipMemcpyHostToDevice, w.streams[k % 3]));
  }
  strata_sw_lose_device(hipErrorLaunchFailure);
  if (hipDeviceSynchronize() != hipErrorLaunchFailure) fail("lost device", 0);
  if (strata_sw_restore_device() != 0) fail("restore", 0);
  pipeline();
  for (hipStream_t stream : w.streams) WANT(hipStreamDestroy(stream));
  for (hipEvent_t event : w.events) WANT(hipEventDestroy(event));
  WANT(hipFree(w.device));
  WANT(hipHostFree(w.pinned));
  strata_sw_live live;
  strata_sw_get_live(&live);
  if (live.streams + live.events + live.device_allocations + live.pinned_allocations != 0) fail("leaked", 0);
  return 0;
}
