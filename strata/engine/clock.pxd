"""Foreign declarations of strata/include/strata/threads.hpp: the clock, and a short sleep."""
from libc.stdint cimport int64_t


cdef extern from "strata/threads.hpp" namespace "strata" nogil:
    int64_t now_ns() noexcept
    int64_t time_waited(int64_t began, int64_t asked) noexcept
    void pause_briefly() noexcept
