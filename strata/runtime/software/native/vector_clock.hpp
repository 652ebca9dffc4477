// Vector clocks: for each component (a stream or a host thread), up to which of its epochs one knows.
#pragma once

#include <cstdint>
#include <vector>

namespace strata::software {

class VectorClock {
 public:
  std::uint64_t at(std::size_t component) const noexcept {
    return component < known_.size() ? known_[component] : 0;
  }
  void set(std::size_t component, std::uint64_t epoch) {
    if (component >= known_.size()) known_.resize(component + 1, 0);
    known_[component] = epoch;
  }
  void join(const VectorClock& other) {
    if (other.known_.size() > known_.size()) known_.resize(other.known_.size(), 0);
    for (std::size_t i = 0; i < other.known_.size(); ++i) {
      if (other.known_[i] > known_[i]) known_[i] = other.known_[i];
    }
  }

 private:
  std::vector<std::uint64_t> known_;
};

}  // namespace strata::software
