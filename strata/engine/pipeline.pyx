"""One streamer in C: rings, threads and the engine's side of the contract.

Here requests begin and grow; `consumption` has what the engine does with entries, `teardown` the ends. What must wait
for another thread says so (`STEP_BUSY`) and leaves the waiting to the caller, who may hold the GIL.
"""
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from libcpp.atomic cimport atomic, memory_order_acquire, memory_order_relaxed, memory_order_release

from strata cimport _hip
from strata.engine.control cimport WHO_ENGINE, control_cancel, control_fail, control_reset, control_watch
from strata.engine.counters cimport add, clear_counters
from strata.engine.command cimport COMMAND_ENTRIES, Command, Rows
from strata.engine.gpu_ring cimport gpu_ring_forget_uses, gpu_ring_init, gpu_ring_measure
from strata.engine.host_ring cimport (host_ring_allocate, host_ring_append, host_ring_at_rest, host_ring_begin,
                                      host_ring_new, host_ring_restart_at, host_ring_start_workers)
from strata.engine.issuer cimport issuer_submit, issuer_start
from strata._planner cimport plan_copy_groups
from strata.engine.threads cimport destroy, make, now_ns

cdef enum:
    SLOT_ALIGNMENT = 256
    MAX_SEGMENTS_OF_BATCH = 4096
    SHORTEN_AFTER = 64           # commands


cdef Pipeline* pipeline_new() noexcept nogil:
    return make[Pipeline]()


cdef int _failed(Pipeline* p, int call, int status, uintptr_t stream=0) noexcept nogil:
    p.call = call
    p.status = status
    p.failed_entry = -1
    p.failed_stream = stream
    _hip.clear_last_error()
    return STEP_FAILED


# --- the calling thread's device ------------------------------------------------------------------------

cdef int pipeline_enter(Pipeline* p, int* restore, int* call) noexcept nogil:
    """Make the streamer's device current; `restore` gets the engine's own, or -1, and `call` what failed."""
    cdef int device = -1
    cdef int status
    restore[0] = -1
    if not p.switch_device:
        return _hip.HIP_SUCCESS
    call[0] = _hip.CALL_GET_DEVICE
    status = _hip.get_device(&device)
    if status != _hip.HIP_SUCCESS or device == p.device:
        return status
    call[0] = _hip.CALL_SET_DEVICE
    status = _hip.set_device(p.device)
    if status == _hip.HIP_SUCCESS:
        restore[0] = device
    return status


cdef void pipeline_enter_at_end(Pipeline* p, int* restore) noexcept nogil:
    """As `pipeline_enter`, where there is nobody to hear of a failure: what comes next goes well on another device, too."""
    cdef int call = 0
    if pipeline_enter(p, restore, &call) != _hip.HIP_SUCCESS:
        _hip.clear_last_error()


cdef int pipeline_leave(Pipeline* p, int device) noexcept nogil:
    """Give the engine's thread its device back. Tried twice: it must not go on with another one unknown.

    What fails is kept in `stranded` until it was said.
    """
    cdef int status
    if device < 0:
        return _hip.HIP_SUCCESS
    status = _hip.set_device(device)
    if status != _hip.HIP_SUCCESS:
        _hip.clear_last_error()
        status = _hip.set_device(device)
    if status != _hip.HIP_SUCCESS:
        p.stranded = status
        p.stranded_from = device
    return status


# --- opening --------------------------------------------------------------------------------------------

