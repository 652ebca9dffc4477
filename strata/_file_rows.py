"""Which segments of a list lie in which file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from strata._copy_rows import converted, integer_rows, place_of
from strata.sources.files import File

__all__ = ["FileRows", "file_rows_of"]

_Int64 = npt.NDArray[np.int64]
_Int32 = npt.NDArray[np.int32]


class FileRows:
    """A table of open files, and an index in it for each segment.

    Attributes
    ----------
    files : tuple of File
    index : (segments,) int32, read-only
        -1 where the segment lies in memory.
    table : (files, 3) int64, read-only
        Handle, size and alignment, the twin of the engine's ``SourceFile``.
    """

    __slots__ = ("files", "index", "table")

    def __init__(self, files: tuple[File, ...], index: _Int32) -> None:
        self.files = files
        self.index = np.ascontiguousarray(index, np.int32)
        self.table = np.array([file.row for file in files], np.int64).reshape(len(files), 3)
        self.index.flags.writeable = False
        self.table.flags.writeable = False

    def check(self, offsets: npt.NDArray[np.uint64], nbytes: _Int64, place: Callable[[int], str]) -> None:
        """Refuse a segment that does not lie in its file as that was opened."""
        sizes = self.table[:, 1].astype(np.uint64)
        room = np.append(sizes, np.uint64(2**64 - 1))[self.index]  # -1, memory: the last one
        bad = np.flatnonzero((offsets > room) | (nbytes.astype(np.uint64) > room - np.minimum(offsets, room)))
        bad = bad[self.index[bad] >= 0]
        if bad.size:
            k = int(bad[0])
            file = self.files[int(self.index[k])]
            raise ValueError(f"{place(k)} has {int(nbytes[k])} bytes at offset {int(offsets[k])} of {file.path!r}, "
                             f"which has {file.nbytes}")

    def taken(self, rows: _Int64) -> FileRows:
        """The same table for other rows."""
        return FileRows(self.files, self.index[rows])

    @staticmethod
    def joined(parts: Sequence[FileRows | None], lengths: Sequence[int]) -> FileRows | None:
        """One table for lists that are joined."""
        if all(part is None for part in parts):
            return None
        numbers: dict[File, int] = {}
        index = []
        for part, length in zip(parts, lengths, strict=True):
            if part is None:
                index.append(np.full(length, -1, np.int32))
                continue
            new = np.array([numbers.setdefault(file, len(numbers)) for file in part.files] + [-1], np.int32)
            index.append(new[part.index])
        return FileRows(tuple(numbers), np.concatenate(index))


def file_rows_of(files: Any, file_index: Any, segments: int, starts: _Int64) -> FileRows:
    """Check the two arguments of `strata.ExpertCopies`."""
    if files is None or file_index is None:
        missing, there = ("files", "file_index") if files is None else ("file_index", "files")
        raise ValueError(f"{missing} is None and {there} is given; both or none are wanted")
    table = tuple(files)
    for k, file in enumerate(table):
        if not isinstance(file, File):
            raise TypeError(f"files[{k}] is a {type(file).__name__}; a strata.sources.File is wanted")
    rows = converted("file_index", integer_rows("file_index", file_index, segments), np.int64, len(table) - 1,
                     lambda segment: place_of(starts, segment), -1)  # fmt: skip
    return FileRows(table, rows.astype(np.int32))
