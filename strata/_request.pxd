"""The engine's side for Python: the streamer's core, a request, a slot."""
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from strata._pipeline cimport Pipeline


cdef class StreamerCore:
    cdef Pipeline* p
    cdef readonly int64_t slot_bytes
    cdef readonly int64_t gpu_ring
    cdef readonly int64_t host_ring
    cdef readonly object runtime
    cdef bint busy                    # a thread waits in here without the GIL
    cdef list owners                  # what the running request reads from
    cdef int64_t[27] totals           # counters of the requests that ended
    cdef int64_t stall_ns
    cdef object current               # weak reference to the running Request
    cdef object __weakref__

    cdef int check_open(self) except -1
    cdef object thread_states(self, Pipeline* p=*)
    cdef int watch_stall(self, int64_t* progress, int64_t* moved, object waiting_for) except -1


cdef class Request:
    cdef StreamerCore core
    cdef uint64_t generation
    cdef object ended                 # why the request is over, or None
    cdef int64_t[27] final            # its counters then
    cdef int64_t final_length
    cdef int64_t final_issued
    cdef int64_t final_consumed
    cdef Slot iterated
    cdef object settings_
    cdef object __weakref__

    cdef Pipeline* pipeline(self) except NULL


cdef class Slot:
    cdef Request request
    cdef readonly int64_t entry
    cdef readonly int64_t slot
    cdef readonly uintptr_t address
    cdef readonly int64_t nbytes
