"""The HIP symbols that strata uses: one list of them, in the docs, the header, the probe and both runtimes."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

import strata
from strata.runtime import _libraries, cuda, software

REPOSITORY = Path(__file__).resolve().parents[2]
#: An installed package has no sources.
CALLS = REPOSITORY / "strata" / "_hip.pyx"

#: The one that older libraries may lack.
OPTIONAL = {"hipMemcpyBatchAsync"}


@pytest.fixture(scope="module")
def called() -> set[str]:
    """What ``_hip.pyx`` calls."""
    names = re.findall(r"cyhip\.(hip\w+)\(", CALLS.read_text())
    assert len(set(names)) > 30
    return set(names)


def test_the_docs_list_every_symbol_and_no_other(called: set[str]) -> None:
    page = (REPOSITORY / "docs" / "hip_symbols.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `hip")]
    listed = {name for row in rows for name in re.findall(r"`(hip\w+)`", row)}
    assert listed == called


def test_every_symbol_is_resolved_when_the_runtime_is_chosen(called: set[str]) -> None:
    """A first call on another thread would look it up there, under the GIL, and lose the error."""
    text = CALLS.read_text()
    begin = text.index("def _resolve_symbols")
    body = text[begin : text.index("\ndef ", begin + 1)]
    resolved = set(re.findall(r"cyhip\.(hip\w+)\(", body)) | {"hipGetDeviceCount"}  # the very first call
    assert called - resolved == set()


def test_every_symbol_is_looked_for_before_a_library_is_taken(called: set[str]) -> None:
    assert set(_libraries.NEEDED) | OPTIONAL | {"hipGetDeviceCount"} >= called
    assert set(_libraries.NEEDED) & OPTIONAL == set()


def test_the_header_declares_every_symbol(called: set[str], header: str) -> None:
    declared = set(re.findall(r"STRATA_HIP_API [^;]*?\b(hip\w+)\(", header))
    assert called - declared == set()


@pytest.mark.parametrize("runtime", [software, cuda], ids=["software", "cuda"])
def test_both_runtimes_have_every_function_of_the_header(runtime, header: str) -> None:
    library = ctypes.CDLL(str(runtime.library_path()))
    declared = set(re.findall(r"STRATA_HIP_API [^;]*?\b(hip\w+)\(", header))
    assert {name for name in declared if not hasattr(library, name)} == set()


def test_the_software_runtime_has_what_clients_of_hip_expect() -> None:
    library = ctypes.CDLL(str(software.library_path()))
    text = Path(strata.get_include(), "hip", "hip_client.h").read_text()
    declared = set(re.findall(r"STRATA_HIP_API [^;]*?\b(hip\w+)\(", text))
    assert len(declared) >= 26
    assert {name for name in declared if not hasattr(library, name)} == set()
