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
from strata.engine.command cimport (COMMAND_ENTRIES, COMMAND_FINISH, COMMAND_QUIT, COMMAND_SETTLE, Command,
                                    entry_is_taken, entry_span, take_entry)
from strata.engine.gpu_ring cimport gpu_ring_wait_uses
from strata.engine.host_ring cimport (host_ring_buffer, host_ring_finish, host_ring_is_pinned, host_ring_submitted,
                                      host_ring_wait_ready)
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
            if not issuer.consumed.wait(end - issuer.ring.window, issuer.control.stop, kForever):
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
        if not _copy_group(issuer, command, i, end - begin, counters):
            return
        i += end - begin
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


# --- copies ------------------------------------------------------------------------------------------

cdef bint _copy_group(Issuer* issuer, Command* command, int64_t first, int64_t n, KindCounters* counters) noexcept nogil:
    """The group's copies: the same sources, destinations, bytes and order however they are submitted."""
    cdef bint staged = command.jobs[first] >= 0
    cdef bint batched = issuer.submission == SUBMIT_GROUP and (not staged or host_ring_is_pinned(issuer.host,
                                                                                                 command.jobs[first]))
    cdef bint at_once = batched or (issuer.submission == SUBMIT_COALESCED and not staged)
    cdef int64_t i
    issuer.pieces.n = 0
    issuer.pieces.nbytes = 0
    issuer.pieces.copies = 0
    issuer.pieces.payload = 0
    if staged and batched:
        # All before the first: a group never crosses the host wrap, so none of its jobs waits for another's copy.
        for i in range(first, first + n):
            if not _await_source(issuer, command, i):
                return False
    for i in range(first, first + n):
        if (i == first or not at_once) and issuer.control.stop.load(memory_order_acquire):
            return False
        if staged and not batched and not _await_source(issuer, command, i):
            return False
        if not _copy_entry(issuer, command, i, staged, batched, at_once, counters):
            return False
        if staged and not batched and not _submitted(issuer, command, i):
            return False
    if not _flush(issuer, counters):
        return False
    if staged and batched:
        for i in range(first, first + n):
            if not _submitted(issuer, command, i):
                return False
    return True


cdef bint _copy_entry(Issuer* issuer, Command* command, int64_t index, bint staged, bint batched, bint at_once,
                      KindCounters* counters) noexcept nogil:
    """An entry's pieces: its segments as they lie in pinned memory, or what a worker has gathered in one buffer."""
    cdef int64_t entry = command.first_entry + index
    cdef int64_t s
    cdef int64_t span = 0
    cdef int64_t total = 0
    cdef int64_t region
    cdef bint taken = entry_is_taken(command, index) if staged else take_entry(command, index)
    for s in range(command.entry_starts[index], command.entry_starts[index + 1]):
        total += command.nbytes[s]
    if not taken:
        # What lies on both sides of it are no neighbours.
        if not _end_run(issuer, counters):
            return False
        add(issuer.counters.dropped, 1)
        add(issuer.counters.dropped_bytes, total)
        return True
    if staged:
        span = entry_span(command, index)
        if span > 0 and not _piece(issuer, entry, 0, host_ring_buffer(issuer.host, command.jobs[index]), span, -1,
                                   batched, at_once, counters):
            return False
    else:
        for s in range(command.entry_starts[index], command.entry_starts[index + 1]):
            region = -1 if command.regions == NULL else command.regions[s]
            if command.nbytes[s] > 0 and not _piece(issuer, entry, command.offsets[s], <uintptr_t>command.addresses[s],
                                                    command.nbytes[s], region, batched, at_once, counters):
                return False
    issuer.pieces.copies += 1
    issuer.pieces.payload += total
    return at_once or _flush(issuer, counters)


cdef inline uintptr_t _destination(Issuer* issuer, int64_t entry, int64_t offset) noexcept nogil:
    """Where a piece of an entry goes."""
    return issuer.ring.addresses[entry % issuer.ring.size] + <uintptr_t>offset


cdef bint _piece(Issuer* issuer, int64_t entry, int64_t offset, uintptr_t src, int64_t nbytes, int64_t region,
                 bint batched, bint at_once, KindCounters* counters) noexcept nogil:
    """One piece of memory to copy: now, with the rest of its group, or together with its neighbour."""
    cdef Pieces* pieces = &issuer.pieces
    cdef uintptr_t dst = _destination(issuer, entry, offset)
    cdef int64_t slot = entry % issuer.ring.size
    if batched:
        if pieces.n == issuer.batch_room and not _flush(issuer, counters):
            return False
        _to_batch(issuer, entry, dst, src, nbytes)
        return True
    if pieces.nbytes > 0:
        if (region >= 0 and region == pieces.region and src == pieces.src + <uintptr_t>pieces.nbytes
                and dst == pieces.dst + <uintptr_t>pieces.nbytes
                and (slot == pieces.slot or issuer.ring.one_allocation)):
            pieces.nbytes += nbytes
            pieces.slot = slot
            return True
        if not _end_run(issuer, counters):
            return False
        if at_once and issuer.control.stop.load(memory_order_acquire):
            return False
    pieces.entry = entry
    pieces.dst = dst
    pieces.src = src
    pieces.nbytes = nbytes
    pieces.region = region
    pieces.slot = slot
    return at_once or _flush(issuer, counters)


