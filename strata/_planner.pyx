"""The maximal-group planner, the window release and the dependencies around a copy group.

::

    entries   0 1 2 3 4 5 6 7 | 8 9 ...          gpu_ring 8, copy_batch 4, stage_copy_batch 4
    source    D D D D D S S S | S S              D direct, S staged (jobs 0 1 2 3 4)
    groups    [0 1 2 3][4][5 6 7][8 9 ...        cut by: batch, source type, GPU wrap
    copied          3   4     7                  one record a group, on its last slot

A group grows by one entry at a time while every rule holds, so it is maximal: the next entry would be
longer than the batch, cross the GPU wrap, change the source type, leave a gap in the jobs, cross the
host wrap, or touch a pageable host buffer.
"""
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint64_t, uintptr_t

import numpy as np

from strata cimport _hip
from strata._arrays cimport values_of
from strata.engine.counters cimport DIRECT, STAGED, KindCounters, add
from strata.engine.gpu_ring cimport GpuRing, gpu_ring_latest_use

from strata.settings import BatchSettings


cdef int64_t MAX_JOB = 2**62           # so that sums of jobs and depths cannot overflow


# --- groups ---------------------------------------------------------------------------------------

cdef void plan_copy_groups(const PlanLimits* limits, const int64_t* jobs, int64_t n, int64_t first_entry,
                           int64_t* ends, int64_t* groups) noexcept nogil:
    """Fill ``ends[i]`` with the exclusive end of entry i's group, as a number of the request's entries.

    `jobs` and `ends` have `n` elements and begin at entry `first_entry`; the list ends a group. `groups`,
    where it is not NULL, gets the number of direct and of staged groups.
    """
    cdef int64_t i = 0
    cdef int64_t slot = first_entry % limits.gpu_ring
    cdef int64_t buffer = 0
    cdef int64_t next_job = -1          # the job whose buffer is `buffer`, without a division
    cdef int64_t k, job, limit, end
    cdef int64_t direct = 0
    cdef int64_t staged = 0
    while i < n:
        job = jobs[i]
        k = 1
        if job < 0:
            direct += 1
            limit = min(min(limits.copy_batch, limits.gpu_ring - slot), n - i)
            while k < limit and jobs[i + k] < 0:
                k += 1
        else:
            staged += 1
            if job != next_job:
                buffer = job % limits.host_ring
            limit = min(min(limits.stage_copy_batch, limits.gpu_ring - slot),
                        min(limits.host_ring - buffer, n - i))
            if limits.host_pinned == NULL:
                while k < limit and jobs[i + k] == job + k:
                    k += 1
            elif limits.host_pinned[buffer]:
                while k < limit and jobs[i + k] == job + k and limits.host_pinned[buffer + k]:
                    k += 1
            next_job = job + k
            buffer += k
            if buffer == limits.host_ring:
                buffer = 0
        end = first_entry + i + k
        slot += k
        if slot == limits.gpu_ring:
            slot = 0
        while k > 0:
            ends[i] = end
            i += 1
            k -= 1
    if groups != NULL:
        groups[DIRECT] = direct
        groups[STAGED] = staged


cdef int64_t _plan_ownership(const PlanLimits* limits, const int64_t* jobs, int64_t n, int64_t* ends,
                             int64_t* reused) noexcept nogil:
    """Check the jobs and fill ``ends`` with each staged entry's ownership end, both as ordinals.

    Returns the index of the first job that breaks a rule, or -1. `reused` gets the number of jobs whose
    buffer another job used before.
    """
    cdef int64_t i, job, end
    cdef int64_t previous = -1
    cdef int64_t turn = 0                # first job after the host ring's turn, without a division
    cdef int64_t boundary = 0            # first job after the ownership group
    cdef int64_t k = 0                   # ordinal
    cdef int64_t begin = 0               # first ordinal of the group
    cdef int64_t later = 0
    for i in range(n):
        job = jobs[i]
        if job < 0:
            if job < -1:
                return i
            continue
        if job <= previous or job > MAX_JOB:
            return i
        previous = job
        if job >= boundary:
            end = k
            while begin < k:
                ends[begin] = end
                begin += 1
            if job == turn:
                turn += limits.host_ring
                boundary = min(job + limits.stage_batch, turn)
            elif job == boundary and job < turn:
                boundary = min(job + limits.stage_batch, turn)
            else:
                turn = job - job % limits.host_ring + limits.host_ring
                boundary = ownership_end(limits.host_ring, limits.stage_batch, job, INT64_MAX)
        later += job >= limits.host_ring
        k += 1
    end = k
    while begin < k:
        ends[begin] = end
        begin += 1
    reused[0] = later
    return -1


