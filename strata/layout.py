"""How an expert lies in its slot: named tensors with dtype, shape and offset."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from strata.sources.buffers import type_and_shape

__all__ = ["DTYPE_BYTES", "SlotField", "SlotLayout"]

#: Bytes of an element. Those that NumPy lacks go by torch's names.
DTYPE_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex32": 4, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1, "bits8": 1, "bits16": 2,
}  # fmt: skip

_MOST = 2**62


@dataclass(frozen=True)
class SlotField:
    """One tensor of a layout.

    Attributes
    ----------
    name : str
    dtype : str
        Name of the element's type, e.g. ``"bfloat16"``; of a block format, e.g. ``"Q4_K"``, that of its blocks.
    itemsize : int
        Bytes of an element (or block).
    shape : tuple of int
    offset : int
        Place of the first byte in the slot.
    """

    name: str
    dtype: str
    itemsize: int
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        n = self.itemsize
        for size in self.shape:
            n *= size
        return n


class SlotLayout:
    """Named tensors in a slot, back to back but for their alignment, or at offsets of one's own.

    Parameters
    ----------
    fields : mapping of name to (dtype, shape), or iterable of (name, dtype, shape)
        The tensors in the order in which they lie. A dtype is a name (``"bfloat16"``, ``"float8_e4m3fn"``; see
        `DTYPE_BYTES`), a NumPy or torch dtype, or a pair (name, bytes of an element) for anything else: a block
        format as its blocks. Packings of 4 bits are ``"uint8"``.
    align : int, default 256
        Each tensor begins at a multiple of it; a power of two.
    offsets : sequence of int, optional
        Places of one's own instead, one a tensor.

    Raises
    ------
    TypeError, ValueError
        Naming the tensor and its value: an unknown dtype, a negative size, a name twice, an offset that overlaps
        another tensor or is no multiple of the element's size.

    Notes
    -----
    Immutable and hashable; equal where all tensors are. ``len()``, iteration and ``in`` are over the names;
    ``layout[name]`` is a `SlotField`.

    Examples
    --------
    >>> layout = SlotLayout({"gate_up_proj": ("bfloat16", (1536, 2048)), "down_proj": ("bfloat16", (2048, 768))})
    >>> layout.nbytes, layout["down_proj"].offset
    (9437184, 6291456)
    """

    __slots__ = ("_by_name", "_fields")

    _fields: tuple[SlotField, ...]
    _by_name: dict[str, SlotField]

    def __init__(
        self,
        fields: Mapping[str, tuple[Any, Iterable[int]]] | Iterable[tuple[str, Any, Iterable[int]]],
        *,
        align: int = 256,
        offsets: Iterable[int] | None = None,
    ) -> None:
        align = _integer("align", align)
        if align < 1 or align & (align - 1):
            raise ValueError(f"align is {align}: a power of two is needed")
        if offsets is not None and not isinstance(offsets, Iterable):
            raise TypeError(f"offsets is a {type(offsets).__name__}: integers are needed")
        given = None if offsets is None else [_integer("offsets", offset) for offset in offsets]
        rows = [_row(k, row) for k, row in enumerate(_rows(fields))]
        if given is not None and len(given) != len(rows):
            raise ValueError(f"offsets has {len(given)} values: {len(rows)} are needed, one a tensor")
        made: dict[str, SlotField] = {}
        end = 0
        for k, (name, dtype, itemsize, shape) in enumerate(rows):
            if name in made:
                raise ValueError(f"fields has {name!r} twice: each name is one tensor's")
            offset = -(-end // align) * align if given is None else given[k]
            if offset < 0 or offset % _alignment(itemsize):
                raise ValueError(f"offset of {name!r} is {offset}: a multiple of {_alignment(itemsize)} is needed")
            made[name] = field = SlotField(name, dtype, itemsize, shape, offset)
            end = offset + field.nbytes
            if end > _MOST:
                raise ValueError(f"{name!r} ends at byte {end}: at most {_MOST} is allowed")
        placed = sorted((field for field in made.values() if field.nbytes), key=lambda field: field.offset)
        for before, after in itertools.pairwise(placed):
            if before.offset + before.nbytes > after.offset:
                raise ValueError(f"offset of {after.name!r} is {after.offset}, but {before.name!r} takes "
                                 f"{before.offset} to {before.offset + before.nbytes - 1}: tensors may not overlap")
        object.__setattr__(self, "_fields", tuple(made.values()))
        object.__setattr__(self, "_by_name", made)

    @classmethod
    def like(cls, examples: Mapping[str, Any], *, stacked: bool = False, align: int = 256) -> SlotLayout:
        """Make the layout of one expert from example tensors.

        Parameters
        ----------
        examples : mapping of name to tensor
            One expert's tensors (NumPy arrays, torch tensors on any device, buffers): their dtypes and shapes.
        stacked : bool, default False
            The examples are fused, ``[experts, ...]``: their first axis is left out.
        align : int, default 256

        Returns
        -------
        SlotLayout
        """
        if not isinstance(examples, Mapping):
            raise TypeError(f"examples is a {type(examples).__name__}: a mapping of names to tensors is needed")
        rows = []
        for name, example in examples.items():
            dtype, shape = type_and_shape(example, f"examples[{name!r}]")
            if stacked and not shape:
                raise ValueError(f"examples[{name!r}] has no dimensions: [experts, ...] is needed")
            rows.append((name, dtype, shape[1:] if stacked else shape))
        return cls(rows, align=align)

    @property
    def fields(self) -> tuple[SlotField, ...]:
        """The tensors in order."""
        return self._fields

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(field.name for field in self._fields)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Names of their elements' types."""
        return tuple(field.dtype for field in self._fields)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Their shapes."""
        return tuple(field.shape for field in self._fields)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Place of each in the slot, bytes."""
        return tuple(field.offset for field in self._fields)

    @property
    def nbytes(self) -> int:
        """Bytes of a slot that holds it: the end of its last tensor."""
        return max((field.offset + field.nbytes for field in self._fields), default=0)

    def views(self, memory: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """View a slot's bytes as its tensors, without a copy.

        Parameters
        ----------
        memory : (bytes,) uint8
            A slot as the host sees it (`Slot.array`), `nbytes` long or longer.

        Returns
        -------
        dict of str to numpy.ndarray
            By name. Types that NumPy lacks are bytes: ``shape + (itemsize,)`` of uint8.

        Raises
        ------
        TypeError, ValueError
            `memory` is no contiguous one-dimensional array of bytes, or too short.
        """
        if not isinstance(memory, np.ndarray) or memory.dtype != np.uint8 or memory.ndim != 1:
            raise TypeError("memory is no one-dimensional array of uint8: the bytes of a slot are needed")
        if not memory.flags.c_contiguous:
            raise ValueError(f"memory has strides {memory.strides}: contiguous bytes are needed")
        if memory.size < self.nbytes:
            raise ValueError(f"memory has {memory.size} bytes: the layout's {self.nbytes} are needed")
        views = {}
        for field in self._fields:
            part = memory[field.offset : field.offset + field.nbytes]
            native = _native(field.dtype, field.itemsize)
            if native is None:
                views[field.name] = part.reshape((*field.shape, field.itemsize))
            else:
                views[field.name] = part.view(native).reshape(field.shape)
        return views

    def __getitem__(self, name: str) -> SlotField:
        try:
            return self._by_name[name]
        except KeyError:
            raise KeyError(f"{name!r}: the layout has {', '.join(self._by_name) or 'no tensors'}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SlotLayout) and self._fields == other._fields

    def __hash__(self) -> int:
        return hash(self._fields)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{name}: a SlotLayout cannot be changed")

    def __reduce__(self) -> tuple[Any, ...]:
        rows = tuple((field.name, (field.dtype, field.itemsize), field.shape) for field in self._fields)
        return _remade, (rows, self.offsets)

    def __repr__(self) -> str:
        lines = [f"<SlotLayout: {len(self)} tensors, {self.nbytes:,} bytes"]
        for field in self._fields:
            what = f"{field.dtype} {list(field.shape)}"
            lines.append(f"  {field.name}: {what} at {field.offset:,}, {field.nbytes:,} bytes")
        return "\n".join(lines) + ">"


def _remade(rows: tuple[Any, ...], offsets: tuple[int, ...]) -> SlotLayout:
    return SlotLayout(rows, offsets=offsets)


def _rows(fields: Any) -> list[Any]:
    if isinstance(fields, Mapping):
        rows = []
        for name, value in fields.items():
            if not isinstance(value, (tuple, list)) or len(value) != 2:
                raise TypeError(f"fields[{name!r}] is {value!r}: (dtype, shape) is needed")
            rows.append((name, *value))
        return rows
    try:
        return list(fields)
    except TypeError:
        raise TypeError(f"fields is a {type(fields).__name__}: names, dtypes and shapes are needed") from None


def _row(k: int, row: Any) -> tuple[str, str, int, tuple[int, ...]]:
    if not isinstance(row, (tuple, list)) or len(row) != 3:
        raise TypeError(f"fields[{k}] is {row!r}: (name, dtype, shape) is needed")
    name, dtype, shape = row
    if not isinstance(name, str) or not name:
        raise TypeError(f"fields[{k}] has the name {name!r}: a string that is not empty is needed")
    kind, itemsize = _dtype(name, dtype)
    try:
        sizes = tuple(_integer(f"shape of {name!r}", size) for size in shape)
    except TypeError:
        raise TypeError(f"shape of {name!r} is {shape!r}: integers are needed") from None
    if any(size < 0 for size in sizes):
        raise ValueError(f"shape of {name!r} is {sizes}: sizes of 0 or more are allowed")
    return name, kind, itemsize, sizes


def _dtype(name: str, dtype: Any) -> tuple[str, int]:
    if isinstance(dtype, tuple):
        if len(dtype) != 2 or not isinstance(dtype[0], str) or not dtype[0]:
            raise TypeError(f"dtype of {name!r} is {dtype!r}: a pair (name, bytes of an element) is needed")
        itemsize = _integer(f"dtype of {name!r}", dtype[1])
        known = DTYPE_BYTES.get(dtype[0], itemsize)
        if itemsize < 1 or itemsize != known:
            raise ValueError(f"dtype of {name!r} is {dtype!r}: {known if known > 0 else 1} bytes or more an element"
                             if itemsize < 1 else f"dtype of {name!r} is {dtype!r}: {dtype[0]} has {known} bytes")
        return dtype[0], itemsize
    kind = dtype if isinstance(dtype, str) else str(dtype)
    kind = kind.removeprefix("torch.")
    if kind not in DTYPE_BYTES:
        try:
            native = np.dtype(dtype)
        except TypeError:
            native = None
        kind = native.name if native is not None and native.isnative else kind
    if kind not in DTYPE_BYTES:
        raise ValueError(f"dtype of {name!r} is {dtype!r}: {', '.join(DTYPE_BYTES)}, or a pair "
                         "(name, bytes of an element) is allowed")
    return kind, DTYPE_BYTES[kind]


def _native(dtype: str, itemsize: int) -> np.dtype[Any] | None:
    """NumPy's own type of that name."""
    try:
        native = np.dtype(dtype)
    except TypeError:
        return None
    return native if native.name == dtype and native.itemsize == itemsize else None


def _alignment(itemsize: int) -> int:
    """Largest power of two that divides an element's size: what its address must be a multiple of."""
    return itemsize & -itemsize


def _integer(name: str, value: Any) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {value!r}: an integer is needed")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}: an integer is needed") from None
