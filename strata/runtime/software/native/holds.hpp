// Latches that tests put on streams.
#pragma once

#include <cstdint>

#include "stream.hpp"

namespace strata::software {

std::uint64_t hold_stream(Stream& stream);  // 0: the stream is gone
bool release_hold(std::uint64_t number);    // false: unknown, or released before
// Opens every latch; takes no lock that a scheduler holds.
void open_all_latches();

}  // namespace strata::software
