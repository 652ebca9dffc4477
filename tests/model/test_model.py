"""Streamers, requests, extensions, skips, held slots, ends, faults and schedules in any order, against the contract."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import Machine
from tests.model.material import Sources

#: Failures print the steps, and the blob that repeats them; nothing is kept between runs.
COMMON = settings(
    deadline=None, database=None, print_blob=True, derandomize=False, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.fixture
def machine(software) -> Iterator[type[Machine]]:
    """The machine, with sources that its examples share."""
    Machine.sources = Sources()
    yield Machine
    del Machine.sources


@pytest.mark.timeout(280, method="thread")
def test_the_model(machine: type[Machine]) -> None:
    run_state_machine_as_test(machine, settings=settings(COMMON, max_examples=60, stateful_step_count=40))


@pytest.mark.slow
@pytest.mark.timeout(900, method="thread")
def test_the_model_for_longer(machine: type[Machine]) -> None:
    run_state_machine_as_test(machine, settings=settings(COMMON, max_examples=800, stateful_step_count=70))
