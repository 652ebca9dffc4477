"""The command line: exit status, output, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from examples.prefill_engine import arm
from examples.prefill_engine.__main__ import main
from examples.prefill_engine.checkpoint import open_checkpoint
from examples.prefill_engine.config import config_from
from examples.prefill_engine.result import PrefillResult
from tests.support.scripts import environment

ROOT = Path(__file__).resolve().parents[2]


def command(*arguments: object, status: int = 0, timeout: float = 250) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "examples.prefill_engine", *map(str, arguments)], cwd=ROOT,
                          env=environment(STRATA_HIP_RUNTIME="software"), text=True, capture_output=True,
                          timeout=timeout, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.fixture
def tiny(tiny_path: Path) -> tuple[object, ...]:
    return ("--shape", "tiny", "--checkpoint", tiny_path)


@pytest.fixture
def here(_nothing_left_alive: None, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """Return a function that runs a command in this process, and gives what it printed."""

    def run(*arguments: object, status: int = 0) -> tuple[str, str]:
        try:
            ended = main([str(a) for a in arguments])
        except SystemExit as end:  # argparse's
            ended = end.code
        out, err = capsys.readouterr()
        assert ended == status, out + err
        return out, err

    return run


def test_verify(tiny, tmp_path: Path) -> None:
    done = command("verify", *tiny, "--schedule", "lazy", "--json", tmp_path / "report.json")
    assert "29 lines equal" in done.stdout
    assert "DIFFERENT" not in done.stdout
    # Once, however many streamers are made.
    assert done.stderr.startswith("a staged batch of 4 over a host ring of 4: ")
    assert done.stderr.count("\n") == 1
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["equal"] is True
    assert report["arms"] == {"control": [1, 1, 1], "optimized": [8, 4, 4]}  # clamped to the rings
    assert len(report["lines"]) == 29
    assert all(line["equal"] for line in report["lines"])
    assert report["runtime"]["runtime"] == "software"


def test_verify_against_a_checkpoint_with_one_other_byte(tiny, copied: Path) -> None:
    file = next(copied.glob("model-00001-*"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 0x80  # the last tensor of the file: a sign of the router's or the shared expert's
    file.write_bytes(content)
    done = command("verify", *tiny, "--against", copied, "--walk", "all", status=1)
    assert "lines DIFFERENT" in done.stdout


def test_arm(tiny, here) -> None:
    done = command("arm", *tiny, "--settings", "4,2,3", "--warmups", 1, "--samples", 2, "--walk", "routed")
    result = json.loads(done.stdout)
    assert result["arm"] == [4, 2, 3]
    assert result["seed"] == 0
    assert result["model"]["experts"] == 16
    assert len(result["samples"]) == 2
    assert int(result["fingerprint"], 16) > 0
    for sample in result["samples"]:
        assert 0 < sample["run_wall_ms"] <= sample["done_prefill_ms"] <= sample["ttft_ms"]
        assert sample["pp_tok_s"] == pytest.approx(40 / sample["done_prefill_ms"] * 1e3)
        assert sample["copy_wait_ms"] == pytest.approx(sample["stall"]["copy_wait"] * 1e3)
        assert sample["counters"]["direct_copies"] > 0
    other = json.loads(here("arm", *tiny, "--settings", "1,1,1", "--warmups", 0, "--samples", 1)[0])
    assert other["fingerprint"] == result["fingerprint"]


def test_another_seed_has_another_fingerprint(tiny, here, tmp_path: Path) -> None:
    once = ("--warmups", 0, "--samples", 1)
    one = json.loads(here("arm", *tiny, *once)[0])
    other = json.loads(here("arm", "--shape", "tiny", "--checkpoint", tmp_path / "seed3", "--seed", 3, *once)[0])
    assert one["fingerprint"] != other["fingerprint"]
    assert (one["seed"], other["seed"]) == (0, 3)


def test_requests_that_differ_measure_nothing(tiny, here, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter(range(100))
    monkeypatch.setattr(PrefillResult, "fingerprint", lambda self: f"{next(numbers) // 2:x}")
    out, err = here("arm", *tiny, "--warmups", 1, "--samples", 2, status=1)
    assert out == ""
    assert "3 identical requests gave 2 different results" in err


@pytest.mark.parametrize(("warmups", "samples"), [(0, 2), (1, 2), (2, 1)])
def test_warm_ups_are_no_samples(tiny_path: Path, monkeypatch: pytest.MonkeyPatch, warmups: int, samples: int) -> None:
    """The requests that are reported are the last ones, by their times."""
    numbers = iter(range(100))
    prefill = arm.Engine.prefill
    monkeypatch.setattr(arm.Engine, "prefill", lambda self, ids, walk: replace(
        prefill(self, ids, walk), run_wall_s=float(next(numbers))))
    result = arm.bench_arm((1, 1, 1), warmups, samples, shape="tiny", checkpoint=tiny_path)
    assert [s["run_wall_ms"] for s in result["samples"]] == [1e3 * (warmups + k) for k in range(samples)]
    assert next(numbers) == warmups + samples


def test_run(tiny, here) -> None:
    out, _ = here("run", *tiny)
    assert "tokens/s" in out
    assert "copy_wait" in out


@pytest.mark.parametrize(("arguments", "words"), [
    (["verify", "--tokens", "0"], "0 tokens"),
    (["verify", "--tokens", "15"], "15 tokens and a chunk 16"),
    (["verify", "--gpu-ring", "13"], "gpu_ring is 13"),
    (["verify", "--experts", "8"], "of another model"),
    (["arm", "--seed", "1"], "seed 0 (asked for: 1)"),
    (["arm", "--samples", "0"], "samples 0"),
    (["arm", "--settings", "0,1,1"], "C,S,SC"),
    (["run", "--schedule", "timed"], "timed"),
    (["arm", "--streamer", "torch-ring"], "torch-ring, which needs torch on a GPU: this is the numpy back end"),
    (["verify", "--streamer", "torch-ring"], "torch-ring, which needs torch"),
    (["run", "--streamer", "bare"], "--streamer"),
    (["run", "--schedule", "lazy", "--runtime", "cuda"], "only the software runtime"),
    (["verify", "--json", "/"], "--json"),
])
def test_bad_input(tiny, here, arguments: list[str], words: str) -> None:
    out, err = here(arguments[0], *tiny, *arguments[1:], status=2)
    assert words in err
    assert out == ""


def test_a_truncated_checkpoint(copied: Path) -> None:
    file = next(copied.glob("model-00002-*"))
    file.write_bytes(file.read_bytes()[:-1])
    done = command("verify", "--shape", "tiny", "--checkpoint", copied, status=2)
    assert "truncated" in done.stderr
    assert "Traceback" not in done.stderr
    assert file.name in done.stderr


def test_arms_of_different_seeds(tiny, here, tmp_path: Path) -> None:
    open_checkpoint(config_from("tiny", seed=8)[0], tmp_path / "other")
    _, err = here("verify", *tiny, "--against", tmp_path / "other", status=2)
    assert "the arms differ in their model or seed: seed 0 and 8" in err


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_verify_at_default_size(tmp_path_factory: pytest.TempPathFactory, schedule: str) -> None:
    path = tmp_path_factory.getbasetemp() / "default-checkpoint"
    done = command("verify", "--checkpoint", path, "--schedule", schedule)
    assert "29 lines equal" in done.stdout


def test_a_place_that_takes_no_checkpoint_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = command("verify", "--shape", "tiny", "--checkpoint", tmp_path / "file" / "checkpoint", status=2)
    assert done.stderr.count("\n") == 1
    assert "cannot be written" in done.stderr
