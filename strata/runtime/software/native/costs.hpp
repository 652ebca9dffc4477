// Costs: what a call takes on the calling thread, and an operation in its stream.
//
// Each stream has a clock of its own that only ever adds up: an operation starts when the stream's
// previous one ended, it was submitted and what it waits for ended, all by these clocks; its end is
// its start plus its cost. Threads wait for that absolute time, so that waking late costs no more
// than once. The demand schedules account for time and do not wait.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "calls.hpp"
#include "operation.hpp"

namespace strata::software {

enum class CostKind : std::uint8_t { Copy, Memset, Record, Wait, Query, Sync, HostFunction, Delay, kCount };
constexpr std::size_t kCostKinds = static_cast<std::size_t>(CostKind::kCount);

const char* cost_name(CostKind kind) noexcept;
bool cost_of(const char* name, CostKind* out) noexcept;

struct CostTotals {
  std::array<std::uint64_t, kCostKinds> host_ns{}, stream_ns{}, operations{};
};

void set_cost(CostKind kind, std::int64_t host_ns, std::int64_t stream_ns);
void set_byte_cost(double ns_per_byte);  // of copies, in stream time
void clear_costs();                      // and the totals
CostTotals cost_totals();
// What the stream's clock says, in nanoseconds of the steady clock; 0 before its first cost.
std::int64_t stream_clock(Stream& stream);

// Sets a stream's clock to the past: a new stream on an old place, or another configuration.
void reset_stream_clock(Stream& stream);
void reset_stream_clocks();

// Copies and fills move no bytes and only take time.
extern std::atomic<bool> g_time_is_simulated;
inline bool time_is_simulated() noexcept { return g_time_is_simulated.load(std::memory_order_relaxed); }

// Sets or clears the mode's bit after a change of costs or schedule.
void update_cost_mode();

// Spends the cost of a call on the calling thread.
void pay_call(Fn fn);

// Performs an operation and spends its cost in stream order.
void perform_with_costs(Stream& stream, Op& op);

}  // namespace strata::software
