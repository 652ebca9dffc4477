"""Limits of the container, as the kernel's files tell them: an error instead of a kill."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import strata
from strata import _control_groups, _host_memory
from tests.support.sources import material

GIB = 2**30
NO_LIMIT_V1 = 9223372036854771712


def process(folder: Path, cgroup: str, mounts: list[str]) -> Path:
    """A process's folder under /proc, with what it says of its groups."""
    (folder / "proc").mkdir()
    (folder / "proc" / "cgroup").write_bytes(cgroup.encode())
    (folder / "proc" / "mountinfo").write_bytes("".join(f"{line}\n" for line in mounts).encode())
    return folder / "proc"


def group(folder: Path, version: int, limit: object, used: int = 0, cached: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if version == 1 else ("memory.max", "memory.current")
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    word = "total_" if version == 1 else ""
    (folder / "memory.stat").write_text(f"anon 5\n{word}active_file {cached // 2}\n{word}inactive_file {cached - cached // 2}\n")


@pytest.mark.parametrize(
    ("groups", "left"),
    [
        ({"": "max", "a": "max", "a/b": GIB}, GIB),
        ({"": "max", "a": GIB, "a/b": "max"}, GIB),  # one above counts
        ({"": 3 * GIB, "a": GIB, "a/b": 2 * GIB}, GIB),  # the least
        ({"": "max", "a": "max", "a/b": "max"}, None),
        ({}, None),
    ],
)
def test_version_2(tmp_path: Path, groups: dict[str, object], left: int | None) -> None:
    tree = tmp_path / "sys fs"
    for name, limit in groups.items():
        group(tree / name, 2, limit)
    mount = str(tree).replace(" ", "\\040")
    found = _control_groups.memory_left(process(tmp_path, "0::/a/b\n", [
        "20 1 0:5 / /proc rw - proc proc rw", f"41 31 0:38 / {mount} rw,relatime shared:9 - cgroup2 cgroup2 rw"]))
    assert (None if found is None else found[0]) == left
    assert found is None or "control group's limit of" in found[1]


@pytest.mark.parametrize(("limit", "left"), [(GIB, GIB), (NO_LIMIT_V1, None)])
def test_version_1(tmp_path: Path, limit: int, left: int | None) -> None:
    tree = tmp_path / "memory"
    group(tree, 1, NO_LIMIT_V1)
    group(tree / "docker" / "c0ffee", 1, limit)
    found = _control_groups.memory_left(process(tmp_path, "9:name=systemd:/\n4:cpu,memory:/docker/c0ffee\n0::/\n", [
        f"35 31 0:32 / {tmp_path} rw - cgroup cgroup rw,cpu", f"35 31 0:32 / {tree} rw - cgroup cgroup rw,memory"]))
    assert (None if found is None else found[0]) == left


def test_what_is_in_use_is_not_left_but_the_page_cache_is(tmp_path: Path) -> None:
    group(tmp_path / "tree", 2, 4 * GIB, used=3 * GIB, cached=GIB)
    where = process(tmp_path, "0::/\n", [f"1 1 0:1 / {tmp_path / 'tree'} rw - cgroup2 cgroup2 rw"])
    found = _control_groups.memory_left(where)
    assert found is not None
    assert found[0] == 2 * GIB


def test_a_container_sees_a_part_of_the_tree(tmp_path: Path) -> None:
    """The mount's root is the container's group: paths of the host lie outside of it."""
    group(tmp_path / "tree", 2, GIB)
    group(tmp_path / "tree" / "inner", 2, 2 * GIB)
    mount = [f"1 1 0:1 /docker/c0ffee {tmp_path / 'tree'} rw - cgroup2 cgroup2 rw"]
    for number, path in enumerate(("/docker/c0ffee/inner", "/docker/c0ffee", "/../elsewhere", "/")):
        (tmp_path / str(number)).mkdir()
        found = _control_groups.memory_left(process(tmp_path / str(number), f"0::{path}\n", mount))
        assert found is not None
        assert found[0] == GIB


def test_files_that_are_none_of_these(tmp_path: Path) -> None:
    assert _control_groups.memory_left(tmp_path) is None
    odd = process(tmp_path, "nonsense\n\n0::\n", ["", "short", "a b c d e - cgroup2"])
    (odd / "mountinfo").write_bytes(b"1 1 0:1 / /\xc4\xa3 rw - cgroup2 x rw\n\xff\n")
    assert _control_groups.memory_left(odd) is None


# --- what asks ---------------------------------------------------------------------------------------------------


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_control_groups, "memory_left", lambda: (2**21, "what is left of the control group's limit"))


def test_a_host_ring_beyond_the_limit_fails_the_request_that_needs_it(little_memory: None, software) -> None:
    """Direct entries do not need it; the error names the bytes; nothing was made."""
    nbytes = 2**18
    direct, staged = material("d" * 3, nbytes), material("dss", nbytes)
    with strata.ExpertStreamer(nbytes, gpu_ring=2, host_ring=16) as streamer:
        with streamer.begin(direct.copies) as request:
            request.skip(3)
        before = software.live()
        words = rf"{16 * nbytes} bytes were asked for \(16 buffers of {nbytes} bytes\); there are 2097152, what is left"
        for _ in range(2):
            with pytest.raises(MemoryError, match=words):
                streamer.begin(staged.copies)
        with streamer.begin(direct.copies) as request:
            with pytest.raises(MemoryError, match=words):
                request.extend(staged.copies)
        assert software.live() == before
    with strata.HostStager(nbytes, host_ring=16) as stager:
        with pytest.raises(MemoryError, match=rf"16 buffers of {nbytes} bytes\): {16 * nbytes} bytes are more than"):
            stager.start(staged.copies)
        stager.start(direct.copies)
        stager.finish()


def test_pinned_memory_beyond_the_limit(little_memory: None) -> None:
    with pytest.raises(MemoryError, match=r"shape is 4194304 of uint8: 4194304 bytes are more than 2097152, what is left"):
        strata.pinned_empty(2**22, np.uint8)
    assert strata.pinned_empty(2**20, np.uint8).nbytes == 2**20


def test_pools_of_the_replay_keep_to_it(little_memory: None) -> None:
    available = _host_memory.available()
    assert available is None or available <= 2**21
    assert _host_memory.room()[0] <= 2**21


def test_a_ring_that_nothing_needs_is_not_asked_for() -> None:
    """Larger than the host's memory, and never made."""
    with strata.ExpertStreamer(2**20, gpu_ring=2, host_ring=2**20) as streamer:
        assert streamer.host_ring == 2**20
