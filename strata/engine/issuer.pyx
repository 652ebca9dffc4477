"""The issuer: the native thread that submits every copy and the dependencies around each group.

For the group ``[b, e)``, in this order: window release, reuse wait, the copies in list order (a staged one
once its job is ready), the record of the terminal's ``copied``, publication. It follows a chain of
commands: lists of entries, then the end of the request.
"""
from libc.stdint cimport int64_t, uintptr_t
from libcpp.atomic cimport atomic, memory_order_acquire, memory_order_relaxed, memory_order_release

from strata cimport _hip
from strata.engine.control cimport WHO_ISSUER, control_fail
from strata.engine.counters cimport DIRECT, STAGED, KindCounters, add, add_shared
from strata.engine.command cimport COMMAND_ENTRIES, COMMAND_FINISH, COMMAND_QUIT, COMMAND_SETTLE, Command, entry_span
from strata.engine.gpu_ring cimport gpu_ring_wait_uses
from strata.engine.host_ring cimport host_ring_buffer, host_ring_finish, host_ring_submitted, host_ring_wait_ready
from strata._planner cimport begin_group, end_group, window_is_open
from strata.engine.threads cimport kForever, now_ns, thread_start


cdef bint issuer_start(Issuer* issuer) noexcept nogil:
    """Start the thread; False where the system gives none."""
    return thread_start(&issuer.thread, "issuer", -1, _issuer_main, issuer)


cdef void issuer_submit(Issuer* issuer, Command* command) noexcept nogil:
    """Hand a command over. One thread submits."""
    if issuer.tail == NULL:
        issuer.first = command
    else:
        issuer.tail.next.store(command, memory_order_release)
    issuer.tail = command
    _hip.announce_release(&issuer.submitted)
    issuer.submitted.advance(issuer.submitted.get() + 1)


cdef void _issuer_main(void* argument) noexcept nogil:
    cdef Issuer* issuer = <Issuer*>argument
    cdef Command* command = NULL
    cdef atomic[int] never
    cdef int64_t done = 0
    cdef int status = _hip.HIP_NOT_READY         # of hipSetDevice, once there is something to do
    cdef int kind = COMMAND_ENTRIES
    cdef int first = _hip.HIP_SUCCESS
    never.store(0, memory_order_relaxed)
    while kind != COMMAND_QUIT:
        while not issuer.submitted.wait(done + 1, never, kForever):
            pass
        _hip.announce_acquire(&issuer.submitted)
        command = issuer.first if command == NULL else command.next.load(memory_order_acquire)
        kind = command.kind
        if status != _hip.HIP_SUCCESS:
            status = _hip.set_device(issuer.device)
            if status != _hip.HIP_SUCCESS:
                control_fail(issuer.control, WHO_ISSUER, -1, _hip.CALL_SET_DEVICE, status, -1, -1)
        if kind == COMMAND_ENTRIES:
            _issue(issuer, command)
        elif kind == COMMAND_FINISH:
            issuer.finish_status = _finish(issuer)
        elif kind == COMMAND_SETTLE:
            issuer.state.store(ISSUER_FINISHES, memory_order_relaxed)
            issuer.call.store(_hip.CALL_STREAM_SYNCHRONIZE, memory_order_relaxed)
            issuer.finish_status = _hip.stream_drain(issuer.ring.compute_stream, &first, &issuer.finish_call)
        else:
            issuer.state.store(ISSUER_FINISHES, memory_order_relaxed)
            issuer.call.store(_hip.CALL_EVENT_SYNCHRONIZE, memory_order_relaxed)
            issuer.finish_call = _hip.CALL_EVENT_SYNCHRONIZE
            issuer.finish_status = gpu_ring_wait_uses(issuer.ring)
            issuer.dispose(issuer.owner)
        issuer.state.store(ISSUER_PARKED, memory_order_relaxed)
        done += 1
        _hip.announce_release(&issuer.done)
        issuer.done.advance(done)
    issuer.exited.store(1, memory_order_release)


