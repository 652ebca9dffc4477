"""The page docs/transformers.md, as a newcomer follows it: its command, then its first snippet."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra transformers")
pytest.importorskip("transformers", reason="needs the extra transformers")

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "transformers.md").read_text(encoding="utf-8")


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "STRATA_HIP_RUNTIME": "software"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.slow
@pytest.mark.timeout(1200)      # three processes that import torch and transformers, on whatever machine
def test_the_page_works_as_written(tmp_path: Path) -> None:
    (command,) = re.findall(r"^python (-m strata\.integrations\.transformers .*)$", PAGE, re.MULTILINE)
    made = run([sys.executable, *shlex.split(command)], tmp_path)
    assert made.returncode == 0, made.stderr
    first = re.search(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert first is not None
    done = run([sys.executable, "-c", first[1]], tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.match(r"tensor\(\[\[ +5, +17, +42, +7(, +\d+){8}\]\]\)", done.stdout), done.stdout
    # A second time there is something already.
    again = run([sys.executable, *shlex.split(command)], tmp_path)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.endswith("tiny-moe exists and is not empty\n")
