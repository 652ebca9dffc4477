"""The cache of what the benchmarks build: the user's alone, since it is loaded."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from benchmarks.native.cache import private_cache
from strata.tools.files import UnsafeFolder

unix = pytest.mark.skipif(sys.platform == "win32", reason="modes, owners and devices are Unix's")
as_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="gives files to another user")
ANOTHER = 12345


def mode(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@unix
def test_the_cache_is_the_users_alone(cache: Path) -> None:
    umask = os.umask(0)
    try:
        folder = private_cache("benchmarks", "key")
    finally:
        os.umask(umask)
    assert folder == cache / "strata" / "benchmarks" / "key"
    assert [mode(place) for place in (cache / "strata", cache / "strata" / "benchmarks", folder)] == [0o700] * 3
    assert private_cache("benchmarks", "key") == folder


@unix
@pytest.mark.parametrize("place", ["strata", "strata/benchmarks", "strata/benchmarks/key"])
@pytest.mark.parametrize("given", [0o777, 0o770, 0o1777])
def test_a_cache_that_others_may_write_to(cache: Path, place: str, given: int) -> None:
    private_cache("benchmarks", "key")
    (cache / place).chmod(given)
    with pytest.raises(UnsafeFolder, match="others may write to it"):
        private_cache("benchmarks", "key")


@unix
@as_root
def test_a_cache_of_somebody_else(cache: Path) -> None:
    os.chown(private_cache("benchmarks"), ANOTHER, -1)
    with pytest.raises(UnsafeFolder, match=f"belongs to user {ANOTHER}"):
        private_cache("benchmarks")


@unix
def test_a_link_is_no_cache(cache: Path, tmp_path: Path) -> None:
    private_cache()
    (tmp_path / "theirs").mkdir(mode=0o700)
    (cache / "strata" / "benchmarks").symlink_to(tmp_path / "theirs")
    with pytest.raises(UnsafeFolder, match="is no folder"):
        private_cache("benchmarks")


@unix
def test_a_cache_in_a_place_where_everybody_may_rename(cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(UnsafeFolder, match="everybody may rename"):
        private_cache()
    cache.chmod(0o1777)  # as /tmp is
    assert private_cache().is_dir()
