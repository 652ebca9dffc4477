"""What the repository ships of measurements: small files, and nothing of the machine's folders that made them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = sorted(path for path in (ROOT / "benchmarks" / "results").rglob("*") if path.is_file())
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
#: Folders that are there on one machine alone. /dev, /proc, /sys and /opt/rocm are named where they are meant.
_MACHINE = re.compile(r"(?<![\w.*-])(?:/(?:tmp|home|root|work|mnt|srv|var|Users|usr|scratch|data|workspace)/|[A-Z]:\\)[^\s`'\"]*")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [*RESULTS, *PAGES], ids=named)
def test_no_folder_of_a_machine_is_named(path: Path) -> None:
    assert _MACHINE.findall(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", [path for path in RESULTS if path.suffix == ".json"], ids=named)
def test_json_is_compact(path: Path) -> None:
    """A line for each thing that was measured, so that a change of one shows."""
    text = path.read_text(encoding="utf-8")
    json.loads(text)
    assert len(text.splitlines()) <= 300


def test_a_path_of_a_machine_is_found() -> None:
    for text in ("--out /tmp/race", '"/home/me/x"', "(/root/a)", r"C:\Users\me"):
        assert _MACHINE.search(text), text
    for text in ("tests/tmp/x", "https://x.org/home/x", "../data/x", "/dev/null", "/proc/self/maps"):
        assert not _MACHINE.search(text), text
