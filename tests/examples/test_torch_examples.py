"""The torch examples, as a user runs them: without a GPU, over the software runtime."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(*command: str, folder: Path) -> str:
    environment = {**os.environ, "STRATA_HIP_RUNTIME": "software", "OMP_NUM_THREADS": "1",
                   "PYTHONPATH": os.pathsep.join(filter(None, [str(EXAMPLES.parent), os.environ.get("PYTHONPATH")]))}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True,
                          timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "aborted" not in done.stderr     # each request was taken to its end
    return done.stdout


def test_a_mixture_of_experts_from_a_file(tmp_path: Path) -> None:
    assert "equal, bit by bit" in run(str(EXAMPLES / "torch_moe.py"), folder=tmp_path)


def test_two_processes_with_half_of_the_experts_each(tmp_path: Path) -> None:
    out = run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLES / "torch_two_gpus.py"),
              folder=tmp_path)
    assert "2 processes, equal, bit by bit" in out
