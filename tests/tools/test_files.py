"""Where reports may go: regular files are replaced and keep what they are; everything else is written to in place."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from strata.tools import files
from strata.tools.files import UnsafeFolder, check_ours, same_place, unwritable, write_json, write_whole
from tests.support.devices import device

unix = pytest.mark.skipif(sys.platform == "win32", reason="modes, owners and devices are Unix's")
as_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="gives files to another user")
ANOTHER = 12345


def mode(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def test_a_new_file_has_the_mode_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("")
    write_whole(tmp_path / "new", "text")
    assert (tmp_path / "new").read_text() == "text"
    assert mode(tmp_path / "new") == mode(tmp_path / "other")
    assert sorted(os.listdir(tmp_path)) == ["new", "other"]


@unix
@pytest.mark.parametrize("given", [0o600, 0o640, 0o664, 0o755])
def test_a_file_keeps_its_mode(tmp_path: Path, given: int) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(given)
    before = os.stat(path)
    write_whole(path, "new")
    assert path.read_text() == "new"
    assert mode(path) == given
    assert os.stat(path).st_ino != before.st_ino  # replaced: a reader has the old one or the new one


@unix
@as_root
def test_a_file_keeps_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    os.chown(path, ANOTHER, ANOTHER + 1)
    path.chmod(0o640)
    write_whole(path, "new")
    found = os.stat(path)
    assert (found.st_uid, found.st_gid, mode(path)) == (ANOTHER, ANOTHER + 1, 0o640)
    assert path.read_text() == "new"


@unix
def test_a_file_of_another_owner_is_written_to_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is not root could only put a file of his own there."""
    path = tmp_path / "file"
    path.write_text("old, and longer")
    before = os.stat(path)
    monkeypatch.setattr(os, "geteuid", lambda: before.st_uid + 1)
    write_whole(path, "new")
    assert path.read_text() == "new"
    assert os.stat(path).st_ino == before.st_ino


