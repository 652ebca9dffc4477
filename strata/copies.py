"""The list of copies of a request: which bytes of host memory go where in their slot.

`ExpertCopies` is a twin of arrays: one row a segment, and for each entry where its segments begin. Its arrays
are private and read-only, so that native threads may read them without the GIL while a request runs.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from strata._copy_rows import (
    INT64_MAX,
    REGION_MAX,
    UINT64_MAX,
    back_to_back,
    bools,
    check_ends,
    check_overlaps,
    check_sources,
    converted,
    indices_of,
    integer_rows,
    iterated,
    place_of,
    staged_entries,
    starts_of,
)
from strata._file_rows import FileRows, file_rows_of
from strata.layout import SlotField, SlotLayout
from strata.sources.buffers import Owners, Stack, ask_runtime, ask_stack, host_memory, stacked_memory, type_and_shape
from strata.sources.files import File
from strata.sources.torch_memory import HeldStorage

__all__ = ["ExpertCopies"]

_Int64 = npt.NDArray[np.int64]
_UInt64 = npt.NDArray[np.uint64]
_UInt8 = npt.NDArray[np.uint8]
_Bool = npt.NDArray[np.bool_]
_Rows = list[int] | npt.NDArray[Any]


class ExpertCopies:
    """An immutable list of entries, each with its segments in host memory.

    Parameters
    ----------
    addresses : (segments,) integers
        Address of each segment's first byte in host memory. 0 is allowed for an empty segment only. The memory must
        stay readable while a request runs: of a mapped file that shrinks meanwhile, a worker's read ends the
        process (SIGBUS on Linux), and no handler of the program's runs for it. `files` gives an error instead.
    nbytes : (segments,) integers
        Bytes of each segment, 0 or more.
    pinned : bool, (segments,) bools, or None
        Whether the segments lie in pinned memory. None asks the runtime for each page of each segment, now and
        not again: one call per 4 KiB, so an engine that knows says so. A wrong True makes the DMA engine read
        pageable memory.
    offsets : (segments,) integers, optional
        Place of each segment in the slot, bytes. By default the segments of an entry lie back to back from 0.
    entry_starts : (entries + 1,) integers, optional
        In CSR form: entry ``i`` has the segments ``entry_starts[i]`` to ``entry_starts[i + 1]`` (exclusive).
        The first value is 0, no value is below the one before it, and the last is the number of segments. An
        entry without segments is two equal values. By default each segment is an entry.
    regions : (segments,) integers, optional
        The source region of each segment: the allocation, mapping or file that it lies in, as a number from 0
        to 2**31 - 1, or -1 where it is not known. Copies are merged within one region only, so different
        regions need different numbers in all lists that are joined.
    owners : iterable of objects, optional
        Kept alive as long as the list: what the addresses lie in.
    files : sequence of strata.sources.File, optional
        Files that segments lie in; strata's workers read them. Such an entry is staged.
    file_index : (segments,) integers, optional
        Which of `files` each segment lies in, or -1 for memory. The address of a segment in a file is its offset there.

    Raises
    ------
    TypeError
        An argument is no array of native integers (or bools, for `pinned`), nor a list of them.
    ValueError
        An array is not one-dimensional and C-contiguous or has the wrong length; `entry_starts` is not in CSR
        form; a segment has a null address and bytes, a negative size or offset, or wraps round the address
        space; two segments of an entry overlap in the slot. The message names the argument, the entry and
        the segment.
    RuntimeNotFound, StrataError
        With ``pinned=None``, as `strata.runtime.use`: this may be the first call that needs a runtime.

    Attributes
    ----------
    addresses : (segments,) uint64, read-only
    nbytes : (segments,) int64, read-only
    offsets : (segments,) int64, read-only
    entry_starts : (entries + 1,) int64, read-only
        As the argument.
    regions : (segments,) int64, read-only, or None
        None where no region is known. `from_buffers` and `from_stacked` number the allocations that they see,
        from 2**31 on and never one number twice in a process.
    staged : (entries,) uint8, read-only
        1 where a segment with bytes is pageable, so that the entry goes through the host ring; else 0.
    owners : tuple
        Objects kept alive because sources lie in their memory.
    slot_bytes : int
        Bytes of a slot that holds any entry of the list.

    Notes
    -----
    ``len()`` is the number of entries. The arguments are copied: later changes to them do not matter. The
    object may be used by many requests and many threads. Memory given by address stays the caller's to keep,
    by `owners` or otherwise; `from_buffers` and `from_stacked` keep the objects. Held are 33 bytes for an entry
    of one segment, and 8 more where its region is known. A list holds addresses of this process, so it cannot
    be pickled or copied.
    """

    __slots__ = (
        "__weakref__", "_addresses", "_entry_starts", "_files", "_nbytes", "_offsets", "_owners", "_regions", "_staged",
        "_storages",
    )  # fmt: skip

    _addresses: _UInt64
    _nbytes: _Int64
    _offsets: _Int64
    _entry_starts: _Int64
    _staged: _UInt8
    _regions: _Int64 | None
    _owners: tuple[object, ...]
    _files: FileRows | None
    _storages: tuple[HeldStorage, ...] | None

    def __init__(
        self,
        addresses: Sequence[int] | npt.NDArray[Any],
        nbytes: Sequence[int] | npt.NDArray[Any],
        pinned: bool | Sequence[bool] | npt.NDArray[np.bool_] | None = None,
        *,
        offsets: Sequence[int] | npt.NDArray[Any] | None = None,
        entry_starts: Sequence[int] | npt.NDArray[Any] | None = None,
        regions: Sequence[int] | npt.NDArray[Any] | None = None,
        owners: Iterable[object] = (),
        files: Sequence[File] | None = None,
        file_index: Sequence[int] | npt.NDArray[Any] | None = None,
    ) -> None:
        address_rows = integer_rows("addresses", addresses)
        segments = len(address_rows)
        byte_rows = integer_rows("nbytes", nbytes, segments)
        pinned_rows = bools("pinned", pinned, segments, "a segment")
        offset_rows = None if offsets is None else integer_rows("offsets", offsets, segments)
        starts = starts_of(entry_starts, segments)
        region_rows = None
        if regions is not None:
            region_rows = converted("regions", integer_rows("regions", regions, segments), np.int64, REGION_MAX,
                                    lambda segment: place_of(starts, segment), -1)  # fmt: skip
        kept = tuple(iterated("owners", owners, "objects"))
        file_rows = None
        if files is not None or file_index is not None:
            file_rows = file_rows_of(files, file_index, segments, starts)
        self._build(address_rows, byte_rows, pinned_rows, offset_rows, starts, region_rows, kept, file_rows)

    def _build(
        self,
        addresses: _Rows,
        nbytes: _Rows,
        pinned: bool | _Bool | None,
        offsets: _Rows | None,
        starts: _Int64,
        regions: _Int64 | None,
        owners: tuple[object, ...],
        files: FileRows | None = None,
    ) -> None:
        """Convert, check and take the rows; their types and lengths are right already."""

        def place(segment: int) -> str:
            return place_of(starts, segment)

        where = converted("addresses", addresses, np.uint64, UINT64_MAX, place)
        size = converted("nbytes", nbytes, np.int64, INT64_MAX, place)
        in_memory = None if files is None else files.index < 0
        if in_memory is None:
            check_sources(where, size, place)
        else:
            assert files is not None
            check_sources(where, np.where(in_memory, size, 0), place)
            files.check(where, size, place)
        one_each = len(starts) == len(size) + 1 and bool((starts[1:] > starts[:-1]).all())
        if offsets is not None:
            offset = converted("offsets", offsets, np.int64, INT64_MAX, place)
            check_ends(offset, size, place)
            if not one_each:
                check_overlaps(offset, size, starts)
        elif one_each:
            offset = np.zeros(len(size), np.int64)
        else:
            offset = back_to_back(size, starts)
        if pinned is None:
            pinned = ask_runtime(where, size if in_memory is None else np.where(in_memory, size, 0))
        if in_memory is not None:
            pinned = in_memory & pinned
        self._set(where, size, offset, starts, staged_entries(size, pinned, starts, one_each), regions, owners,
                  files)

    def _set(
        self,
        addresses: _UInt64,
        nbytes: _Int64,
        offsets: _Int64,
        starts: _Int64,
        staged: _UInt8,
        regions: _Int64 | None,
        owners: tuple[object, ...],
        files: FileRows | None = None,
    ) -> None:
        if files is not None and not (files.index >= 0).any():
            files = None
        if regions is not None and not (regions >= 0).any():
            regions = None
        for array in (addresses, nbytes, offsets, starts, staged, regions):
            if array is not None:
                array.flags.writeable = False
        self._addresses = addresses
        self._nbytes = nbytes
        self._offsets = offsets
        self._entry_starts = starts
        self._staged = staged
        self._regions = regions
        self._owners = owners
        self._files = files
        self._storages = None  # not looked for yet

    @classmethod
    def from_buffers(
        cls,
        items: Iterable[Any],
        pinned: bool | Sequence[bool] | npt.NDArray[np.bool_] | None = None,
        *,
        layout: SlotLayout | None = None,
    ) -> ExpertCopies:
        """Make a list of copies from objects that hold host memory.

        Parameters
        ----------
        items : iterable
            One item an entry: a C-contiguous buffer (NumPy array, memoryview, mmap, bytes, bytearray, CPU
            tensor; read-only ones too), or a list or tuple of them, which are the entry's segments and lie
            back to back in the slot. With a `layout`: a mapping of the layout's names to buffers, or a list or
            tuple of buffers in its order.
        pinned : bool, (entries,) bools, or None
            Whether the items lie in pinned memory; None asks the runtime.
        layout : SlotLayout, optional
            Where the buffers go in the slot. An array or tensor must have its tensor's dtype and shape; a
            one-dimensional buffer of bytes, its size.

        Returns
        -------
        ExpertCopies
            It keeps the buffers exported, so that meanwhile a bytearray or an array cannot be resized nor an mmap
            closed, and torch refuses to resize a tensor's storage (ever after). A request refuses the list where torch
            has moved a storage (``share_memory_``); do not move one while a request reads it. Their contents are not
            copied: they are read while a request runs. A file that is cut short under its mmap ends the process then
            (SIGBUS); one that is given as a source in `files` ends the request, with an error.

        Raises
        ------
        TypeError
            `items` cannot be iterated; an item is no buffer, holds Python objects, or lies in device memory; a
            tensor has no bytes that mean what it means (sparse, meta, lazily conjugated, a wrapper).
        ValueError
            A buffer is not C-contiguous, or closed, or not as the layout has it; an item lacks a tensor of the
            layout; `pinned` has another length than `items`.
        RuntimeNotFound, StrataError
            With ``pinned=None``, as `strata.runtime.use`.
        """
        _check_layout(layout)
        addresses: list[int] = []
        nbytes: list[int] = []
        regions: list[int] = []
        starts = [0]
        owners = Owners()
        for entry, item in enumerate(iterated("items", items, "buffers")):
            name = f"items[{entry}]"
            parts: list[tuple[str, SlotField | None, Any]]
            if layout is not None:
                parts = [(f"{name}[{field.name!r}]", field, source) for field, source in _by_layout(item, layout, name)]
            elif isinstance(item, (list, tuple)):
                parts = [(f"{name}[{segment}]", None, source) for segment, source in enumerate(item)]
            else:
                parts = [(name, None, item)]
            for name, field, source in parts:
                address, size, region = host_memory(source, name, owners)
                if field is not None:
                    _check_field(field, size, *type_and_shape(source, name), name)
                addresses.append(address)
                nbytes.append(size)
                regions.append(region)
            starts.append(len(addresses))
        start_row = np.array(starts, np.int64)
        pinned_rows = bools("pinned", pinned, len(starts) - 1, "an item")
        if isinstance(pinned_rows, np.ndarray):
            pinned_rows = np.repeat(pinned_rows, np.diff(start_row))
        offsets = None if layout is None else np.tile(np.array(layout.offsets, np.int64), len(starts) - 1)
        self = cls.__new__(cls)
        self._build(addresses, nbytes, pinned_rows, offsets, start_row, np.array(regions, np.int64), owners.objects())
        return self

    @classmethod
    def from_stacked(
        cls,
        *arrays: Any,
        layout: SlotLayout | None = None,
        pinned: bool | Sequence[bool] | npt.NDArray[np.bool_] | None = None,
    ) -> ExpertCopies:
        """Make a list of copies from fused tensors, in which expert ``i`` has row ``i`` of each.

        Parameters
        ----------
        *arrays : (experts, ...) NumPy arrays, torch tensors or buffers
            All with as many experts; each row C-contiguous (rows may lie apart). They are the segments of each
            entry, in order.
        layout : SlotLayout, optional
            Where the rows go in the slot: one array a tensor, in its order, with its dtype and shape. By
            default they lie back to back.
        pinned : bool, (experts,) bools, or None
            Whether the experts lie in pinned memory; None asks the runtime.

        Returns
        -------
        ExpertCopies
            As many entries as experts. It keeps the arrays as `from_buffers` does.

        Raises
        ------
        TypeError
            As `from_buffers`, naming ``arrays[k]``.
        ValueError
            No arrays; another number of experts than in the first; rows that are not contiguous, or not as the
            layout has them.
        RuntimeNotFound, StrataError
            With ``pinned=None``, as `strata.runtime.use`.

        Notes
        -----
        No work in Python an expert: a few milliseconds for some ten thousand.
        """
        if not arrays:
            raise ValueError("arrays is empty: at least one [experts, ...] tensor is needed")
        _check_layout(layout)
        if layout is not None and len(layout) != len(arrays):
            raise ValueError(f"arrays has {len(arrays)}: the layout has {len(layout)} ({', '.join(layout)})")
        owners = Owners()
        stacks = [stacked_memory(array, f"arrays[{k}]", owners) for k, array in enumerate(arrays)]
        experts = stacks[0].experts
        for k, stack in enumerate(stacks):
            if stack.experts != experts:
                raise ValueError(f"arrays[{k}] has {stack.experts} experts: arrays[0] has {experts}")
            if layout is not None:
                field = layout.fields[k]
                _check_field(field, stack.nbytes, stack.dtype, stack.shape, f"arrays[{k}] ({field.name!r})")
        pinned_rows = bools("pinned", pinned, experts, "an expert")
        if pinned is None:
            pinned_rows = _asked_of_stacks(stacks, experts)
        elif isinstance(pinned_rows, np.ndarray):
            pinned_rows = np.repeat(pinned_rows, len(stacks))
        rows = np.arange(experts, dtype=np.int64)[:, None]
        strides = np.array([stack.stride for stack in stacks], np.int64)
        addresses = np.array([stack.address for stack in stacks], np.uint64) + (rows * strides).view(np.uint64)
        self = cls.__new__(cls)
        self._build(
            addresses.reshape(-1),
            np.tile(np.array([stack.nbytes for stack in stacks], np.int64), experts),
            pinned_rows,
            None if layout is None else np.tile(np.array(layout.offsets, np.int64), experts),
            np.arange(experts + 1, dtype=np.int64) * len(stacks),
            np.tile(np.array([stack.region for stack in stacks], np.int64), experts),
            owners.objects(),
        )
        return self

    @classmethod
    def concatenate(cls, parts: Iterable[ExpertCopies]) -> ExpertCopies:
        """Join lists of copies, in order.

        Parameters
        ----------
        parts : iterable of ExpertCopies

        Returns
        -------
        ExpertCopies
            It keeps the owners of all parts.

        Raises
        ------
        TypeError
            `parts` cannot be iterated, or a part is no `ExpertCopies`.
        """
        lists = list(iterated("parts", parts, "ExpertCopies"))
        for index, part in enumerate(lists):
            if not isinstance(part, ExpertCopies):
                raise TypeError(f"parts[{index}] is a {type(part).__name__}: ExpertCopies is needed")
        starts = [np.zeros(1, np.int64)]
        segments = 0
        for part in lists:
            starts.append(part._entry_starts[1:] + segments)
            segments += len(part._addresses)
        regions = None
        if any(part._regions is not None for part in lists):
            regions = np.concatenate([
                np.full(len(part._nbytes), -1, np.int64) if part._regions is None else part._regions for part in lists
            ])  # fmt: skip
        # Lists taken from one parent share its tuple: look at each tuple, and keep each object, once. All of
        # them live in `lists`, so each id is one object's.
        tuples = {id(part._owners): part._owners for part in lists}
        owners = {id(owner): owner for group in tuples.values() for owner in group}
        self = cls.__new__(cls)
        self._set(
            np.concatenate([np.empty(0, np.uint64), *(part._addresses for part in lists)]),
            np.concatenate([np.empty(0, np.int64), *(part._nbytes for part in lists)]),
            np.concatenate([np.empty(0, np.int64), *(part._offsets for part in lists)]),
            np.concatenate(starts),
            np.concatenate([np.empty(0, np.uint8), *(part._staged for part in lists)]),
            regions,
            tuple(owners.values()),
            FileRows.joined([part._files for part in lists], [len(part._nbytes) for part in lists]),
        )
        return self

    def take(self, indices: Sequence[int] | npt.NDArray[Any]) -> ExpertCopies:
        """Pick entries.

        Parameters
        ----------
        indices : (n,) integers
            Entries in the order wanted; one may come more than once.

        Returns
        -------
        ExpertCopies
            ``n`` entries; it shares the owners.

        Raises
        ------
        IndexError
            An index is negative, or ``len()`` or more.
        TypeError, ValueError
            `indices` is no one-dimensional array or list of integers.
        """
        if isinstance(indices, np.ndarray):
            indices = np.ascontiguousarray(indices) if indices.ndim == 1 else indices
        picked = indices_of(integer_rows("indices", indices), len(self))
        starts = self._entry_starts
        counts = starts[picked + 1] - starts[picked]
        taken = np.zeros(len(picked) + 1, np.int64)
        np.cumsum(counts, out=taken[1:])
        if len(picked) == taken[-1] and np.all(counts == 1):
            rows = starts[picked]
        else:
            rows = np.repeat(starts[picked] - taken[:-1], counts)
            rows += np.arange(taken[-1], dtype=np.int64)
        copies = type(self).__new__(type(self))
        copies._set(
            self._addresses[rows],
            self._nbytes[rows],
            self._offsets[rows],
            taken,
            self._staged[picked],
            None if self._regions is None else self._regions[rows],
            self._owners,
            None if self._files is None else self._files.taken(rows),
        )
        copies._storages = self._storages
        return copies

    def _check_in_place(self) -> None:
        """Raise `ValueError` where torch has moved what the addresses lie in. Asked when a request takes the list."""
        if self._storages is None:
            self._storages = tuple(owner for owner in self._owners if isinstance(owner, HeldStorage))
        for storage in self._storages:
            storage.check_in_place()

    @property
    def addresses(self) -> _UInt64:
        """(segments,) uint64, read-only: address of each segment in host memory."""
        return self._addresses

    @property
    def nbytes(self) -> _Int64:
        """(segments,) int64, read-only: bytes of each segment."""
        return self._nbytes

    @property
    def offsets(self) -> _Int64:
        """(segments,) int64, read-only: place of each segment in its slot, bytes."""
        return self._offsets

    @property
    def entry_starts(self) -> _Int64:
        """(entries + 1,) int64, read-only: first segment of each entry; the last element counts them all."""
        return self._entry_starts

    @property
    def files(self) -> tuple[File, ...]:
        """The files that segments lie in."""
        return () if self._files is None else self._files.files

    @property
    def file_index(self) -> npt.NDArray[np.int32] | None:
        """(segments,) int32, read-only: index in `files`, -1 memory; None where all segments lie in memory."""
        return None if self._files is None else self._files.index

    @property
    def _file_rows(self) -> tuple[npt.NDArray[np.int32], _Int64] | None:
        """What the engine reads: `file_index`, and handle, size and alignment of each file."""
        return None if self._files is None else (self._files.index, self._files.table)

    @property
    def regions(self) -> _Int64 | None:
        """(segments,) int64, read-only: source region of each segment, -1 unknown; None where none is known."""
        return self._regions

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot that holds any entry of the list: the largest of `entry_extents`, 0 without bytes."""
        return int(self.entry_extents().max(initial=0))

    @property
    def staged(self) -> _UInt8:
        """(entries,) uint8, read-only: 1 for an entry that goes through the host ring, else 0."""
        return self._staged

    @property
    def owners(self) -> tuple[object, ...]:
        """Objects kept alive because sources lie in their memory."""
        return self._owners

    def __len__(self) -> int:
        return len(self._staged)

    def entry_bytes(self) -> _Int64:
        """(entries,) int64: payload bytes of each entry, a new array."""
        # Sums may wrap over the whole list, but not within an entry, so their differences are right.
        total = np.zeros(len(self._nbytes) + 1, np.uint64)
        np.cumsum(self._nbytes.view(np.uint64), out=total[1:])
        return np.diff(total[self._entry_starts]).view(np.int64)

    def entry_extents(self) -> _Int64:
        """(entries,) int64: bytes from the slot's begin to the end of the entry's last byte, a new array.

        0 for an entry without bytes: empty segments do not count, wherever they are placed.
        """
        extents = np.zeros(len(self), np.int64)
        if len(self._nbytes):
            ends = np.where(self._nbytes > 0, self._offsets + self._nbytes, 0)
            filled = np.flatnonzero(self._entry_starts[1:] > self._entry_starts[:-1])
            extents[filled] = np.maximum.reduceat(ends, self._entry_starts[filled])
        return extents

    def jobs(self, first_job: int = 0) -> _Int64:
        """Number the staged entries.

        Parameters
        ----------
        first_job : int, default 0
            Job of the first staged entry, 0 or more.

        Returns
        -------
        (entries,) int64
            -1 for a direct entry; else its job: consecutive numbers in list order. A new array.

        Raises
        ------
        TypeError, ValueError
            `first_job` is no integer, negative, or leaves no room for the jobs in an int64.
        """
        if isinstance(first_job, (bool, np.bool_)):
            raise TypeError(f"first_job is {first_job!r}: an integer is needed")
        try:
            first = operator.index(first_job)
        except TypeError:
            raise TypeError(f"first_job is a {type(first_job).__name__}: an integer is needed") from None
        if not 0 <= first <= INT64_MAX - len(self):
            raise ValueError(f"first_job is {first}: 0 to {INT64_MAX - len(self)} is allowed")
        numbers = np.cumsum(self._staged, dtype=np.int64)
        numbers += first - 1
        numbers[self._staged == 0] = -1
        return numbers

    def pinned_share(self) -> float:
        """Share of the bytes that the DMA engine reads from pinned memory as they lie, 0 to 1.

        Those are the direct entries' bytes: an entry with pinned and pageable segments goes through the host
        ring as a whole and does not count. 1.0 where there are no bytes.
        """
        if not self._staged.any():
            return 1.0
        sizes = self.entry_bytes().astype(np.float64)  # a sum of int64 could wrap
        return float(sizes[self._staged == 0].sum() / sizes.sum())

    def __repr__(self) -> str:
        total = int(self._nbytes.sum(dtype=np.float64))
        return (
            f"<ExpertCopies: {len(self):,} entries ({int(self._staged.sum(dtype=np.int64)):,} staged), "
            f"{len(self._nbytes):,} segments, {total:,} bytes>"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError("ExpertCopies cannot be pickled or copied: its addresses hold in this process alone")


def _check_layout(layout: object) -> None:
    if layout is not None and not isinstance(layout, SlotLayout):
        raise TypeError(f"layout is a {type(layout).__name__}: a strata.SlotLayout is needed")


def _asked_of_stacks(stacks: list[Stack], experts: int) -> bool | _Bool:
    """What the runtime says of fused tensors: True, or (segments,) bools."""
    answers = [ask_stack(stack) for stack in stacks]
    if all(answer is True for answer in answers):
        return True
    rows = [np.full(experts, answer, np.bool_) if isinstance(answer, bool) else answer for answer in answers]
    return np.stack(rows, 1).reshape(-1)


def _by_layout(item: Any, layout: SlotLayout, name: str) -> list[tuple[SlotField, Any]]:
    """The tensors of a layout with their sources."""
    if isinstance(item, Mapping):
        odd = [key for key in item if key not in layout]
        missing = [key for key in layout if key not in item]
        if odd or missing:
            what = f"lacks {missing[0]!r}" if missing else f"has {odd[0]!r}"
            raise ValueError(f"{name} {what}: the layout has {', '.join(layout)}")
        return [(field, item[field.name]) for field in layout.fields]
    if not isinstance(item, (list, tuple)):
        raise TypeError(f"{name} is a {type(item).__name__}: a mapping of the layout's names, or a list, is needed")
    if len(item) != len(layout):
        raise ValueError(f"{name} has {len(item)} buffers: the layout has {len(layout)} ({', '.join(layout)})")
    return list(zip(layout.fields, item, strict=True))


def _check_field(field: SlotField, nbytes: int, dtype: Any, shape: tuple[int, ...], name: str) -> None:
    """Refuse a source that is not its tensor of the layout; bytes in one dimension may be any tensor of that size."""
    kind = dtype if isinstance(dtype, str) else dtype[0]
    if (kind, shape) == (field.dtype, field.shape):
        return
    if kind in ("uint8", "int8") and len(shape) == 1 and shape[0] == field.nbytes:
        return
    raise ValueError(
        f"{name} is {kind} {list(shape)}, {nbytes} bytes: the layout has {field.dtype} {list(field.shape)}, "
        f"{field.nbytes} bytes"
    )
