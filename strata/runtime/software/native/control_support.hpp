// What every control function does around its work.
#pragma once

#include <string>

#include "calls.hpp"
#include "runtime.hpp"

namespace strata::software {

// Says why a control call failed, for strata_sw_problem(); returns -1.
int control_failure(std::string problem);
void control_success() noexcept;

// The runtime exists and this is no forked child; else the failure is noted.
bool control_ready();

}  // namespace strata::software
