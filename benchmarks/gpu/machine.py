"""What a result has to say of the machine and the programs that it was measured with."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

from benchmarks.ab.machine import commit_here, processor

__all__ = ["commit", "describe"]

_PACKAGES = ("strata-moe", "hip-python", "torch", "triton", "numpy", "accelerate", "diffusers", "freetoken", "flashlib")


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def commit(given: str | None) -> str:
    """The commit that was named, else the checkout's, with a mark where files differ from it."""
    return given or commit_here()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def describe() -> dict[str, object]:
    """Device, driver, processor, versions; asks ``nvidia-smi`` and changes nothing."""
    fields = ("name", "driver_version", "memory.total", "pcie.link.gen.max", "pcie.link.width.max")
    smi = _output("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
    values = [part.strip() for part in smi.splitlines()[0].split(",")] if smi else []
    device = dict(zip(fields, values, strict=True)) if len(values) == len(fields) else {"name": "unknown"}
    return {
        "device": device,
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": sys.version.split()[0],
        "versions": {package: _version(package) for package in _PACKAGES},
    }
