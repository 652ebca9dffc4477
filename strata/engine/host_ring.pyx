"""The host ring: staged entries are gathered into buffers by worker threads, ahead of their copies.

::

    worker   claim j -> [j >= size: group of j - size issued? -> its dma_done complete?] -> memcpy -> ready
    issuer   ready(j)? -> copy j to its slot -> submitted(j): dma_done where j ends its ownership group

Job j uses buffer ``j % size``. A buffer is written again only after the DMA that read it is *done*; that
its copy was *issued* is not enough.
"""
from libc.errno cimport ENOMEM
from libc.stdint cimport int64_t, uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset
from libcpp.atomic cimport atomic, memory_order_acq_rel, memory_order_acquire, memory_order_relaxed, memory_order_release

from strata cimport _hip
from strata.engine.control cimport WHO_ENGINE, WHO_WORKER, Control, control_fail, control_fail_read, control_stop, control_watch
from strata.engine.counters cimport CounterBlock, add, add_shared
from strata.engine.command cimport Command, entry_span, take_entry
from strata.engine.files cimport SourceFile, read_at
from strata._planner cimport ownership_end
from strata.engine.threads cimport (Watermark, destroy, destroy_array, kForever, make, make_array, now_ns,
                                    thread_start)

cdef extern from *:
    """
    #include <cstdlib>
    #if defined(_WIN32)
    #include <malloc.h>
    static inline void* strata_page_alloc(size_t n) { return _aligned_malloc(n, 4096); }
    static inline void strata_page_free(void* p) { _aligned_free(p); }
    #else
    static inline void* strata_page_alloc(size_t n) { return std::aligned_alloc(4096, (n + 4095) / 4096 * 4096); }
    static inline void strata_page_free(void* p) { std::free(p); }
    #endif
    """
    void* strata_page_alloc(size_t n) nogil
    void strata_page_free(void* p) nogil

# An abort is seen between two chunks: well under a millisecond at memory speed.
cdef enum:
    CHUNK = 256 * 1024
    LOOK_AGAIN_NS = 1000000
    DIRECT_CHUNK = 1024 * 1024      # of direct reads, which pay a disk's latency each; some ms


# --- building and ending ----------------------------------------------------------------------------

cdef HostRing* host_ring_new(int64_t size, int64_t buffer_bytes, int n_workers, int device, Control* control,
                             CounterBlock* counters) noexcept nogil:
    """A ring without buffers and without threads, or NULL where there is no memory."""
    cdef HostRing* ring = make[HostRing]()
    if ring == NULL:
        return NULL
    ring.size = size
    ring.buffer_bytes = buffer_bytes
    ring.n_workers = n_workers
    ring.device = device
    ring.control = control
    ring.counters = counters
    ring.stage_batch = 1
    ring.finished = True
    ring.closing.store(1, memory_order_relaxed)
    ring.buffers = <uintptr_t*>calloc(size, sizeof(uintptr_t))
    ring.pinned = <uint8_t*>calloc(size, sizeof(uint8_t))
    ring.dma_done = <uintptr_t*>calloc(size, sizeof(uintptr_t))
    ring.ready = make_array[Watermark](size)
    ring.dma_waiter = make_array[atomic[int64_t]](size)
    ring.dma_found = make_array[Watermark](size)
    ring.workers = make_array[Worker](n_workers)
    if (ring.buffers == NULL or ring.pinned == NULL or ring.dma_done == NULL or ring.ready == NULL
            or ring.dma_waiter == NULL or ring.dma_found == NULL or ring.workers == NULL):
        host_ring_delete(ring, False)
        return NULL
    control_watch(control, ring.ready, size)
    control_watch(control, &ring.dma_published, 1)
    control_watch(control, ring.dma_found, size)
    return ring


cdef bint host_ring_start_workers(HostRing* ring) noexcept nogil:
    """Start the threads, once. False where the system gives none: those already started are ended, and the ring is as
    it was before."""
    cdef int w
    if ring.started:
        return True
    for w in range(ring.n_workers):
        ring.workers[w].ring = ring
        ring.workers[w].index = w
        ring.workers[w].generation = -1
        ring.workers[w].exited.store(0, memory_order_relaxed)
        if not thread_start(&ring.workers[w].thread, "worker", w, _worker_main, &ring.workers[w]):
            _end_workers(ring)
            ring.shutdown.store(0, memory_order_release)
            return False
    ring.started = True
    return True


