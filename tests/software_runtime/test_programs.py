"""Random programs: the same bytes under every schedule, and exact verdicts of the checker."""

from __future__ import annotations

import numpy as np
import pytest

from strata.runtime.software import control
from tests.software_runtime.hip import view
from tests.software_runtime.programs import SYNCHRONIZATIONS, Machine, generate

SEEDS = range(12)


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all((x == y).all() for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("schedule", ["eager", "lazy", "copies-first", "compute-first", "random"])
def test_synchronized_programs_give_the_sequential_bytes(hip, device, schedule):
    control.configure(schedule=schedule, seed=1)
    program = generate(0)
    machine = Machine(hip, device, program)
    for seed in SEEDS:
        program = generate(seed)
        assert program.unordered_conflicts() == []
        expected = program.expected()
        for order in range(4 if schedule == "random" else 1):
            control.configure(seed=1000 * seed + order)
            assert same(machine.run(program), expected), (seed, order)


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_checker_finds_nothing_in_synchronized_programs(hip, device, schedule):
    control.configure(schedule=schedule, seed=5)
    machine = Machine(hip, device, generate(0))
    for seed in SEEDS:
        program = generate(seed)
        control.checker(True)
        got = machine.run(program)
        assert [str(finding) for finding in control.findings()] == [], seed
        assert control.checked_accesses() > 60
        assert same(got, program.expected())


def test_checker_finds_exactly_the_synchronizations_that_are_needed(hip, device):
    """Every record, wait and host synchronization dropped in turn, against the graph of the program."""
    control.configure(schedule="eager")
    machine = Machine(hip, device, generate(0))
    needed = spare = 0
    for seed in range(100, 106):
        program = generate(seed, operations=40)
        for k, step in enumerate(program.steps[:-1]):
            if step.kind not in SYNCHRONIZATIONS:
                continue
            conflicts = program.unordered_conflicts(without=k)
            control.checker(True)
            machine.run(program, ignore=k)
            found = control.finding_count()
            assert (found > 0) == (len(conflicts) > 0), (seed, k, step, conflicts, found)
            needed += bool(conflicts)
            spare += not conflicts
    assert needed > 50
    assert spare > 10


@pytest.mark.parametrize("schedule", ["lazy", "random", "copies-first", "compute-first"])
def test_wrong_order_shows_in_the_bytes_too(hip, device, schedule):
    """The schedules are adversarial enough that some dropped waits change bytes."""
    control.configure(schedule=schedule)
    machine = Machine(hip, device, generate(0))
    wrong = 0
    for seed in range(100, 112):
        program = generate(seed, operations=40)
        expected = program.expected()
        for k, step in enumerate(program.steps):
            if step.kind == "wait" and program.unordered_conflicts(without=k):
                control.configure(seed=k)
                wrong += not same(machine.run(program, ignore=k), expected)
    assert wrong >= 5


def test_random_schedule_repeats_itself(hip, device):
    """One seed, one host thread, no host functions: one order of everything."""
    control.configure(schedule="random", idle_ms=0)
    streams = [device.stream() for _ in range(3)]
    target, source = device.malloc(16), device.host_malloc(90)
    view(source, 90)[:] = np.arange(90)

    def race(seed: int) -> list[int]:
        """All three streams write the same byte: who wins depends on the schedule alone."""
        control.configure(seed=seed)
        view(target, 1)[:] = 255
        winners = []
        for k in range(90):
            hip.do("MemcpyAsync", target, source + k, 1, 1, streams[k % 3])
            winners.append(int(view(target, 1)[0]))
        hip.do("DeviceSynchronize")
        return winners

    first = race(7)
    assert race(7) == first
    assert race(8) != first
