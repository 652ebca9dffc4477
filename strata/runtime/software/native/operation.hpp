// One operation in a stream.
#pragma once

#define STRATA_HIP_DECLARE_FUNCTIONS 1
#include <hip/hip_runtime.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

namespace strata::software {

struct Stream;
struct Event;

enum class OpKind : std::uint8_t { Copy, Memset, HostFunction, Record, Wait, Marker, Hold, Delay, Free };
enum class Direction : std::uint8_t { HostToHost, HostToDevice, DeviceToHost, DeviceToDevice };

// Everything up to and including operation `seq` of a stream. Operations of a stream are numbered
// from 1 for as long as the process lives, even when its place is reused: a dependency stays
// meaningful, and satisfied, whatever becomes of the stream.
struct Dependency {
  Stream* stream = nullptr;
  std::uint64_t seq = 0;
  inline bool satisfied() const noexcept;
};

// Holds a stream until it is released.
struct Latch {
  std::mutex mutex;
  std::condition_variable changed;
  bool released = false;

  void release();
  void wait();
  bool open();
};

// The bytes of a pageable source as they were at submission; counted while they are held.
struct FreeSnapshot {
  std::atomic<std::uint64_t>* held = nullptr;
  std::size_t bytes = 0;
  void operator()(void* memory) const noexcept {
    std::free(memory);
    held->fetch_sub(bytes, std::memory_order_relaxed);
  }
};
using Snapshot = std::unique_ptr<void, FreeSnapshot>;

struct Actor;  // the checker's view of an operation

struct Op {
  OpKind kind = OpKind::Marker;
  Direction direction = Direction::HostToHost;
  unsigned char value = 0;  // Memset
  std::uint64_t seq = 0;
  Dependency first;                                // most operations depend on one other at most
  std::unique_ptr<std::vector<Dependency>> more;  // the null stream's depend on many
  void* target = nullptr;
  const void* source = nullptr;
  std::size_t bytes = 0;
  Snapshot snapshot;
  hipHostFn_t function = nullptr;
  void* argument = nullptr;
  Event* event = nullptr;  // Record of an event with timing
  std::uint64_t record = 0;
  std::shared_ptr<Latch> latch;
  std::int64_t submitted_ns = 0;  // only where time is accounted
  std::int64_t delay_ns = 0;
  std::shared_ptr<Actor> actor;

  void depend_on(Dependency dependency) {
    if (first.stream == nullptr) {
      first = dependency;
    } else {
      if (!more) more = std::make_unique<std::vector<Dependency>>();
      more->push_back(dependency);
    }
  }

  template <class Visit>
  bool every_dependency(Visit visit) const {
    if (first.stream != nullptr && !visit(first)) return false;
    if (more) {
      for (const Dependency& dependency : *more) {
        if (!visit(dependency)) return false;
      }
    }
    return true;
  }

  bool ready() const noexcept {
    return every_dependency([](const Dependency& dependency) { return dependency.satisfied(); });
  }
};

// Does what the operation is for, on the calling thread; nothing if the device is lost. The
// dependencies are satisfied, the latch is open.
void perform(Stream& stream, Op& op);

// From now on host functions count as done without being called: whoever they belong to is going
// away. True once none is running any more, false if one still is after `timeout_ns`.
bool stop_host_functions(std::int64_t timeout_ns);

}  // namespace strata::software