cdef int pipeline_open(Pipeline* p, int64_t gpu_ring, int64_t slot_bytes, int64_t host_ring, int workers,
                       uintptr_t copy_stream, bint make_copy, uintptr_t compute_stream, bint make_compute,
                       bint own_slots) noexcept nogil:
    """Allocate and start everything. After a failure, `pipeline_close` frees what was made."""
    cdef int restore, step
    cdef int call = 0
    cdef int status = pipeline_enter(p, &restore, &call)
    p.issuer.exited.store(1, memory_order_relaxed)     # until it is started
    if status != _hip.HIP_SUCCESS:
        return _failed(p, call, status)
    step = _open(p, gpu_ring, slot_bytes, copy_stream, make_copy, compute_stream, make_compute, own_slots)
    status = pipeline_leave(p, restore)
    if step != STEP_OK:
        return step
    if status != _hip.HIP_SUCCESS:
        return _failed(p, _hip.CALL_SET_DEVICE, status)
    p.host_ring_size = host_ring
    p.n_workers = workers
    p.issuer.ring = &p.ring
    p.issuer.control = &p.control
    p.issuer.counters = &p.counters
    p.issuer.device = p.device
    p.issuer.timing = p.timing
    control_watch(&p.control, &p.issuer.issued, 1)
    control_watch(&p.control, &p.issuer.consumed, 1)
    p.issuer.exited.store(0, memory_order_release)
    if not issuer_start(&p.issuer):
        p.issuer.exited.store(1, memory_order_release)
        p.wanted = 0
        return STEP_NO_MEMORY
    return STEP_OK


cdef int _open(Pipeline* p, int64_t gpu_ring, int64_t slot_bytes, uintptr_t copy_stream, bint make_copy,
               uintptr_t compute_stream, bint make_compute, bint own_slots) noexcept nogil:
    cdef int call = 0
    cdef int64_t s
    cdef int status
    p.held = <uint8_t*>calloc(gpu_ring, sizeof(uint8_t))
    p.held_ends = <int64_t*>calloc(gpu_ring, sizeof(int64_t))
    p.issuer.batch_dsts = <void**>malloc(MAX_SEGMENTS_OF_BATCH * sizeof(void*))
    p.issuer.batch_srcs = <void**>malloc(MAX_SEGMENTS_OF_BATCH * sizeof(void*))
    p.issuer.batch_sizes = <size_t*>malloc(MAX_SEGMENTS_OF_BATCH * sizeof(size_t))
    p.issuer.batch_room = MAX_SEGMENTS_OF_BATCH - 1
    if p.held == NULL or p.held_ends == NULL or p.issuer.batch_dsts == NULL or p.issuer.batch_srcs == NULL or p.issuer.batch_sizes == NULL:
        p.wanted = <size_t>gpu_ring
        return STEP_NO_MEMORY
    p.ring.copy_stream = copy_stream
    p.ring.compute_stream = compute_stream
    if own_slots:
        p.owned_stride = (slot_bytes + SLOT_ALIGNMENT - 1) // SLOT_ALIGNMENT * SLOT_ALIGNMENT
        p.wanted = <size_t>(p.owned_stride * gpu_ring)
        status = _hip.device_alloc(&p.owned_slots, p.wanted)
        if status != _hip.HIP_SUCCESS:
            p.owned_slots = 0
            return _failed(p, _hip.CALL_MALLOC, status)
    if make_copy:
        status = _hip.stream_create(&p.ring.copy_stream)
        if status != _hip.HIP_SUCCESS:
            return _failed(p, _hip.CALL_STREAM_CREATE, status)
        p.owns_copy_stream = True
    if make_compute:
        status = _hip.stream_create(&p.ring.compute_stream)
        if status != _hip.HIP_SUCCESS:
            return _failed(p, _hip.CALL_STREAM_CREATE, status)
        p.owns_compute_stream = True
    p.home_compute_stream = p.ring.compute_stream
    status = gpu_ring_init(&p.ring, gpu_ring, slot_bytes, &call)
    if status != _hip.HIP_SUCCESS:
        return _failed(p, call, status)
    status = _hip.event_create(&p.fence, False)
    if status != _hip.HIP_SUCCESS:
        return _failed(p, _hip.CALL_EVENT_CREATE, status)
    if own_slots:
        p.ring.pitch = p.owned_stride
        for s in range(gpu_ring):
            p.ring.addresses[s] = p.owned_slots + <uintptr_t>(s * p.owned_stride)
        gpu_ring_measure(&p.ring)
    p.slots_are_lent = not own_slots
    p.ring.one_allocation = own_slots
    return STEP_OK


