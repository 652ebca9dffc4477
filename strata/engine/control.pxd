"""How the threads of one streamer stop together, and the first cause of a failure."""
from libc.stdint cimport int64_t, uintptr_t
from libcpp.atomic cimport atomic

from strata.engine.threads cimport Watermark

cdef enum Who:
    WHO_ENGINE = 0
    WHO_ISSUER = 1
    WHO_WORKER = 2

cdef enum:
    MAX_WATCHED = 8

cdef struct Failure:
    int who
    int worker
    int call
    int status
    int64_t entry
    int64_t slot
    uintptr_t stream             # that the call was made on; 0 where that does not matter
    # Of a read of a file.
    int64_t file                 # its handle
    int64_t offset
    int64_t got
    int64_t wanted

cdef struct Control:
    atomic[int] stop         # the strata threads leave their work at the next entry or chunk
    atomic[int] interrupted    # the engine's waits end: something failed, or cancel() was called
    atomic[int] cancelled
    atomic[int] failed       # 0: no; 1: the cause is being written; 2: `failure` may be read
    Failure failure
    Watermark* watched[MAX_WATCHED]
    size_t watched_count[MAX_WATCHED]
    atomic[int] n_watched    # only grows, once what it counts is written: cancel() may come from any thread

cdef void control_watch(Control* control, Watermark* first, size_t count) noexcept nogil
cdef void control_reset(Control* control) noexcept nogil
cdef void control_stop(Control* control) noexcept nogil
cdef void control_cancel(Control* control) noexcept nogil
cdef void control_fail(Control* control, int who, int worker, int call, int status, int64_t entry,
                       int64_t slot, uintptr_t stream=*) noexcept nogil
cdef void control_fail_memory(Control* control, int64_t wanted) noexcept nogil
cdef void control_fail_read(Control* control, int worker, int error, int64_t entry, int64_t file, int64_t offset,
                            int64_t got, int64_t wanted) noexcept nogil