cdef void _end_workers(HostRing* ring) noexcept nogil:
    cdef int w
    ring.shutdown.store(1, memory_order_release)
    ring.work.notify()
    for w in range(ring.n_workers):
        ring.workers[w].thread.join()


cdef void _free_buffers(HostRing* ring) noexcept nogil:
    cdef int64_t b
    for b in range(ring.size):
        if ring.dma_done[b] != 0:
            _hip.event_destroy(ring.dma_done[b])
            ring.dma_done[b] = 0
        if ring.buffers[b] != 0:
            if ring.pinned[b]:
                _hip.host_free(ring.buffers[b])
            else:
                strata_page_free(<void*>ring.buffers[b])
            ring.buffers[b] = 0
        ring.pinned[b] = 0
    ring.allocated = False
    ring.pageable = 0


cdef void host_ring_delete(HostRing* ring, bint leak) noexcept nogil:
    """End the threads and free everything; with `leak`, let go of it, since a thread or a DMA may still be
    in there."""
    cdef int w
    if ring == NULL:
        return
    if leak:
        ring.shutdown.store(1, memory_order_release)
        ring.work.notify()
        for w in range(ring.n_workers):
            ring.workers[w].thread.detach()
        return
    if ring.workers != NULL:
        _end_workers(ring)
        for w in range(ring.n_workers):
            if ring.workers[w].bounce != NULL:
                strata_page_free(ring.workers[w].bounce)
    if ring.buffers != NULL and ring.dma_done != NULL:
        _free_buffers(ring)
    free(ring.buffers)
    free(ring.pinned)
    free(ring.dma_done)
    destroy_array(ring.ready)
    destroy_array(ring.dma_waiter)
    destroy_array(ring.dma_found)
    destroy_array(ring.workers)
    destroy(ring)


cdef int host_ring_allocate(HostRing* ring, int* call) noexcept nogil:
    """Make buffers and events where there are none yet. A buffer that cannot be pinned is pageable.

    On failure the status is returned, `call` says which call, and everything is freed.
    """
    cdef int64_t b
    cdef int status
    cdef bint refused = False
    cdef int before
    if ring.allocated:
        return _hip.HIP_SUCCESS
    before = _hip.unread_error()
    for b in range(ring.size):
        call[0] = _hip.CALL_EVENT_CREATE
        status = _hip.event_create(&ring.dma_done[b], True)
        if status != _hip.HIP_SUCCESS:
            _free_buffers(ring)
            return status
        call[0] = _hip.CALL_HOST_MALLOC
        status = _hip.host_alloc(&ring.buffers[b], ring.buffer_bytes)
        if status == _hip.HIP_SUCCESS:
            ring.pinned[b] = 1
            continue
        if not _hip.says_no_more_pinned(status):
            _free_buffers(ring)
            return status
        refused = True
        ring.buffers[b] = <uintptr_t>strata_page_alloc(ring.buffer_bytes)
        if ring.buffers[b] == 0:
            _hip.restore_error(before)
            _free_buffers(ring)
            return _hip.HIP_OUT_OF_MEMORY
        ring.pageable += 1
    if refused:
        _hip.restore_error(before)
    ring.allocated = True
    return _hip.HIP_SUCCESS


# --- a request ----------------------------------------------------------------------------------------

cdef void host_ring_begin(HostRing* ring, int64_t stage_batch, bint timing) noexcept nogil:
    """Reset to job 0. Only after `finish`: no worker is active, no DMA reads a buffer."""
    cdef int64_t b
    ring.stage_batch = stage_batch
    ring.timing = timing
    ring.first = NULL
    ring.submit_command = NULL
    ring.submitted = 0
    ring.stream = 0
    ring.generation += 1
    ring.available.store(0, memory_order_relaxed)
    ring.claimed.store(0, memory_order_relaxed)
    ring.dma_published.reset(0)
    for b in range(ring.size):
        ring.ready[b].reset(0)
        ring.dma_waiter[b].store(0, memory_order_relaxed)
        ring.dma_found[b].reset(0)
    ring.finished = False
    ring.ending = False
    ring.closing.store(0, memory_order_release)


cdef void host_ring_append(HostRing* ring, Command* command) noexcept nogil:
    """Offer the command's jobs to the workers. The command is linked to its predecessor already."""
    if command.n_jobs == 0 and ring.first == NULL:
        return
    if ring.first == NULL:
        ring.first = command
        ring.submit_command = command
    if command.n_jobs == 0:
        return
    _hip.announce_release(&ring.available)
    ring.available.store(command.first_job + command.n_jobs, memory_order_release)
    ring.work.notify()