# --- what the issuer is told --------------------------------------------------------------------------------

cdef void pipeline_submit(Pipeline* p, Command* command) noexcept nogil:
    issuer_submit(&p.issuer, command)
    if p.commands == NULL:
        p.commands = command


cdef int64_t pipeline_progress(Pipeline* p) noexcept nogil:
    """A number that changes whenever a thread of the request gets anything done."""
    cdef int64_t sum = p.issuer.done.get() + p.issuer.issued.get() + p.issuer.consumed.get()
    cdef int k
    cdef int64_t b
    for k in range(2):
        sum += p.counters.kinds[k].copy_calls.load(memory_order_relaxed)
        sum += p.counters.kinds[k].reuse_waits.load(memory_order_relaxed)
        sum += p.counters.kinds[k].copied_records.load(memory_order_relaxed)
    sum += p.counters.host_reuse_waits.load(memory_order_relaxed)
    sum += p.counters.dma_done_records.load(memory_order_relaxed)
    if p.host != NULL:
        sum += p.host.claimed.load(memory_order_relaxed) + p.host.chunks.load(memory_order_relaxed)
        for b in range(p.host.size):
            sum += p.host.ready[b].get()
    return sum


# --- a request: begin, extend -----------------------------------------------------------------------------------

cdef int pipeline_begin(Pipeline* p, const PlanLimits* limits, int64_t window, const uintptr_t* lent_slots,
                        uintptr_t compute_stream) noexcept nogil:
    """Begin a request: reset, the slots, the begin fence. Nothing is left behind by a failure."""
    cdef int restore, step, status
    cdef int call = 0
    if p.broken:
        return STEP_HUNG
    clear_counters(&p.counters)
    control_reset(&p.control)
    status = pipeline_enter(p, &restore, &call)
    if status != _hip.HIP_SUCCESS:
        return _failed(p, call, status)
    step = _begin_fence(p, lent_slots, compute_stream)
    status = pipeline_leave(p, restore)
    if step != STEP_OK:
        return step
    if status != _hip.HIP_SUCCESS:
        return _failed(p, _hip.CALL_SET_DEVICE, status)
    p.limits = limits[0]
    p.ring.window = window
    p.issuer.issued.reset(0)
    p.issuer.consumed.reset(0)
    p.length = 0
    p.jobs = 0
    p.acquired = 0
    p.released = 0
    p.pending = 0
    p.waited = 0
    p.awaited = 0
    p.drops = 0
    p.cursor = NULL
    p.oldest = NULL
    p.listed = 0
    memset(p.held, 0, p.ring.size)
    if p.host != NULL and p.host.started:
        host_ring_begin(p.host, limits.stage_batch, p.timing)
    p.generation += 1
    p.running = True
    p.began_ns = now_ns()
    return STEP_OK


cdef int _fence_on(Pipeline* p, uintptr_t compute_stream) noexcept nogil:
    """The copy stream waits for everything queued so far on the compute stream."""
    cdef int status = _hip.event_record(p.fence, compute_stream)
    if status != _hip.HIP_SUCCESS:
        return _failed(p, _hip.CALL_EVENT_RECORD, status, compute_stream)
    return _wait_fence(p)


cdef int _wait_fence(Pipeline* p) noexcept nogil:
    cdef int status
    status = _hip.stream_wait_event(p.ring.copy_stream, p.fence)
    if status != _hip.HIP_SUCCESS:
        return _failed(p, _hip.CALL_STREAM_WAIT_EVENT, status, p.ring.copy_stream)
    p.issuer.dirty.store(1, memory_order_relaxed)
    add(p.counters.begin_waits, 1)
    return STEP_OK