@unix
def test_a_file_whose_group_cannot_be_given_is_written_to_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its user is not in the group that root gave it; or root lacks the capability, as in a container."""
    path = tmp_path / "file"
    path.write_text("old, and longer")
    before = os.stat(path)
    fstat = os.fstat

    def of_another_group(handle: int) -> os.stat_result:
        found = list(fstat(handle))
        found[stat.ST_GID] += 1
        return os.stat_result(found)

    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fstat", of_another_group)
    monkeypatch.setattr(os, "fchown", refused)
    write_whole(path, "new")
    assert path.read_text() == "new"
    assert os.stat(path).st_ino == before.st_ino
    assert os.listdir(tmp_path) == ["file"]


def test_a_mount_point_is_written_to_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single file that a container was given: nothing can be renamed to it."""
    path = tmp_path / "file"
    path.write_text("old, and longer")

    def busy(*_: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(os, "replace", busy)
    write_whole(path, "new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]


@unix
def test_a_read_only_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o444)
    with pytest.raises(PermissionError, match="read-only"):
        write_whole(path, "new")
    assert (path.read_text(), mode(path)) == ("old", 0o444)
    assert unwritable("--json", path) == f"--json is {str(path)!r}, which cannot be written to"


@unix
@pytest.mark.parametrize("deep", [False, True])
def test_links_are_followed(tmp_path: Path, deep: bool) -> None:
    target = tmp_path / "elsewhere" / "file"
    target.parent.mkdir()
    target.write_text("old")
    target.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(target)
    if deep:
        (tmp_path / "again").symlink_to("link")
        link = tmp_path / "again"
    write_whole(link, "new")
    assert link.is_symlink()
    assert (target.read_text(), mode(target)) == ("new", 0o600)
    assert os.listdir(target.parent) == ["file"]


@unix
def test_a_link_to_nothing_makes_the_file_that_it_names(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("file")
    assert unwritable("--json", link) is None
    write_whole(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "file").read_text() == "new"


@unix
def test_a_loop_of_links_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        write_whole(tmp_path / "a", "new")
    assert "cannot be a file" in str(unwritable("--json", tmp_path / "a"))


@unix
def test_hard_links_stay_one_file(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("old, and longer")
    os.link(tmp_path / "one", tmp_path / "other")
    write_whole(tmp_path / "one", "new")
    assert (tmp_path / "other").read_text() == "new"


@unix
@pytest.mark.parametrize("linked", [False, True])
def test_a_device_stays_one(tmp_path: Path, linked: bool) -> None:
    """As root, a replaced /dev/null takes the machine's away."""
    node = path = device("null", tmp_path)
    if linked:
        path = tmp_path / "link"
        path.symlink_to(node)
    before = os.stat(node)
    assert unwritable("--json", path) is None
    write_json(path, {"a": 1})
    after = os.stat(node)
    assert (stat.S_ISCHR(after.st_mode), after.st_rdev, after.st_ino) == (True, before.st_rdev, before.st_ino)
    assert path.is_symlink() == linked


@unix
def test_a_full_device_is_an_error_of_writing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as raised:
        write_whole(device("full", tmp_path), "x" * 100_000)
    assert raised.value.errno == errno.ENOSPC


@unix
def test_a_fifo_passes_the_text_on(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_text()), daemon=True)
    reader.start()
    assert unwritable("--json", fifo) is None
    write_whole(fifo, "text" * 50_000)
    reader.join(60)
    assert read == ["text" * 50_000]
    assert stat.S_ISFIFO(os.stat(fifo).st_mode)


@unix
@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_standard_output_by_its_name(tmp_path: Path, kind: str) -> None:
    """What was printed before is still there: the file is neither replaced nor cut off."""
    program = ("import sys; from strata.tools.files import write_whole; print('before', flush=True); "
               "write_whole('/dev/stdout', 'report\\n'); print('after')")
    command = [sys.executable, "-c", program]
    if kind == "pipe":
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "before\nreport\nafter\n"
        return
    with open(tmp_path / "out", "a+") as out:
        subprocess.run(command, stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "before\nreport\nafter\n"


@pytest.mark.parametrize("length", [250, 255])
def test_a_name_as_long_as_names_can_be(tmp_path: Path, length: int) -> None:
    path = tmp_path / ("n" * length)
    assert unwritable("--json", path) is None
    write_whole(path, "one")
    write_whole(path, "two")
    assert path.read_text() == "two"
    assert len(os.listdir(tmp_path)) == 1


@pytest.mark.parametrize(("name", "words"), [
    ("n" * 300, "File name too long"), ("a\0b", "null"), ("folder", "which is a folder"), ("no/file", "cannot be written"),
    ("file/under", "cannot be written to"), ("", "which is a folder")])
def test_what_cannot_be_a_file_is_said_before_the_work(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    said = unwritable("--json", f"{tmp_path}/{name}")
    assert said is not None
    assert said.startswith("--json is ")
    assert words in said


def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "new \udcff")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_two_names_of_one_place(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    assert same_place(tmp_path / "link", tmp_path / "file")
    assert same_place(tmp_path / "new", f"{tmp_path}/./new")
    assert not same_place(tmp_path / "new", tmp_path / "file")
    assert not same_place(os.devnull, os.devnull)  # takes both; nothing is written here


def test_a_relative_cache_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "somewhere")
    assert files.cache_home() == Path.home() / ".cache"


@unix
def test_code_that_everybody_may_write_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "code.py"
    path.write_text("")
    check_ours(path)
    path.chmod(0o666)
    with pytest.raises(UnsafeFolder, match="everybody may write to it"):
        check_ours(path)
    path.chmod(0o644)
    monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)
    if os.stat(path).st_uid != 0:  # root's is everybody's to run
        with pytest.raises(UnsafeFolder, match="belongs to user"):
            check_ours(path)
