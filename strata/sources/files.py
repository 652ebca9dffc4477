"""Files whose bytes strata's workers read by position, without a mapping."""

from __future__ import annotations

import os
import stat
import sys
import weakref
from typing import Any, NoReturn

from strata.errors import SourceReadError

__all__ = ["File", "read_error"]

#: Of direct reads: offset, length and address. A multiple of every common disk's block.
DIRECT_ALIGNMENT = 4096

# Files by handle, for the words of an error: native threads know handles alone.
_open: weakref.WeakValueDictionary[int, File] = weakref.WeakValueDictionary()


class File:
    """A regular file, opened once for reading. What is replaced under its name later does not matter.

    Parameters
    ----------
    path : str or os.PathLike
    direct : bool, optional
        Read past the page cache (``O_DIRECT``): for models that are larger than the host's memory. Default: through the
        page cache.

    Attributes
    ----------
    path : str
    nbytes : int
        Size when it was opened.
    direct : bool
    handle : int
        A descriptor; on Windows a HANDLE opened for overlapped reads.

    Raises
    ------
    OSError
        If it cannot be opened, or direct reads are asked for and the file system has none.
    ValueError
        If it is no regular file, or the path has a NUL.

    Notes
    -----
    It is closed once nothing refers to it any more; lists of copies that name it keep it open. Any number of lists,
    requests and threads may use it. Nothing is locked: what others write meanwhile may be read.
    """

    __slots__ = ("__weakref__", "_finalizer", "direct", "handle", "nbytes", "path")

    def __init__(self, path: str | os.PathLike[str], *, direct: bool = False) -> None:
        if not isinstance(direct, bool):
            raise TypeError(f"direct is {direct!r}; True or False is wanted")
        self.path = os.fspath(path) if hasattr(path, "__fspath__") else path
        if not isinstance(self.path, str):
            raise TypeError(f"path is {path!r}; a str or an os.PathLike of one is wanted")
        if "\0" in self.path:
            raise ValueError(f"path is {self.path!r}, which has a NUL")
        self.direct = direct
        self.handle, self.nbytes, close = (_open_windows if sys.platform == "win32" else _open_posix)(self.path, direct)
        self._finalizer = weakref.finalize(self, close, self.handle)
        self._finalizer.atexit = False  # a request may read it up to the end, which closes it
        _open[self.handle] = self

    @property
    def row(self) -> tuple[int, int, int]:
        """Handle, size and alignment of direct reads, as the engine's ``SourceFile`` has them."""
        return self.handle, self.nbytes, DIRECT_ALIGNMENT if self.direct else 0

    def __repr__(self) -> str:
        return f"<strata.sources.File {self.path!r}: {self.nbytes:,} bytes{', direct' if self.direct else ''}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a File cannot be pickled or copied: it is open in this process alone")


def _open_posix(path: str, direct: bool) -> tuple[int, int, Any]:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO is refused below, not waited for
    if direct:
        if not hasattr(os, "O_DIRECT"):
            raise OSError(f"direct is True for {path!r}, and this system has no O_DIRECT")
        flags |= os.O_DIRECT
    handle = os.open(path, flags)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"path is {path!r}, which is no regular file")
    except BaseException:
        os.close(handle)
        raise
    return handle, status.st_size, os.close


def _open_windows(path: str, direct: bool) -> tuple[int, int, Any]:
    import ctypes
    from ctypes import wintypes

    kernel = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
    kernel.CreateFileW.restype = wintypes.HANDLE
    kernel.CreateFileW.argtypes = [wintypes.LPCWSTR, wintypes.DWORD, wintypes.DWORD, ctypes.c_void_p, wintypes.DWORD,
                                   wintypes.DWORD, wintypes.HANDLE]
    kernel.CloseHandle.argtypes = [wintypes.HANDLE]
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"path is {path!r}, which is no regular file")
    # GENERIC_READ; shared for reading, writing, deleting; OPEN_EXISTING; FILE_FLAG_OVERLAPPED, FILE_FLAG_NO_BUFFERING
    handle = kernel.CreateFileW(path, 0x80000000, 7, None, 3, 0x40000000 | (0x20000000 if direct else 0), None)
    if handle is None or handle == wintypes.HANDLE(-1).value:
        raise ctypes.WinError(ctypes.get_last_error())  # type: ignore[attr-defined]
    return handle, os.stat(path).st_size, kernel.CloseHandle


def read_error(handle: int, code: int, offset: int, entry: int, got: int, wanted: int) -> SourceReadError:
    """The exception for a read that failed (`code`) or came short (`code` 0) in a worker's thread."""
    file = _open.get(handle)
    return SourceReadError(code, None if file is None else file.path, offset, entry, got, wanted)