cdef int _begin_fence(Pipeline* p, const uintptr_t* lent_slots, uintptr_t compute_stream) noexcept nogil:
    cdef bint other_stream = p.ran_before and compute_stream != p.last_compute_stream
    cdef bint lent = lent_slots != NULL
    cdef int step = STEP_OK
    cdef int64_t s
    if other_stream and p.last_end == END_UNMARKED:
        step = _fence_on(p, p.last_compute_stream)
    elif other_stream and p.last_end == END_RECORDED:
        step = _wait_fence(p)
        if step == STEP_OK:
            p.last_end = END_PASSED          # for good, even if this begin fails: the fence's event is recorded again
    if step == STEP_OK and lent:
        step = _fence_on(p, compute_stream)
    if step != STEP_OK:
        return step
    if lent:
        for s in range(p.ring.size):
            p.ring.addresses[s] = lent_slots[s]
    elif p.slots_are_lent:
        for s in range(p.ring.size):
            p.ring.addresses[s] = p.owned_slots + <uintptr_t>(s * p.owned_stride)
    if lent or p.slots_are_lent:
        # Lent slots are fresh behind the fence. Owned ones are, too, after a request with lent ones: that
        # request's fence came after all their uses.
        gpu_ring_forget_uses(&p.ring)
        gpu_ring_measure(&p.ring)
    if other_stream:
        # The copy stream is behind every use there was.
        p.ring.waited_order = p.ring.records
    p.slots_are_lent = lent
    p.ring.one_allocation = not lent
    p.ring.compute_stream = compute_stream
    p.last_compute_stream = compute_stream
    p.last_end = END_UNMARKED
    p.ran_before = True
    return STEP_OK


cdef int _need_host_ring(Pipeline* p) noexcept nogil:
    """Host ring, buffers and workers, at the first staged entry."""
    cdef int status, restore, left
    cdef int call = 0
    if p.host == NULL:
        p.host = host_ring_new(p.host_ring_size, p.ring.slot_bytes, p.n_workers, p.device, &p.control, &p.counters)
        if p.host == NULL:
            p.wanted = 0
            return STEP_NO_MEMORY
        p.host.share = p.ring.share
        p.issuer.host = p.host
    if not p.host.started:
        # Where that fails the ring stays for the next try: cancel() may be waking whoever waits in it.
        if not host_ring_start_workers(p.host):
            p.wanted = 0
            return STEP_NO_MEMORY
        host_ring_begin(p.host, p.limits.stage_batch, p.timing)
    if not p.host.allocated:
        if p.host.size > p.host_room // p.host.buffer_bytes:
            # More than the machine or the container has: the kernel would give it, and end the process later.
            p.wanted = <size_t>(p.host.size * p.host.buffer_bytes)
            return STEP_NO_MEMORY
        status = pipeline_enter(p, &restore, &call)
        if status != _hip.HIP_SUCCESS:
            return _failed(p, call, status)
        status = host_ring_allocate(p.host, &call)
        left = pipeline_leave(p, restore)
        if left != _hip.HIP_SUCCESS and status == _hip.HIP_SUCCESS:
            return _failed(p, _hip.CALL_SET_DEVICE, left)
        if status != _hip.HIP_SUCCESS:
            p.wanted = <size_t>(p.host.size * p.host.buffer_bytes)
            if call == _hip.CALL_HOST_MALLOC and status == _hip.HIP_OUT_OF_MEMORY:
                return STEP_NO_MEMORY
            return _failed(p, call, status)
    if p.jobs == 0:
        add(p.counters.pageable_buffers, p.host.pageable)
    p.limits.host_pinned = p.host.pinned
    return STEP_OK


