"""The ends: of a request (finish, abort), and of a streamer (close).

Nobody here waits for the device on the engine's own thread: the issuer does, so that a driver call that never returns
can be named, and the engine waits for the issuer. What could not be seen to its end is never freed.
"""
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport free
from libcpp.atomic cimport memory_order_acq_rel, memory_order_acquire, memory_order_relaxed

from strata cimport _hip
from strata.engine.control cimport WHO_ENGINE, WHO_ISSUER, control_fail, control_stop
from strata.engine.counters cimport add
from strata.engine.command cimport COMMAND_FINISH, COMMAND_QUIT, COMMAND_SETTLE, Command
from strata.engine.consumption cimport pipeline_flush, pipeline_record_held
from strata.engine.gpu_ring cimport gpu_ring_clear
from strata.engine.host_ring cimport host_ring_delete, host_ring_finish
from strata.engine.pipeline cimport (END_PASSED, END_RECORDED, STEP_BUSY, STEP_HUNG, STEP_IDLE, STEP_NO_MEMORY, STEP_OK, STEP_ORDER, STEP_STOPPED,
                                     Pipeline, pipeline_enter_at_end, pipeline_leave, pipeline_submit, pipeline_progress)
from strata.engine.threads cimport destroy, kForever, make, now_ns, time_waited

cdef enum:
    FATE_FREED = 1
    FATE_LEFT = 2
    SLICE_NS = 20000000          # the longest wait at a time, so that a process that was stopped counts for one


# --- commands to the issuer ----------------------------------------------------------------------

cdef Command* _new_command(int kind) noexcept nogil:
    cdef Command* command = make[Command]()
    if command != NULL:
        command.kind = kind
    return command


cdef void _free_chain(Command* command) noexcept nogil:
    cdef Command* following
    while command != NULL:
        following = command.next.load(memory_order_acquire)
        free(command.jobs)           # one allocation with ends, job_entries and, where copied, the arrays
        destroy(command)
        command = following


cdef int _run_command(Pipeline* p, Command* command) noexcept nogil:
    """List a command and wait until the issuer has come through all that was listed: `STEP_OK`, or `STEP_HUNG`."""
    _list_command(p, command)
    return _await_issuer(p, kForever)


cdef void _list_command(Pipeline* p, Command* command) noexcept nogil:
    p.unmoved_ns = 0
    p.seen_progress = pipeline_progress(p)
    pipeline_submit(p, command)


cdef int _await_issuer(Pipeline* p, int64_t slice_ns) noexcept nogil:
    """Wait until the issuer has come through all that was listed. `STEP_BUSY` where that takes longer than the slice.

    `STEP_HUNG` where nothing moves for `driver_timeout_ns`: the thread stays in one driver call, or is gone.
    """
    cdef int64_t target = p.issuer.submitted.get()
    cdef int64_t pause, progress, began
    while True:
        pause = max(<int64_t>0, min(min(slice_ns, <int64_t>SLICE_NS), p.driver_timeout_ns - p.unmoved_ns))
        began = now_ns()
        if p.issuer.done.wait(target, p.issuer.exited, pause) or p.issuer.done.get() >= target:
            break
        progress = pipeline_progress(p)
        if progress != p.seen_progress:
            p.seen_progress = progress
            p.unmoved_ns = 0
        else:
            # What was waited here, not what the clock says: a paused engine is no stall.
            p.unmoved_ns += time_waited(began, pause)
        if p.issuer.exited.load(memory_order_acquire) or p.unmoved_ns >= p.driver_timeout_ns:
            p.broken = True
            return STEP_HUNG
        if slice_ns != kForever:
            return STEP_BUSY
    p.unmoved_ns = 0
    _hip.announce_acquire(&p.issuer.done)
    return STEP_OK


# --- the end of a request -------------------------------------------------------------------------------------

cdef bint _drained(Pipeline* p) noexcept nogil:
    """Whether the issuer has come through its list and the copy stream is empty already.

    Then the request ends without waking the issuer. Nothing here waits for the device: where the stream is
    not empty, the issuer waits for it, so that a driver call that never returns can be named.
    """
    cdef int status
    cdef int call = 0
    if not p.issuer.done.wait(p.issuer.submitted.get(), p.issuer.exited, 1000000):
        return False
    status = _hip.stream_query(p.ring.copy_stream)
    if status == _hip.HIP_NOT_READY:
        _hip.forget_not_ready()
        return False
    if status != _hip.HIP_SUCCESS:
        _hip.clear_last_error()
        control_fail(&p.control, WHO_ENGINE, -1, _hip.CALL_STREAM_QUERY, status, -1, -1, p.ring.copy_stream)
        return False
    _hip.announce_acquire(&p.issuer.done)
    if p.host != NULL and host_ring_finish(p.host, &call, kForever) != _hip.HIP_SUCCESS:
        return False
    p.issuer.dirty.store(0, memory_order_relaxed)
    return True


