// The one word that every HIP function reads first. Zero means: the eager schedule, nothing watched,
// nothing injected, no costs. Every speciality of the runtime is a bit, so that it is free when off.
#pragma once

#include <atomic>
#include <cstdint>

namespace strata::software {

enum ModeBit : std::uint32_t {
  kModeUnborn = 1u << 0,   // no state yet: the first call creates it
  kModeNull = 1u << 1,     // calls are accepted and nothing happens
  kModeDemand = 1u << 2,   // operations run on demand: lazy, random and the unequal schedules
  kModeHooks = 1u << 3,    // faults are injected or calls are logged
  kModeCosts = 1u << 4,    // calls and operations cost time
  kModeChecker = 1u << 5,  // happens-before checker
  kModeRefused = 1u << 6,  // every call is refused: forked child, bad environment
  kModeLost = 1u << 7,     // the device is lost
  kModeNoDevice = 1u << 8,  // configured with no device at all
};

extern std::atomic<std::uint32_t> g_mode;

inline std::uint32_t mode() noexcept { return g_mode.load(std::memory_order_acquire); }
inline bool mode_has(std::uint32_t bits) noexcept { return (mode() & bits) != 0; }
inline void set_mode(std::uint32_t bits, bool on) noexcept {
  if (on) {
    g_mode.fetch_or(bits, std::memory_order_acq_rel);
  } else {
    g_mode.fetch_and(~bits, std::memory_order_acq_rel);
  }
}

}  // namespace strata::software
