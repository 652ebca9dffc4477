"""``strata replay`` as a command: exit status, what it prints, what it writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strata
from strata import ExpertStreamer
from strata.tools.cli import main
from strata.tools.replay import passes
from strata.tools.replay.passes import Sources

CaseFile = Callable[[Any], str]
Command = Callable[..., "subprocess.CompletedProcess[str]"]


def test_right_case_exits_0_and_writes_the_report(
    strata_command: Command, small: dict[str, Any], case_file: CaseFile, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    done = strata_command("replay", "--case", case_file(small), "--runtime", "software", "--json", str(out))
    assert (done.returncode, done.stderr) == (0, "")
    assert "ok: every counter matches, no byte is wrong" in done.stdout
    report = json.loads(out.read_text())
    assert report["case"] == "case.json"
    assert report["runtime"] == "software"
    assert report["device"] == "strata software device"
    assert report["ok"] is True
    assert report["repeat"] == 3
    assert report["pool_bytes"] == {"pinned": 45 * 4096, "pageable": 29 * 4096}
    assert report["versions"]["strata"] == strata.__version__
    (arm,) = report["arms"]
    assert arm["settings"] == [1, 1, 1]
    assert arm["expected"] == small["counters"]["control"]
    assert {name: arm["counters"][name] for name in arm["expected"]} == arm["expected"]
    assert arm["counters_match"] is True
    assert arm["bytes_checked"] == 74 * 4096
    assert arm["bytes_wrong"] == 0
    assert len(arm["samples"]) == 3
    assert arm["seconds"] == sorted(arm["samples"])[1]
    assert arm["gb_per_s"] == pytest.approx(74 * 4096 / arm["seconds"] / 1e9)
    assert arm["stall"]["wall_s"] > 0
    assert all(seconds >= 0 for seconds in arm["stall"].values())


def test_settings_may_be_repeated_and_are_clamped(
    small: dict[str, Any], case_file: CaseFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    arguments = ["replay", "--case", case_file(small), "--json", str(out), "--repeat", "1"]
    assert main([*arguments, "--settings", "8,16,16", "--settings", "3,2,4", "--settings", "1,1,1"]) == 0
    arms = json.loads(out.read_text())["arms"]
    assert [arm["settings"] for arm in arms] == [[8, 4, 4], [3, 2, 4], [1, 1, 1]]
    assert [arm["settings_asked"] for arm in arms] == [[8, 16, 16], [3, 2, 4], [1, 1, 1]]
    assert [arm["expected_from"] for arm in arms] == ["plan", "plan", "case"]
    # 45 entries in groups of 8 that never cross a wrap of 8 slots.
    assert arms[0]["expected"]["direct_copied_records"] == 6
    text = capsys.readouterr().out
    assert "8/4/4: 8/16/16, clamped to the rings" in text
    assert "3/2/4: the case has no counters for it; expected ones are the plan's" in text


@pytest.mark.parametrize("expert_bytes", [1, 7, 8, 63, 4097, 65_541])
@pytest.mark.parametrize("order", ["all direct copies first", "all staged copies first"])
@pytest.mark.parametrize("submission", ["single", "group"])
def test_odd_sizes_orders_and_submissions(
    small: dict[str, Any], case_file: CaseFile, tmp_path: Path, expert_bytes: int, order: str, submission: str
) -> None:
    small |= {"expert_bytes": expert_bytes, "order": order}
    out = tmp_path / "out.json"
    arguments = ["--settings", "1,1,1", "--settings", "4,3,2", "--repeat", "1", "--submission", submission]
    assert main(["replay", "--case", case_file(small), "--json", str(out), *arguments]) == 0
    for arm in json.loads(out.read_text())["arms"]:
        assert arm["bytes_checked"] == 74 * expert_bytes
        assert arm["submission"] == submission


@pytest.mark.parametrize(("direct", "staged"), [(0, 0), (0, 3), (5, 0), (1, 1)])
def test_lists_shorter_than_the_rings(
    small: dict[str, Any], case_file: CaseFile, tmp_path: Path, direct: int, staged: int
) -> None:
    small |= {"direct_pinned_copies": direct, "staged_copies": staged, "counters": {}}
    out = tmp_path / "out.json"
    assert main(["replay", "--case", case_file(small), "--json", str(out)]) == 0
    (arm,) = json.loads(out.read_text())["arms"]
    assert arm["bytes_checked"] == (direct + staged) * 4096
    # Warmed: every slot was used, so each group waits.
    assert arm["counters"]["direct_reuse_waits"] == direct
    assert arm["counters"]["staged_reuse_waits"] == staged


@pytest.mark.parametrize("separate", [False, True])
def test_where_stalls_are_split(
    small: dict[str, Any],
    case_file: CaseFile,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    separate: bool,
) -> None:
    opened = []

    class Noted(ExpertStreamer):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            opened.append(named["timing"])
            super().__init__(*arguments, **named)

    monkeypatch.setattr("strata.tools.replay.run.ExpertStreamer", Noted)
    out = tmp_path / "out.json"
    option = ["--separate-timing"] if separate else []
    assert main(["replay", "--case", case_file(small), "--json", str(out), *option]) == 0
    report = json.loads(out.read_text())
    (arm,) = report["arms"]
    assert report["stall_from"] == ("a pass of its own" if separate else "the timed passes")
    assert opened == ([False, True] if separate else [True])
    assert arm["stall"]["wall_s"] > 0
    if not separate:
        assert arm["stall"]["wall_s"] <= max(arm["samples"])
    assert f"from {'one more pass' if separate else 'the timed passes'}" in capsys.readouterr().out


def test_wrong_counter_exits_1(
    small: dict[str, Any], case_file: CaseFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small["counters"]["control"]["dma_done_records"] = 28
    out = tmp_path / "out.json"
    assert main(["replay", "--case", case_file(small), "--json", str(out)]) == 1
    report = json.loads(out.read_text())
    (arm,) = report["arms"]
    assert (report["ok"], arm["counters_match"], arm["bytes_wrong"]) == (False, False, 0)
    assert arm["mismatches"] == {"dma_done_records": [29, 28]}
    text = capsys.readouterr().out
    assert "1/1/1: dma_done_records is 29, expected 28" in text
    assert text.endswith("FAILED\n")


@pytest.mark.parametrize(("entry", "offset"), [(0, 0), (7, 4095), (73, 1)])
def test_wrong_byte_exits_1(
    small: dict[str, Any],
    case_file: CaseFile,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    entry: int,
    offset: int,
) -> None:
    """One byte of one source changes after it was streamed and before it is compared."""
    source = Sources.source
    spoiled = []

    def spoil_once(self: Sources, number: int):  # type: ignore[no-untyped-def]
        view = source(self, number)
        if number == entry and not spoiled:
            view[offset] ^= 0x10
            spoiled.append(number)
        return view

    monkeypatch.setattr(Sources, "source", spoil_once)
    out = tmp_path / "out.json"
    assert main(["replay", "--case", case_file(small), "--json", str(out)]) == 1
    report = json.loads(out.read_text())
    (arm,) = report["arms"]
    assert (report["ok"], arm["counters_match"]) == (False, True)
    assert (arm["bytes_checked"], arm["bytes_wrong"], arm["first_wrong"]) == (74 * 4096, 1, [entry, offset])
    assert f"1 bytes are wrong, the first at entry {entry}, offset {offset}" in capsys.readouterr().out


def test_entries_in_each_others_places_are_found(
    small: dict[str, Any], case_file: CaseFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine streams entry 4 where 3 is wanted, and 3 for 4."""
    made = Sources.__init__

    def swapped(self: Sources, *arguments: Any) -> None:
        made(self, *arguments)
        self.copies = self.copies.take([0, 1, 2, 4, 3, *range(5, 74)])

    monkeypatch.setattr(Sources, "__init__", swapped)
    out = tmp_path / "out.json"
    assert main(["replay", "--case", case_file(small), "--json", str(out)]) == 1
    (arm,) = json.loads(out.read_text())["arms"]
    # Of random bytes one in 256 is right by chance.
    assert 0.98 * 2 * 4096 < arm["bytes_wrong"] < 2 * 4096
    assert arm["first_wrong"][0] == 3


