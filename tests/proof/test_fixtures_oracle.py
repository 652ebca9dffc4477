"""The self-test's oracle against the tests' own, and against rules that can be counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from strata.tools.selftest.oracle import Group, Oracle, ends_ownership, fences, ownership_groups, records_before
from tests.planner.oracle import oracle_counts, oracle_ends, oracle_ownership_ends


def test_groups_by_hand() -> None:
    """D D D D D S S S | S S, gpu_ring 8: cut by the batch, the kind of source, the ring's wrap."""
    oracle = Oracle(8, 4, 4, 4, 4)
    assert oracle.groups([[False] * 5 + [True] * 5]) == [
        Group(0, 4, False), Group(4, 5, False), Group(5, 8, True), Group(8, 9, True), Group(9, 10, True)]


def test_pageable_buffers_stand_alone() -> None:
    oracle = Oracle(16, 4, 4, 4, 4, frozenset({1}))
    ends = [group.end for group in oracle.groups([[True] * 9])]
    assert ends == [1, 2, 4, 5, 6, 8, 9]


def test_extensions_end_groups() -> None:
    oracle = Oracle(16, 16, 8, 8, 8)
    assert [group.end for group in oracle.groups([[False] * 3, [False] * 2, []])] == [3, 5]
    assert ownership_groups(6, 16, 4, [3, 3]) == [[0, 1, 2], [3], [4, 5]]


def test_published_by_hand() -> None:
    oracle = Oracle(8, 16, 4, 1, 1)
    groups = oracle.groups([[False] * 20])
    assert [oracle.published(groups, consumed) for consumed in (0, 3, 4, 7, 8, 11, 12, 20)] == [
        8, 8, 12, 12, 16, 16, 20, 20]


def test_first_use_needs_no_wait() -> None:
    oracle = Oracle(8, 16, 4, 1, 1)
    assert oracle.counts([[False] * 10])["direct_reuse_waits"] == 1
    assert oracle.counts([[False] * 10])["direct_reuse_waits"] == 3


def test_wait_where_one_slot_of_a_group_was_used() -> None:
    oracle = Oracle(8, 16, 4, 1, 1)
    oracle.counts([[False] * 5])
    assert oracle.counts([[False] * 8])["direct_reuse_waits"] == 2  # the second group by its first slot alone


@pytest.mark.parametrize(("submitted", "records", "fence"), [(0, 0, 0), (3, 0, 1), (4, 1, 0), (16, 4, 0), (17, 5, 0),
                                                             (18, 5, 1), (21, 6, 0)])
def test_fences_by_hand(submitted: int, records: int, fence: int) -> None:
    """host_ring 17, stage_batch 4: groups end at jobs 3, 7, 11, 15, 16 (the wrap), 20."""
    groups = ownership_groups(33, 17, 4)
    assert records_before(submitted, groups) == records
    assert fences(submitted, groups) == fence
    assert ends_ownership(16, groups)
    assert not ends_ownership(17, groups)


def test_agrees_with_the_other_oracle() -> None:
    rng = np.random.default_rng(11)
    for _ in range(400):
        gpu_ring, host_ring = int(rng.integers(1, 40)), int(rng.integers(1, 20))
        batches = [int(rng.integers(1, most + 1)) for most in
                   (min(gpu_ring, 32), host_ring, min(gpu_ring, host_ring))]
        pageable = frozenset(int(b) for b in np.flatnonzero(rng.random(host_ring) < rng.choice([0.0, 0.3])))
        parts = [[bool(k) for k in rng.random(int(rng.integers(0, 40))) < rng.random()]
                 for _ in range(int(rng.integers(1, 4)))]
        kinds = [kind for part in parts for kind in part]
        jobs, job = [], 0
        for kind in kinds:
            jobs.append(job if kind else -1)
            job += kind
        cuts = np.cumsum([len(part) for part in parts]).tolist()
        pinned = [buffer not in pageable for buffer in range(host_ring)]
        oracle = Oracle(gpu_ring, host_ring, *batches, pageable=pageable)
        oracle.used = set(range(gpu_ring))
        groups = oracle.groups(parts)
        assert [g.end for g in groups for _ in range(g.begin, g.end)] == oracle_ends(
            jobs, gpu_ring, host_ring, *batches, pinned, cuts)
        owned = ownership_groups(job, host_ring, batches[1], [sum(part) for part in parts])
        assert [group[-1] + 1 for group in owned for _ in group] == oracle_ownership_ends(
            jobs, host_ring, batches[1], cuts)
        counts = oracle.counts(parts)
        expected = oracle_counts(jobs, gpu_ring, host_ring, *batches, pinned, cuts)
        assert {name: counts[name] for name in expected} == expected
