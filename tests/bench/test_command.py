"""``strata bench``: the protocol, what it reports, what it refuses."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ab import Protocol, memory, protocol
from strata.tools.cli import main


def test_protocol_two_processes_an_arm_in_turn(planned, bench_command) -> None:
    assert main(bench_command()) == 0
    assert planned.started() == [["1,1,1", 2, 3], ["8,16,16", 2, 3]] * 2


def test_numbers_of_the_protocol_can_be_changed_and_arms_added(planned, bench_command) -> None:
    walls = [[1.0]] * 3
    planned.set("all", walls=walls)
    options = ["--processes", "3", "--warmups", "0", "--samples", "1", "--settings", "4,4,4"]
    assert main(bench_command(*options)) == 0
    assert planned.started() == [["1,1,1", 0, 1], ["8,16,16", 0, 1], ["4,4,4", 0, 1]] * 3


def test_only_the_named_arms(planned, bench_command) -> None:
    assert main(bench_command("--only", "--settings", "4,4,4", "--settings", "2,2,2", "--processes", "1")) == 0
    assert [settings for settings, *_ in planned.started()] == ["4,4,4", "2,2,2"]


def test_a_slow_arm_is_found_slow(planned, bench_command, tmp_path: Path, capsys) -> None:
    slow = [[400.0, 250.0, 250.0], [250.0, 250.0, 300.0]]
    planned.set("8,16,16", walls=slow, copy_wait=14.0, counters={"direct_copies": 40, "fences": 2})
    out, text = tmp_path / "out.json", tmp_path / "out.md"
    assert main(bench_command("--json", str(out), "--markdown", str(text))) == 0
    report = json.loads(out.read_text())
    control, optimized = report["arms"]
    assert [arm["settings"] for arm in report["arms"]] == [[1, 1, 1], [8, 16, 16]]
    # Medians of the six: between 102 and 103, and 250.
    assert control["median"]["run_wall_ms"] == 102.5
    assert optimized["median"]["run_wall_ms"] == 250.0
    assert optimized["change_percent"]["run_wall_ms"] == pytest.approx((250 / 102.5 - 1) * 100)
    assert optimized["change_percent"]["copy_wait_ms"] == pytest.approx(100)
    pp = statistics.median(50 / wall * 1e3 for wall in (100, 101, 102, 103, 104, 105))
    assert control["median"]["pp_tok_s"] == pytest.approx(pp)
    assert optimized["change_percent"]["pp_tok_s"] == pytest.approx((200 / pp - 1) * 100)
    assert control["median"]["ttft_ms"] == 112.5
    assert optimized["spread"]["run_wall_ms"] == {"min": 250.0, "max": 400.0, "percent": pytest.approx(60)}
    assert control["stall_s"] == {"wait_window": 0.25}
    assert control["counters"] == {"direct_copies": 40, "fences": 0}
    assert optimized["counters"] == {"direct_copies": 40, "fences": 2}
    assert [len(process["samples"]) for process in control["processes"]] == [3, 3]
    assert all(arm["max_working_set_bytes"] > 0 for arm in report["arms"])
    assert all(arm["min_available_bytes"] > 0 for arm in report["arms"])
    assert report["fingerprint"] == "aa"
    assert report["machine"]["processors"] >= 1
    assert report["commit"]
    assert optimized["overlaps_first_arm"] == []
    printed = capsys.readouterr().out
    assert "may be chance" not in printed
    assert f"{(250 / 102.5 - 1) * 100:+.1f} %" in printed
    assert f"| run wall, ms | 102.5 | 4.9 % | 250.0 | 60.0 % | {(250 / 102.5 - 1) * 100:+.1f} % |" in text.read_text()
    for word in ("minimum available RAM", "maximum working set", "commit", "machine", "fences"):
        assert word in printed
        assert word in text.read_text()


def test_clamped_settings_are_told(planned, bench_command, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out.json"
    planned.set("8,16,16", arm=[8, 4, 4])
    assert main(bench_command("--json", str(out), "--processes", "1")) == 0
    control, optimized = json.loads(out.read_text())["arms"]
    assert (optimized["settings"], optimized["settings_used"]) == ([8, 16, 16], [8, 4, 4])
    assert (control["settings"], control["settings_used"]) == ([1, 1, 1], [1, 1, 1])
    printed = capsys.readouterr().out
    assert "arm 8/16/16 was clamped to 8/4/4" in printed
    assert "arm 1/1/1 was" not in printed


def test_overlapping_samples_are_named(planned, bench_command, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out.json"
    planned.set("8,16,16", walls=[[50.0, 50.0, 50.0], [50.0, 50.0, 100.0]], copy_wait=8.0)
    assert main(bench_command("--json", str(out))) == 0
    assert json.loads(out.read_text())["arms"][1]["overlaps_first_arm"] == ["pp_tok_s", "run_wall_ms", "done_prefill_ms", "ttft_ms"]
    assert "may be chance: PP, tok/s; run wall, ms; DONE prefill, ms; TTFT, ms." in capsys.readouterr().out


def test_a_single_sample_is_no_evidence(planned, bench_command, capsys) -> None:
    words = "one sample an arm: there is no spread, and every change may be chance"
    assert main(bench_command("--processes", "1", "--samples", "1")) == 0
    assert words in capsys.readouterr().out
    assert main(bench_command("--processes", "1", "--samples", "2")) == 0
    assert words not in capsys.readouterr().out


def test_a_counter_that_varies_is_shown_as_it_was(planned, bench_command, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out.json"
    planned.set("8,16,16", varying=True)
    assert main(bench_command("--json", str(out), "--processes", "1")) == 0
    control, optimized = json.loads(out.read_text())["arms"]
    assert control["counters"]["fences"] == 0
    assert optimized["counters"]["fences"] == [0, 1, 2]
    assert "0 to 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("fingerprint", "bb", ["fingerprints", "'aa'", "'bb'"]),
        ("seed", 4, ["seeds", "3", "4"]),
        ("walk", "routed", ["inputs", "'all'", "'routed'"]),
        ("model", {"layers": 5, "experts": 8}, ["models", "{'layers': 4}", "{'layers': 5}"]),
    ],
)
def test_unequal_arms_are_not_compared(
    planned, bench_command, tmp_path: Path, capsys, field: str, value: Any, words: list[str]
) -> None:
    planned.set("8,16,16", **{field: value})
    out = tmp_path / "out.json"
    assert main(bench_command("--json", str(out))) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert not out.exists()
    for word in ["process 1 of arm 1/1/1", "process 1 of arm 8/16/16", *words]:
        assert word in said.err
    assert len(planned.started()) == 2  # the rest would be for nothing


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"do": "crash"}, ["SIGKILL", "the kernel is gone"]),
        ({"do": "garbage"}, ["Loading model... done", "not one JSON object"]),
        ({"samples": 2}, ["2 samples", "3 are wanted"]),
        ({"arm": [9, 16, 16]}, ["[9, 16, 16]", "[8, 16, 16]"]),
        ({"arm": [8, 16]}, ["[8, 16]"]),
        ({"arm": "8,16,16"}, ["'8,16,16'"]),
        ({"copy_wait": -1.0}, ["samples[0].copy_wait_ms", "-1.0"]),
        ({"counters": {"fences": 0.5}}, ["samples[0].counters.fences", "0.5"]),
        ({"fingerprint": ""}, ["fingerprint ''"]),
    ],
)
def test_a_process_without_a_result_fails_the_run(planned, bench_command, capsys, fields, words: list[str]) -> None:
    planned.set("8,16,16", **fields)
    assert main(bench_command()) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    for word in ["strata bench: error: process 1 of arm 8/16/16", *words]:
        assert word in said.err


def test_watchdog_starts_nothing_where_memory_is_short(planned, bench_command, capsys) -> None:
    assert main(bench_command("--min-available", str(2**60))) == 1
    assert "GiB must stay so" in capsys.readouterr().err
    assert planned.started() == []


def test_without_psutil_one_readable_error(planned, bench_command, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert main(bench_command()) == 2
    said = capsys.readouterr()
    assert "psutil is not installed" in said.err
    assert "strata-moe[bench]" in said.err
    assert planned.started() == []
    with pytest.raises(memory.InputError):
        memory.psutil()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workload", "run-it --settings {settings}"], ["{warmups}", "{samples}"]),
        (["--workload", "'{settings} {warmups} {samples}"], ["no command line"]),
        (["--workload", "no-such-command-here {settings} {warmups} {samples}"], ["no-such-command-here"]),
        (["--settings", "1,1,1"], ["an arm twice"]),
        (["--only"], ["there is no arm"]),
        (["--json", "/no/such/folder/out.json"], ["--json", "/no/such/folder"]),
        (["--markdown", "/"], ["--markdown"]),
    ],
)
def test_bad_input(planned, bench_command, capsys, arguments: list[str], words: list[str]) -> None:
    assert main(bench_command(*arguments)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert all(word in said for word in words)
    assert planned.started() == []


@pytest.mark.parametrize("option", [["--settings", "8,16"], ["--samples", "0"], ["--warmups", "-1"]])
def test_arguments_that_argparse_refuses(bench_command, option: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(bench_command(*option))
    assert ended.value.code == 2


def test_one_file_for_both_reports_is_refused(bench_command, tmp_path, capsys) -> None:
    file = str(tmp_path / "out")
    assert main(bench_command("--json", file, "--markdown", file)) == 2
    assert f"--json and --markdown are both {file!r}" in capsys.readouterr().err


def test_medians_by_process_and_the_row_of_done_prefill(planned, bench_command, tmp_path: Path, capsys) -> None:
    out, text = tmp_path / "out.json", tmp_path / "out.md"
    planned.set("8,16,16", walls=[[50.0, 51.0, 60.0], [40.0, 41.0, 42.0]])
    assert main(bench_command("--json", str(out), "--markdown", str(text))) == 0
    control, optimized = json.loads(out.read_text())["arms"]
    assert [process["median"]["run_wall_ms"] for process in control["processes"]] == [101.0, 104.0]
    assert [process["median"]["run_wall_ms"] for process in optimized["processes"]] == [51.0, 41.0]
    assert control["median"]["done_prefill_ms"] == 107.5  # walls and 5: between 102 and 103
    assert optimized["median"]["done_prefill_ms"] == pytest.approx(51.0)
    written = text.read_text()
    assert "| median | 1/1/1, process 1 | 8/16/16, process 1 | 1/1/1, process 2 | 8/16/16, process 2 |" in written
    assert "| run wall, ms | 101.0 | 51.0 | 104.0 | 41.0 |" in written
    assert "| DONE prefill, ms | 106.0 | 56.0 | 109.0 | 46.0 |" in written
    assert "DONE prefill, ms" in capsys.readouterr().out


def test_no_change_is_printed_where_samples_overlap(planned, bench_command, tmp_path: Path) -> None:
    text = tmp_path / "out.md"
    planned.set("8,16,16", walls=[[50.0, 50.0, 50.0], [50.0, 50.0, 100.0]], copy_wait=8.0)
    assert main(bench_command("--markdown", str(text))) == 0
    rows = {line.split("|")[1].strip(): line.split("|")[-2].strip() for line in text.read_text().splitlines()
            if line.startswith("| ")}
    assert rows["copy wait, ms"] == "8.0"  # of the last table with this row: medians by process
    changes = [line for line in text.read_text().splitlines() if "no change" in line]
    assert [line.split("|")[1].strip() for line in changes] == [
        "PP, tok/s", "run wall, ms", "DONE prefill, ms", "TTFT, ms"]
    assert "+14.3 %" in text.read_text()  # copy wait, whose samples lie apart


def test_what_was_run_is_a_table_and_no_dict(planned, bench_command, capsys) -> None:
    assert main(bench_command("--processes", "1")) == 0
    printed = capsys.readouterr().out
    assert "{" not in printed.replace(planned.command, "")
    assert [line.split() for line in printed.splitlines() if line.startswith(("model", "seed", "walk"))] == [
        ["model.layers", "4"], ["model.experts", "8"], ["seed", "3"], ["walk", "all"]]


def test_the_protocols_numbers() -> None:
    """As the reference has them: two processes, 2 + 3 requests, memory every 0.5 s, a floor of 2 GiB."""
    protocol = Protocol()
    assert (protocol.processes, protocol.warmups, protocol.samples) == (2, 2, 3)
    assert (protocol.interval_s, protocol.min_available) == (0.5, 2 * 2**30)


def test_memory_is_watched_with_the_protocols_numbers(planned, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """The floor is 2 GiB where the command is given none, and looks come every 0.5 s."""
    seen = []

    def watched(command, watch, *, interval_s, timeout_s):
        seen.append((watch.floor, interval_s, timeout_s))
        raise protocol.WorkloadError("stopped")

    monkeypatch.setattr(protocol, "run_process", watched)
    assert main(["bench", "--workload", planned.command]) == 1
    assert seen == [(2 * 2**30, 0.5, 3600.0)]


def test_the_engine_is_refused_where_there_is_no_checkout(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "--only", "--settings", "1,1,1"]) == 2
    assert "strata bench is run from a checkout" in capsys.readouterr().err