cdef void _to_batch(Issuer* issuer, int64_t entry, uintptr_t dst, uintptr_t src, int64_t nbytes) noexcept nogil:
    cdef Pieces* pieces = &issuer.pieces
    if pieces.n == 0:
        pieces.first = entry
    issuer.batch_dsts[pieces.n] = <void*>dst
    issuer.batch_srcs[pieces.n] = <void*>src
    issuer.batch_sizes[pieces.n] = nbytes
    pieces.n += 1


cdef bint _end_run(Issuer* issuer, KindCounters* counters) noexcept nogil:
    """The run of neighbours is over: it joins the group's batch, or is submitted where the library has none."""
    cdef Pieces* pieces = &issuer.pieces
    if pieces.nbytes == 0:
        return True
    if _hip.batch_use == _hip.BATCH_NONE or pieces.n == issuer.batch_room:
        return _flush(issuer, counters)
    _to_batch(issuer, pieces.entry, pieces.dst, pieces.src, pieces.nbytes)
    pieces.nbytes = 0
    return True


cdef bint _flush(Issuer* issuer, KindCounters* counters) noexcept nogil:
    """Submit what was put together, and count the entries that it completes."""
    cdef Pieces* pieces = &issuer.pieces
    cdef int64_t began = 0
    cdef int64_t k, calls, entry
    cdef int call
    cdef int status
    if pieces.n > 0 and pieces.nbytes > 0:          # there is room for one more
        _to_batch(issuer, pieces.entry, pieces.dst, pieces.src, pieces.nbytes)
    if pieces.n > 0 or pieces.nbytes > 0:
        calls = pieces.n if pieces.n > 0 else 1
        call = _hip.CALL_MEMCPY_BATCH_ASYNC if pieces.n > 0 else _hip.CALL_MEMCPY_ASYNC
        entry = pieces.first if pieces.n > 0 else pieces.entry
        issuer.call.store(call, memory_order_relaxed)
        _hip.announce_label(entry, entry % issuer.ring.size, entry // issuer.ring.size)
        if issuer.timing:
            began = now_ns()
        if pieces.n > 0:
            status = _hip.copy_h2d_batch(issuer.batch_dsts, issuer.batch_srcs, issuer.batch_sizes, pieces.n,
                                         issuer.ring.copy_stream)
        else:
            status = _hip.copy_h2d(pieces.dst, pieces.src, pieces.nbytes, issuer.ring.copy_stream)
        if status == _hip.HIP_NOT_SUPPORTED and pieces.n > 0:
            # No failure of the request: what the call may have queued is copied again, the same bytes to the same place.
            _hip.clear_last_error()
            add(issuer.counters.refused_batches, 1)
            call = _hip.CALL_MEMCPY_ASYNC
            issuer.call.store(call, memory_order_relaxed)
            for k in range(pieces.n):
                if issuer.control.stop.load(memory_order_acquire):
                    return False
                status = _hip.copy_h2d(<uintptr_t>issuer.batch_dsts[k], <uintptr_t>issuer.batch_srcs[k],
                                       issuer.batch_sizes[k], issuer.ring.copy_stream)
                if status != _hip.HIP_SUCCESS:
                    break
        if issuer.timing:
            add(issuer.counters.submission_ns, now_ns() - began)
        if status != _hip.HIP_SUCCESS:
            return _fail(issuer, call, status, entry)
        if call == _hip.CALL_MEMCPY_BATCH_ASYNC:
            add(issuer.counters.batch_calls, 1)
        add(counters.copy_calls, calls)
        pieces.n = 0
        pieces.nbytes = 0
    if pieces.copies > 0:
        add(counters.copies, pieces.copies)
        add(counters.nbytes, pieces.payload)
        pieces.copies = 0
        pieces.payload = 0
    return True


cdef bint _await_source(Issuer* issuer, Command* command, int64_t index) noexcept nogil:
    """Until a worker is done with the entry's job: gathered, or found dropped."""
    cdef int64_t began = 0
    if issuer.timing:
        began = now_ns()
    issuer.entry.store(command.first_entry + index, memory_order_relaxed)
    issuer.state.store(ISSUER_WAITS_FOR_SOURCE, memory_order_relaxed)
    if not host_ring_wait_ready(issuer.host, command.jobs[index], kForever):
        return False
    issuer.state.store(ISSUER_SUBMITS, memory_order_relaxed)
    if issuer.timing:
        add(issuer.counters.wait_source_ns, now_ns() - began)
    return True


cdef bint _submitted(Issuer* issuer, Command* command, int64_t index) noexcept nogil:
    """The job's copy is submitted, or nothing of it is copied: tell the host ring in either case."""
    cdef int64_t began = 0
    cdef int status
    issuer.call.store(_hip.CALL_EVENT_RECORD, memory_order_relaxed)
    if issuer.timing:
        began = now_ns()
    status = host_ring_submitted(issuer.host, command.jobs[index], issuer.ring.copy_stream)
    if issuer.timing:
        add_shared(issuer.counters.dependency_calls_ns, now_ns() - began)
    if status != _hip.HIP_SUCCESS:
        return _fail(issuer, _hip.CALL_EVENT_RECORD, status, command.first_entry + index)
    return True


# --- the end ---------------------------------------------------------------------------------------------

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
