"""Foreign declarations of strata/include/strata/threads.hpp: the clock, and a short sleep."""
from libc.stdint cimport int64_t


cdef extern from "strata/threads.hpp" namespace "strata" nogil:
    int64_t now_ns() noexcept
    void pause_briefly() noexcept
