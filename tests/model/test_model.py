"""Streamers, requests, extensions, skips, held slots, ends, faults and schedules in any order, against the contract."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import Machine
from tests.model.material import Sources

#: A failure prints the steps, and the blob that repeats them; nothing is kept between runs.
COMMON = settings(
    deadline=None, database=None, print_blob=True, report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.fixture
def machine(software) -> Iterator[type[Machine]]:
    """The machine, with sources that its examples share."""
    Machine.sources = Sources()
    yield Machine
    del Machine.sources


@pytest.mark.parametrize("part", range(4))
@pytest.mark.timeout(280, method="thread")
def test_the_model(machine: type[Machine], part: int) -> None:
    """In parts, for as many processes. A failing example is told as it was found: making it smaller takes minutes, and
    the longer run does it."""
    phases = [phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)]
    run_state_machine_as_test(machine, settings=settings(COMMON, max_examples=12, stateful_step_count=50, phases=phases))


@pytest.mark.slow
@pytest.mark.timeout(1200, method="thread")
def test_the_model_for_longer(machine: type[Machine]) -> None:
    run_state_machine_as_test(machine, settings=settings(COMMON, max_examples=400, stateful_step_count=60))
