// Events: which operation of which stream was recorded last.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "slots.hpp"
#include "stream.hpp"

namespace strata::software {

struct Event : Slot {
  std::atomic<int> device{0};
  std::atomic<unsigned> flags{0};
  std::atomic<unsigned> fruitless{0};  // queries in a row that said "not ready" (demand schedules)

  std::mutex mutex;          // held while an operation is submitted
  Stream* stream = nullptr;  // of the latest record; nullptr: never recorded
  std::uint64_t seq = 0;

  std::mutex time_mutex;     // held for an instant, whatever else is
  std::uint64_t record = 0;  // numbers the records of this place, so that an old one sets no time
  std::int64_t time_ns = 0;  // when the latest record completed

  // The latest record; {nullptr, 0} if there is none.
  Dependency latest() {
    std::lock_guard<std::mutex> lock(mutex);
    return {stream, seq};
  }
};

}  // namespace strata::software