cdef Command* _new_command(const Rows* rows, int64_t n_jobs, bint copy_arrays) noexcept nogil:
    cdef int64_t n_entries = rows.n_entries
    cdef int64_t first = rows.entry_starts[0]
    cdef int64_t n_segments = rows.entry_starts[n_entries] - first
    cdef int64_t words = 2 * n_entries + n_jobs
    cdef int64_t mark_words = (n_entries + 7) // 8
    cdef int64_t* block
    cdef int64_t k
    cdef Command* command = make[Command]()
    if command == NULL:
        return NULL
    if copy_arrays:
        words += 3 * n_segments + n_entries + 1
    block = <int64_t*>malloc((words + mark_words) * sizeof(int64_t))
    if block == NULL:
        destroy(command)
        return NULL
    command.kind = COMMAND_ENTRIES
    command.n_entries = n_entries
    command.n_jobs = n_jobs
    command.jobs = block
    command.ends = block + n_entries
    command.job_entries = block + 2 * n_entries
    command.marks = <atomic[uint8_t]*>(block + words)
    memset(block + words, 0, mark_words * sizeof(int64_t))
    command.addresses = rows.addresses
    command.nbytes = rows.nbytes
    command.offsets = rows.offsets
    command.entry_starts = rows.entry_starts
    command.regions = rows.regions
    command.files = rows.files
    command.open_files = rows.open_files
    if copy_arrays:                      # from `capi`, which has neither regions nor files
        block += 2 * n_entries + n_jobs
        memcpy(block, rows.addresses + first, n_segments * sizeof(int64_t))
        command.addresses = <const uint64_t*>block
        block += n_segments
        memcpy(block, rows.nbytes + first, n_segments * sizeof(int64_t))
        command.nbytes = block
        block += n_segments
        memcpy(block, rows.offsets + first, n_segments * sizeof(int64_t))
        command.offsets = block
        block += n_segments
        for k in range(n_entries + 1):
            block[k] = rows.entry_starts[k] - first
        command.entry_starts = block
    return command


cdef int pipeline_extend(Pipeline* p, const Rows* rows, bint copy_arrays) noexcept nogil:
    """Plan the entries and hand them to the threads. The rows are valid entries of this ring's slots.

    They are borrowed until the request has ended, or copied with `copy_arrays`. Segment k of entry i is
    ``entry_starts[i] + k``; ``staged[i]`` is 1 where a worker has to gather the entry.
    """
    cdef int64_t n_entries = rows.n_entries
    cdef const uint8_t* staged = rows.staged
    cdef int64_t i, n_jobs
    cdef Command* command
    cdef int step
    if not p.running or p.ending:
        return STEP_IDLE
    if p.control.interrupted.load(memory_order_acquire):
        return STEP_STOPPED
    if n_entries == 0:
        return STEP_OK
    n_jobs = 0
    for i in range(n_entries):
        n_jobs += staged[i] != 0
    if n_jobs > 0:
        step = _need_host_ring(p)
        if step != STEP_OK:
            return step
    command = _new_command(rows, n_jobs, copy_arrays)
    if command == NULL:
        p.wanted = <size_t>n_entries * 25
        return STEP_NO_MEMORY
    command.first_entry = p.length
    command.first_job = p.jobs
    n_jobs = 0
    for i in range(n_entries):
        if staged[i]:
            command.jobs[i] = p.jobs + n_jobs
            command.job_entries[n_jobs] = i
            n_jobs += 1
        else:
            command.jobs[i] = -1
    plan_copy_groups(&p.limits, command.jobs, n_entries, p.length, command.ends, NULL)
    p.length += n_entries
    p.listed += 1
    p.jobs += n_jobs
    if p.cursor == NULL:
        p.cursor = command
        p.oldest = command
    pipeline_submit(p, command)
    if p.host != NULL and p.host.started:
        host_ring_append(p.host, command)
    return STEP_OK


# --- the engine's waits ----------------------------------------------------------------------------------------

cdef int pipeline_engine_failed(Pipeline* p, int call, int status, int64_t entry) noexcept nogil:
    """A HIP call of the engine's thread has failed: that ends the request."""
    _hip.clear_last_error()
    control_fail(&p.control, WHO_ENGINE, -1, call, status, entry, entry % p.ring.size, p.ring.compute_stream)
    return STEP_STOPPED


