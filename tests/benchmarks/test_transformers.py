"""The transformers benchmark at its tiny shape, over the software runtime: it runs, and its arms have the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra transformers")
pytest.importorskip("transformers", reason="needs the extra transformers")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1200)      # processes that import torch and transformers, on whatever machine
def test_the_tiny_shape(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.transformers", "--out", str(tmp_path), "--shape", "tiny", "--layers", "2",
         "--tokens", "64", "8", "--decode", "3", "--repeat", "1", "--only", "strata"],
        cwd=ROOT, env={**os.environ, "STRATA_HIP_RUNTIME": "software"}, capture_output=True, text=True, timeout=1000,
        check=False)
    assert done.returncode == 0, done.stderr
    run = json.loads((tmp_path / "transformers.json").read_text())
    assert [name for name in run["arms"] if name.startswith("strata")] == [
        "strata, files", "strata, files, 2 GiB cache", "strata, pageable", "strata, pinned", "strata, pinned, 16 slots"]
    for name, row in run["arms"].items():
        assert row["equal"] is True, name
        assert set(row["prefill"]) == {"64", "8"}
        assert all((got["copied_gb"] > 0) == name.startswith("strata") for got in row["prefill"].values())
    assert set(run["walks"]) == {"all ahead", "routed only", "by the formula"}
    assert [(row["arm"], row["cache"]) for row in run["first_token"]] == [("strata, files", "warm"), ("strata, files", "cold")]
    assert all(row["seconds"] > row["load_seconds"] > 0 < row["again_seconds"] for row in run["first_token"])
    table = (tmp_path / "transformers.md").read_text()
    assert table in done.stdout
    assert all(f"| {name} |" in table for name in run["arms"])
