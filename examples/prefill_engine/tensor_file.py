"""Files in the safetensors format: written tensor by tensor, read through a memory map.

The map is what matters here: strata streams an expert's bytes straight from it, so the reader gives arrays over
the mapped file and copies nothing. The writer never holds more than one tensor.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from examples.prefill_engine.errors import InputError

__all__ = ["TensorFile", "rounded", "write_tensors"]

_LENGTH_BYTES = 8
_MAX_HEADER = 100_000_000
_MAX_DIMENSIONS = 32
_DTYPES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}

#: How a tensor lies in memory: bfloat16 has no NumPy type, so its 16 bits are numbers.
STORED = {"F32": np.dtype("<f4"), "BF16": np.dtype("<u2")}

_Array = npt.NDArray[Any]


def write_tensors(path: Path, shapes: Mapping[str, tuple[int, ...]], dtype_of: Callable[[str], str],
                  fill: Callable[[str, _Array], object]) -> None:
    """Write tensors, in the order of their names.

    Parameters
    ----------
    path : Path
    shapes : mapping
        Name to shape.
    dtype_of : callable
        "F32" or "BF16" by name.
    fill : callable
        Writes a tensor's values, given its name, into a float32 array of its shape, whatever that holds. They are
        rounded to bfloat16 where they are stored so.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    names = sorted(shapes)
    end = 0
    for name in names:
        begin, end = end, end + math.prod(shapes[name]) * STORED[dtype_of(name)].itemsize
        header[name] = {"dtype": dtype_of(name), "shape": list(shapes[name]), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data begins at a multiple of 8
    # One block for all of them: memory that is new for each tensor costs more than its values do.
    block = np.empty(max((math.prod(shape) for shape in shapes.values()), default=0), "<f4")
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(_LENGTH_BYTES, "little"))
        file.write(text)
        for name in names:
            values = block[:math.prod(shapes[name])].reshape(shapes[name])
            fill(name, values)
            file.write(rounded(values).data if dtype_of(name) == "BF16" else values.data)


def rounded(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Finite float32 values as bfloat16, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype("<u2")


class TensorFile:
    """A mapped safetensors file.

    Parameters
    ----------
    path : Path

    Raises
    ------
    InputError
        If the file is missing, is no safetensors file, or is shorter or longer than its header says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise InputError(f"{path} is no regular file")
            self._bytes: npt.NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
        except (OSError, ValueError) as problem:  # an empty file cannot be mapped; a NUL in the name
            if isinstance(problem, InputError):
                raise
            raise InputError(f"{path}: {problem}") from None
        size = len(self._bytes)
        length = int.from_bytes(self._bytes[:_LENGTH_BYTES].tobytes(), "little")
        if size < _LENGTH_BYTES or not 2 <= length <= min(_MAX_HEADER, size - _LENGTH_BYTES):
            raise InputError(f"{path} is no safetensors file, or is truncated: {size} bytes, of which the header "
                             f"claims {length}")
        self._data = _LENGTH_BYTES + length
        try:
            header = json.loads(self._bytes[_LENGTH_BYTES:self._data].tobytes())
            header.pop("__metadata__", None)
            self._entries = {name: _entry(entry) for name, entry in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError) as problem:
            raise InputError(f"{path}: its header cannot be read ({type(problem).__name__}: {problem})") from None
        covered = 0
        for name, (dtype, shape, begin, end) in sorted(self._entries.items(), key=lambda item: item[1][2:]):
            wanted = math.prod(shape) * _DTYPES.get(dtype, 0)
            if begin != covered or end - begin != wanted:
                raise InputError(f"{path}: tensor {name} ({dtype}, shape {shape}) claims bytes {begin} to {end}; "
                                 f"{wanted} bytes from {covered} are wanted")
            covered = end
        if self._data + covered != size:
            raise InputError(f"{path} is truncated or has a tail: its tensors take {self._data + covered} bytes, "
                             f"the file has {size}")

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def tensor(self, name: str, shape: tuple[int, ...], wanted: str = "F32") -> _Array:
        """Return a tensor as an array over the mapped file: float32, or the bits of bfloat16 as uint16.

        Raises
        ------
        InputError
            If the file lacks the tensor, or it has another shape or dtype.
        """
        if name not in self._entries:
            raise InputError(f"{self.path} lacks the tensor {name}")
        dtype, actual, begin, end = self._entries[name]
        if dtype != wanted or actual != shape:
            raise InputError(f"{self.path}: tensor {name} is {dtype} of shape {actual}; {wanted} of shape {shape} is "
                             "wanted")
        return self._bytes[self._data + begin:self._data + end].view(STORED[wanted]).reshape(shape)


def _entry(entry: dict[str, object]) -> tuple[str, tuple[int, ...], int, int]:
    """Return dtype, shape, begin and end of a tensor's entry; none of them is so large that it cannot be printed."""
    shape, offsets = entry["shape"], entry["data_offsets"]
    if (not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS
            or not isinstance(offsets, list) or len(offsets) != 2):
        raise ValueError(f"shape {shape!r:.60} and data_offsets {offsets!r:.60}: lists are wanted, of at most "
                         f"{_MAX_DIMENSIONS} and of 2 integers")
    for number in (*shape, *offsets):
        if type(number) is not int or not 0 <= number < 2**62:
            raise ValueError(f"{number!r:.60}: an integer from 0 to 2**62 - 1 is wanted")
    return str(entry["dtype"]), tuple(shape), offsets[0], offsets[1]
