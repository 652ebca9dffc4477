"""A worker that crashes, hangs or cannot start loses what it must, and nothing else."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from pathlib import Path

import pytest

from benchmarks.gpu.cases import Case, Size
from benchmarks.gpu.measuring import Pace, Result
from benchmarks.gpu.supervise import Limits, supervise

SIZE = Size(64, 8, 384, 384, 384, 96)

#: Does what each case's variant says.
FAKE = textwrap.dedent("""
    import json, os, pathlib, sys, time
    def say(**what):
        print(json.dumps(what), flush=True)
    plan = json.loads(pathlib.Path(sys.argv[-1]).read_text())
    if len(sys.argv) > 2:
        print("no device here", file=sys.stderr)
        sys.exit(3)
    say(event="sources", size=64)
    for index, case in enumerate(plan["cases"]):
        say(event="begin", index=index)
        if case["variant"] == "crash":
            print("a bad address", file=sys.stderr, flush=True)
            os.abort()
        if case["variant"] == "hang":
            while True:
                time.sleep(60)
        say(event="result", index=index, result={"case": case, "nbytes": 1, "seconds": [1.0]})
""")


def run(tmp_path: Path, variants: list[str], *, until: float = 60.0, case_s: float = 60.0, more: tuple[str, ...] = ()
        ) -> list[Result]:
    program = tmp_path / "fake.py"
    program.write_text(FAKE)
    results: list[Result] = []
    cases = [Case("bare", variant, 64, "pinned", "null", 1) for variant in variants]
    supervise([SIZE], cases, Pace(), Limits(time.monotonic() + until, case_s=case_s), tmp_path / "log",
              results.append, (sys.executable, str(program), *more))
    assert [result.case.variant for result in results] == variants
    return results


def test_everything_is_measured_once(tmp_path: Path) -> None:
    assert [r.reason for r in run(tmp_path, ["a", "b", "c"])] == ["", "", ""]


def test_a_crash_loses_its_own_case(tmp_path: Path) -> None:
    a, crash, b = run(tmp_path, ["a", "crash", "b"])
    assert (a.reason, b.reason) == ("", "")
    assert "ended with status -6" in crash.reason
    assert "a bad address" in crash.reason


def test_a_hang_loses_its_own_case(tmp_path: Path) -> None:
    a, hang, b = run(tmp_path, ["a", "hang", "b"], case_s=3.0)
    assert (a.reason, b.reason) == ("", "")
    assert "took more than 3 s" in hang.reason


def test_the_end_of_all_time_is_said_of_each_case(tmp_path: Path) -> None:
    hang, b, c = run(tmp_path, ["hang", "b", "c"], until=3.0)
    assert "stopped" in hang.reason
    assert "not reached" in b.reason
    assert "not reached" in c.reason


def test_a_worker_that_never_begins_is_tried_twice(tmp_path: Path) -> None:
    for result in run(tmp_path, ["a", "b"], more=("broken",)):
        assert "no worker began a case" in result.reason
        assert "no device here" in result.reason
    assert (tmp_path / "log").read_text().count("no device here") == 2


@pytest.mark.parametrize("verified", [None, True])
def test_a_result_survives_the_pipe(verified: bool | None) -> None:
    result = Result(Case("bare", "v", 64, "pinned", "null", 1, options={"how": "loop"}), 5, [1.0], [0.5], 1.0, 2.0,
                    verified, ["n"])
    assert Result.from_dict(json.loads(json.dumps(result.as_dict()))) == result
