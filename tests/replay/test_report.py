"""The report's file, its parts, and the line of progress."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata import Counters, ExpertCopies, ExpertStreamer
from strata.tools.replay import ReplayReport, load_case, replay, run
from strata.tools.replay.passes import wrong_bytes


@pytest.fixture
def report(small: dict[str, Any], case_file: Callable[[Any], str]) -> ReplayReport:
    return replay(load_case(case_file(small)), repeat=2)


def test_file_is_replaced_in_one_step(
    report: ReplayReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out" / "report.json"
    path.parent.mkdir()
    path.write_text("old")
    replace = os.replace
    states = []

    def look(source: str, target: Path) -> None:
        # At the moment of the change the old file is whole, and so is the new one beside it.
        states.append((path.read_text(), json.loads(Path(source).read_text())))
        replace(source, target)

    monkeypatch.setattr(os, "replace", look)
    report.write(path)
    assert states == [("old", report.as_dict())]
    assert json.loads(path.read_text()) == report.as_dict()
    assert os.listdir(path.parent) == ["report.json"]


def test_failed_write_leaves_the_old_file(
    report: ReplayReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out" / "report.json"
    path.parent.mkdir()
    path.write_text("old")

    def fail(source: str, target: Path) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        report.write(path)
    assert path.read_text() == "old"
    assert os.listdir(path.parent) == ["report.json"]


def test_unchecked_bytes_are_not_ok(report: ReplayReport) -> None:
    assert report.ok
    report.arms[0].bytes_checked -= 1
    assert not report.ok
    assert str(report).endswith("FAILED")


@pytest.mark.parametrize("separate_timing", [False, True])
@pytest.mark.parametrize("wrong_pass", [0, 1])
def test_counters_of_every_pass_count(
    small: dict[str, Any],
    case_file: Callable[[Any], str],
    monkeypatch: pytest.MonkeyPatch,
    separate_timing: bool,
    wrong_pass: int,
) -> None:
    """A mismatch in a pass that is only timed is one, though the check pass was right."""
    timed = run.timed_pass
    seen = []

    def one_off(streamer: ExpertStreamer, copies: ExpertCopies) -> tuple[float, Counters]:
        seconds, counters = timed(streamer, copies)
        seen.append(counters)
        return seconds, counters - Counters(used_records=1) if len(seen) == wrong_pass + 1 else counters

    monkeypatch.setattr(run, "timed_pass", one_off)
    # One timed pass, and one for the stalls; or two timed ones.
    repeat = 1 if separate_timing else 2
    report = replay(load_case(case_file(small)), repeat=repeat, separate_timing=separate_timing)
    assert len(seen) == 2
    assert report.arms[0].mismatches == {"used_records": (73, 74)}
    assert not report.ok


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 64, 1001])
def test_wrong_bytes_are_counted_exactly(length: int) -> None:
    source = np.arange(length + 3, dtype=np.uint8)[3:]  # an odd address
    assert wrong_bytes(source.copy(), source) == 0
    for position in range(length):
        read = source.copy()
        read[position] ^= 1
        read[length - 1] ^= 2
        assert wrong_bytes(read, source) == len({position, length - 1})
