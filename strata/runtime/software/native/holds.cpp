#include "holds.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "demand.hpp"
#include "mode.hpp"

namespace strata::software {

namespace {

struct Holds {
  std::mutex mutex;
  std::uint64_t last = 0;
  std::map<std::uint64_t, std::shared_ptr<Latch>> open;
};

Holds& holds() {
  static Holds* const kept = new Holds;
  return *kept;
}

}  // namespace

std::uint64_t hold_stream(Stream& stream) {
  auto latch = std::make_shared<Latch>();
  std::uint64_t number = 0;
  {
    std::lock_guard<std::mutex> lock(holds().mutex);
    number = ++holds().last;
    holds().open.emplace(number, latch);
  }
  Op op;
  op.kind = OpKind::Hold;
  op.latch = std::move(latch);
  std::uint64_t seq = 0;
  if (submit_at_once(stream, std::move(op), &seq) == hipSuccess) return number;
  std::lock_guard<std::mutex> lock(holds().mutex);
  holds().open.erase(number);
  return 0;
}

bool release_hold(std::uint64_t number) {
  std::shared_ptr<Latch> latch;
  {
    std::lock_guard<std::mutex> lock(holds().mutex);
    const auto found = holds().open.find(number);
    if (found == holds().open.end()) return false;
    latch = std::move(found->second);
    holds().open.erase(found);
  }
  latch->release();
  demand_poke();
  return true;
}

void open_all_latches() {
  std::vector<std::shared_ptr<Latch>> latches;
  {
    std::lock_guard<std::mutex> lock(holds().mutex);
    for (auto& [number, latch] : holds().open) latches.push_back(std::move(latch));
    holds().open.clear();
  }
  for (const auto& latch : latches) latch->release();
}

}  // namespace strata::software
