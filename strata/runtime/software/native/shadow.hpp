// Shadow memory of one allocation: who wrote each byte last, and who read it since.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "vector_clock.hpp"

namespace strata::software {

// One access, for the finding that may name it.
struct AccessRecord {
  const char* operation = "";  // "H2D write", "host read", ...
  const void* stream = nullptr;
  std::int64_t label[3] = {-1, -1, -1};
  std::uintptr_t begin = 0, end = 0;
  std::string thread;
  std::uint64_t serial = 0;
  std::size_t component = 0;
  std::uint64_t epoch = 0;
  bool write = false;
};
using AccessPtr = std::shared_ptr<const AccessRecord>;

class Shadow {
 public:
  // Enters an access whose maker knows `clock`. Calls conflict(earlier, begin, end) for each earlier
  // conflicting access that it does not know of.
  template <class Conflict>
  void enter(const AccessPtr& access, const VectorClock& clock, Conflict conflict) {
    split(access->begin);
    split(access->end);
    std::uintptr_t at = access->begin;
    auto it = segments_.lower_bound(at);
    while (at < access->end) {
      if (it == segments_.end() || it->first > at) {
        const std::uintptr_t gap_end =
            it == segments_.end() ? access->end : (it->first < access->end ? it->first : access->end);
        it = segments_.emplace_hint(it, at, Segment{gap_end, nullptr, {}});
      }
      Segment& segment = it->second;
      visit(segment, at, access, clock, conflict);
      at = segment.end;
      ++it;
    }
    if (access->write) merge(access);
  }

 private:
  struct Segment {
    std::uintptr_t end;
    AccessPtr write;
    std::vector<AccessPtr> reads;  // since the write, none known to another
  };

  static bool known(const AccessPtr& earlier, const VectorClock& clock) {
    return clock.at(earlier->component) >= earlier->epoch;
  }

  template <class Conflict>
  static void visit(Segment& segment, std::uintptr_t begin, const AccessPtr& access, const VectorClock& clock,
                    Conflict& conflict) {
    if (segment.write && !known(segment.write, clock)) conflict(segment.write, begin, segment.end);
    if (access->write) {
      for (const AccessPtr& read : segment.reads) {
        if (!known(read, clock)) conflict(read, begin, segment.end);
      }
      return;  // merge() replaces the segment
    }
    std::size_t kept = 0;
    for (AccessPtr& read : segment.reads) {
      // Whoever is ordered after this access is ordered after the reads that it knows of.
      if (!known(read, clock)) segment.reads[kept++] = std::move(read);
    }
    segment.reads.resize(kept);
    segment.reads.push_back(access);
  }

  void split(std::uintptr_t at) {
    auto it = segments_.upper_bound(at);
    if (it == segments_.begin()) return;
    --it;
    if (it->first >= at || it->second.end <= at) return;
    Segment upper = it->second;
    it->second.end = at;
    segments_.emplace(at, std::move(upper));
  }

  void merge(const AccessPtr& access) {
    segments_.erase(segments_.lower_bound(access->begin), segments_.lower_bound(access->end));
    segments_.emplace(access->begin, Segment{access->end, access, {}});
  }

  std::map<std::uintptr_t, Segment> segments_;
};

}  // namespace strata::software
