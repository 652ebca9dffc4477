"""The built-in workload `replay`, in processes of its own and in this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ab import replay_arm
from strata.settings import BatchSettings
from strata.tools.replay import passes

SMALL: dict[str, Any] = {
    "expert_bytes": 4096,
    "direct_pinned_copies": 45,
    "staged_copies": 29,
    "order": "all direct copies first",
    "gpu_ring": 8,
    "host_ring": 4,
    "arms": {},
    "counters": {},
}


@pytest.fixture
def case(tmp_path: Path) -> str:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(SMALL))
    return str(path)


def test_bench_compares_replays(case: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    workload = ("{python} -m benchmarks.ab.replay_arm --settings {settings} --warmups {warmups} --samples {samples} "
                f"--case '{case}'")
    done = subprocess.run(
        [sys.executable, "-m", "strata", "bench", "--workload", workload, "--min-available", "1MiB",
         "--json", str(out)],
        env={**os.environ, "STRATA_HIP_RUNTIME": "software"}, capture_output=True, text=True, timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr
    report = json.loads(out.read_text())
    control, optimized = report["arms"]
    assert control["counters"]["direct_copied_records"] == 45
    assert optimized["counters"]["direct_copied_records"] == 6  # 5 turns of the ring of 8, and 5 entries
    assert control["counters"]["staged_copies"] == optimized["counters"]["staged_copies"] == 29
    assert control["median"]["pp_tok_s"] is None
    assert control["median"]["run_wall_ms"] > 0
    assert report["runtime"]["runtime"] == "software"
    assert optimized["settings_used"] == [8, 4, 4]
    assert "PP" not in done.stdout


def test_fingerprint_follows_the_list(case: str) -> None:
    def fingerprint(batch: BatchSettings, **changed: Any) -> str:
        Path(case).write_text(json.dumps({**SMALL, **changed}))
        return str(replay_arm.replay_arm(replay_arm.load_case(case), batch, 0, 1, 2**20)["fingerprint"])

    one = fingerprint(BatchSettings(1, 1, 1))
    assert fingerprint(BatchSettings(8, 4, 4)) == one
    assert fingerprint(BatchSettings(1, 1, 1), staged_copies=28) != one
    assert fingerprint(BatchSettings(1, 1, 1), expert_bytes=4000) != one


def test_a_wrong_byte_is_no_result(case: str, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    compare = passes._Scratch.compare

    def spoiled(self: Any, entry: int, sources: Any) -> None:
        if entry == 7:
            sources.source(entry)[3] ^= 1
        compare(self, entry, sources)

    monkeypatch.setattr(passes._Scratch, "compare", spoiled)
    assert replay_arm.main(["--settings", "1,1,1", "--case", case]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "1 bytes are wrong" in said.err
    assert "(7, 3)" in said.err


def test_bad_case(case: str, capsys) -> None:
    Path(case).write_text("{}")
    assert replay_arm.main(["--settings", "1,1,1", "--case", case]) == 2
    assert "expert_bytes is missing" in capsys.readouterr().err


def test_warm_ups_are_no_samples(case: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    numbers = iter(range(100))
    timed = replay_arm.timed_pass
    monkeypatch.setattr(replay_arm, "timed_pass", lambda *given: (float(next(numbers)), timed(*given)[1]))
    assert replay_arm.main(["--settings", "1,1,1", "--case", case, "--pool", "1MiB", "--warmups", "2", "--samples", "3"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [sample["run_wall_ms"] for sample in result["samples"]] == [2000.0, 3000.0, 4000.0]
