#include "costs.hpp"

#include <algorithm>

#include "mode.hpp"
#include "platform.hpp"
#include "runtime.hpp"

namespace strata::software {

std::atomic<bool> g_time_is_simulated{false};

// When operations of a stream ended, by its clock; older ones are long past.
struct StreamCosts {
  static constexpr std::size_t kRemembered = 4096;
  std::mutex mutex;
  std::int64_t clock = 0;
  std::array<std::uint64_t, kRemembered> seqs{};
  std::array<std::int64_t, kRemembered> ends{};
};

namespace {

constexpr const char* kCostNames[kCostKinds] = {"copy", "memset", "record", "wait", "query", "sync", "host_func", "delay"};
constexpr std::int64_t kNotWorthWaiting = 2'000;  // ns; the clocks keep it
constexpr std::int64_t kLongestSleep = 20'000'000;  // ns; a lost device is noticed in between

struct Costs {
  std::array<std::atomic<std::int64_t>, kCostKinds> host_ns{}, stream_ns{};
  std::atomic<double> per_byte_ns{0.0};
  std::array<std::atomic<std::uint64_t>, kCostKinds> spent_host{}, spent_stream{}, operations{};
};

Costs& costs() {
  static Costs* const kept = new Costs;
  return *kept;
}

// kCount: none, it is free.
CostKind kind_of(Fn fn) {
  if (is_copy(fn)) return CostKind::Copy;
  switch (fn) {
    case Fn::Memset:
    case Fn::MemsetAsync: return CostKind::Memset;
    case Fn::EventRecord: return CostKind::Record;
    case Fn::StreamWaitEvent: return CostKind::Wait;
    case Fn::EventQuery:
    case Fn::StreamQuery: return CostKind::Query;
    case Fn::EventSynchronize:
    case Fn::StreamSynchronize:
    case Fn::DeviceSynchronize: return CostKind::Sync;
    case Fn::LaunchHostFunc: return CostKind::HostFunction;
    default: return CostKind::kCount;
  }
}

CostKind kind_of(OpKind op) {
  switch (op) {
    case OpKind::Copy: return CostKind::Copy;
    case OpKind::Memset: return CostKind::Memset;
    case OpKind::HostFunction: return CostKind::HostFunction;
    case OpKind::Record: return CostKind::Record;
    case OpKind::Wait: return CostKind::Wait;
    case OpKind::Delay: return CostKind::Delay;
    case OpKind::Marker:
    case OpKind::Hold:
    case OpKind::Free: break;
  }
  return CostKind::kCount;
}

StreamCosts& costs_of(Stream& stream) {
  StreamCosts* found = stream.costs.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  auto* made = new StreamCosts;
  if (stream.costs.compare_exchange_strong(found, made, std::memory_order_acq_rel)) return *made;
  delete made;
  return *found;
}

std::int64_t end_of(const Dependency& dependency) {
  StreamCosts* kept = dependency.stream->costs.load(std::memory_order_acquire);
  if (kept == nullptr) return 0;
  std::lock_guard<std::mutex> lock(kept->mutex);
  const std::size_t at = dependency.seq % StreamCosts::kRemembered;
  return kept->seqs[at] == dependency.seq ? kept->ends[at] : 0;
}

std::int64_t stream_cost(const Op& op) {
  const CostKind kind = kind_of(op.kind);
  if (kind == CostKind::kCount) return 0;
  Costs& c = costs();
  const auto at = static_cast<std::size_t>(kind);
  std::int64_t cost = c.stream_ns[at].load(std::memory_order_relaxed) + op.delay_ns;
  if (op.kind == OpKind::Copy) {
    const double bytes = static_cast<double>(op.bytes) * c.per_byte_ns.load(std::memory_order_relaxed);
    cost += static_cast<std::int64_t>(bytes);
  }
  c.spent_stream[at].fetch_add(static_cast<std::uint64_t>(cost), std::memory_order_relaxed);
  c.operations[at].fetch_add(1, std::memory_order_relaxed);
  return cost;
}

void wait_until(std::int64_t end) {
  for (std::int64_t now = now_ns(); end - now > kNotWorthWaiting && !mode_has(kModeLost); now = now_ns()) {
    sleep_until_ns(std::min(end, now + kLongestSleep));
  }
}

}  // namespace

const char* cost_name(CostKind kind) noexcept { return kCostNames[static_cast<std::size_t>(kind)]; }

bool cost_of(const char* name, CostKind* out) noexcept { return find_name(kCostNames, name, out); }

void set_cost(CostKind kind, std::int64_t host_ns, std::int64_t stream_ns) {
  costs().host_ns[static_cast<std::size_t>(kind)].store(host_ns);
  costs().stream_ns[static_cast<std::size_t>(kind)].store(stream_ns);
  update_cost_mode();
}

void set_byte_cost(double ns_per_byte) {
  costs().per_byte_ns.store(ns_per_byte);
  update_cost_mode();
}

void clear_costs() {
  Costs& c = costs();
  for (std::size_t i = 0; i < kCostKinds; ++i) {
    c.host_ns[i] = 0;
    c.stream_ns[i] = 0;
    c.spent_host[i] = 0;
    c.spent_stream[i] = 0;
    c.operations[i] = 0;
  }
  c.per_byte_ns = 0.0;
  update_cost_mode();
}

CostTotals cost_totals() {
  Costs& c = costs();
  CostTotals totals;
  for (std::size_t i = 0; i < kCostKinds; ++i) {
    totals.host_ns[i] = c.spent_host[i].load();
    totals.stream_ns[i] = c.spent_stream[i].load();
    totals.operations[i] = c.operations[i].load();
  }
  return totals;
}

std::int64_t stream_clock(Stream& stream) {
  StreamCosts& kept = costs_of(stream);
  std::lock_guard<std::mutex> lock(kept.mutex);
  return kept.clock;
}

void reset_stream_clock(Stream& stream) {
  StreamCosts* kept = stream.costs.load(std::memory_order_acquire);
  if (kept == nullptr) return;
  std::lock_guard<std::mutex> lock(kept->mutex);
  kept->clock = 0;
  kept->ends.fill(0);
}

void reset_stream_clocks() { every_stream(reset_stream_clock); }

void update_cost_mode() {
  Costs& c = costs();
  bool any = time_is_simulated() || c.per_byte_ns.load() != 0.0;
  for (std::size_t i = 0; i < kCostKinds; ++i) any = any || c.host_ns[i] != 0 || c.stream_ns[i] != 0;
  set_mode(kModeCosts, any);
}

void pay_call(Fn fn) {
  const CostKind kind = kind_of(fn);
  if (kind == CostKind::kCount) return;
  Costs& c = costs();
  const auto at = static_cast<std::size_t>(kind);
  const std::int64_t cost = c.host_ns[at].load(std::memory_order_relaxed);
  if (cost == 0) return;
  c.spent_host[at].fetch_add(static_cast<std::uint64_t>(cost), std::memory_order_relaxed);
  ThreadState& thread = t_thread;
  const std::int64_t deadline = now_ns() + cost - thread.late_ns;  // what the last one took too long
  sleep_until_ns(deadline);
  thread.late_ns = std::max<std::int64_t>(0, now_ns() - deadline);
}

void perform_with_costs(Stream& stream, Op& op) {
  if (!mode_has(kModeCosts) && op.kind != OpKind::Delay) return perform(stream, op);
  if (mode_has(kModeLost)) return perform(stream, op);
  const std::int64_t before = now_ns();
  perform(stream, op);
  const bool took_time = op.kind == OpKind::HostFunction || !time_is_simulated();
  const std::int64_t work = took_time ? now_ns() - before : 0;
  std::int64_t start = op.submitted_ns != 0 ? op.submitted_ns : before;
  op.every_dependency([&](const Dependency& dependency) {
    start = std::max(start, end_of(dependency));
    return true;
  });
  StreamCosts& kept = costs_of(stream);
  std::int64_t end = 0;
  {
    std::lock_guard<std::mutex> lock(kept.mutex);
    // Nobody's clock ran while a latch held the stream.
    if (op.kind == OpKind::Hold) start = std::max(start, now_ns());
    end = std::max(start, kept.clock) + work + stream_cost(op);
    kept.clock = end;
    const std::size_t at = op.seq % StreamCosts::kRemembered;
    kept.seqs[at] = op.seq;
    kept.ends[at] = end;
  }
  if (!mode_has(kModeDemand)) wait_until(end);
}

}  // namespace strata::software
