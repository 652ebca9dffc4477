"""Headers of GGUF files, versions 2 and 3: metadata is passed over, tensors are found. Split checkpoints.

The format's own reader makes views of every value of the metadata and maps the file; a tokenizer's vocabulary alone
takes it seconds. Here only the tensors' places are wanted, and no count in the header is believed before the file is
seen to be long enough for it.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from strata.errors import CheckpointError
from strata.sources.checkpoint_files import CheckpointFile, TensorPlace, check_places, folder_files, readable, short

__all__ = ["GGML_TYPES", "open_gguf"]

#: Number of a type: (name, elements of a block, bytes of a block).
GGML_TYPES = {
    0: ("float32", 1, 4), 1: ("float16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("int8", 1, 1), 25: ("int16", 1, 2), 26: ("int32", 1, 4), 27: ("int64", 1, 8), 28: ("float64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("bfloat16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip

_MOST_HEADER = 2**28
_MOST_DIMENSIONS = 8
_PIECE = 2**18
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_KEPT = {"general.alignment", "general.architecture", "split.no", "split.count", "split.tensors.count"}


def open_gguf(paths: Any) -> tuple[list[CheckpointFile], list[TensorPlace]]:
    """Open the files of a checkpoint and find its tensors; nothing but headers is read.

    Raises
    ------
    CheckpointError
        Naming file and tensor.
    OSError
        A file cannot be opened or read.
    """
    names = _files_of(paths)
    files: list[CheckpointFile] = []
    try:
        places: dict[str, TensorPlace] = {}
        splits: dict[int, str] = {}
        wanted = tensors = None
        while len(files) < len(names):
            number = len(files)
            files.append(CheckpointFile(names[number]))
            metadata, found = read_header(files[number], number)
            count, part = metadata.get("split.count", 1), metadata.get("split.no", 0)
            if count > 1 or wanted is not None or len(names) > 1:
                wanted = wanted or count
                tensors = metadata.get("split.tensors.count", tensors)
                if count != wanted or part in splits or part >= count:
                    raise CheckpointError(f"{files[number].path}: it is part {part} of {count}"
                                          + (f", as {splits[part]}" if part in splits else f", others of {wanted}"))
                splits[part] = files[number].path
                if len(names) == 1:
                    names += _siblings(names[0], part, count)
            for place in found:
                other = places.setdefault(place.name, place)
                if other is not place:
                    raise CheckpointError(f"{files[number].path}: {short(place.name)} is in {files[other.file].path}, "
                                          "too")
        if wanted is not None and len(splits) != wanted:
            missing = min(set(range(wanted)) - set(splits))
            raise CheckpointError(f"{files[0].path}: part {missing} of {wanted} is missing")
        if tensors is not None and tensors != len(places):
            raise CheckpointError(f"{files[0].path}: {tensors} tensors in all its parts by its header, {len(places)} "
                                  "are there")
        return files, list(places.values())
    except BaseException:
        for file in files:
            file.close()
        raise


class _Cursor:
    """Reads forward through a header, in pieces, and never asks for what the file does not have."""

    def __init__(self, file: CheckpointFile) -> None:
        self.file = file
        self.at = 0
        self._piece = b""
        self._begin = 0

    def need(self, nbytes: int, what: str) -> int:
        """Place of the next bytes in the piece, which holds them; they are passed."""
        self._check(nbytes, what)
        if self.at + nbytes > self._begin + len(self._piece):
            length = min(max(nbytes, _PIECE), self.file.size - self.at)
            self._piece, self._begin = self.file.read(self.at, length), self.at
        place = self.at - self._begin
        self.at += nbytes
        return place

    def number(self, code: str, what: str) -> Any:
        size = struct.calcsize("<" + code)
        return struct.unpack_from("<" + code, self._piece_with(size, what), self._last)[0]

    def _piece_with(self, nbytes: int, what: str) -> bytes:
        self._last = self.need(nbytes, what)
        return self._piece

    def string(self, what: str, most: int = 2**16) -> str:
        length = self.number("Q", what)
        if length > most:
            raise CheckpointError(f"{self.file.path}: {what} has {length} bytes: at most {most} are allowed")
        piece = self._piece_with(length, what)
        try:
            return piece[self._last : self._last + length].decode("utf-8")
        except UnicodeDecodeError:
            raise CheckpointError(f"{self.file.path}: {what} is no UTF-8") from None

    def skip(self, nbytes: int, what: str) -> None:
        self._check(nbytes, what)
        self.at += nbytes

    def _check(self, nbytes: int, what: str) -> None:
        if nbytes > self.file.size - self.at:
            raise CheckpointError(f"{self.file.path}: ends at byte {self.file.size}, in the middle of {what}")
        if self.at + nbytes > _MOST_HEADER:
            raise CheckpointError(f"{self.file.path}: its header has more than {_MOST_HEADER} bytes")

    def skip_strings(self, count: int, what: str) -> None:
        """Pass an array of strings: a vocabulary has some hundred thousand."""
        length_of = struct.Struct("<Q").unpack_from
        at, begin, piece = self.at, self._begin, self._piece
        for _ in range(count):
            if at + 8 > begin + len(piece):
                self.at = at
                self.need(8, what)
                begin, piece = self._begin, self._piece
            at += 8 + length_of(piece, at - begin)[0]
        self.at = at
        self.skip(0, what)


def read_header(file: CheckpointFile, number: int) -> tuple[dict[str, Any], list[TensorPlace]]:
    """(metadata that matters here, tensors) of one file."""
    cursor = _Cursor(file)
    magic = file.read(0, 4) if file.size >= 4 else b""
    if magic != b"GGUF":
        raise CheckpointError(f"{file.path}: begins with {magic!r}: no GGUF file")
    cursor.skip(4, "its begin")
    version = cursor.number("I", "its version")
    if version & 0xFFFF == 0 and version:
        raise CheckpointError(f"{file.path}: written for big-endian machines, which is not supported")
    if version not in (2, 3):
        raise CheckpointError(f"{file.path}: GGUF version {version}: 2 and 3 are supported")
    n_tensors, n_values = cursor.number("Q", "its counts"), cursor.number("Q", "its counts")
    # The smallest tensor and the smallest value that there can be: what cannot fit is not counted to.
    for count, least, what in ((n_tensors, 24, "tensors"), (n_values, 13, "metadata values")):
        if count * least > file.size:
            raise CheckpointError(f"{file.path}: {count} {what} by its header, in {file.size} bytes")
    metadata: dict[str, Any] = {}
    for _ in range(n_values):
        key = cursor.string("the name of a metadata value")
        kind = cursor.number("I", f"the metadata value {key!r}")
        if key in _KEPT:
            if key in metadata:
                raise CheckpointError(f"{file.path}: the metadata value {key!r} is there twice")
            metadata[key] = _kept(cursor, key, kind)
        else:
            _pass(cursor, key, kind, 0)
    alignment = metadata.get("general.alignment", 32)
    if alignment < 1 or alignment & (alignment - 1):
        raise CheckpointError(f"{file.path}: general.alignment is {alignment}: a power of two is needed")
    rows = [_tensor(cursor) for _ in range(n_tensors)]
    if len({row[0] for row in rows}) != len(rows):
        seen: set[str] = set()
        twice = next(row[0] for row in rows if row[0] in seen or seen.add(row[0]))  # type: ignore[func-returns-value]
        raise CheckpointError(f"{file.path}: {short(twice)} is there twice")
    first = -(-cursor.at // alignment) * alignment
    places = []
    for name, kind, itemsize, shape, nbytes, offset in rows:
        if offset % alignment:
            raise CheckpointError(f"{file.path}: {short(name)} lies at {offset}: a multiple of {alignment} is needed")
        places.append(TensorPlace(name, kind, itemsize, shape, number, first + offset, nbytes))
    check_places(places, file, first)
    return metadata, places


def _tensor(cursor: _Cursor) -> tuple[str, str, int, tuple[int, ...], int, int]:
    path = cursor.file.path
    name = cursor.string("the name of a tensor")
    what = short(name)
    n_dimensions = cursor.number("I", what)
    if n_dimensions > _MOST_DIMENSIONS:
        raise CheckpointError(f"{path}: {what} has {n_dimensions} dimensions: at most {_MOST_DIMENSIONS} are allowed")
    sizes = [cursor.number("Q", what) for _ in range(n_dimensions)]
    number = cursor.number("I", what)
    offset = cursor.number("Q", what)
    if number not in GGML_TYPES:
        raise CheckpointError(f"{path}: {what} has type {number}, which is not known")
    kind, block, itemsize = GGML_TYPES[number]
    row = sizes[0] if sizes else 1
    if row % block:
        raise CheckpointError(f"{path}: {what} has rows of {row}: blocks of {block} are needed for {kind}")
    shape = tuple(reversed([row // block, *sizes[1:]])) if sizes else ()
    nbytes = itemsize
    for size in shape:
        nbytes *= size
    return name, kind, itemsize, shape, nbytes, offset


def _kept(cursor: _Cursor, key: str, kind: int) -> Any:
    if key == "general.architecture":
        if kind != _STRING:
            raise CheckpointError(f"{cursor.file.path}: {key} is of type {kind}: a string is needed")
        return cursor.string(key)
    if kind not in (0, 1, 2, 3, 4, 5, 10, 11):
        raise CheckpointError(f"{cursor.file.path}: {key} is of type {kind}: an integer is needed")
    value = cursor.number(_SCALARS[kind], key)
    if value < 0 or (key == "split.count" and value > 10_000):
        raise CheckpointError(f"{cursor.file.path}: {key} is {value}")
    return value


def _pass(cursor: _Cursor, key: str, kind: int, depth: int) -> None:
    what = f"the metadata value {key!r}"
    if kind == _STRING:
        cursor.skip(cursor.number("Q", what), what)
    elif kind == _ARRAY:
        if depth > 3:
            raise CheckpointError(f"{cursor.file.path}: {what} is nested too deeply")
        inner, count = cursor.number("I", what), cursor.number("Q", what)
        if inner in _SCALARS:
            cursor.skip(count * struct.calcsize("<" + _SCALARS[inner]), what)
            return
        if inner == _STRING:
            cursor.skip_strings(count, what)
            return
        for _ in range(count):
            _pass(cursor, key, inner, depth + 1)
    elif kind in _SCALARS:
        cursor.skip(struct.calcsize("<" + _SCALARS[kind]), what)
    else:
        raise CheckpointError(f"{cursor.file.path}: {what} is of type {kind}, which is not known")


# Which files.

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def _files_of(paths: Any) -> list[Path]:
    if not isinstance(paths, (str, os.PathLike)):
        if not isinstance(paths, Iterable):
            raise TypeError(f"paths is a {type(paths).__name__}: a path, or paths, are needed")
        names = list(paths)
        for name in names:
            readable(name)
        if not names:
            raise CheckpointError("paths is empty: a file or folder is needed")
        return [Path(os.fsdecode(name)) for name in names]
    path = Path(os.fsdecode(os.fspath(paths)))
    try:
        is_folder = path.is_dir()
    except ValueError as problem:  # a NUL in a name
        raise CheckpointError(f"{readable(path)}: {problem}") from None
    if not is_folder:
        return [path]
    found = folder_files(path, ".gguf")
    if not found:
        raise CheckpointError(f"{readable(path)}: no .gguf file in this folder")
    stems = {_PART.sub("", each.name) for each in found}
    if len(stems) > 1:
        raise CheckpointError(f"{readable(path)}: {len(stems)} checkpoints ({', '.join(sorted(stems)[:3])}): pass one")
    return found


def _siblings(path: Path, part: int, count: int) -> list[Path]:
    """The other files of a split checkpoint, by the name of one."""
    match = _PART.search(path.name)
    if match is None:
        raise CheckpointError(f"{readable(path)}: part {part} of {count}, and no name from which to tell the others "
                              "(…-00001-of-00002.gguf): pass all files")
    if int(match.group(1)) != part + 1 or int(match.group(2)) != count:
        raise CheckpointError(f"{readable(path)}: part {part} of {count} by its header, which its name does not say")
    names = [path.with_name(f"{path.name[: match.start()]}-{k + 1:05d}-of-{count:05d}.gguf") for k in range(count)]
    missing = [name for name in names if not name.is_file()]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise CheckpointError(f"{readable(path)}: {readable(missing[0])} is missing{more}")
    return [name for k, name in enumerate(names) if k != part]