cdef void _issue(Issuer* issuer, Command* command) noexcept nogil:
    """Submit the command's groups until its end, a stop, or a failure."""
    cdef int64_t i = 0
    cdef int64_t begin, end
    cdef int kind
    cdef int64_t began = 0
    cdef KindCounters* counters
    while i < command.n_entries:
        begin = command.first_entry + i
        end = command.ends[i]
        kind = DIRECT if command.jobs[i] < 0 else STAGED
        counters = &issuer.counters.kinds[kind]
        issuer.entry.store(begin, memory_order_relaxed)
        if not window_is_open(issuer.ring, end, issuer.consumed.get()):
            issuer.state.store(ISSUER_WAITS_FOR_WINDOW, memory_order_relaxed)
            if issuer.timing:
                began = now_ns()
            if not issuer.consumed.wait(end - issuer.ring.size, issuer.control.stop, kForever):
                return
            if issuer.timing:
                add(issuer.counters.wait_window_ns, now_ns() - began)
        if issuer.control.stop.load(memory_order_acquire):
            return
        _hip.announce_acquire(&issuer.consumed)
        issuer.state.store(ISSUER_SUBMITS, memory_order_relaxed)
        issuer.dirty.store(1, memory_order_relaxed)
        if not _dependency(issuer, begin, end, counters, True):
            return
        if kind == DIRECT and issuer.group_submission:
            if not _copy_group(issuer, command, i, end - begin, counters):
                return
            i += end - begin
        else:
            while i < end - command.first_entry:
                if issuer.control.stop.load(memory_order_acquire):
                    return
                if kind == DIRECT:
                    if not _copy_direct(issuer, command, i, counters):
                        return
                elif not _copy_staged(issuer, command, i, counters):
                    return
                i += 1
        if not _dependency(issuer, begin, end, counters, False):
            return
        _hip.announce_release(&issuer.issued)
        issuer.issued.advance(end)


cdef bint _fail(Issuer* issuer, int call, int status, int64_t entry) noexcept nogil:
    control_fail(issuer.control, WHO_ISSUER, -1, call, status, entry, entry % issuer.ring.size, issuer.ring.copy_stream)
    return False


cdef bint _dependency(Issuer* issuer, int64_t begin, int64_t end, KindCounters* counters,
                      bint before) noexcept nogil:
    """The reuse wait before the group's copies, or the completion record after them."""
    cdef int status, call
    cdef int64_t began = 0
    call = _hip.CALL_STREAM_WAIT_EVENT if before else _hip.CALL_EVENT_RECORD
    issuer.call.store(call, memory_order_relaxed)
    if issuer.timing:
        began = now_ns()
    if before:
        status = begin_group(issuer.ring, begin, end, counters)
    else:
        status = end_group(issuer.ring, end, counters)
    if issuer.timing:
        add_shared(issuer.counters.dependency_calls_ns, now_ns() - began)
    if status == _hip.HIP_SUCCESS:
        return True
    return _fail(issuer, call, status, begin if before else end - 1)


