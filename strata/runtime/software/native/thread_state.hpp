// What HIP keeps per host thread, and what the runtime adds to it.
#pragma once

#define STRATA_HIP_DECLARE_FUNCTIONS 1
#include <hip/hip_runtime.h>

#include <atomic>
#include <cstdint>

#include "platform.hpp"

namespace strata::software {

// The last answers of the memory registry, so that a copy in a known range takes no lock.
struct RangeHint {
  std::uint64_t epoch = 0;
  std::uintptr_t begin = 0, end = 0;
  std::uint8_t kind = 0;
  std::int8_t device = 0;
};

// Plain data without destructor: first use on a thread costs nothing, nor does its end.
struct ThreadState {
  hipError_t last_error = hipSuccess;
  int device = 0;
  std::atomic<std::uint64_t>* counts = nullptr;  // one per HIP function
  RangeHint hints[2];
  unsigned next_hint = 0;
  std::int64_t late_ns = 0;  // by which the last cost of a call was overspent
  std::int64_t label[3] = {-1, -1, -1};  // entry, slot, generation
  const char* role = nullptr;            // interned, never freed
  void* checker = nullptr;               // the checker's view of this thread
  std::uint64_t checker_session = 0;
  void* actor = nullptr;                 // the host function that it runs
};

extern thread_local ThreadState t_thread STRATA_SW_TLS;

}  // namespace strata::software
