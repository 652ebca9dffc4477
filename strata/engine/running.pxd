"""A request as what was acquired from it sees it: where its streamer is, and whether it still runs."""
from libc.stdint cimport int64_t, uint64_t

from strata.engine.core cimport StreamerCore
from strata.engine.pipeline cimport Pipeline


cdef class Running:
    cdef StreamerCore core
    cdef uint64_t generation
    cdef object ended                 # why the request is over, or None

    cdef Pipeline* pipeline(self) except NULL
    cdef int let_handlers_run(self) except -1
    cdef int wait_arrived(self, int64_t entry, object held) except -1
    cdef int end_with(self, int step) except -1
