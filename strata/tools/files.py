"""Files that reports go to: whole, or not at all; and whether code may be trusted by where it lies."""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
import sys
from pathlib import Path
from typing import Any

__all__ = ["UnsafeFolder", "cache_home", "check_ours", "same_place", "unwritable", "write_json", "write_whole"]

_ANY_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


class UnsafeFolder(OSError):
    """A folder that holds, or would hold, what this process loads can be written to by somebody else."""


def write_whole(path: str | Path, text: str) -> None:
    """Write a text file in one step: a reader sees the old file or the whole new one.

    Symbolic links are followed. A regular file is replaced by a new one with its mode and its owner. Everything else
    is written to in place: a device, a FIFO, a file with several names (hard links), the file that the standard
    output goes to, a file which could only be replaced by one of another owner or group, and a mount point.

    Parameters
    ----------
    path : str or Path
    text : str
        Written as UTF-8.

    Raises
    ------
    OSError
        The file cannot be written, or nobody may write to it (its mode). One that is replaced is as it was.
    """
    found = _status(path)
    if found is None:
        _replace(os.path.realpath(path), text, None)
        return
    if stat.S_ISREG(found.st_mode):
        if not found.st_mode & _ANY_WRITE:  # root may write to it, and is not to do so unasked
            raise PermissionError(errno.EACCES, "the file is read-only", str(path))
        target = os.path.realpath(path)
        if _replaceable(target, found) and _replace(target, text, found):
            return
    with open(path, "a" if _is_output(found) else "w", encoding="utf-8") as file:
        file.write(text)


def write_json(path: str | Path, data: Any) -> None:
    """Write an object as indented JSON; see `write_whole`."""
    write_whole(path, json.dumps(data, indent=2) + "\n")


def unwritable(option: str, path: str | Path | None) -> str | None:
    """Say what is wrong with a place for a file, before the work rather than after it; None where nothing is.

    Parameters
    ----------
    option : str
        Name of the option, for the sentence.
    path : str, Path or None
        Its value.
    """
    if path is None:
        return None
    what = f"{option} is {str(path)!r:.200}"
    try:
        found = _status(path)
        folder = os.path.dirname(os.path.realpath(path))
    except (OSError, ValueError) as problem:  # too long, a loop of links, a NUL
        return f"{what}, which cannot be a file: {getattr(problem, 'strerror', None) or problem}"
    if found is None:
        if not str(path) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
            return f"{what}; the folder {folder!r:.200} cannot be written to"
        return None
    if stat.S_ISDIR(found.st_mode):
        return f"{what}, which is a folder; a file is wanted"
    if not found.st_mode & _ANY_WRITE or not os.access(path, os.W_OK):
        return f"{what}, which cannot be written to"
    return None


def same_place(one: str | Path, other: str | Path) -> bool:
    """Whether two paths are one regular file, or would become one."""
    if os.path.realpath(one) != os.path.realpath(other):
        return False
    found = _status(one)
    return found is None or stat.S_ISREG(found.st_mode)


def check_ours(path: str | Path) -> None:
    """Look at a file or folder whose code this process is about to run.

    Raises
    ------
    UnsafeFolder
        It belongs to another user than this one or root, or everybody may write to it.
    OSError
        It is not there.
    """
    found = os.stat(path)
    if hasattr(os, "geteuid"):
        if found.st_uid not in (0, os.geteuid()):
            raise UnsafeFolder(errno.EPERM, f"belongs to user {found.st_uid}, not to {os.geteuid()}", str(path))
        if found.st_mode & stat.S_IWOTH:
            raise UnsafeFolder(
                errno.EPERM, f"has mode {stat.S_IMODE(found.st_mode):04o}: everybody may write to it", str(path))


def cache_home() -> Path:
    """Return the user's cache folder; a relative ``XDG_CACHE_HOME`` is passed over, as its specification has it."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    given = os.environ.get("XDG_CACHE_HOME", "")
    return Path(given) if os.path.isabs(given) else Path.home() / ".cache"


def _status(path: str | Path) -> os.stat_result | None:
    """What a path is in the end; None where nothing is there."""
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_output(found: os.stat_result) -> bool:
    """Whether it is what standard output or error go to: that is added to, and not cut off."""
    for descriptor in (1, 2):
        try:
            if os.path.samestat(os.fstat(descriptor), found):
                return True
        except OSError:
            continue
    return False


def _replaceable(target: str, found: os.stat_result) -> bool:
    if found.st_nlink > 1 or _is_output(found):
        return False
    try:
        if not os.path.samestat(os.stat(target), found):  # /proc/self/fd/N, of a file without a name
            return False
    except OSError:
        return False
    if not os.access(os.path.dirname(target), os.W_OK):
        return False
    return not hasattr(os, "geteuid") or os.geteuid() in (0, found.st_uid)


def _replace(target: str, text: str, old: os.stat_result | None) -> bool:
    """Put a new file in an old one's place, or where none is; False where the old one can only be written to."""
    # A short name of its own: the target's may be as long as names can be.
    temporary = os.path.join(os.path.dirname(target), f".strata-{secrets.token_hex(8)}.new")
    mode = 0o666 if old is None else 0o600  # less the umask; an old file's mode comes at the end
    try:
        with open(temporary, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(text)
            if old is not None and not _gives_to(file.fileno(), old):
                os.unlink(temporary)
                return False
        if old is not None:
            os.chmod(temporary, stat.S_IMODE(old.st_mode))
        os.replace(temporary, target)
    except BaseException as problem:
        try:
            os.unlink(temporary)
        except FileNotFoundError:
            pass
        if old is not None and isinstance(problem, OSError) and problem.errno == errno.EBUSY:  # a mount point
            return False
        raise
    return True


def _gives_to(handle: int, old: os.stat_result) -> bool:
    """Whether a new file has, or gets, the owner and group of an old one."""
    new = os.fstat(handle)
    if not hasattr(os, "fchown") or (new.st_uid, new.st_gid) == (old.st_uid, old.st_gid):
        return True
    try:
        os.fchown(handle, old.st_uid, old.st_gid)
    except PermissionError:  # a group that this user is not in; root without the capability
        return False
    return True
