"""An oracle for the planner: the rules of copy groups and ownership groups, in the plainest Python.

It shares no code with the package, and works as the rules are told: a group grows by one entry at a time for
as long as no rule forbids it. Nothing here is fast, and nothing should be.
"""

MOST_DIRECT_ENTRIES = 32


def _clamp(value, most):
    return max(1, min(value, most))


def _may_join(
    entry, group, jobs, gpu_ring, host_ring, copy_batch, stage_copy_batch, host_pinned, extension_ends
):
    """Whether `entry` may follow `group` (a list of consecutive entries) into the same copy group."""
    first, last = group[0], group[-1]
    staged = jobs[first] != -1

    # No longer than the batch of its kind.
    if len(group) == (stage_copy_batch if staged else copy_batch):
        return False
    # Not across the wrap of the GPU ring.
    if entry // gpu_ring != first // gpu_ring:
        return False
    # Not from direct to staged, nor back.
    if (jobs[entry] != -1) != staged:
        return False
    # Not across the end of an extension.
    if entry in extension_ends:
        return False
    if staged:
        # Jobs without a gap.
        if jobs[entry] != jobs[last] + 1:
            return False
        # Not across the wrap of the host ring.
        if jobs[entry] // host_ring != jobs[first] // host_ring:
            return False
        # A pageable buffer stands alone.
        if not host_pinned[jobs[first] % host_ring] or not host_pinned[jobs[entry] % host_ring]:
            return False
    return True


def oracle_ends(
    jobs,
    gpu_ring,
    host_ring,
    copy_batch,
    stage_batch,
    stage_copy_batch,
    host_pinned=None,
    extension_ends=(),
):
    """Exclusive end of each entry's copy group.

    Parameters
    ----------
    jobs : sequence of int
        -1 for a direct entry, else its job; the jobs increase.
    gpu_ring, host_ring : int
        Depths of the rings.
    copy_batch, stage_batch, stage_copy_batch : int
        Batches, clamped here. (`stage_batch` has no say in copy groups; it is taken so that all plans can be
        asked for with the same arguments.)
    host_pinned : sequence of bool, optional
        Whether each buffer of the host ring is pinned; all are by default.
    extension_ends : collection of int, optional
        Exclusive ends, in entries, of the extensions that the list was given in.

    Returns
    -------
    list of int
    """
    copy_batch = _clamp(copy_batch, min(gpu_ring, MOST_DIRECT_ENTRIES))
    stage_copy_batch = _clamp(stage_copy_batch, min(gpu_ring, host_ring))
    if host_pinned is None:
        host_pinned = [True] * host_ring

    groups = []
    for entry in range(len(jobs)):
        if groups and _may_join(
            entry,
            groups[-1],
            jobs,
            gpu_ring,
            host_ring,
            copy_batch,
            stage_copy_batch,
            host_pinned,
            extension_ends,
        ):
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return [group[-1] + 1 for group in groups for _ in group]


def oracle_ownership_ends(jobs, host_ring, stage_batch, extension_ends=()):
    """Exclusive end of each staged entry's ownership group.

    Both staged entries and ends are counted among the staged entries alone. Consecutive staged entries
    share a group unless a multiple of `stage_batch` within a turn of the host ring, the end of a turn, or the
    end of an extension lies between their jobs.

    Parameters
    ----------
    jobs, host_ring, extension_ends
        As for `oracle_ends` (`extension_ends` counts all entries).
    stage_batch : int
        Clamped here.

    Returns
    -------
    list of int
    """
    stage_batch = _clamp(stage_batch, host_ring)
    staged = [(entry, job) for entry, job in enumerate(jobs) if job != -1]

    groups = []
    previous = None
    for ordinal, (entry, job) in enumerate(staged):
        cut = previous is None
        if previous is not None:
            last_entry, last_job = previous
            for number in range(last_job + 1, job + 1):
                place_in_turn = number % host_ring
                if place_in_turn == 0 or place_in_turn % stage_batch == 0:
                    cut = True
                    break
            if any(last_entry < end <= entry for end in extension_ends):
                cut = True
        if cut:
            groups.append([])
        groups[-1].append(ordinal)
        previous = entry, job
    return [group[-1] + 1 for group in groups for _ in group]


def oracle_counts(
    jobs,
    gpu_ring,
    host_ring,
    copy_batch,
    stage_batch,
    stage_copy_batch,
    host_pinned=None,
    extension_ends=(),
):
    """Records and waits of a warmed run: every slot was used before.

    Parameters
    ----------
    As for `oracle_ends`.

    Returns
    -------
    dict of str to int
    """
    ends = oracle_ends(
        jobs, gpu_ring, host_ring, copy_batch, stage_batch, stage_copy_batch, host_pinned, extension_ends
    )
    ownership = oracle_ownership_ends(jobs, host_ring, stage_batch, extension_ends)
    terminals = [entry for entry, end in enumerate(ends) if end == entry + 1]
    direct = sum(jobs[entry] == -1 for entry in terminals)
    staged = len(terminals) - direct
    return {
        "direct_copied_records": direct,
        "direct_reuse_waits": direct,
        "staged_copied_records": staged,
        "staged_reuse_waits": staged,
        "dma_done_records": len(set(ownership)),
        "host_reuse_waits": sum(job >= host_ring for job in jobs),
    }
