"""The planner against an oracle that grows groups one entry at a time, and against the reference request."""

import json
from importlib import resources

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strata

from .oracle import oracle_counts, oracle_ends, oracle_ownership_ends

PLANS_PER_EXAMPLE = 16

BYTES_PER_SETTING = 11


def jobs_from(runs: bytes, first_job: int) -> list[int]:
    """Decode a list of jobs: each byte is a run of direct entries, or of jobs after a gap."""
    jobs: list[int] = []
    job = first_job
    for run in runs:
        length = (run >> 3 & 15) + 1
        if run & 128:
            jobs += [-1] * length
        else:
            job += max(0, (run & 7) - 3)  # mostly no gap
            jobs += range(job, job + length)
            job += length
    return jobs


class Setting:
    """One way to plan a list, decoded from bytes; under the planner's names and in the oracle's order."""

    def __init__(self, code: bytes):
        gpu_ring, host_ring, *sizes, pageable = code[:6]
        self.gpu_ring = gpu_ring % 70 + 1
        self.host_ring = host_ring % 40 + 1
        self.sizes = [size % 48 - 2 for size in sizes]  # beyond the limits on both sides, too
        if pageable < 128:
            self.host_pinned = None
        elif pageable < 192:  # one pageable buffer, or none where there are not so many
            self.host_pinned = np.arange(self.host_ring) != pageable - 128
        else:
            self.host_pinned = np.unpackbits(np.frombuffer(code[6:], np.uint8))[: self.host_ring].astype(bool)

    def __repr__(self):
        return f"rings {self.gpu_ring}, {self.host_ring}; batches {self.sizes}; pinned {self.host_pinned}"

    def plan(self, jobs):
        return strata.CopyPlan(
            np.array(jobs, np.int64),
            gpu_ring=self.gpu_ring,
            host_ring=self.host_ring,
            settings=strata.BatchSettings(*self.sizes),
            host_pinned=self.host_pinned,
        )

    @property
    def arguments(self):
        return (self.gpu_ring, self.host_ring, *self.sizes, self.host_pinned)


a_list = st.builds(
    jobs_from, st.binary(min_size=1, max_size=12), st.sampled_from([0, 0, 0, 1, 15, 65_530, 2**31 - 5, 2**60])
)
some_settings = st.binary(
    min_size=PLANS_PER_EXAMPLE * BYTES_PER_SETTING, max_size=PLANS_PER_EXAMPLE * BYTES_PER_SETTING
).map(
    lambda code: [
        Setting(code[begin : begin + BYTES_PER_SETTING]) for begin in range(0, len(code), BYTES_PER_SETTING)
    ]
)