cdef bint host_ring_at_rest(HostRing* ring) noexcept nogil:
    """Whether every job was claimed and done. Asked by the thread that appends: then it is so until it appends again."""
    return (ring.claimed.load(memory_order_acquire) == ring.available.load(memory_order_acquire)
            and ring.active.load(memory_order_acquire) == 0)


cdef void host_ring_restart_at(HostRing* ring, Command* command) noexcept nogil:
    """At rest, while the chain is shortened: NULL, then each command with jobs that stays, in order."""
    if command == NULL:
        ring.first = NULL
        ring.generation += 1             # workers begin at `first` again
    elif ring.first == NULL:
        ring.first = command
    ring.submit_command = command


cdef bint host_ring_is_pinned(const HostRing* ring, int64_t job) noexcept nogil:
    """Whether the job's buffer is pinned memory."""
    return ring.pinned[job % ring.size]


cdef uintptr_t host_ring_buffer(HostRing* ring, int64_t job) noexcept nogil:
    return ring.buffers[job % ring.size]


cdef bint host_ring_wait_ready(HostRing* ring, int64_t job, int64_t timeout_ns) noexcept nogil:
    """Until the job's bytes lie in its buffer; False after a stop or the timeout."""
    cdef Watermark* ready = &ring.ready[job % ring.size]
    if not ready.wait(job + 1, ring.control.stop, timeout_ns):
        return False
    _hip.announce_acquire(ready)
    return True


cdef Command* _command_of(Command* command, int64_t job) noexcept nogil:
    """The command that holds the job, from `command` forward."""
    while job >= command.first_job + command.n_jobs:
        command = command.next.load(memory_order_acquire)
    return command


cdef int host_ring_submitted(HostRing* ring, int64_t job, uintptr_t stream) noexcept nogil:
    """After the job's copy was submitted: record `dma_done` where the job ends its ownership group."""
    cdef int64_t end
    cdef int status
    ring.submit_command = _command_of(ring.submit_command, job)
    end = ownership_end(ring.size, ring.stage_batch, job, ring.submit_command.first_job + ring.submit_command.n_jobs)
    ring.submitted = job + 1
    ring.stream = stream
    if job + 1 != end:
        return _hip.HIP_SUCCESS
    status = _hip.event_record(ring.dma_done[job % ring.size], stream)
    if status != _hip.HIP_SUCCESS:
        return status
    add(ring.counters.dma_done_records, 1)
    _hip.announce_release(&ring.dma_published)
    ring.dma_published.advance(end)
    return _hip.HIP_SUCCESS


cdef int host_ring_finish(HostRing* ring, int* call, int64_t slice_ns) noexcept nogil:
    """End the request's jobs: no claims, a fence where one is missing, the workers, the last DMA.

    Nothing is done a second time. `HOST_RING_BUSY` after a slice: call again; with a slice, no call is made that waits
    for the last DMA. On another status that is not success the device may read the buffers still: they are not to be
    reused, nor freed, until a further call succeeds.
    """
    cdef int64_t deadline = kForever if slice_ns == kForever else now_ns() + slice_ns
    cdef int status = _hip.HIP_SUCCESS
    cdef int first
    if ring.finished:
        return _hip.HIP_SUCCESS
    if not ring.ending:
        _end_submission(ring)
    if not _wait_for_workers(ring, deadline):
        call[0] = _hip.CALL_EVENT_SYNCHRONIZE
        return HOST_RING_BUSY
    if ring.end_event >= 0:
        if ring.end_status == _hip.HIP_SUCCESS:
            call[0] = ring.end_call = _hip.CALL_EVENT_SYNCHRONIZE if slice_ns == kForever else _hip.CALL_EVENT_QUERY
            status = _wait_for_event(ring, ring.dma_done[ring.end_event], deadline)
            if status == HOST_RING_BUSY:
                return status
            ring.end_status = status
        if ring.end_status != _hip.HIP_SUCCESS:
            # The request has failed. Without the event, the whole stream: if that cannot be waited for either, a DMA may
            # read the buffers for ever.
            _hip.clear_last_error()
            control_fail(ring.control, WHO_ENGINE, -1, ring.end_call, ring.end_status, -1, -1, ring.stream)
            status = _hip.stream_drain(ring.stream, &first, call)
            if status != _hip.HIP_SUCCESS:
                return status
    ring.finished = True
    return _hip.HIP_SUCCESS


