"""The compiled loops are built into, and loaded from, a cache that is this user's alone."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import native
from strata.tools.files import UnsafeFolder

FAKE = "def plan():\n    return 'built here'\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a compiler that makes a file of any kind."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir(mode=0o1777)
    monkeypatch.setattr(native.sysconfig, "get_config_var", lambda name: ".py")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a compiled module has none

    def compiled(command: list[str], cwd: str, **options: object) -> None:
        (Path(cwd) / "loops.py").write_text(FAKE)

    monkeypatch.setattr(subprocess, "run", compiled)
    return tmp_path / "cache"


def test_it_is_built_once_into_the_private_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.load().plan() == "built here"
    (built,) = cache.rglob("loops.py")
    for folder in (cache / "strata", cache / "strata" / "benchmarks", built.parent):
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert os.listdir(built.parent) == ["loops.py"]
    monkeypatch.setattr(subprocess, "run", None)
    assert native.load().plan() == "built here"


def test_what_lies_in_the_shared_temporary_folder_is_not_loaded(cache: Path, tmp_path: Path) -> None:
    """The place that it was once loaded from."""
    native.load()
    (built,) = cache.rglob("loops.py")
    planted = tmp_path / "tmp" / f"strata-benchmarks-{built.parent.name}"
    planted.mkdir()
    (planted / "loops.py").write_text("raise RuntimeError('another user\'s')")
    built.unlink()
    assert native.load().plan() == "built here"


def test_a_cache_of_others_is_refused(cache: Path) -> None:
    native.load()
    (built,) = cache.rglob("loops.py")
    built.parent.chmod(0o777)
    with pytest.raises(UnsafeFolder):
        native.load()