cdef int _end(Pipeline* p, int64_t slice_ns) noexcept nogil:
    """The issuer's and the host ring's end, and a drained copy stream. `STEP_BUSY` after a slice: call again."""
    cdef Command* command
    cdef int step = STEP_OK
    if not p.ending:
        if p.length == 0 and not p.issuer.dirty.load(memory_order_relaxed):
            return STEP_OK
        p.issuer.finish_status = _hip.HIP_SUCCESS
        if not p.control.stop.load(memory_order_acquire) and _drained(p):
            return STEP_OK
        command = _new_command(COMMAND_FINISH)
        if command == NULL:
            p.broken = True
            return STEP_NO_MEMORY
        _list_command(p, command)
        p.ending = True
    step = _await_issuer(p, slice_ns)
    if step != STEP_OK:
        return step
    if p.issuer.finish_status != _hip.HIP_SUCCESS:
        # Neither the copy stream nor the device can be waited for: what it may touch is never freed.
        control_fail(&p.control, WHO_ISSUER, -1, p.issuer.finish_call, p.issuer.finish_status, -1, -1)
        p.broken = True
        return STEP_STOPPED
    return STEP_OK


cdef int _leave_compute_stream(Pipeline* p, int64_t entry, int status) noexcept nogil:
    """Mark the request's end on its compute stream, where that is its own: from here on the stream is not touched.

    `status` is of the last record there, for an entry that was held. Where a record has failed only the stream itself can
    tell when its kernels are done, and where the stream is gone only the device. The issuer asks.
    """
    cdef Command* command
    cdef uintptr_t stream = p.ring.compute_stream
    if status == _hip.HIP_SUCCESS and stream != p.home_compute_stream:
        entry = -1
        status = _hip.event_record(p.fence, stream)
        p.last_end = END_RECORDED
    if status != _hip.HIP_SUCCESS:
        _hip.clear_last_error()
        control_fail(&p.control, WHO_ENGINE, -1, _hip.CALL_EVENT_RECORD, status, entry,
                     entry % p.ring.size if entry >= 0 else -1, stream)
        p.last_end = END_PASSED
        command = _new_command(COMMAND_SETTLE)
        if command == NULL:
            p.broken = True
            return STEP_NO_MEMORY
        if _run_command(p, command) != STEP_OK:
            return STEP_HUNG
        if p.issuer.finish_status != _hip.HIP_SUCCESS:
            p.broken = True
            return STEP_STOPPED
    p.ring.compute_stream = p.home_compute_stream
    return STEP_OK


cdef void _forget_request(Pipeline* p) noexcept nogil:
    """Free the commands. The last command stays: the issuer finds its successor through it."""
    cdef Command* command = p.commands
    cdef Command* following
    while command != NULL and command != p.issuer.tail:
        following = command.next.load(memory_order_acquire)
        free(command.jobs)
        destroy(command)
        command = following
    if command != NULL:
        # Whoever walks the next request's chain comes past it: it has no entries of that request, nor their plan.
        command.first_entry = 0
        command.n_entries = 0
        free(command.jobs)
        command.jobs = command.ends = command.job_entries = NULL
    p.commands = command
    p.listed = 0
    if p.timing:
        add(p.counters.wall_ns, now_ns() - p.began_ns)
    p.cursor = NULL
    p.oldest = NULL
    p.ending = False
    p.running = False


cdef int pipeline_finish(Pipeline* p, int64_t slice_ns) noexcept nogil:
    """End a request whose entries were all consumed. `STEP_ORDER` where some were not: abort instead.

    `STEP_BUSY` where the device needs longer than the slice: the request is `ending` from then on, and takes no
    more entries. Call again, or abort.
    """
    cdef int step, restore
    if not p.running:
        return STEP_IDLE
    if p.control.interrupted.load(memory_order_acquire):
        return STEP_STOPPED
    if p.released < p.length:
        return STEP_ORDER
    step = pipeline_flush(p)
    if step != STEP_OK:
        return step
    step = _end(p, slice_ns)
    if step == STEP_BUSY:
        return step
    if step == STEP_OK and p.ring.compute_stream != p.home_compute_stream:
        pipeline_enter_at_end(p, &restore)
        step = _leave_compute_stream(p, -1, _hip.HIP_SUCCESS)
        if pipeline_leave(p, restore) != _hip.HIP_SUCCESS:
            _hip.clear_last_error()
    if step == STEP_OK and p.control.failed.load(memory_order_acquire):
        step = STEP_STOPPED
    if not p.broken:
        _forget_request(p)
    else:
        p.running = False
    return step


