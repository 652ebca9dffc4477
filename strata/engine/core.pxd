"""A streamer's core: the owner of its rings, events and threads."""
from libc.stdint cimport int64_t, uintptr_t

from strata cimport _hip
from strata.engine.command cimport Rows
from strata.engine.control cimport Failure
from strata.engine.counters cimport N_COUNTERS
from strata.engine.pipeline cimport Pipeline

cdef extern from "Python.h":
    ctypedef struct PyThreadState
    PyThreadState* PyEval_SaveThread() noexcept
    void PyEval_RestoreThread(PyThreadState* state) noexcept

cdef object as_counters(const int64_t* values)
cdef int64_t nanoseconds(seconds) except -1
cdef int rows_of(object copies, Rows* rows) except -1
cdef object cause_error(const Failure* cause, int64_t slot)


cdef class SlotMemory:
    cdef uintptr_t address            # 0 while it is the streamer's to free


cdef class StreamerCore:
    cdef Pipeline* p
    cdef readonly int64_t slot_bytes
    cdef readonly int64_t gpu_ring
    cdef readonly int64_t host_ring
    cdef readonly object runtime
    cdef bint busy                    # a thread waits in here without the GIL
    cdef bint counting                # a request's counters are not among the totals yet
    cdef list owners                  # what the running request reads from
    cdef int64_t[N_COUNTERS] totals           # counters of the requests that ended
    cdef int64_t stall_ns
    cdef public object before_staging  # called once, before the host ring is first needed; or None
    cdef public object tensors        # of an integration: slots and spans as named tensors, or None
    cdef object current               # weak reference to the running Request
    cdef object __weakref__

    cdef object slot_tensors(self)
    cdef int staging_begins(self) except -1
    cdef int check_open(self) except -1
    cdef object setup_problem(self, int step)
    cdef SlotMemory memory            # made when the first array over owned slots is

    cdef object stranded(self)
    cdef SlotMemory slot_memory(self)
    cdef SlotMemory part_with_memory(self)
    cdef object gone(self, int status, uintptr_t stream, uintptr_t of_request)
    cdef object cause(self, Pipeline* p)
    cdef object thread_states(self, Pipeline* p=*)
    cdef int watch_stall(self, int64_t* progress, int64_t* unmoved, int64_t waited, object waiting_for) except -1


# Around a step that calls the driver. The GIL is kept, unless a Python function on a stream may want it: the driver may
# then hold the call until that function has run. Meanwhile the streamer is in use, so that no other thread closes it.

cdef inline PyThreadState* let_python_run(StreamerCore core) noexcept:
    if not _hip.gil_is_wanted():
        return NULL
    core.busy = True
    return PyEval_SaveThread()


cdef inline void python_has_run(StreamerCore core, PyThreadState* state) noexcept:
    if state != NULL:
        PyEval_RestoreThread(state)
        core.busy = False
