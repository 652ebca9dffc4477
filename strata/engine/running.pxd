"""A request as what was acquired from it sees it: where its streamer is, and whether it still runs."""
from libc.stdint cimport int64_t, uint64_t

from strata.engine.core cimport StreamerCore
from strata.engine.pipeline cimport Pipeline


cdef class Running:
    cdef StreamerCore core
    cdef uint64_t generation
    cdef object ended                 # why the request is over, or None
    # What a loop holds: its entries, from -1 if none, and its slot or span while there is one. Not counted as a reference:
    # a slot refers to its request, and a request that is dropped is to end at once.
    cdef int64_t looped_begin
    cdef int64_t looped_end
    cdef bint looped_span
    cdef void* looped

    cdef Pipeline* pipeline(self) except NULL
    cdef void loop_takes(self, void* held, int64_t begin, int64_t end, bint span)
    cdef void loop_forgets(self, void* held, bint released)
    cdef int let_handlers_run(self) except -1
    cdef int wait_arrived(self, int64_t entry, object held) except -1
    cdef int end_with(self, int step) except -1