cdef bint _submit(Issuer* issuer, uintptr_t dst, uintptr_t src, int64_t nbytes, int64_t entry,
                  KindCounters* counters) noexcept nogil:
    cdef int64_t began = 0
    cdef int status
    issuer.call.store(_hip.CALL_MEMCPY_ASYNC, memory_order_relaxed)
    _hip.announce_label(entry, entry % issuer.ring.size, entry // issuer.ring.size)
    if issuer.timing:
        began = now_ns()
    status = _hip.copy_h2d(dst, src, nbytes, issuer.ring.copy_stream)
    if issuer.timing:
        add(issuer.counters.submission_ns, now_ns() - began)
    if status != _hip.HIP_SUCCESS:
        return _fail(issuer, _hip.CALL_MEMCPY_ASYNC, status, entry)
    add(counters.copy_calls, 1)
    return True


cdef bint _copy_direct(Issuer* issuer, Command* command, int64_t index, KindCounters* counters) noexcept nogil:
    """One copy a segment, from where it lies in pinned memory to its place in the slot."""
    cdef int64_t entry = command.first_entry + index
    cdef uintptr_t slot = issuer.ring.addresses[entry % issuer.ring.size]
    cdef int64_t s
    cdef int64_t total = 0
    for s in range(command.entry_starts[index], command.entry_starts[index + 1]):
        if command.nbytes[s] == 0:
            continue
        if not _submit(issuer, slot + <uintptr_t>command.offsets[s], <uintptr_t>command.addresses[s],
                       command.nbytes[s], entry, counters):
            return False
        total += command.nbytes[s]
    add(counters.copies, 1)
    add(counters.nbytes, total)
    return True


cdef bint _copy_staged(Issuer* issuer, Command* command, int64_t index, KindCounters* counters) noexcept nogil:
    """One copy from the job's buffer, once a worker has gathered the entry there."""
    cdef int64_t entry = command.first_entry + index
    cdef int64_t job = command.jobs[index]
    cdef int64_t span = entry_span(command, index)
    cdef int64_t began = 0
    cdef int64_t s
    cdef int64_t total = 0
    cdef int status
    if issuer.timing:
        began = now_ns()
    issuer.entry.store(entry, memory_order_relaxed)
    issuer.state.store(ISSUER_WAITS_FOR_SOURCE, memory_order_relaxed)
    if not host_ring_wait_ready(issuer.host, job, kForever):
        return False
    issuer.state.store(ISSUER_SUBMITS, memory_order_relaxed)
    if issuer.timing:
        add(issuer.counters.wait_source_ns, now_ns() - began)
    if span > 0:
        if not _submit(issuer, issuer.ring.addresses[entry % issuer.ring.size],
                       host_ring_buffer(issuer.host, job), span, entry, counters):
            return False
    for s in range(command.entry_starts[index], command.entry_starts[index + 1]):
        total += command.nbytes[s]
    add(counters.copies, 1)
    add(counters.nbytes, total)
    issuer.call.store(_hip.CALL_EVENT_RECORD, memory_order_relaxed)
    if issuer.timing:
        began = now_ns()
    status = host_ring_submitted(issuer.host, job, issuer.ring.copy_stream)
    if issuer.timing:
        add_shared(issuer.counters.dependency_calls_ns, now_ns() - began)
    if status != _hip.HIP_SUCCESS:
        return _fail(issuer, _hip.CALL_EVENT_RECORD, status, entry)
    return True


cdef bint _copy_group(Issuer* issuer, Command* command, int64_t first, int64_t n,
                      KindCounters* counters) noexcept nogil:
    """The group's copies in one call: the same sources, destinations, bytes and order."""
    cdef int64_t i, s, entry
    cdef int64_t count = 0
    cdef int64_t total = 0
    cdef int64_t began = 0
    cdef int status
    cdef uintptr_t slot
    if command.entry_starts[first + n] - command.entry_starts[first] > issuer.batch_room:
        for i in range(first, first + n):
            if issuer.control.stop.load(memory_order_acquire):
                return False
            if not _copy_direct(issuer, command, i, counters):
                return False
        return True
    for i in range(first, first + n):
        entry = command.first_entry + i
        slot = issuer.ring.addresses[entry % issuer.ring.size]
        for s in range(command.entry_starts[i], command.entry_starts[i + 1]):
            if command.nbytes[s] == 0:
                continue
            issuer.batch_dsts[count] = <void*>(slot + <uintptr_t>command.offsets[s])
            issuer.batch_srcs[count] = <void*><uintptr_t>command.addresses[s]
            issuer.batch_sizes[count] = command.nbytes[s]
            total += command.nbytes[s]
            count += 1
    entry = command.first_entry + first
    issuer.call.store(_hip.CALL_MEMCPY_BATCH_ASYNC, memory_order_relaxed)
    _hip.announce_label(entry, entry % issuer.ring.size, entry // issuer.ring.size)
    if count > 0:
        if issuer.timing:
            began = now_ns()
        status = _hip.copy_h2d_batch(issuer.batch_dsts, issuer.batch_srcs, issuer.batch_sizes, count,
                                     issuer.ring.copy_stream)
        if issuer.timing:
            add(issuer.counters.submission_ns, now_ns() - began)
        if status != _hip.HIP_SUCCESS:
            return _fail(issuer, _hip.CALL_MEMCPY_BATCH_ASYNC, status, entry)
    add(counters.copy_calls, count)
    add(counters.copies, n)
    add(counters.nbytes, total)
    return True


cdef int _finish(Issuer* issuer) noexcept nogil:
    """End of the request: the host ring, then everything on the copy stream.

    After success nothing reads a source or writes a slot any more. A call that fails is tried again in
    another way before the device is given up: what may still run must not be freed or written.
    """
    cdef int status = _hip.HIP_SUCCESS
    cdef int first = _hip.HIP_SUCCESS
    issuer.state.store(ISSUER_FINISHES, memory_order_relaxed)
    if issuer.host != NULL:
        issuer.call.store(_hip.CALL_EVENT_SYNCHRONIZE, memory_order_relaxed)
        status = host_ring_finish(issuer.host, &issuer.finish_call, kForever)
        if status != _hip.HIP_SUCCESS:
            return status
    if issuer.dirty.load(memory_order_relaxed) == 0:
        return _hip.HIP_SUCCESS
    issuer.call.store(_hip.CALL_STREAM_SYNCHRONIZE, memory_order_relaxed)
    status = _hip.stream_drain(issuer.ring.copy_stream, &first, &issuer.finish_call)
    if first != _hip.HIP_SUCCESS:
        control_fail(issuer.control, WHO_ISSUER, -1, _hip.CALL_STREAM_SYNCHRONIZE, first, -1, -1,
                     issuer.ring.copy_stream)
    if status == _hip.HIP_SUCCESS:
        issuer.dirty.store(0, memory_order_relaxed)
    return status