def test_a_read_back_that_never_ran_is_found(
    small: dict[str, Any], case_file: CaseFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scratch buffer still holds an earlier entry then."""
    copy = passes._hip.memcpy_d2h_async
    queued = []

    def drop_one(*arguments: int) -> None:
        queued.append(arguments)
        if len(queued) != 20:
            copy(*arguments)

    monkeypatch.setattr(passes._hip, "memcpy_d2h_async", drop_one)
    assert main(["replay", "--case", case_file(small), "--repeat", "1"]) == 1


def test_hip_failure_is_one_line_and_exits_1(
    small: dict[str, Any],
    case_file: CaseFile,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: int) -> None:
        raise strata.HipError("hipMemcpyAsync", 719, "hipErrorLaunchFailure")

    monkeypatch.setattr(passes._hip, "memcpy_d2h_async", fail)
    assert main(["replay", "--case", case_file(small)]) == 1
    error = capsys.readouterr().err.splitlines()
    assert error[-1] == "strata replay: error: hipMemcpyAsync failed with hipErrorLaunchFailure (719)"


BAD_ARGUMENTS = [
    (["--settings", "8,16"], "'8,16' is not C,S,SC"),
    (["--settings", "8,16,x"], "'8,16,x' is not C,S,SC"),
    (["--settings", "8,16,0"], "three integers from 1"),
    (["--pool", "1PiB"], "'1PiB' is no number of bytes"),
    (["--pool", "0"], "'0' is 0 bytes"),
    (["--pool", "4095"], "--pool is 4095 bytes; one entry of this case needs 4096"),
    (["--repeat", "0"], "0 is below 1"),
    (["--repeat", "two"], "'two' is no integer"),
    (["--runtime", "metal"], "invalid choice: 'metal'"),
    (["--submission", "both"], "invalid choice: 'both'"),
    (["--json", "/nowhere/out.json"], "the folder '/nowhere' cannot be written to"),
    (["--json", "/"], "which is a folder"),
    (["--case", "/nowhere/case.json"], "'/nowhere/case.json' cannot be read"),
    (["--unknown"], "unrecognized arguments: --unknown"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_ARGUMENTS, ids=[" ".join(a) for a, _ in BAD_ARGUMENTS])
def test_bad_arguments_exit_2(
    small: dict[str, Any],
    case_file: CaseFile,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    try:
        status = main(["replay", "--case", case_file(small), *arguments])
    except SystemExit as refused:  # argparse's way
        status = refused.code  # type: ignore[assignment]
    captured = capsys.readouterr()
    assert status == 2
    assert message in captured.err.splitlines()[-1]
    assert captured.out == ""


@pytest.mark.parametrize("runtime", ["rocm", "cuda"])
def test_missing_runtime_exits_2_in_one_line(
    strata_command: Command, small: dict[str, Any], case_file: CaseFile, tmp_path: Path, runtime: str
) -> None:
    """A library that cannot be one stands where the runtime is looked for."""
    done = strata_command("replay", "--case", case_file(small), "--runtime", runtime,
                          ROCM_PATH=str(tmp_path), STRATA_CUDA_DRIVER=str(tmp_path / "libcuda.so.1"))
    if done.returncode == 0:
        pytest.skip(f"this machine has a device of the {runtime} runtime")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"strata replay: error: the {runtime} runtime")


def test_bad_environment_exits_2(strata_command: Command, small: dict[str, Any], case_file: CaseFile) -> None:
    done = strata_command("replay", "--case", case_file(small), STRATA_HIP_RUNTIME="metal")
    assert done.returncode == 2
    assert done.stderr == ("strata replay: error: STRATA_HIP_RUNTIME is 'metal'; one of rocm, software, cuda, "
                           "auto is allowed\n")


def test_version_and_missing_command(strata_command: Command) -> None:
    assert strata_command("--version").stdout == f"strata {strata.__version__}\n"
    done = strata_command()
    assert done.returncode == 2
    assert "COMMAND" in done.stderr.splitlines()[-1]


def test_interrupt_in_the_check_pass_exits_130(
    small: dict[str, Any],
    case_file: CaseFile,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Read-backs and slots are in use then; nothing of them is left, and no report is written."""
    synchronize = passes._hip.synchronize_event
    waited = []

    def interrupt(event: int) -> None:
        waited.append(event)
        if len(waited) == 30:
            raise KeyboardInterrupt
        synchronize(event)

    monkeypatch.setattr(passes._hip, "synchronize_event", interrupt)
    steps = []
    for name in ("synchronize_stream", "destroy_event"):
        function = getattr(passes._hip, name)
        monkeypatch.setattr(passes._hip, name, lambda handle, name=name, function=function: (
            steps.append(name), function(handle)))
    out = tmp_path / "out.json"
    assert main(["replay", "--case", case_file(small), "--json", str(out)]) == 130
    # A read-back that is still on its way must not find its buffer gone.
    assert steps == ["synchronize_stream", *["destroy_event"] * 4]
    assert capsys.readouterr().err == "strata: interrupted\n"
    assert not out.exists()
    monkeypatch.undo()
    assert main(["replay", "--case", case_file(small)]) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="terminals of this kind are POSIX's")
