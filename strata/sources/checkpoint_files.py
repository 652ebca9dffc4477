"""Files of a checkpoint: opened once, read in bounded pieces, mapped when somebody needs the addresses."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from strata.errors import CheckpointError
from strata.sources.files import File

__all__ = ["CheckpointFile", "TensorPlace", "check_places", "readable"]


class TensorPlace(NamedTuple):
    """Where a tensor's bytes lie. `shape` counts elements of `itemsize` bytes (blocks, of a block format)."""

    name: str
    dtype: str
    itemsize: int
    shape: tuple[int, ...]
    file: int
    offset: int
    nbytes: int


class CheckpointFile:
    """A file of a checkpoint, open for reading: a name that is replaced later keeps its old bytes here."""

    __slots__ = ("_direct", "_map", "_reader", "file", "path", "size")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = readable(path)
        self._map: npt.NDArray[np.uint8] | None = None
        self._direct: File | None = None
        try:
            self.file: File | None = File(os.fsdecode(path))
        except OSError:
            raise
        except ValueError as problem:  # no regular file, or a NUL in the name
            raise CheckpointError(f"{self.path}: {problem}") from None
        self.size = self.file.nbytes
        # Where descriptors read by position, the file's own does; elsewhere one for headers, mappings and pinning.
        self._reader = None if hasattr(os, "preadv") else open(path, "rb", buffering=0)

    def read(self, offset: int, nbytes: int) -> bytes:
        """Bytes of the file; its length was checked before."""
        room = bytearray(nbytes)
        self.read_into(offset, memoryview(room))
        return bytes(room)

    def read_into(self, offset: int, room: memoryview) -> None:
        """Fill `room` from a place in the file. One thread at a time where the system reads by no position.

        Raises
        ------
        CheckpointError
            The file ends before: it was truncated.
        OSError
            It cannot be read.
        """
        done = 0
        while done < len(room):
            part = room[done : done + 2**30]
            if self._reader is None:
                got = os.preadv(self.fileno(), [part], offset + done)
            else:
                self._reader.seek(offset + done)
                got = self._reader.readinto(part) or 0
            if got == 0:
                raise CheckpointError(f"{self.path}: ends at byte {offset + done}, {self.size} bytes when it was "
                                      "opened: it was truncated")
            done += got

    def mapping(self) -> npt.NDArray[np.uint8]:
        """The file as a read-only array over its mapping, made at the first call."""
        if self._map is None:
            now = os.fstat(self.fileno()).st_size
            if now < self.size:
                raise CheckpointError(f"{self.path}: {now} bytes, {self.size} when it was opened: it was truncated")
            self._map = np.frombuffer(mmap.mmap(self.fileno(), self.size, access=mmap.ACCESS_READ), np.uint8)
        return self._map

    def source(self, direct: bool) -> File:
        """The file for workers to read, through the page cache or past it."""
        self.fileno()
        assert self.file is not None
        if not direct:
            return self.file
        if self._direct is None:
            again = File(self.file.path, direct=True)
            ours, theirs = os.fstat(self.fileno()), os.stat(self.file.path)
            if (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino) or again.nbytes != self.size:
                raise CheckpointError(f"{self.path}: another file has this name since it was opened")
            self._direct = again
        return self._direct

    @property
    def mapped(self) -> bool:
        """Whether it has been mapped."""
        return self._map is not None

    def fileno(self) -> int:
        """A descriptor of the system's."""
        if self.file is None:
            raise ValueError(f"{self.path} is closed")
        return self.file.handle if self._reader is None else self._reader.fileno()

    def close(self) -> None:
        """Let the file go. It stays open as long as lists read it, its mapping as long as an array is over it."""
        self._map = self.file = self._direct = None
        if self._reader is not None:
            self._reader.close()


def readable(path: Any) -> str:
    """A path for messages, whatever bytes it has."""
    try:
        name = os.fspath(path)
    except TypeError:
        raise TypeError(f"paths has a {type(path).__name__}: a path is needed") from None
    text = os.fsdecode(name)
    return text.encode("utf-8", "backslashreplace").decode() if text.isprintable() else ascii(text)


def check_places(places: list[TensorPlace], file: CheckpointFile, first: int) -> None:
    """Refuse tensors of one file that reach beyond it or overlap; the data begin at byte `first`."""
    placed = sorted((place for place in places if place.nbytes), key=lambda place: place.offset)
    end, before = first, None
    for place in placed:
        if place.offset < end:
            raise CheckpointError(f"{file.path}: {short(place.name)} begins at byte {place.offset}, "
                                  + (f"but {short(before.name)} ends at {end}: they overlap" if before else
                                     f"before the data's begin at {end}"))
        end, before = place.offset + place.nbytes, place
    if before is not None and end > file.size:
        raise CheckpointError(f"{file.path}: {short(before.name)} ends at byte {end}, and the file at {file.size}: "
                              "it is truncated, or its header is wrong")


def short(name: str) -> str:
    """A tensor's name for messages."""
    return repr(name if len(name) <= 200 else name[:200] + "…")


def folder_files(folder: Path, suffix: str) -> list[Path]:
    """Files of a folder with a suffix, sorted by name."""
    return sorted(path for path in folder.iterdir() if path.name.endswith(suffix))
