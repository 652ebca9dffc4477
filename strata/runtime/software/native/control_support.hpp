// What every control function does around its work.
#pragma once

#include <cstdio>
#include <string>

#include "calls.hpp"
#include "runtime.hpp"

namespace strata::software {

// Says why a control call failed, for strata_sw_problem(); returns -1.
int control_failure(std::string problem);
void no_such_stream(const void* handle);
void control_success() noexcept;

// The runtime exists and this is no forked child; else the failure is noted.
bool control_ready();

// A control function that only does something.
template <class Body>
int when_ready(Body body) {
  if (!control_ready()) return -1;
  body();
  return 0;
}

// Fills a text of fixed length, cut where it is longer.
template <std::size_t N>
void put(char (&into)[N], const std::string& text) {
  std::snprintf(into, N, "%s", text.c_str());
}

}  // namespace strata::software
