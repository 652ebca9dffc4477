"""Stopping together: a flag that every wait of a streamer's threads looks at, and who raised it first."""
from libc.stdint cimport int64_t, uintptr_t
from libcpp.atomic cimport memory_order_acq_rel, memory_order_acquire, memory_order_release, memory_order_relaxed

from strata cimport _hip
from strata.engine.threads cimport Watermark


cdef void control_watch(Control* control, Watermark* first, size_t count) noexcept nogil:
    """Have a stop wake whoever waits on these watermarks, which live as long as the control. One thread at a time."""
    cdef int n = control.n_watched.load(memory_order_relaxed)
    if n < MAX_WATCHED:
        control.watched[n] = first
        control.watched_count[n] = count
        control.n_watched.store(n + 1, memory_order_release)


cdef void control_reset(Control* control) noexcept nogil:
    """Before a request: nobody works, nobody waits."""
    control.failed.store(0, memory_order_relaxed)
    control.cancelled.store(0, memory_order_relaxed)
    control.interrupted.store(0, memory_order_relaxed)
    control.stop.store(0, memory_order_release)


cdef void _wake_all(Control* control) noexcept nogil:
    cdef int k
    cdef size_t j
    for k in range(control.n_watched.load(memory_order_acquire)):
        for j in range(control.watched_count[k]):
            control.watched[k][j].wake()


cdef void control_stop(Control* control) noexcept nogil:
    """Everybody leaves at the next entry or chunk."""
    control.stop.store(1, memory_order_release)
    control.interrupted.store(1, memory_order_release)
    _wake_all(control)


cdef void control_cancel(Control* control) noexcept nogil:
    """From any thread: the engine's next call, or the one it waits in, aborts."""
    control.cancelled.store(1, memory_order_release)
    control.interrupted.store(1, memory_order_release)
    _wake_all(control)


cdef void control_fail(Control* control, int who, int worker, int call, int status, int64_t entry,
                       int64_t slot, uintptr_t stream=0) noexcept nogil:
    """Keep the first cause, then stop."""
    cdef Failure failure
    failure.who = who
    failure.worker = worker
    failure.call = call
    failure.status = status
    failure.entry = entry
    failure.slot = slot
    failure.stream = stream
    failure.file = failure.offset = failure.got = failure.wanted = 0
    _fail(control, &failure)


cdef void control_fail_memory(Control* control, int64_t wanted) noexcept nogil:
    """As `control_fail`, for memory of the host's that the engine's thread could not have; 0 bytes: it does not say."""
    cdef Failure failure
    failure.who = WHO_ENGINE
    failure.worker = -1
    failure.call = _hip.CALL_HOST_MEMORY
    failure.status = _hip.HIP_OUT_OF_MEMORY
    failure.entry = failure.slot = -1
    failure.stream = 0
    failure.file = failure.offset = failure.got = 0
    failure.wanted = wanted
    _fail(control, &failure)


cdef void control_fail_read(Control* control, int worker, int error, int64_t entry, int64_t file, int64_t offset,
                            int64_t got, int64_t wanted) noexcept nogil:
    """As `control_fail`, for a worker's read of a file: `error` is the system's, 0 where the file ended."""
    cdef Failure failure
    failure.who = WHO_WORKER
    failure.worker = worker
    failure.call = _hip.CALL_FILE_READ
    failure.status = error
    failure.entry = entry
    failure.slot = -1
    failure.stream = 0
    failure.file = file
    failure.offset = offset
    failure.got = got
    failure.wanted = wanted
    _fail(control, &failure)


cdef void _fail(Control* control, const Failure* failure) noexcept nogil:
    cdef int none = 0
    if control.failed.compare_exchange_strong(none, 1, memory_order_acq_rel):
        control.failure = failure[0]
        control.failed.store(2, memory_order_release)
    control_stop(control)
