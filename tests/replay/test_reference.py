"""The acceptance: the reference request, whole, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import resource, sys
from strata.tools.cli import main
status = main(sys.argv[1:])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print("peak resident bytes:", peak, file=sys.stderr)
sys.exit(status)
"""


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_reference_request_matches_in_both_arms(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "replay", "--runtime", "software", "--repeat", "1", "--json", str(out)],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(out.read_text())
    assert report["ok"] is True
    assert [arm["settings"] for arm in report["arms"]] == [[1, 1, 1], [8, 16, 16]]
    for arm in report["arms"]:
        assert arm["expected_from"] == "case"
        assert {name: arm["counters"][name] for name in arm["expected"]} == arm["expected"]
        assert arm["bytes_wrong"] == 0
    assert sum(arm["bytes_checked"] for arm in report["arms"]) == 2 * 27_165_542_400
    assert int(done.stderr.rpartition(":")[2]) < 4 * 2**30
