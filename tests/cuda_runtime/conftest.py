"""Builds the stub driver in its variants and runs scripts against it, each in a process of its own.

The runtime opens one driver library for good, so every test needs a fresh process.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from strata.runtime import cuda
from tests.support.built import built_once

HERE = pathlib.Path(__file__).parent
VARIANTS = {
    "cuda13": ["-DSTUB_BATCH12", "-DSTUB_BATCH13"],
    "cuda12.8": ["-DSTUB_BATCH12"],
    "cuda12.4": [],
    "lacking": ["-DSTUB_LACKS_HOST_REGISTER", "-DSTUB_LACKS_LAUNCH_HOST_FUNC"],
}


@pytest.fixture(scope="session")
def build_stub(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], pathlib.Path]:
    """Return a function that builds a variant of the stub driver once and gives its path."""
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler for the stub driver")

    def build(variant: str) -> pathlib.Path:
        command = [compiler, "-std=c++17", "-O0", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"]
        command += [*VARIANTS[variant], str(HERE / "stub_driver.cpp"), "-o"]
        return built_once(tmp_path_factory, f"libcuda_{variant}.so",
                          lambda library: subprocess.run([*command, str(library)], check=True))

    return build


@pytest.fixture
def run_client(build_stub: Callable[[str], pathlib.Path]) -> Callable[..., Any]:
    """Return a function that runs a script as a client of the runtime and gives what it reported.

    The script runs after ``from client import *``. It must exit with status 0 and an empty stderr.
    """

    def run(script: str, *, variant: str = "cuda13", driver: str | None = None, **environment: str) -> Any:
        env = {
            **os.environ,
            "PYTHONPATH": str(HERE),
            "CLIENT_RUNTIME": str(cuda.library_path()),
            "STRATA_CUDA_DRIVER": str(build_stub(variant)) if driver is None else driver,
            **environment,
        }
        done = subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", "from client import *\n" + textwrap.dedent(script)],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr or f"ended with {done.returncode}"
        assert done.stderr == ""
        lines = done.stdout.splitlines()
        return json.loads(lines[-1]) if lines else None

    return run
