"""Runs scripts in processes of their own: what ends a process can only be seen from outside."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import strata

#: Where the package under test lies, so that a script imports the same one from any folder.
PACKAGE_ROOT = str(Path(strata.__file__).resolve().parents[1])

#: Before most scripts: pinned and pageable entries of 64 bytes, and short names.
PROLOGUE = """
import os, signal, sys, threading
import numpy as np
import strata
from strata.runtime.software import control
strata.runtime.use("software")
pinned = strata.pinned_empty((64, 64), np.uint8)
pinned[:] = np.arange(64, dtype=np.uint8)[:, None]
pageable = np.array(pinned) + np.uint8(64)
direct = strata.ExpertCopies.from_buffers(list(pinned))
staged = strata.ExpertCopies.from_buffers(list(pageable))

def say(*words):
    print(*words, flush=True)
"""


@dataclass(frozen=True)
class Ended:
    """How a script ended."""

    status: int
    out: list[str]
    err: str


def environment(**changes: str | None) -> dict[str, str]:
    """The process's environment without strata's and ROCm's variables, and with changes (None: unset)."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("STRATA_", "ROCM_", "HIP_")) and name not in ("LD_LIBRARY_PATH", "PYTHONPATH")
    }
    # A memory error must not pass for an orderly end, nor a warning for silence.
    env |= {"PYTHONPATH": PACKAGE_ROOT, "PYTHONFAULTHANDLER": "1"}
    for name, value in changes.items():
        env.pop(name, None)
        if value is not None:
            env[name] = value
    return env


@cache
def _private_folder() -> str:
    """Not the checkout: the installed package is meant. Nor a shared folder: `python -c` imports from where it runs."""
    folder = tempfile.mkdtemp(prefix="strata-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def source(script: str, prologue: str = PROLOGUE) -> str:
    """The whole text of a script."""
    return prologue + textwrap.dedent(script)


def run_script(script: str, *, prologue: str = PROLOGUE, timeout: float = 60, **changes: str | None) -> Ended:
    """Run a script to its end. One that does not end within the timeout fails the test."""
    done = subprocess.run(
        # A process with threads that forks is what some scripts are about; Python 3.12 warns of it.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", source(script, prologue)],
        env=environment(**changes),
        capture_output=True,
        cwd=_private_folder(),
        text=True,
        timeout=timeout,
    )
    return Ended(done.returncode, done.stdout.splitlines(), done.stderr)


def start_script(script: str, *, prologue: str = PROLOGUE, **changes: str | None) -> subprocess.Popen[str]:
    """Start a script and leave it running, with pipes to its output."""
    return subprocess.Popen(
        [sys.executable, "-c", source(script, prologue)],
        env=environment(**changes),
        cwd=_private_folder(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended_well(outcome: Ended, status: int = 0) -> list[str]:
    """Assert that a script ended with a status and an empty stderr; return its lines."""
    assert (outcome.status, outcome.err) == (status, ""), outcome
    return outcome.out