cdef void _end_submission(HostRing* ring) noexcept nogil:
    """No claims any more. Where the last submitted job did not end its group, its DMA gets a record of its own."""
    cdef int64_t last = ring.submitted - 1
    cdef int64_t end
    ring.ending = True
    ring.closing.store(1, memory_order_release)
    ring.end_event = -1
    ring.end_status = _hip.HIP_SUCCESS
    if last < 0:
        return
    end = ownership_end(ring.size, ring.stage_batch, last, ring.submit_command.first_job + ring.submit_command.n_jobs)
    ring.end_event = (end - 1) % ring.size
    if ring.dma_published.get() >= end:
        return
    ring.end_call = _hip.CALL_EVENT_RECORD
    ring.end_status = _hip.event_record(ring.dma_done[ring.end_event], ring.stream)
    if ring.end_status == _hip.HIP_SUCCESS:
        add(ring.counters.fences, 1)
    else:
        add(ring.counters.fence_errors, 1)


cdef bint _wait_for_workers(HostRing* ring, int64_t deadline) noexcept nogil:
    cdef uint64_t seen
    while ring.active.load(memory_order_acquire) != 0:
        if now_ns() >= deadline:
            return False
        # Claimed jobs that will never be submitted are dropped. A worker may still claim one after this look.
        if ring.claimed.load(memory_order_acquire) > ring.submitted:
            control_stop(ring.control)
        seen = ring.idle.prepare()
        if ring.active.load(memory_order_acquire) == 0:
            ring.idle.cancel()
            break
        ring.idle.wait(seen, LOOK_AGAIN_NS)
    _hip.announce_acquire(&ring.idle)
    return True


