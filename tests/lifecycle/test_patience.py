"""The limits of the tools: what is waited counts, and a stop counts for one slice."""

from __future__ import annotations

import pytest

from strata.tools import patience


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(patience.time, "monotonic", lambda: now[0])
    return now


def test_waits_add_up_to_the_limit(clock: list[float]) -> None:
    limit, slices = patience.Patience(2.0), []
    while True:
        slices.append(limit.slice())
        clock[0] += slices[-1]
        if limit.spent():
            break
    assert slices == [0.5] * 4
    assert clock[0] == 102.0


def test_a_stop_of_hours_counts_for_one_slice(clock: list[float]) -> None:
    limit = patience.Patience(2.0)
    limit.slice()
    clock[0] += 7200
    assert not limit.spent()
    assert limit.left == 1.0


def test_a_late_waker_is_counted_in_full(clock: list[float]) -> None:
    limit = patience.Patience(2.0)
    limit.slice(0.1)
    clock[0] += 0.4
    assert not limit.spent()
    assert limit.left == pytest.approx(1.6)


def test_the_last_slice_is_what_is_left(clock: list[float]) -> None:
    limit = patience.Patience(0.7)
    limit.slice()
    clock[0] += 0.5
    assert not limit.spent()
    assert limit.slice() == pytest.approx(0.2)
    assert patience.Patience(0).slice() == 0
