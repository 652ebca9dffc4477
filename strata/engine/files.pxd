"""Foreign declarations of strata/include/strata/files.hpp: positioned reads."""
from libc.stdint cimport int64_t


cdef extern from "strata/files.hpp" namespace "strata" nogil:
    cdef struct SourceFile:
        int64_t handle
        int64_t size
        int64_t alignment

    int64_t read_at(const SourceFile& file, void* to, int64_t nbytes, int64_t offset, int* error) noexcept