cdef int pipeline_wait_published(Pipeline* p, int64_t timeout_ns) noexcept nogil:
    """Block until what the last step has found busy is published, something stops the request, or the time is over."""
    cdef int64_t began = 0
    if p.timing:
        began = now_ns()
    p.issuer.issued.wait(p.awaited, p.control.interrupted, timeout_ns)
    if p.timing:
        add(p.counters.wait_publication_ns, now_ns() - began)
    return STEP_OK


cdef int pipeline_slot_arrived(Pipeline* p, int64_t entry) noexcept nogil:
    """Whether the bytes of a held entry have arrived: `STEP_OK`, or `STEP_BUSY`."""
    cdef Command* command = p.oldest if p.oldest != NULL else p.commands
    cdef int64_t consumed = p.issuer.consumed.get()
    cdef int status
    if not p.running:
        return STEP_IDLE
    if p.control.interrupted.load(memory_order_acquire):
        return STEP_STOPPED
    if entry < p.issuer.consumed.get() or entry >= p.acquired:
        return STEP_ORDER
    # Behind the oldest held entry lie no more than a ring's: a long chain is walked once, not at every question.
    while consumed >= command.first_entry + command.n_entries:
        command = command.next.load(memory_order_acquire)
    p.oldest = command
    while entry >= command.first_entry + command.n_entries:
        command = command.next.load(memory_order_acquire)
    status = _hip.event_query(p.ring.copied[(command.ends[entry - command.first_entry] - 1) % p.ring.size])
    if status == _hip.HIP_SUCCESS:
        return STEP_OK
    if status == _hip.HIP_NOT_READY:
        _hip.forget_not_ready()
        return STEP_BUSY
    return pipeline_engine_failed(p, _hip.CALL_EVENT_QUERY, status, entry)


cdef bint pipeline_shorten(Pipeline* p) noexcept nogil:
    """Free what a growing request does not need any more; whether nothing that was listed is read any more either.

    Now and then, and only where everything is at rest: all entries consumed, all threads idle, the copy stream empty.
    An engine that lists each step once the last one is done is there all the time.
    """
    cdef Command* command = p.commands
    cdef Command* before = NULL
    cdef Command* following
    cdef int64_t needed
    cdef int status
    if p.listed < SHORTEN_AFTER or not p.running or p.ending or p.control.interrupted.load(memory_order_acquire):
        return False
    if p.issuer.consumed.get() < p.length or p.issuer.done.get() < p.issuer.submitted.get():
        return False
    if p.host != NULL and not host_ring_at_rest(p.host):
        return False
    p.listed = 0
    status = _hip.stream_query(p.ring.copy_stream)
    if status == _hip.HIP_NOT_READY:
        _hip.forget_not_ready()
        return False
    if status != _hip.HIP_SUCCESS:
        _hip.clear_last_error()
        return False
    _hip.announce_acquire(&p.issuer.done)
    # A job's worker asks which ownership group its buffer's last job was in: those commands stay. So does the last one,
    # through which the issuer finds the next.
    needed = p.jobs - p.host_ring_size
    p.cursor = NULL
    p.oldest = NULL
    if p.host != NULL:
        host_ring_restart_at(p.host, NULL)
    while command != NULL:
        following = command.next.load(memory_order_acquire)
        if command.n_jobs > 0 and command.first_job + command.n_jobs > needed:
            host_ring_restart_at(p.host, command)
            before = command
        elif command == p.issuer.tail:
            before = command
        else:
            if before == NULL:
                p.commands = following
            else:
                before.next.store(following, memory_order_release)
            free(command.jobs)
            destroy(command)
        command = following
    return True


cdef void pipeline_pause(Pipeline* p, int64_t nanoseconds) noexcept nogil:
    """Sleep, but no longer than until something demands the engine's interrupted."""
    p.issuer.issued.wait(INT64_MAX, p.control.interrupted, nanoseconds)


cdef void pipeline_cancel(Pipeline* p) noexcept nogil:
    """From any thread: the engine's next call, or the one it waits in, aborts."""
    control_cancel(&p.control)