cdef int pipeline_abort(Pipeline* p) noexcept nogil:
    """Stop, drain, and record `used` for what was acquired and has no record yet: kernels may read it."""
    cdef int step, status, restore
    cdef int64_t entry = -1
    if not p.running:
        return STEP_IDLE
    control_stop(&p.control)
    p.unmoved_ns = 0                # of a finish() that was interrupted: a tear-down has its whole time
    p.seen_progress = pipeline_progress(p)
    step = _end(p, kForever)
    if p.broken:
        p.running = False
        return step
    pipeline_enter_at_end(p, &restore)   # an event's record names its stream
    status = pipeline_record_held(p, &entry)
    step = _leave_compute_stream(p, entry, status)
    if pipeline_leave(p, restore) != _hip.HIP_SUCCESS:
        _hip.clear_last_error()
    if p.broken:
        p.running = False
        return step
    _forget_request(p)
    return STEP_OK


# --- the end of a streamer -----------------------------------------------------------------------

cdef bint _decides(Pipeline* p, int disposal) noexcept nogil:
    """Whether it is this call that settles what becomes of the streamer's own: freed, or left to the device."""
    cdef int none = 0
    return p.disposal.compare_exchange_strong(none, disposal, memory_order_acq_rel)


cdef void _dispose(void* owner) noexcept nogil:
    """Give back what the streamer owns on the device. On the issuer's thread where there is one: hipFree and others
    wait for the device, and a device that never comes back must not keep the engine's thread."""
    cdef Pipeline* p = <Pipeline*>owner
    cdef int before
    if not _decides(p, FATE_FREED):
        return
    before = _hip.unread_error()
    p.issuer.call.store(_hip.CALL_HOST_FREE, memory_order_relaxed)
    host_ring_delete(p.leaving_host, False)
    p.issuer.call.store(_hip.CALL_EVENT_DESTROY, memory_order_relaxed)
    if p.fence != 0:
        _hip.event_destroy(p.fence)
    if p.ring.addresses != NULL:
        gpu_ring_clear(&p.ring)
    p.issuer.call.store(_hip.CALL_FREE, memory_order_relaxed)
    if p.owned_slots != 0:
        _hip.device_free(p.owned_slots)
    p.issuer.call.store(_hip.CALL_STREAM_DESTROY, memory_order_relaxed)
    if p.owns_copy_stream:
        _hip.stream_destroy(p.ring.copy_stream)
    if p.owns_compute_stream:
        _hip.stream_destroy(p.home_compute_stream)
    _hip.restore_error(before)


cdef int pipeline_close(Pipeline* p, int64_t timeout_ns, int* stranded) noexcept nogil:
    """End the request, wait for the last use of owned slots, end the threads, free everything.

    `STEP_HUNG`: a thread did not come back, or the device did not: everything is left to it on purpose. `stranded` is of
    hipSetDevice, where the calling thread could not be given its device back.
    """
    cdef int restore
    cdef Command* quit
    p.driver_timeout_ns = timeout_ns
    if p.running:
        pipeline_abort(p)               # what it could not end leaves `broken`
    p.leaving_host = p.host
    if not p.issuer.exited.load(memory_order_acquire) and not p.broken:
        p.issuer.dispose = _dispose
        p.issuer.owner = p
        p.host = NULL                   # from here on the issuer's to free: nobody looks at its progress
        quit = _new_command(COMMAND_QUIT)
        if quit == NULL or _run_command(p, quit) != STEP_OK:
            p.broken = True
        else:
            p.issuer.thread.join()
            # Where `finish_status` is a failure, the device is lost, or the engine has destroyed a stream that it lent:
            # nothing to wait for, and nothing of it in this thread's last error.
    elif p.issuer.exited.load(memory_order_acquire):
        p.issuer.thread.join()
    if p.broken:
        p.issuer.thread.detach()
        if _decides(p, FATE_LEFT):
            host_ring_delete(p.leaving_host, True)
        return STEP_HUNG
    if p.disposal.load(memory_order_acquire) == 0:          # set-up has failed before there was an issuer
        pipeline_enter_at_end(p, &restore)
        _dispose(p)
        if pipeline_leave(p, restore) != _hip.HIP_SUCCESS:
            _hip.clear_last_error()
    stranded[0] = p.stranded
    p.host = NULL
    _free_chain(p.commands)
    p.commands = NULL
    free(p.held)
    free(p.held_ends)
    free(p.issuer.batch_dsts)
    free(p.issuer.batch_srcs)
    free(p.issuer.batch_sizes)
    destroy(p)
    return STEP_OK