def test_interrupt_of_the_process_and_progress_on_a_terminal(
    small: dict[str, Any], case_file: CaseFile
) -> None:
    import pty

    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "strata", "replay", "--case", case_file(small), "--repeat", "100000000"],
        env={**os.environ, "STRATA_HIP_RUNTIME": "software"},
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    while b"timing 1/1/1, pass" not in seen:
        seen += os.read(ours, 1024)
    assert b"checking 1/1/1: " in seen
    process.send_signal(signal.SIGINT)
    try:
        while more := os.read(ours, 1024):
            seen += more
    except OSError:  # the other end is closed
        pass
    output, _ = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 130
    assert output == b""
    assert seen.endswith(b"\rstrata: interrupted\r\n")
    assert b"Traceback" not in seen


def test_no_progress_without_a_terminal(
    small: dict[str, Any], case_file: CaseFile, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "--case", case_file(small), "--repeat", "1"]) == 0
    assert capsys.readouterr().err == ""


def test_a_ring_larger_than_the_device_exits_2_in_one_line(
    strata_command: Command, small: dict[str, Any], case_file: CaseFile
) -> None:
    done = strata_command("replay", "--case", case_file(small), "--runtime", "software", "--pool", "1MiB",
                          STRATA_SOFTWARE_DEVICE_MEMORY="10000")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("strata replay: error: case 'case.json' does not fit: gpu_ring is 8: ")


def test_pools_beyond_the_memory_exit_2_before_they_are_filled(
    strata_command: Command, small: dict[str, Any], case_file: CaseFile
) -> None:
    case = case_file({**small, "expert_bytes": 2**40})
    done = strata_command("replay", "--case", case, "--runtime", "software", "--pool", "1024GiB")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "bytes of memory are available: a smaller pool is wanted" in done.stderr