@pytest.mark.parametrize("plans", [4_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_random_plans_are_the_oracles(plans):
    """`ends`, `group`, `ownership_ends` and `counts`."""
    checked = 0

    @settings(
        max_examples=plans // PLANS_PER_EXAMPLE,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(a_list, some_settings)
    def check(jobs, setups):
        nonlocal checked
        for setup in setups:
            plan = setup.plan(jobs)
            ends = oracle_ends(jobs, *setup.arguments)
            assert plan.ends.tolist() == ends
            begin = 0
            for entry, end in enumerate(ends):
                if entry == end - 1 or entry == begin:
                    assert plan.group(entry) == (begin, end)
                if entry == end - 1:
                    begin = end
            stage_batch = setup.sizes[1]
            assert plan.ownership_ends.tolist() == oracle_ownership_ends(jobs, setup.host_ring, stage_batch)
            assert plan.counts() == oracle_counts(jobs, *setup.arguments)
            checked += 1

    check()
    assert checked >= plans


def test_the_oracle_itself():
    """Hand-made groups, one a rule, so that oracle and planner do not share a misreading."""
    direct = [-1] * 7
    assert oracle_ends(direct, 4, 1, 3, 1, 1) == [3, 3, 3, 4, 7, 7, 7]
    assert oracle_ends(direct, 7, 1, 99, 1, 1) == [7] * 7
    assert oracle_ends([-1] * 40, 64, 1, 40, 1, 1) == [32] * 32 + [40] * 8
    assert oracle_ends([-1, -1, 0, 1, -1], 8, 8, 8, 1, 8) == [2, 2, 4, 4, 5]
    assert oracle_ends(direct, 8, 1, 8, 1, 1, extension_ends=(3,)) == [3, 3, 3, 7, 7, 7, 7]
    assert oracle_ends([0, 1, 3, 4], 8, 8, 1, 1, 8) == [2, 2, 4, 4]
    assert oracle_ends([2, 3, 4, 5], 8, 4, 1, 1, 4) == [2, 2, 4, 4]
    assert oracle_ends([0, 1, 2, 3], 8, 4, 1, 1, 4, [True, True, False, True]) == [2, 2, 3, 4]
    assert oracle_ends([0, 1, 2], 8, 8, 8, 1, 0) == [1, 2, 3]

    assert oracle_ownership_ends([0, 1, -1, 2, 3, 4], 5, 3) == [3, 3, 3, 5, 5]
    assert oracle_ownership_ends([3, 4, 5, 6], 5, 3) == [2, 2, 4, 4]
    assert oracle_ownership_ends([0, 2, 3], 8, 4) == [3, 3, 3]
    assert oracle_ownership_ends([3, 5], 8, 4) == [1, 2]  # the cut at 4 falls into the gap
    assert oracle_ownership_ends([1, 9], 8, 8) == [1, 2]  # and so does the wrap
    assert oracle_ownership_ends([0, 1, -1, 2], 8, 8, extension_ends=(1,)) == [1, 3, 3]
    assert oracle_ownership_ends([0, 1, 2], 2, 99) == [2, 2, 3]
    assert oracle_ownership_ends([-1, -1], 2, 2) == []

    assert oracle_counts([-1, -1, 0, 1, 2], 8, 2, 2, 2, 2) == {
        "direct_copied_records": 1,
        "direct_reuse_waits": 1,
        "staged_copied_records": 2,
        "staged_reuse_waits": 2,
        "dma_done_records": 2,
        "host_reuse_waits": 1,
    }


# The reference request.


def reference() -> dict:
    return json.loads(resources.files("strata").joinpath("data/reference_request.json").read_text("utf-8"))


@pytest.mark.parametrize("arm", ["control", "optimized"])
def test_reference_request_counts(arm):
    case = reference()
    direct, staged = case["direct_pinned_copies"], case["staged_copies"]
    sizes = {name: case["arms"][arm][name] for name in ("copy_batch", "stage_batch", "stage_copy_batch")}
    plan = strata.CopyPlan(
        np.concatenate([np.full(direct, -1), np.arange(staged)]),
        gpu_ring=case["gpu_ring"],
        host_ring=case["host_ring"],
        settings=strata.BatchSettings(**sizes),
    )
    assert (direct, staged) == (13_938, 5_713)
    assert sorted(sizes.values()) == {"control": [1, 1, 1], "optimized": [8, 16, 16]}[arm]
    assert plan.counts() == case["counters"][arm]
    assert len(plan.ends) == 19_651
    assert len(plan.ownership_ends) == 5_713


# Use of a plan.


def planned(jobs, *, gpu_ring=8, host_ring=4, sizes=(4, 4, 4), host_pinned=None):
    return strata.CopyPlan(
        jobs,
        gpu_ring=gpu_ring,
        host_ring=host_ring,
        settings=strata.BatchSettings(*sizes),
        host_pinned=host_pinned,
    )


def test_arrays_are_read_only_int64():
    plan = planned(np.array([-1, 0, 1]))
    for array in (plan.ends, plan.ownership_ends):
        assert array.dtype == np.int64
        assert array.ndim == 1
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_a_plan_keeps_nothing_of_its_input():
    jobs = np.array([-1, -1, -1])
    plan = planned(jobs)
    jobs[2] = 0
    assert plan.ends.tolist() == [3, 3, 3]
    assert plan.counts()["staged_copied_records"] == 0


def test_empty_list():
    plan = planned(np.empty(0, np.int64))
    assert plan.ends.tolist() == plan.ownership_ends.tolist() == []
    assert set(plan.counts().values()) == {0}
    with pytest.raises(IndexError):
        plan.group(0)


@pytest.mark.parametrize("entry", [3, 4, 2**40, -4])
def test_group_of_no_entry(entry):
    with pytest.raises(IndexError):
        planned(np.array([-1, -1, 0])).group(entry)


@pytest.mark.parametrize("entry", [1.5, 1.0, "1", None, True], ids=repr)
def test_group_of_what_is_no_entry(entry):
    with pytest.raises(TypeError, match=r"^i is .*; the number of an entry, an integer, is wanted"):
        planned(np.array([-1, -1, 0])).group(entry)


def test_an_entry_inside_a_group_knows_it():
    plan = planned(np.array([-1] * 7))
    assert [plan.group(entry) for entry in range(7)] == [(0, 4)] * 4 + [(4, 7)] * 3


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint64])
def test_any_native_integer_array_is_planned_alike(dtype):
    jobs = np.array([0, 1, 2, 5, 6], dtype)
    assert planned(jobs).ends.tolist() == oracle_ends([0, 1, 2, 5, 6], 8, 4, 4, 4, 4)


# Bad input: each error names the argument.


@pytest.mark.parametrize(
    "jobs",
    [
        np.array([0, -2]),
        np.array([-(2**63)]),
        np.array([0, 1, 1]),
        np.array([0, -1, 0]),
        np.array([5, 4]),
        np.array([3, -1, 2]),
        np.zeros((2, 2), np.int64),
        np.array(3),
        np.array([0.0, 1.0]),
        np.array([True, False]),
        np.array([0, 1], object),
        np.array(["0", "1"]),
        np.arange(10)[::2],
        np.arange(10)[::-1],
        np.arange(4, dtype=np.dtype(np.int64).newbyteorder()),
        np.array([2**63], np.uint64),
        None,
        "01",
    ],
    ids=[
        "below -1",
        "far below -1",
        "repeated",
        "repeated after a direct entry",
        "decreasing",
        "decreasing after a direct entry",
        "2-D",
        "0-D",
        "float",
        "bool",
        "object",
        "text",
        "strided",
        "reversed",
        "other byte order",
        "beyond int64",
        "none",
        "str",
    ],
)
def test_bad_jobs(jobs):
    with pytest.raises((TypeError, ValueError), match="jobs"):
        planned(jobs)


@pytest.mark.parametrize("name", ["gpu_ring", "host_ring"])
@pytest.mark.parametrize("depth", [0, -1, -(2**40)])
def test_rings_of_nothing(name, depth):
    with pytest.raises(ValueError, match=rf"{name}.*{depth}"):
        planned(np.array([-1, 0]), **{name: depth})


@pytest.mark.parametrize("name", ["gpu_ring", "host_ring"])
@pytest.mark.parametrize("depth", [4.0, "4", None])
def test_rings_of_another_type(name, depth):
    with pytest.raises(TypeError):
        planned(np.array([-1, 0]), **{name: depth})


@pytest.mark.parametrize("length", [0, 3, 5])
def test_host_pinned_of_another_length(length):
    with pytest.raises(ValueError, match="host_pinned"):
        planned(np.array([0, 1]), host_pinned=np.ones(length, bool))


def test_settings_of_another_type():
    with pytest.raises((TypeError, AttributeError)):
        strata.CopyPlan(np.array([0]), gpu_ring=8, host_ring=4, settings=(1, 1, 1))
