"""Peers: arms without settings, which do the workload's work in another way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ab import Arm, InputError
from strata.tools.cli import main

PLACES = "{warmups} {samples}"


def test_peers_take_turns_with_the_others(planned, bench_command) -> None:
    peers = ["--peer", planned.peer("torch-ring"), "--peer", planned.peer("a loop, 2 streams")]
    assert main(bench_command(*peers)) == 0
    turn = [["1,1,1", 2, 3], ["8,16,16", 2, 3], ["torch-ring", 2, 3], ["a loop, 2 streams", 2, 3]]
    assert planned.started() == turn * 2


def test_a_peer_is_reported_by_its_name(planned, bench_command, tmp_path: Path, capsys) -> None:
    planned.set("all", walls=[[100.0, 100.0, 100.0]])
    planned.set("torch-ring", walls=[[150.0, 150.0, 150.0]], counters={"copies": 7, "fences": 0}, stall={"waits": 0.5})
    out, text = tmp_path / "out.json", tmp_path / "out.md"
    peer = planned.peer("torch-ring")
    options = ["--peer", peer, "--json", str(out), "--markdown", str(text), "--processes", "1"]
    assert main(bench_command(*options)) == 0
    report = json.loads(out.read_text())
    assert report["workload"] == planned.command
    assert [arm["name"] for arm in report["arms"]] == ["1/1/1", "8/16/16", "torch-ring"]
    control, _, ring = report["arms"]
    assert (ring["settings"], ring["settings_used"]) == (None, None)
    assert ring["command"] == peer.partition("=")[2]
    assert control["command"] == planned.command
    assert ring["change_percent"]["run_wall_ms"] == pytest.approx(50)
    assert ring["counters"] == {"direct_copies": None, "fences": 0, "copies": 7}
    assert control["counters"] == {"direct_copies": 40, "fences": 0, "copies": None}
    assert ring["stall_s"] == {"wait_window": None, "waits": 0.5}
    printed = capsys.readouterr().out
    assert f"arm torch-ring: {ring['command']}" in printed
    assert "clamped" not in printed
    head = "| median | 1/1/1 | spread | 8/16/16 | spread | change | torch-ring | spread | change |"
    for line in (head, "| counter | 1/1/1 | 8/16/16 | torch-ring |", "| direct_copies | 40 | 40 | - |",
                 "| copies | - | - | 7 |"):
        assert line in text.read_text()


def test_a_peer_may_know_nothing_of_its_waits(planned, bench_command, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out.json"
    planned.set("bare", copy_wait=None, counters={}, stall={})
    options = ["--peer", planned.peer("bare"), "--json", str(out), "--processes", "1"]
    assert main(bench_command(*options)) == 0
    assert json.loads(out.read_text())["arms"][2]["median"]["copy_wait_ms"] is None
    planned.set("8,16,16", copy_wait=None)
    assert main(bench_command(*options)) == 1
    assert "arm 8/16/16: has samples[0].copy_wait_ms None" in capsys.readouterr().err


def test_peers_alone(planned, bench_command, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    options = ["--only", "--peer", planned.peer("one"), "--peer", planned.peer("two"), "--processes", "1"]
    assert main(bench_command(*options, "--json", str(out))) == 0
    assert [called for called, *_ in planned.started()] == ["one", "two"]
    assert json.loads(out.read_text())["workload"] is None


@pytest.mark.parametrize(("field", "value", "words"), [
    ("fingerprint", "bb", ["fingerprints", "'aa'", "'bb'"]),
    ("seed", 4, ["seeds", "3", "4"]),
    ("walk", "routed", ["inputs", "'all'", "'routed'"]),
])
def test_a_peer_with_another_output_is_not_compared(
    planned, bench_command, capsys, field: str, value: Any, words: list[str]
) -> None:
    planned.set("torch-ring", **{field: value})
    assert main(bench_command("--peer", planned.peer("torch-ring"))) == 2
    said = capsys.readouterr()
    assert said.out == ""
    for word in ["process 1 of arm 1/1/1", "process 1 of arm torch-ring", *words]:
        assert word in said.err
    assert len(planned.started()) == 3  # the rest would be for nothing


@pytest.mark.parametrize("reported", ["torch-rin", [1, 1, 1], None])
def test_a_process_of_another_arm(planned, bench_command, capsys, reported: Any) -> None:
    planned.set("torch-ring", arm=reported)
    assert main(bench_command("--peer", planned.peer("torch-ring"))) == 1
    said = capsys.readouterr().err
    assert f"arm torch-ring: says that its arm is {reported!r}; it was asked for 'torch-ring'" in said


@pytest.mark.parametrize(("peers", "words"), [
    ([f"run-it {PLACES}"], ["NAME=COMMAND"]),
    ([f"=run-it {PLACES}"], ["NAME=COMMAND"]),
    ([f" =run-it {PLACES}"], ["NAME=COMMAND"]),
    ([f"a\nb=run-it {PLACES}"], ["NAME=COMMAND", "printed"]),
    ([f"8/16/16=run-it {PLACES}"], ["'8/16/16'", "as settings are"]),
    ([f"8, 16, 16=run-it {PLACES}"], ["as settings are"]),
    (["ring=run-it {samples}"], ["'ring'", "lacks {warmups}"]),
    (["ring="], ["lacks {warmups}, {samples}"]),
    ([f"ring='run-it {PLACES}"], ["no command line"]),
    ([f"ring=run-it {PLACES} {{settings}}"], ["{settings}", "a peer has none"]),
    ([f"ring=run-it {PLACES}", f"ring=run-that {PLACES}"], ["an arm twice", "1/1/1, 8/16/16, ring, ring"]),
])
def test_bad_input(planned, bench_command, capsys, peers: list[str], words: list[str]) -> None:
    assert main(bench_command(*(part for peer in peers for part in ("--peer", peer)))) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert all(word in said for word in words)
    assert planned.started() == []


def test_a_name_is_stripped_and_a_command_may_have_equals_signs() -> None:
    arm = Arm.peer(" ring = {python} run --sizes=3 {warmups} {samples} '{other}'")
    assert arm.name == "ring"
    assert arm.command(2, 5)[1:] == ["run", "--sizes=3", "2", "5", "{other}"]
    with pytest.raises(InputError):
        Arm.peer("16=x {warmups} {samples}")
