"""What the engine does with entries: take them by one or by spans, give them back, pass them.

::

    0 ... consumed ... released ... acquired ... issued ... length
         |  pending   |    held    |  published |

What is pending was given back without a `used` record of its own: one record comes to cover all of it. Without shared
dependencies nothing stays pending: every release records.
"""
from libc.stdint cimport int64_t, uint8_t
from libcpp.atomic cimport memory_order_acq_rel, memory_order_acquire

from strata cimport _hip
from strata.engine.counters cimport add, add_shared
from strata.engine.command cimport MARK_DROPPED, Command, entry_is_dropped, entry_span
from strata.engine.gpu_ring cimport gpu_ring_record_used, gpu_ring_stride
from strata.engine.pipeline cimport (HELD_ENTRY, HELD_HOLES, HELD_NOTHING, HELD_SPAN, PASSED_DROPPED, PASSED_SKIPPED,
                                     STEP_BUSY, STEP_DROPPED, STEP_END, STEP_HELD, STEP_IDLE, STEP_INVALID, STEP_OK,
                                     STEP_ORDER, STEP_STOPPED, AcquiredSlot, AcquiredSpan, Pipeline, pipeline_engine_failed,
                                     pipeline_enter, pipeline_leave)
from strata.engine.threads cimport now_ns


# --- where the engine is ------------------------------------------------------------------------------------

cdef inline Command* _command_at(Command** cursor, int64_t entry) noexcept nogil:
    """The command of an entry, from a cursor that moves forward only."""
    while entry >= cursor[0].first_entry + cursor[0].n_entries:
        cursor[0] = cursor[0].next.load(memory_order_acquire)
    return cursor[0]


cdef inline int64_t _group_end(const Command* command, int64_t entry) noexcept nogil:
    return command.ends[entry - command.first_entry]


cdef inline bint _is_dropped(Pipeline* p, Command* command, int64_t entry) noexcept nogil:
    return p.drops > 0 and entry_is_dropped(command, entry - command.first_entry)


cdef inline int _goes_on(Pipeline* p) noexcept nogil:
    """Whether there is a next entry at all."""
    if not p.running:
        return STEP_IDLE
    if p.control.interrupted.load(memory_order_acquire):
        return STEP_STOPPED
    if p.acquired >= p.length:
        return STEP_END
    return STEP_OK


cdef int _published(Pipeline* p, Command* command, int64_t last) noexcept nogil:
    """Whether the entries up to `last` are published, or why not.

    What is pending is recorded before anybody is told to wait, or that only a release could help.
    """
    cdef int64_t end
    cdef int step
    if p.issuer.issued.get() > last:
        _hip.announce_acquire(&p.issuer.issued)
        return STEP_OK
    end = _group_end(command, last)
    if end > p.issuer.consumed.get() + p.ring.window:
        step = pipeline_flush(p)
        if step != STEP_OK:
            return step
        if end > p.issuer.consumed.get() + p.ring.window:
            return STEP_HELD
    p.awaited = last + 1
    return STEP_BUSY


# --- dependencies -----------------------------------------------------------------------------------------------

