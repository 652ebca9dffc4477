"""A small case that can be varied, and the command in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

#: 45 direct and 29 staged entries; what 1/1/1 counts follows from the definitions: one record and one wait
#: an entry, one `dma_done` a job, and a wait for each job beyond the host ring's depth.
SMALL: dict[str, Any] = {
    "expert_bytes": 4096,
    "direct_pinned_copies": 45,
    "staged_copies": 29,
    "order": "all direct copies first",
    "gpu_ring": 8,
    "host_ring": 4,
    "arms": {"control": {"copy_batch": 1, "stage_batch": 1, "stage_copy_batch": 1}},
    "counters": {
        "control": {
            "direct_copied_records": 45,
            "direct_reuse_waits": 45,
            "staged_copied_records": 29,
            "staged_reuse_waits": 29,
            "dma_done_records": 29,
            "host_reuse_waits": 25,
        }
    },
}


@pytest.fixture
def small() -> dict[str, Any]:
    """The small case's fields, free to change."""
    copy: dict[str, Any] = json.loads(json.dumps(SMALL))
    return copy


@pytest.fixture
def case_file(tmp_path: Path) -> Callable[[Any], str]:
    """Write fields (or text) as a case and give the file's path."""

    def write(fields: Any) -> str:
        path = tmp_path / "case.json"
        path.write_text(fields if isinstance(fields, str) else json.dumps(fields))
        return str(path)

    return write


@pytest.fixture
def strata_command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``python -m strata`` on the software runtime and wait for it."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "strata", *arguments],
            env={**os.environ, "STRATA_HIP_RUNTIME": "software", **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run
