"""``strata selftest``: the page, the JSON, the exit status, and processes that die or hang."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import strata
from strata.tools.cli import main
from strata.tools.selftest import FIXTURES, SCHEDULES, Bench, Outcome, SelftestReport, processes, run_in_processes
from strata.tools.selftest.oracle import Oracle

PACKAGE_ROOT = Path(strata.__file__).resolve().parents[1]


def _selftest(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "strata", "selftest", *words], capture_output=True, text=True, timeout=900,
        env={**os.environ, "PYTHONPATH": path, **environment})


def _only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    for name in FIXTURES.keys() - names:
        monkeypatch.delitem(FIXTURES, name)


@pytest.mark.slow
def test_quick(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    done = _selftest("--runtime", "software", "--quick", "--seed", "7", "--json", str(file))
    assert done.returncode == 0
    assert re.fullmatch(r"(\d+ s: .*\n)*", done.stderr)      # how far it is, on a slow machine
    lines = done.stdout.splitlines()
    assert lines[-1] == "ok"
    assert "strata selftest --runtime software --seed 7 --quick" in done.stdout
    for word in ("strata software device", "libstrata_hip_software", "fence errors: 0", "for a bug report"):
        assert word in done.stdout
    data = json.loads(file.read_text())
    assert data["ok"] is True
    assert data["seed"] == 7
    assert data["failures"] == data["fence_errors"] == 0
    assert data["left_out"] == []
    ran = {(o["fixture"], o["schedule"]) for o in data["outcomes"]}
    assert ran == {(fixture, schedule) for fixture in FIXTURES for schedule in SCHEDULES}
    assert all(o["ok"] and o["cases"] and o["findings"] == 0 for o in data["outcomes"])
    assert set(data["versions"]) == {"strata", "hip-python", "numpy", "python", "runtime", "driver"}


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("share", [False, True])
def test_full(share: bool, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    done = _selftest("--runtime", "software", "--json", str(file), *["--share"] * share)
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(file.read_text())
    for schedule in SCHEDULES:
        of = {o["fixture"]: o for o in data["outcomes"] if o["schedule"] == schedule}
        assert of["ownership"]["cases"] >= 1020
        assert of["copy groups"]["generations"] >= 216
        assert of["aborts"]["cases"] >= 100
        assert all(o["failures"] == o["findings"] == o["fence_errors"] == 0 for o in of.values())
    assert "1,040 cases" in done.stdout
    assert f"seed      {data['seed']}" in done.stdout


def test_failure_is_exit_1(
    software: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    count = Oracle.counts

    def no_records(self: Oracle, *args: Any) -> dict[str, int]:
        return {**count(self, *args), "used_records": 0}

    monkeypatch.setattr(Oracle, "counts", no_records)
    _only(monkeypatch, "copy groups", "aborts", "ownership")
    file = tmp_path / "out.json"
    words = ["selftest", "--in-process", "--quick", "--runtime", "software", "--schedule", "eager", "--seed", "1"]
    assert main([*words, "--json", str(file)]) == 1
    page = capsys.readouterr().out
    assert page.splitlines()[-1] == "FAILED"
    assert "FAILED copy groups, eager" in page
    assert "used_records is" in page
    assert "failure   copy groups, eager" in page
    data = json.loads(file.read_text())
    assert data["ok"] is False
    failures = [data["totals"][fixture]["failures"] for fixture in ("copy groups", "aborts")]
    assert min(failures) > 0
    assert sum(failures) == data["failures"]
    assert data["totals"]["ownership"]["failures"] == 0


def test_ignored_call_is_exit_1(
    software: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _only(monkeypatch, "copy groups")
    injection = software.inject("hipMemcpyAsync", 3, action="ignore")
    words = ["selftest", "--in-process", "--quick", "--runtime", "software", "--schedule", "lazy", "--seed", "1"]
    assert main(words) == 1
    assert injection.fired
    assert "wrong bytes" in capsys.readouterr().out


def test_share_reaches_the_fixtures(software: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shared = []

    def fixture(bench: Bench, outcome: Outcome) -> None:
        shared.append(bench.share)
        outcome.end_case("one", [])

    for name in FIXTURES:
        monkeypatch.setitem(FIXTURES, name, fixture)
    words = ["selftest", "--in-process", "--runtime", "software", "--schedule", "eager", "--seed", "1"]
    main(words)
    main([*words, "--share"])
    assert shared == [False] * len(FIXTURES) + [True] * len(FIXTURES)
    assert "--seed 1 --schedule eager --share --in-process" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "environment", "text"), [
    (["--schedule", "lazy", "--runtime", "cuda"], {}, "--schedule is 'lazy'"),
    (["--schedule", "sideways"], {}, "invalid choice: 'sideways'"),
    (["--seed", "x"], {}, "'x' is no integer"),
    (["--seed", "-1"], {}, "-1 is out of range"),
    (["--runtime", "vulkan"], {}, "invalid choice: 'vulkan'"),
    (["--json", "no/such/folder/x"], {}, "cannot be written to"),
    (["--json", "."], {}, "which is a folder"),
    ([], {"STRATA_HIP_RUNTIME": "vulkan"}, "STRATA_HIP_RUNTIME is 'vulkan'"),
])
def test_bad_input(words: list[str], environment: dict[str, str], text: str) -> None:
    done = _selftest("--quick", *words, **environment)
    assert done.returncode == 2, done.stdout
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_runtime_that_is_not_there(tmp_path: Path) -> None:
    """A library that is no HIP runtime, found first."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libamdhip64.so").write_text("no library")
    done = _selftest("--quick", "--runtime", "rocm", ROCM_PATH=str(tmp_path))
    if done.returncode == 0:
        pytest.skip("this machine has a ROCm device, on which the self-test ran")
    assert done.returncode == 2
    assert "the rocm runtime" in done.stderr
    assert str(tmp_path) in done.stderr
    assert done.stderr.count("\n") == 1