cdef int _wait_for_event(HostRing* ring, uintptr_t event, int64_t deadline) noexcept nogil:
    cdef uint64_t seen
    cdef int64_t pause = 20000
    cdef int status
    if deadline == kForever:
        return _hip.event_synchronize(event)
    while True:
        status = _hip.event_query(event)
        if status != _hip.HIP_NOT_READY:
            return status
        _hip.forget_not_ready()
        if now_ns() >= deadline:
            return HOST_RING_BUSY
        seen = ring.idle.prepare()           # nobody notifies it now: a pause
        ring.idle.wait(seen, pause)
        pause = min(pause + pause // 2, <int64_t>LOOK_AGAIN_NS // 5)


cdef list worker_states(HostRing* ring):
    """What each worker is doing, in words; parked ones are left out."""
    cdef int w
    states = []
    for w in range(ring.n_workers):
        state = ring.workers[w].state.load(memory_order_relaxed)
        job = ring.workers[w].job.load(memory_order_relaxed)
        if ring.workers[w].exited.load(memory_order_acquire):
            states.append(f"worker {w}'s thread has ended")
        elif state == WORKER_WAITS_FOR_SUBMISSION:
            states.append(f"worker {w} waits at job {job} until job {job - ring.size}'s group is submitted")
        elif state == WORKER_WAITS_FOR_DMA:
            states.append(f"worker {w} is in hipEventSynchronize at job {job}, for the DMA of buffer {job % ring.size}")
        elif state == WORKER_COPIES:
            states.append(f"worker {w} copies job {job} into buffer {job % ring.size}")
    return states


cdef object what_is_left(HostRing* ring):
    """What a ring that cannot be freed leaves behind, in words."""
    if ring == NULL:
        return "no host buffers"
    threads = f"{ring.n_workers} worker threads"
    if not ring.allocated:
        return f"{threads} and no host buffers"
    return (f"{ring.size * ring.buffer_bytes} bytes of host buffers ({ring.size} of {ring.buffer_bytes} bytes), their events and "
            f"{threads}")


# --- workers --------------------------------------------------------------------------------------------

cdef void _worker_main(void* argument) noexcept nogil:
    cdef Worker* worker = <Worker*>argument
    cdef HostRing* ring = worker.ring
    cdef int64_t job
    cdef uint64_t seen
    cdef int status = _hip.HIP_NOT_READY         # of hipSetDevice, once there is something to do
    while True:
        ring.active.fetch_add(1, memory_order_acq_rel)
        job = _claim(ring)
        if job >= 0:
            if status != _hip.HIP_SUCCESS:
                status = _hip.set_device(ring.device)
            if status != _hip.HIP_SUCCESS:
                control_fail(ring.control, WHO_WORKER, worker.index, _hip.CALL_SET_DEVICE, status, -1, -1)
            else:
                _run_job(worker, job)
            worker.state.store(WORKER_PARKED, memory_order_relaxed)
        _hip.announce_release(&ring.idle)
        if ring.active.fetch_sub(1, memory_order_acq_rel) == 1:
            ring.idle.notify()
        if job >= 0:
            continue
        if ring.shutdown.load(memory_order_acquire):
            break
        seen = ring.work.prepare()
        if ring.shutdown.load(memory_order_acquire) or _has_work(ring):
            ring.work.cancel()
            continue
        ring.work.wait(seen, kForever)
    worker.exited.store(1, memory_order_release)


cdef bint _has_work(HostRing* ring) noexcept nogil:
    return (not ring.closing.load(memory_order_acquire) and not ring.control.stop.load(memory_order_acquire)
            and ring.claimed.load(memory_order_acquire) < ring.available.load(memory_order_acquire))


cdef int64_t _claim(HostRing* ring) noexcept nogil:
    """The next job in order, or -1."""
    cdef int64_t job = ring.claimed.load(memory_order_acquire)
    while _has_work(ring):
        if job < ring.available.load(memory_order_acquire):
            if ring.claimed.compare_exchange_weak(job, job + 1, memory_order_acq_rel):
                _hip.announce_acquire(&ring.available)
                return job
        else:
            job = ring.claimed.load(memory_order_acquire)
    return -1


cdef void _run_job(Worker* worker, int64_t job) noexcept nogil:
    """Wait for the buffer, gather the entry's segments into it, publish it.

    A dropped entry's job has its turn, too: were it published before the buffer is its own, the job that still owns it
    would count as ready.
    """
    cdef HostRing* ring = worker.ring
    cdef int64_t index
    cdef int64_t began = 0
    if worker.generation != ring.generation:
        worker.generation = ring.generation
        worker.command = ring.first
        worker.reused = ring.first
    worker.job.store(job, memory_order_relaxed)
    worker.command = _command_of(worker.command, job)
    index = worker.command.job_entries[job - worker.command.first_job]
    if job >= ring.size:
        if ring.timing:
            began = now_ns()
        if not _wait_for_buffer(worker, job, worker.command.first_entry + index):
            return
        if ring.timing:
            add_shared(ring.counters.wait_host_reuse_ns, now_ns() - began)
    worker.state.store(WORKER_COPIES, memory_order_relaxed)
    if ring.timing:
        began = now_ns()
    if take_entry(worker.command, index) and not _gather(worker, worker.command, index, ring.buffers[job % ring.size]):
        return
    if ring.timing:
        add_shared(ring.counters.host_memcpy_ns, now_ns() - began)
    _hip.announce_release(&ring.ready[job % ring.size])
    ring.ready[job % ring.size].advance(job + 1)


cdef bint _wait_for_buffer(Worker* worker, int64_t job, int64_t entry) noexcept nogil:
    """Until the DMA that read the buffer last is done: its group issued to its end, then its event."""
    cdef HostRing* ring = worker.ring
    cdef int64_t old = job - ring.size
    cdef int64_t end
    cdef int status
    worker.reused = _command_of(worker.reused, old)
    end = ownership_end(ring.size, ring.stage_batch, old, worker.reused.first_job + worker.reused.n_jobs)
    worker.state.store(WORKER_WAITS_FOR_SUBMISSION, memory_order_relaxed)
    if not ring.dma_published.wait(end, ring.control.stop, kForever):
        return False
    _hip.announce_acquire(&ring.dma_published)
    worker.state.store(WORKER_WAITS_FOR_DMA, memory_order_relaxed)
    if ring.share and not _is_waiter(ring, end):
        if not ring.dma_found[(end - 1) % ring.size].wait(end, ring.control.stop, kForever):
            return False
        _hip.announce_acquire(&ring.dma_found[(end - 1) % ring.size])
        add_shared(ring.counters.host_reuse_waits_shared, 1)
        return True
    status = _hip.event_synchronize(ring.dma_done[(end - 1) % ring.size])
    if status != _hip.HIP_SUCCESS:
        control_fail(ring.control, WHO_WORKER, worker.index, _hip.CALL_EVENT_SYNCHRONIZE, status, entry, -1)
        return False
    add_shared(ring.counters.host_reuse_waits, 1)
    if ring.share:
        _hip.announce_release(&ring.dma_found[(end - 1) % ring.size])
        ring.dma_found[(end - 1) % ring.size].advance(end)
    return True


cdef bint _is_waiter(HostRing* ring, int64_t end) noexcept nogil:
    """Whether it is this worker that waits for the DMA of the ownership group that ends there: the first that asks.

    Ends on one buffer only grow: a later group is published once every job before it is ready, its waiter's, too.
    """
    cdef int64_t before = ring.dma_waiter[(end - 1) % ring.size].load(memory_order_acquire)
    while before < end:
        if ring.dma_waiter[(end - 1) % ring.size].compare_exchange_weak(before, end, memory_order_acq_rel):
            return True
    return False


cdef bint _gather(Worker* worker, const Command* command, int64_t index, uintptr_t buffer) noexcept nogil:
    """Bring the entry's segments to where they lie in the slot; False if a stop or a failure came in between.

    Bytes of the slot between two segments are zeroed: no other expert's bytes travel in them.
    """
    cdef HostRing* ring = worker.ring
    cdef int64_t s, done, n
    cdef int64_t written = 0
    cdef int64_t span = entry_span(command, index)
    cdef bint ordered = True
    for s in range(command.entry_starts[index], command.entry_starts[index + 1]):
        if command.nbytes[s] > 0:
            if command.offsets[s] != written:
                ordered = False
            written = command.offsets[s] + command.nbytes[s]
    done = span if ordered else 0
    while done < span:
        if ring.control.stop.load(memory_order_acquire):
            return False
        n = min(<int64_t>CHUNK, span - done)
        memset(<void*>(buffer + <uintptr_t>done), 0, n)
        done += n
        ring.chunks.fetch_add(1)
    for s in range(command.entry_starts[index], command.entry_starts[index + 1]):
        if command.files != NULL and command.files[s] >= 0:
            if not _read(worker, command, index, s, buffer + <uintptr_t>command.offsets[s]):
                return False
            continue
        done = 0
        while done < command.nbytes[s]:
            if ring.control.stop.load(memory_order_acquire):
                return False
            n = min(<int64_t>CHUNK, command.nbytes[s] - done)
            memcpy(<void*>(buffer + <uintptr_t>(command.offsets[s] + done)),
                   <const void*>(<uintptr_t>command.addresses[s] + <uintptr_t>done), n)
            done += n
            ring.chunks.fetch_add(1)
    _hip.announce_write(buffer, span)
    return True


# --- reading files ------------------------------------------------------------------------------------

cdef bint _read(Worker* worker, const Command* command, int64_t index, int64_t s, uintptr_t to) noexcept nogil:
    """Read a segment from its file, in chunks; False if a stop or a failure came in between."""
    cdef HostRing* ring = worker.ring
    cdef const SourceFile* file = &command.open_files[command.files[s]]
    cdef int64_t unit = file.alignment
    cdef int64_t chunk = DIRECT_CHUNK if unit > 0 else CHUNK
    cdef int64_t done = 0
    cdef int64_t n, got
    cdef int64_t at
    cdef int error = 0
    while done < command.nbytes[s]:
        if ring.control.stop.load(memory_order_acquire):
            return False
        n = min(chunk, command.nbytes[s] - done)
        at = <int64_t>command.addresses[s] + done
        if unit == 0:
            got = read_at(file[0], <void*>(to + <uintptr_t>done), n, at, &error)
        elif at % unit == 0 and (to + <uintptr_t>done) % <uintptr_t>unit == 0 and n >= unit:
            n -= n % unit
            got = read_at(file[0], <void*>(to + <uintptr_t>done), n, at, &error)
        else:
            got = _read_unaligned(worker, file, <void*>(to + <uintptr_t>done), n, at, &error)
        if got < n:
            control_fail_read(ring.control, worker.index, error, command.first_entry + index, file.handle, at, got, n)
            return False
        done += n
        ring.chunks.fetch_add(1)
    return True


cdef int64_t _read_unaligned(Worker* worker, const SourceFile* file, void* to, int64_t n, int64_t at,
                             int* error) noexcept nogil:
    """A direct read of any place and length, by way of the worker's aligned room."""
    cdef int64_t unit = file.alignment
    cdef int64_t before = at % unit
    cdef int64_t got
    if worker.bounce == NULL:
        worker.bounce = strata_page_alloc(DIRECT_CHUNK + 2 * unit)
        if worker.bounce == NULL:
            error[0] = ENOMEM
            return 0
    got = read_at(file[0], worker.bounce, (before + n + unit - 1) // unit * unit, at - before, error) - before
    got = max(<int64_t>0, min(got, n))
    memcpy(to, <const char*>worker.bounce + before, got)
    return got
