// Threads that run host functions where streams have no executors: kept, and as many as are needed
// at once, since host functions of different streams may wait for each other.
#pragma once

namespace strata::software {

// Calls body(argument) soon, on another thread. A failure to start one is fatal to the process'
// progress, so it retries until the system has a thread to give.
void run_on_helper(void (*body)(void*), void* argument);

}  // namespace strata::software
