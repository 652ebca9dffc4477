"""A workload that follows a plan, and the command in this process."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FAKE = Path(__file__).parent / "fake_workload.py"


class Planned:
    """A plan for the fake workload, by settings (``"8,16,16"``), by peer, or for all, and the log of its processes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "plan.json"
        self.log = folder / "log"
        self.fifo = folder / "fifo"
        self.plan: dict[str, Any] = {
            "log": str(self.log),
            "fifo": str(self.fifo),
            "all": {
                "walls": [[100.0, 101.0, 102.0], [103.0, 104.0, 105.0]],
                "tokens": 50,
                "copy_wait": 7.0,
                "model": {"layers": 4, "experts": 8},
                "seed": 3,
                "fingerprint": "aa",
                "counters": {"direct_copies": 40, "fences": 0},
            },
        }

    def set(self, settings: str, **fields: Any) -> None:
        self.plan.setdefault(settings, {}).update(fields)

    @property
    def command(self) -> str:
        return self._command("--settings {settings}")

    def peer(self, name: str) -> str:
        """An argument of ``--peer``."""
        return f"{name}={self._command('--peer ' + shlex.quote(name))}"

    def _command(self, who: str) -> str:
        self.path.write_text(json.dumps(self.plan))
        return (f"{{python}} {shlex.quote(str(FAKE))} --plan {shlex.quote(str(self.path))} {who} "
                "--warmups {warmups} --samples {samples}")

    def started(self) -> list[list[Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    return Planned(tmp_path)


@pytest.fixture
def bench_command(planned: Planned) -> Callable[..., list[str]]:
    """Return the command's arguments for the planned workload, with little memory asked for."""

    def command(*arguments: str) -> list[str]:
        return ["bench", "--workload", planned.command, "--min-available", "1MiB", *arguments]

    return command


@pytest.fixture
def bench_process(bench_command: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """The same for a process of its own."""
    return lambda *arguments: [sys.executable, "-m", "strata", *bench_command(*arguments)]
