// The demand schedules: no executor threads. An operation runs on the thread that forces it, or
// when the schedule says so, never before what it depends on. One lock serializes everything.
//
// lazy           an operation runs only when something forces it
// copies-first   host-to-device copies, and what they need, run as soon as they can; else lazy
// compute-first  host functions and other work that is no such copy run as soon as they can
// random         at each call, some operations that could run do, as the seed has it
//
// Host functions run on threads of their own: whoever forces one may hold a lock that it takes.
#pragma once

#include <atomic>
#include <cstdint>

#include "operation.hpp"
#include "stream.hpp"

namespace strata::software {

// Starts the random schedule's numbers anew. After `idle_ns` without progress pending operations run
// by themselves, as on a device they would; 0: never.
void seed_demand(std::uint64_t seed, std::int64_t idle_ns);

// At the start of every call: lets the schedule run what it likes to run now.
void demand_on_call();

hipError_t demand_submit(Stream& stream, Op&& op, std::uint64_t* seq);

// Runs exactly what operation `seq` needs; waits where that is held or in a host function.
void demand_force(Stream& stream, std::uint64_t seq);

// After a query that found operation `seq` incomplete: `fruitless` counts such queries of one
// object in a row; every eighth runs one needed operation, so that a program that polls comes on.
void demand_query(Stream& stream, std::uint64_t seq, std::atomic<unsigned>* fruitless);

// Something changed outside (a latch opened, the device was lost): look again.
void demand_poke();

// Runs everything that can run. For a lost device, whose operations have no effect.
void demand_drain();

}  // namespace strata::software