# --- processes ------------------------------------------------------------------------------------------------------


def _processes(monkeypatch: pytest.MonkeyPatch, program: str, hang_s: float = 30.0) -> list[Outcome]:
    monkeypatch.setattr(processes, "_PROGRAM", program)
    return run_in_processes(runtime="software", schedules=["eager"], seed=0, quick=True, hang_s=hang_s).outcomes


def test_crash_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    (outcome,) = _processes(
        monkeypatch, "import os, json; print(json.dumps(dict(at='ownership: 3')), flush=True); os.kill(os.getpid(), 9)")
    assert not outcome.ok
    assert outcome.texts == [f"the process ended with signal {signal.SIGKILL.value}. Last seen at: ownership: 3"]


def test_exit_before_the_end_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    (outcome,) = _processes(monkeypatch, "import sys; sys.exit(0)")
    assert "exit status 0" in outcome.texts[0]


def test_hang_is_a_failure(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    program = "import json, threading; print(json.dumps(dict(at='transitions')), flush=True); threading.Event().wait()"
    (outcome,) = _processes(monkeypatch, program, hang_s=2.0)
    assert "nothing moved for 2 s" in outcome.texts[0]
    assert "transitions" in outcome.texts[0]
    assert "Current thread" in capfd.readouterr().err  # where it hung


def test_unusable_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import json; print(json.dumps(dict(unusable='no such thing')), flush=True)"
    with pytest.raises(processes.Unusable, match="no such thing"):
        _processes(monkeypatch, program)


# --- the report -----------------------------------------------------------------------------------------------------


def _report(*outcomes: Outcome) -> SelftestReport:
    return SelftestReport(about={"runtime": "rocm", "device": "a device"}, outcomes=list(outcomes), seed=1, quick=False,
                  command="strata selftest")


def test_report_says_what_was_left_out() -> None:
    fine = Outcome("ownership", "device", cases=3, left_out=["happens-before checker: why"])
    less = Outcome("held terminal", "device", cases=2, left_out=["held terminal: why"])
    report = _report(fine, less)
    assert report.ok
    page = str(report)
    assert "left out: happens-before checker: why" in page
    assert "left out: held terminal: why" in page
    assert "adversarial schedules, latches and the happens-before checker: left out" in page
    assert "left out  held terminal: why" in page.partition("for a bug report")[2]


@pytest.mark.parametrize("outcome", [
    Outcome("ownership", "device"),
    Outcome("ownership", "device", cases=1, failures=1, texts=["no"]),
    Outcome("ownership", "device", failures=1, texts=["no"]),
])
def test_report_that_is_not_ok(outcome: Outcome) -> None:
    assert not _report(outcome, Outcome("copy groups", "device", cases=1)).ok


def test_report_of_nothing() -> None:
    assert not _report().ok
    assert not _report(Outcome("held terminal", "device")).ok
    assert "unknown" in str(_report())


def test_report_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    file.write_text("old")
    broken = _report()
    broken.about["device"] = object()
    with pytest.raises(TypeError):
        broken.write(file)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]