cdef int _await_bytes(Pipeline* p, int64_t last, int64_t group_end) noexcept nogil:
    """The compute stream waits for the entry's group, and so for everything before it on the copy stream."""
    cdef int64_t began = 0
    cdef int status, restore, left
    cdef int call = 0
    if p.ring.share and last < p.waited:
        add(p.counters.copied_waits_shared, 1)
        return STEP_OK
    if p.timing:
        began = now_ns()
    status = pipeline_enter(p, &restore, &call)
    if status != _hip.HIP_SUCCESS:
        return pipeline_engine_failed(p, call, status, last)
    _hip.announce_label(last, last % p.ring.size, last // p.ring.size)
    status = _hip.stream_wait_event(p.ring.compute_stream, p.ring.copied[(group_end - 1) % p.ring.size])
    left = pipeline_leave(p, restore)
    if p.timing:
        add_shared(p.counters.dependency_calls_ns, now_ns() - began)
    if status != _hip.HIP_SUCCESS:
        return pipeline_engine_failed(p, _hip.CALL_STREAM_WAIT_EVENT, status, last)
    if left != _hip.HIP_SUCCESS:
        return pipeline_engine_failed(p, _hip.CALL_SET_DEVICE, left, last)
    add(p.counters.copied_waits, 1)
    p.waited = group_end
    return STEP_OK


cdef int _record(Pipeline* p, int64_t end) noexcept nogil:
    """One `used` record for everything from `consumed` to `end`; then tell the issuer."""
    cdef int status, restore, left
    cdef int call = 0
    cdef int64_t began = 0
    cdef int64_t last = end - 1
    if p.timing:
        began = now_ns()
    status = pipeline_enter(p, &restore, &call)
    if status != _hip.HIP_SUCCESS:
        return pipeline_engine_failed(p, call, status, last)
    _hip.announce_label(last, last % p.ring.size, last // p.ring.size)
    status = gpu_ring_record_used(&p.ring, p.issuer.consumed.get(), end)
    left = pipeline_leave(p, restore)
    if p.timing:
        add_shared(p.counters.dependency_calls_ns, now_ns() - began)
    if status != _hip.HIP_SUCCESS:
        return pipeline_engine_failed(p, _hip.CALL_EVENT_RECORD, status, last)
    if left != _hip.HIP_SUCCESS:
        return pipeline_engine_failed(p, _hip.CALL_SET_DEVICE, left, last)
    add(p.counters.used_records, 1)
    add(p.counters.used_records_shared, p.pending - 1)
    p.pending = 0
    _hip.announce_release(&p.issuer.consumed)
    p.issuer.consumed.advance(end)
    return STEP_OK


cdef int pipeline_flush(Pipeline* p) noexcept nogil:
    """Record what is pending."""
    if not p.running:
        return STEP_IDLE
    if p.control.interrupted.load(memory_order_acquire):
        return STEP_STOPPED
    if p.released == p.issuer.consumed.get():
        return STEP_OK
    return _record(p, p.released)


cdef int _give_back(Pipeline* p, int64_t begin, int64_t end, bint was_read) noexcept nogil:
    """The oldest of what was taken is done with: record it, or leave it pending."""
    cdef int64_t consumed = p.issuer.consumed.get()
    cdef int step = STEP_OK
    if not was_read and p.pending == 0:
        _hip.announce_release(&p.issuer.consumed)
        p.issuer.consumed.advance(end)
    elif p.ring.share and end < _group_end(_command_at(&p.oldest, consumed), consumed):
        p.pending += was_read
    else:
        p.pending += was_read
        step = _record(p, end)
        if step != STEP_OK:
            p.pending -= was_read
            return step
    p.released = end
    p.held[begin % p.ring.size] = HELD_NOTHING
    return STEP_OK


# --- taking -------------------------------------------------------------------------------------------------

cdef inline void _hold(Pipeline* p, int64_t begin, int64_t end, uint8_t how) noexcept nogil:
    p.held[begin % p.ring.size] = how
    p.held_ends[begin % p.ring.size] = end


cdef void pipeline_describe(Pipeline* p, Command* command, int64_t entry, AcquiredSlot* out) noexcept nogil:
    """Where an entry lies, and how many bytes it has there."""
    out.entry = entry
    out.slot = entry % p.ring.size
    out.address = p.ring.addresses[out.slot]
    out.nbytes = entry_span(command, entry - command.first_entry)


cdef int pipeline_acquire(Pipeline* p, AcquiredSlot* out) noexcept nogil:
    """Take the next entry if it is published: the compute stream waits on its group's `copied`."""
    cdef int64_t entry = p.acquired
    cdef Command* command
    cdef int step = _goes_on(p)
    if step != STEP_OK:
        return step
    command = _command_at(&p.cursor, entry)
    if _is_dropped(p, command, entry):
        return STEP_DROPPED
    step = _published(p, command, entry)
    if step == STEP_OK:
        step = _await_bytes(p, entry, _group_end(command, entry))
    if step != STEP_OK:
        return step
    _hold(p, entry, entry + 1, HELD_ENTRY)
    p.acquired = entry + 1
    pipeline_describe(p, command, entry, out)
    return STEP_OK


cdef int pipeline_acquire_span(Pipeline* p, int64_t limit, AcquiredSpan* out) noexcept nogil:
    """Take the longest run of next entries whose slots lie at one distance and whose groups are within the window.

    One wait, for the last one's group. A span of dropped entries alone needs none.
    """
    cdef int64_t begin = p.acquired
    cdef int64_t slot = begin % p.ring.size
    cdef int64_t window, n, k
    cdef bint is_read = False
    cdef Command* command
    cdef int step = _goes_on(p)
    if step != STEP_OK:
        return step
    if limit < 1 or limit > p.ring.size:
        return STEP_INVALID
    command = _command_at(&p.cursor, begin)
    n = min(min(limit, p.ring.reach[slot]), command.first_entry + command.n_entries - begin)
    window = p.issuer.consumed.get() + p.ring.window
    if _group_end(command, begin + n - 1) > window:
        step = pipeline_flush(p)
        if step != STEP_OK:
            return step
        window = p.issuer.consumed.get() + p.ring.window
        n = max(<int64_t>1, min(n, window - begin))
        while n > 1 and _group_end(command, begin + n - 1) > window:
            n -= 1
    step = _published(p, command, begin + n - 1)
    if step != STEP_OK:
        return step
    if p.drops == 0:
        is_read = True
    else:
        for k in range(n):
            if not _is_dropped(p, command, begin + k):
                is_read = True
                break
    if is_read:
        step = _await_bytes(p, begin + n - 1, _group_end(command, begin + n - 1))
        if step != STEP_OK:
            return step
    _hold(p, begin, begin + n, HELD_SPAN if is_read else HELD_HOLES)
    p.acquired = begin + n
    out.begin = begin
    out.end = begin + n
    out.slot = slot
    out.address = p.ring.addresses[slot]
    out.stride = gpu_ring_stride(&p.ring, slot)
    return STEP_OK


# --- giving back and passing ----------------------------------------------------------------------------------------

cdef int _release(Pipeline* p, int64_t begin, int64_t end, bint span) noexcept nogil:
    """Give the oldest of what is held back, and with it what was passed behind it."""
    cdef int step, held
    if not p.running:
        return STEP_IDLE
    if p.control.interrupted.load(memory_order_acquire):
        return STEP_STOPPED
    if begin != p.released or begin >= p.acquired:
        return STEP_ORDER
    held = p.held[begin % p.ring.size]
    if p.held_ends[begin % p.ring.size] != end or (held != HELD_SPAN and held != HELD_HOLES if span else held != HELD_ENTRY):
        return STEP_ORDER
    step = _give_back(p, begin, end, held != HELD_HOLES)
    while step == STEP_OK and p.released < p.acquired:
        held = p.held[p.released % p.ring.size]
        if held != PASSED_SKIPPED and held != PASSED_DROPPED:
            break
        step = _give_back(p, p.released, p.released + 1, held == PASSED_SKIPPED)
    return step


cdef int pipeline_release(Pipeline* p, int64_t entry) noexcept nogil:
    """Give the oldest held entry back."""
    return _release(p, entry, entry + 1, False)


cdef int pipeline_release_span(Pipeline* p, int64_t begin, int64_t end) noexcept nogil:
    """Give a span back, if nothing older is held: one record covers all of its slots."""
    return _release(p, begin, end, True)


cdef int _pass(Pipeline* p, Command* command, int64_t entry, bint dropped) noexcept nogil:
    """Pass the next entry without a wait for its bytes. Behind held ones its turn comes with theirs."""
    cdef int step = _published(p, command, entry)
    if step != STEP_OK:
        return step
    p.acquired = entry + 1
    if p.released < entry:
        _hold(p, entry, entry + 1, PASSED_DROPPED if dropped else PASSED_SKIPPED)
        return STEP_OK
    return _give_back(p, entry, entry + 1, not dropped)


cdef int pipeline_skip(Pipeline* p) noexcept nogil:
    """Pass the next entry, whatever it is."""
    cdef int64_t entry = p.acquired
    cdef Command* command
    cdef bint dropped
    cdef int step = _goes_on(p)
    if step != STEP_OK:
        return step
    command = _command_at(&p.cursor, entry)
    dropped = _is_dropped(p, command, entry)
    step = _pass(p, command, entry, dropped)
    if step == STEP_OK and not dropped:
        add(p.counters.skipped, 1)
    return step


cdef int pipeline_pass_dropped(Pipeline* p) noexcept nogil:
    """Pass what was dropped, up to the next entry that was not, or the list's end."""
    cdef Command* command
    cdef int step = STEP_OK
    while step == STEP_OK and p.drops > 0 and p.acquired < p.length:
        step = _goes_on(p)
        if step == STEP_OK:
            command = _command_at(&p.cursor, p.acquired)
            if not _is_dropped(p, command, p.acquired):
                return STEP_OK
            step = _pass(p, command, p.acquired, True)
    return step


cdef int pipeline_drop(Pipeline* p, const int64_t* entries, int64_t first, int64_t count, int64_t step) noexcept nogil:
    """Mark entries that nobody has acquired: ``entries[k]``, or ``first + k * step`` where there is no array.

    They grow along the way, and all of them are coming ones. `STEP_OK` also where the issuer or a worker was faster.
    """
    cdef Command* command = p.cursor
    cdef int64_t k, entry
    cdef int64_t late = 0
    cdef uint8_t before
    if not p.running:
        return STEP_IDLE
    if p.control.interrupted.load(memory_order_acquire):
        return STEP_STOPPED
    for k in range(count):
        entry = first + k * step if entries == NULL else entries[k]
        _command_at(&command, entry)
        before = command.marks[entry - command.first_entry].fetch_or(MARK_DROPPED, memory_order_acq_rel)
        if not before & MARK_DROPPED:
            p.drops += 1
            late += before != 0
    add(p.counters.dropped_late, late)
    return STEP_OK


cdef bint pipeline_only_dropped_left(Pipeline* p) noexcept nogil:
    """Whether nothing is held, and no entry is left that anybody wants."""
    cdef Command* command = p.cursor
    cdef int64_t entry
    if p.released < p.acquired or (p.acquired < p.length and p.drops == 0):
        return False
    for entry in range(p.acquired, p.length):
        if not _is_dropped(p, _command_at(&command, entry), entry):
            return False
    return True


cdef Command* pipeline_command_of(Pipeline* p, int64_t entry) noexcept nogil:
    """The command of any listed entry of the request; NULL where a growing request has let go of it."""
    cdef Command* command = p.commands
    cdef int64_t consumed = p.issuer.consumed.get()
    if p.oldest != NULL and entry >= consumed:
        command = _command_at(&p.oldest, consumed)      # so that a long chain is walked once
    while command != NULL and entry >= command.first_entry + command.n_entries:
        command = command.next.load(memory_order_acquire)
    return command if command != NULL and entry >= command.first_entry else NULL


# --- at an abort --------------------------------------------------------------------------------------------------

cdef int pipeline_record_held(Pipeline* p, int64_t* entry) noexcept nogil:
    """Record `used` for what is pending or held: kernels may read it. A HIP status; `entry` is where it failed."""
    cdef int64_t at = p.issuer.consumed.get()
    cdef int64_t end
    cdef int64_t reads = p.pending
    cdef int held
    cdef int status = _hip.HIP_SUCCESS
    if p.ring.share:
        end = p.released
    else:
        end = at
    while end < p.acquired:
        at = end
        held = p.held[at % p.ring.size]
        end = at + 1 if held == HELD_NOTHING else p.held_ends[at % p.ring.size]
        if held != HELD_ENTRY and held != HELD_SPAN:
            continue
        reads += 1
        if not p.ring.share:
            entry[0] = end - 1
            status = gpu_ring_record_used(&p.ring, at, end)
            if status != _hip.HIP_SUCCESS:
                return status
            add(p.counters.used_records, 1)
    if p.ring.share and reads > 0:
        entry[0] = p.acquired - 1
        status = gpu_ring_record_used(&p.ring, p.issuer.consumed.get(), p.acquired)
        if status == _hip.HIP_SUCCESS:
            add(p.counters.used_records, 1)
            add(p.counters.used_records_shared, reads - 1)
    return status
