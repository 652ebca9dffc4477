"""The example without torch looks at every expert's bytes itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "embed.py"


def test_embed(tmp_path: Path) -> None:
    """All experts, half of them staged."""
    environment = {**os.environ, "STRATA_HIP_RUNTIME": "software"}
    done = subprocess.run([sys.executable, str(EXAMPLE)], cwd=tmp_path, env=environment, capture_output=True, text=True,
                          timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("copies")] == [["64", "64"]]
