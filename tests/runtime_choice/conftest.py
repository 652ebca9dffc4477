from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from strata.runtime import software
from tests.support.scripts import run_script

HERE = Path(__file__).parent

#: Before each script here: nothing is imported that uses HIP.
PROLOGUE = """
import logging, os, sys
import strata
from strata import runtime
logging.getLogger("strata").addHandler(logging.NullHandler())   # a warning of *auto* is no mess on stderr here

def attempt(name):
    try:
        print(name, "->", runtime.use(name), flush=True)
    except BaseException as error:
        print(name, "->", type(error).__name__, error, flush=True)

def stream(count=20):
    import numpy as np
    rows = np.arange(count * 64, dtype=np.uint8).reshape(count, 64)
    with strata.ExpertStreamer(64, gpu_ring=4) as streamer:
        with streamer.begin(strata.ExpertCopies.from_buffers(list(rows))) as request:
            request.skip(count)
    print("streamed", request.counters.staged_copies, flush=True)
"""


@pytest.fixture(scope="session")
def make_fake(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that builds a useless libamdhip64 into a ROCm tree; it gives the tree's root."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler for a library that is not there")

    def make(file_name: str, *, status: int, count: int, named: bool = True) -> Path:
        root = tmp_path_factory.mktemp("rocm")
        (root / "lib").mkdir()
        flags = [f"-DSTATUS={status}", f"-DCOUNT={count}", *(["-DNAMED"] if named else [])]
        command = [compiler, "-shared", "-fPIC", *flags, str(HERE / "fake_hip.c"), "-o", str(root / "lib" / file_name)]
        subprocess.run([*command, "-Wl,-soname,libamdhip64.so.5"], check=True)
        return root

    return make


@pytest.fixture(scope="session")
def make_whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes a ROCm tree whose library is whole: the software runtime by another name."""

    def make(file_name: str) -> Path:
        root = tmp_path_factory.mktemp("rocm")
        (root / "lib").mkdir()
        shutil.copy(software.library_path(), root / "lib" / file_name)
        return root

    return make


@pytest.fixture(scope="session")
def _no_rocm_here() -> None:
    """Skips where the machine has a ROCm of its own: it would be found first, or as well."""
    out = run_script("attempt('rocm')", prologue=PROLOGUE).out
    if out[0] != "rocm -> RuntimeNotFound the rocm runtime cannot be used: no libamdhip64 is mapped, in rocm_sdk, " \
                 "in ROCM_PATH, in /opt/rocm or known to the loader":
        pytest.skip(f"this machine has a libamdhip64 of its own: {out[0]}")


@pytest.fixture(scope="session")
def _no_gpu_here() -> None:
    """Skips where *auto* would take a real device."""
    out = run_script("attempt('auto')", prologue=PROLOGUE).out
    if out[0] != "auto -> software":
        pytest.skip(f"this machine has a GPU: {out[0]}")