cdef int64_t ownership_end(int64_t host_ring, int64_t stage_batch, int64_t job, int64_t jobs_end) noexcept nogil:
    """The exclusive end of the job's ownership group: at a multiple of the batch within the host ring's
    turn, at its wrap, or at the end of the extension, whichever comes first."""
    cdef int64_t turn = job - job % host_ring
    cdef int64_t end = turn + min(((job - turn) // stage_batch + 1) * stage_batch, host_ring)
    return min(end, jobs_end)


# --- the contract on the streams --------------------------------------------------------------------

cdef bint window_is_open(const GpuRing* ring, int64_t group_end, int64_t consumed) noexcept nogil:
    """Window release: whether the engine has released what the group's slots held before."""
    return group_end <= consumed + ring.window


cdef int begin_group(GpuRing* ring, int64_t begin, int64_t end, KindCounters* counters) noexcept nogil:
    """Reuse wait: before its first copy, the copy stream waits once for the group's latest use.

    With shared dependencies not for one that it has waited for already: `used` events are recorded in one order.
    """
    cdef uint64_t order = 0
    cdef uintptr_t event = gpu_ring_latest_use(ring, begin, end, &order)
    cdef int status
    if event == 0:
        return _hip.HIP_SUCCESS
    if ring.share and order <= ring.waited_order:
        add(counters.reuse_waits_shared, 1)
        return _hip.HIP_SUCCESS
    _hip.announce_label(begin, begin % ring.size, begin // ring.size)
    status = _hip.stream_wait_event(ring.copy_stream, event)
    if status == _hip.HIP_SUCCESS:
        add(counters.reuse_waits, 1)
        ring.waited_order = order
    return status


cdef int end_group(GpuRing* ring, int64_t end, KindCounters* counters) noexcept nogil:
    """Record the group's completion on its terminal slot's event; only then may it be published."""
    cdef int64_t terminal = (end - 1) % ring.size
    cdef int status
    _hip.announce_label(end - 1, terminal, (end - 1) // ring.size)
    status = _hip.event_record(ring.copied[terminal], ring.copy_stream)
    if status == _hip.HIP_SUCCESS:
        add(counters.copied_records, 1)
    return status


# --- the plan as arrays -----------------------------------------------------------------------------

def _depth(name, value):
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} is {value!r}; a positive integer is wanted")
    if value < 1:
        raise ValueError(f"{name} is {value}; it must be at least 1")
    if value > 2**40:
        raise ValueError(f"{name} is {value}; it must be at most 2**40")
    return int(value)


def _job_array(jobs):
    array = np.asarray(jobs)
    if array.size == 0 and not isinstance(jobs, np.ndarray):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"jobs has dtype {array.dtype}; an integer dtype is wanted")
    if array.ndim != 1:
        raise ValueError(f"jobs has {array.ndim} dimensions; it must have 1")
    if not array.dtype.isnative:
        raise ValueError(f"jobs has dtype {array.dtype!r}, which is not in native byte order")
    if not array.flags.c_contiguous:
        raise ValueError("jobs is not contiguous; np.ascontiguousarray makes a copy that is")
    if array.dtype.kind == "u" and array.size and int(array.max()) > 2**62:
        raise ValueError(f"jobs has {int(array.max())}; a job is at most 2**62")
    return array.astype(np.int64, copy=False)


def _raise_bad_job(jobs, index):
    job = int(jobs[index])
    if job < -1:
        raise ValueError(f"jobs[{index}] is {job}; -1 (direct) or a job from 0 is allowed")
    if job > MAX_JOB:
        raise ValueError(f"jobs[{index}] is {job}; a job is at most 2**62")
    previous = int(np.max(jobs[:index]))
    raise ValueError(f"jobs[{index}] is {job} after job {previous}: jobs must increase along the list")


cdef class CopyPlan:
    """Maximal copy groups and ownership groups of one list of entries.

    Parameters
    ----------
    jobs : (n,) array of int
        ``-1`` for a direct entry, else the entry's job; jobs increase along the list, gaps are allowed.
    gpu_ring, host_ring : int
        Depths of the rings, at least 1.
    settings : BatchSettings
        Batches; clamped to the rings.
    host_pinned : (host_ring,) array of bool, optional
        Which host buffers are pinned. Default: all.
    merged : bool, optional
        Whether the copies are coalesced, so that a direct group may be as long as the ring.

    Attributes
    ----------
    ends : (n,) int64 array, read-only
        Exclusive end of each entry's copy group.
    ownership_ends : (staged entries,) int64 array, read-only
        Exclusive end of each staged entry's ownership group; both index and value are ordinals among
        the list's staged entries.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, its value and what is allowed.

    Notes
    -----
    Immutable, hence thread-safe. Time and memory are linear in the list.
    """
    cdef readonly object ends
    cdef readonly object ownership_ends
    cdef readonly object settings
    cdef readonly int64_t gpu_ring
    cdef readonly int64_t host_ring
    cdef int64_t[2] _groups             # of direct and of staged entries
    cdef int64_t _host_reuses

    def __init__(self, jobs, *, gpu_ring, host_ring, settings, host_pinned=None, merged=False):
        cdef PlanLimits limits
        cdef const int64_t* job
        cdef int64_t* end
        cdef int64_t* owner
        cdef int64_t n, i, staged, bad

        if not isinstance(settings, BatchSettings):
            raise TypeError(f"settings is {settings!r}; a strata.BatchSettings is wanted")
        self.gpu_ring = _depth("gpu_ring", gpu_ring)
        self.host_ring = _depth("host_ring", host_ring)
        self.settings = settings.clamped(self.gpu_ring, self.host_ring, merged=bool(merged))
        array = _job_array(jobs)
        n = array.shape[0]
        limits.gpu_ring = self.gpu_ring
        limits.host_ring = self.host_ring
        limits.copy_batch = self.settings.copy_batch
        limits.stage_batch = self.settings.stage_batch
        limits.stage_copy_batch = self.settings.stage_copy_batch
        limits.host_pinned = NULL
        self._host_reuses = 0
        self._groups[DIRECT] = 0
        self._groups[STAGED] = 0
        if host_pinned is not None:
            pinned = np.asarray(host_pinned)
            if pinned.shape != (self.host_ring,):
                raise ValueError(f"host_pinned has shape {pinned.shape}; it must be ({self.host_ring},), "
                                 "one value a host buffer")
            if pinned.dtype != np.bool_:
                if pinned.dtype.kind not in "iu":
                    raise TypeError(f"host_pinned has dtype {pinned.dtype}; bool is wanted")
                pinned = pinned != 0
            pinned = np.ascontiguousarray(pinned)
            limits.host_pinned = <const uint8_t*>values_of(pinned, 1)

        ends = np.empty(n, dtype=np.int64)
        if n:
            job = <const int64_t*>values_of(array, sizeof(int64_t))
            end = <int64_t*>values_of(ends, sizeof(int64_t))
            staged = 0
            with nogil:
                for i in range(n):
                    staged += job[i] >= 0
            owners = np.empty(staged, dtype=np.int64)
            owner = <int64_t*>values_of(owners, sizeof(int64_t))
            with nogil:
                bad = _plan_ownership(&limits, job, n, owner, &self._host_reuses)
                if bad < 0:
                    plan_copy_groups(&limits, job, n, 0, end, self._groups)
            if bad >= 0:
                _raise_bad_job(array, bad)
        else:
            owners = np.empty(0, dtype=np.int64)
        ends.flags.writeable = False
        owners.flags.writeable = False
        self.ends = ends
        self.ownership_ends = owners

    def __len__(self):
        return self.ends.shape[0]

    def group(self, i):
        """The copy group ``(begin, end)`` of entry `i`.

        Raises
        ------
        IndexError
            If the plan has no entry `i`.
        TypeError
            If `i` is no integer.
        """
        n = len(self)
        if isinstance(i, (bool, np.bool_)) or not isinstance(i, (int, np.integer)):
            raise TypeError(f"i is {i!r}; the number of an entry, an integer, is wanted")
        if not -n <= i < n:
            raise IndexError(f"entry {i} is not in a plan of {n} entries")
        if i < 0:
            i += n
        end = int(self.ends[i])
        return int(np.searchsorted(self.ends, end, side="left")), end

    def counts(self):
        """Records and waits of a warmed run: every GPU slot was used before.

        Returns
        -------
        dict of str to int
            ``direct_copied_records``, ``direct_reuse_waits``, ``staged_copied_records``,
            ``staged_reuse_waits``, ``dma_done_records``, ``host_reuse_waits``.
        """
        owners = self.ownership_ends
        groups = int(np.count_nonzero(np.diff(owners))) + 1 if owners.shape[0] else 0
        return {
            "direct_copied_records": self._groups[DIRECT],
            "direct_reuse_waits": self._groups[DIRECT],
            "staged_copied_records": self._groups[STAGED],
            "staged_reuse_waits": self._groups[STAGED],
            "dma_done_records": groups,
            "host_reuse_waits": int(self._host_reuses),
        }

    def __repr__(self):
        return (f"CopyPlan({len(self)} entries, gpu_ring={self.gpu_ring}, host_ring={self.host_ring}, "
                f"settings={self.settings})")
