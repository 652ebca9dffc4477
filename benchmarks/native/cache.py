"""A private cache for what is built once."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from strata.tools.files import UnsafeFolder, cache_home

__all__ = ["private_cache"]


def private_cache(*names: str) -> Path:
    """Return a folder of the user's cache that nobody else can write to; made where there is none.

    Parameters
    ----------
    *names : str
        The folder's place under ``strata`` in the cache (``XDG_CACHE_HOME``, else ``~/.cache``; on Windows
        ``LOCALAPPDATA``).

    Raises
    ------
    UnsafeFolder
        ``strata`` or a folder below it is no folder of this user's, or others may write to it.
    OSError
        It cannot be made.
    """
    folder = cache_home()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = os.stat(folder)
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise UnsafeFolder(errno.EPERM, "everybody may rename what lies in it", str(folder))
    for name in ("strata", *names):
        folder /= name
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            pass
        _check_private(folder)
    return folder


def _check_private(folder: Path) -> None:
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeFolder(errno.ENOTDIR, "is no folder (symbolic links are not followed here)", str(folder))
    if hasattr(os, "geteuid"):
        if found.st_uid != os.geteuid():
            raise UnsafeFolder(errno.EPERM, f"belongs to user {found.st_uid}, not to {os.geteuid()}", str(folder))
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise UnsafeFolder(
                errno.EPERM, f"has mode {stat.S_IMODE(found.st_mode):04o}: others may write to it", str(folder))
