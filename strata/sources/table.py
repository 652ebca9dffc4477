"""`ExpertTable`: the experts of a checkpoint, as they lie in its files."""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from strata.errors import CheckpointError, HipError
from strata.layout import SlotLayout
from strata.sources.buffers import new_regions
from strata.sources.checkpoint_files import CheckpointFile, TensorPlace
from strata.sources.families import Match, matcher
from strata.sources.files import File
from strata.sources.layers import LayerExperts, StoredTensor, collect, convert, layer_of

if TYPE_CHECKING:
    from strata.copies import ExpertCopies

__all__ = ["ExpertTable", "PinReport", "build_table"]

_log = logging.getLogger("strata")
_MOST_NAME = 500  #: characters of a tensor's name that patterns are tried on


class PinReport(NamedTuple):
    """What `ExpertTable.pin` got.

    Attributes
    ----------
    layers : tuple of int
        Layers that are pinned now, earlier ones included.
    nbytes : int
        Bytes that they take.
    left : tuple of int
        Layers that are not.
    reason : str
        Why not: the budget, or what the runtime said; empty where nothing is left.
    """

    layers: tuple[int, ...]
    nbytes: int
    left: tuple[int, ...]
    reason: str


class ExpertTable:
    """The experts of a checkpoint: for each layer its layout, and lists of copies from where the bytes lie.

    Made by `strata.sources.safetensors` and `strata.sources.gguf`. Only headers have been read.

    Attributes
    ----------
    layers : tuple of int
        Numbers of the layers that have experts, ascending.
    paths : tuple of str
        The files.
    stack : str
        What comes before the layer's number in the names, e.g. ``"model.layers"``.
    stacks : tuple of str
        All that the checkpoint has: the `stack` with the most layers is taken where none was asked for.
    ignored : tuple of str
        Names of tensors that look like experts' and that no pattern took.
    file_index, offset, nbytes : (segments,) int64, read-only
        Of each segment the file (its number in `paths`), its first byte there and its bytes: layer by layer, expert by
        expert, in the order of `segment_layout`.
    layer_starts : (layers + 1,) int64, read-only
        First segment of each layer.

    Notes
    -----
    ``len()`` is the number of experts in all layers. A context manager: `close` closes the files; lists that were made
    before keep their mappings. A table may be used from several threads, but for `pin` and `close`.
    """

    def __init__(self, files: list[CheckpointFile], layers: dict[int, LayerExperts], stack: str, stacks: Sequence[str],
                 ignored: Sequence[str]) -> None:  # fmt: skip
        self._files = files
        self._by_layer = layers
        self.layers = tuple(sorted(layers))
        self.paths = tuple(file.path for file in files)
        self.stack = stack
        self.stacks = tuple(stacks)
        self.ignored = tuple(ignored)
        self._regions = np.array(new_regions(len(files)), np.int64)
        self._pinned: dict[int, npt.NDArray[np.uint8]] = {}
        self._converted: dict[int, dict[str, npt.NDArray[np.uint8]]] = {}
        self._closed = False
        rows = [_rows(layers[layer]) for layer in self.layers]
        self.layer_starts = np.cumsum([0] + [len(row[0]) for row in rows], dtype=np.int64)
        self.file_index, self.offset, self.nbytes = (
            np.concatenate([np.empty(0, np.int64), *(row[k] for row in rows)]) for k in range(3)
        )
        for array in (self.layer_starts, self.file_index, self.offset, self.nbytes):
            array.flags.writeable = False

    # What it is.

    def experts(self, layer: int) -> int:
        """Number of experts of a layer."""
        return self._layer(layer).experts

    def layout(self, layer: int) -> SlotLayout:
        """How an expert of a layer lies in its slot: the tensors of transformers' modules, e.g. ``gate_up_proj``.

        Parameters
        ----------
        layer : int

        Returns
        -------
        SlotLayout

        Raises
        ------
        KeyError
            The layer has no experts here.
        """
        return self._layer(layer).layout

    def segment_layout(self, layer: int) -> list[tuple[str, int, int]]:
        """(tensor, place in the slot, bytes) of each segment of an expert of a layer, in order."""
        return [(tensor.name, at, piece.nbytes) for tensor, piece, at in self._layer(layer).segments()]

    def conversions(self, layer: int) -> tuple[str, ...]:
        """Tensors that lie otherwise in the files: they are converted into host memory when first needed."""
        return tuple(self._layer(layer).changes)

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot that holds any expert."""
        return max(each.layout.nbytes for each in self._by_layer.values())

    @property
    def expert_bytes(self) -> int:
        """Bytes of all experts together."""
        return int(self.nbytes.sum())

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def pinned(self) -> tuple[int, ...]:
        """Layers that `pin` holds."""
        return tuple(sorted(self._pinned))

    # What it gives.

    def copies(self, layer: int, experts: Sequence[int] | npt.NDArray[Any] | None = None, *,
               mapped: bool = False, direct: bool = False) -> ExpertCopies:  # fmt: skip
        """Make a list of copies of experts of a layer.

        Parameters
        ----------
        layer : int
        experts : (n,) integers, optional
            Which, in order; default all.
        mapped : bool, default False
            From the files' mappings, which are made at the first need, rather than read by the workers. A file that
            shrinks under its mapping kills the process (SIGBUS), as the operating system has it; one that is read gives
            an error.
        direct : bool, default False
            The workers read past the page cache (``O_DIRECT``): for models larger than the host's memory.

        Returns
        -------
        ExpertCopies
            One entry an expert, direct where `pin` has the layer, else staged. It keeps what it lies in: files stay
            open, past the table's end too.

        Raises
        ------
        KeyError
            The layer has no experts here.
        IndexError, TypeError, ValueError
            As `ExpertCopies.take`; the table is closed; `mapped` and `direct` are both True.
        CheckpointError, OSError
            A file cannot be mapped or read any more, or not past the page cache.
        """
        each = self._layer(layer)
        self._check_open()
        if mapped and direct:
            raise ValueError("mapped and direct are both True: a mapping is the page cache")
        from strata._file_rows import FileRows
        from strata.copies import ExpertCopies

        if layer in self._pinned:
            copies = ExpertCopies.from_stacked(self._pinned[layer][:, : each.layout.nbytes], pinned=True)
            return copies if experts is None else copies.take(experts)
        segments = each.segments()
        starts = np.arange(each.experts + 1, dtype=np.int64)
        addresses, nbytes, offsets, regions, indices = [], [], [], [], []
        owners: dict[int, object] = {}
        files: list[File] = []
        number = np.full(len(self._files), -1, np.int64)  # of a file of the table in the list
        for tensor, piece, at in segments:
            if tensor.name in each.changes:
                continue
            base = np.zeros(len(self._files), np.uint64)
            for file in np.unique(piece.file).tolist() if piece.nbytes else ():
                if mapped:
                    mapping = self._files[file].mapping()
                    owners[id(mapping)] = mapping
                    base[file] = mapping.__array_interface__["data"][0]
                elif number[file] < 0:
                    number[file] = len(files)
                    files.append(self._files[file].source(direct))
            addresses.append(base[piece.file] + piece.offset.view(np.uint64) if piece.nbytes else base[piece.file])
            indices.append(number[piece.file] if piece.nbytes else np.full(each.experts, -1, np.int64))
            nbytes.append(piece.nbytes)
            offsets.append(at)
            regions.append(self._regions[piece.file])
        for name, array in self._of_changes(layer).items():
            owners[id(array)] = array
            stride = array.strides[0]
            first = np.uint64(array.__array_interface__["data"][0] if array.size else 0)
            addresses.append(first + np.arange(each.experts, dtype=np.uint64) * np.uint64(stride))
            indices.append(np.full(each.experts, -1, np.int64))
            nbytes.append(array.shape[1])
            offsets.append(each.layout[name].offset)
            regions.append(np.full(each.experts, new_regions(1)[0], np.int64))
        copies = ExpertCopies.__new__(ExpertCopies)
        copies._build(
            np.stack(addresses, 1).reshape(-1),
            np.tile(np.array(nbytes, np.int64), each.experts),
            False,
            np.tile(np.array(offsets, np.int64), each.experts),
            starts * len(nbytes),
            np.stack(regions, 1).reshape(-1),
            tuple(owners.values()),
            FileRows(tuple(files), np.stack(indices, 1).reshape(-1).astype(np.int32)) if files else None,
        )
        return copies if experts is None else copies.take(experts)

    def pin(self, limit: int, layers: Sequence[int] | None = None) -> PinReport:
        """Read layers into pinned memory, one by one, as long as a budget lasts; their entries are then direct.

        Parameters
        ----------
        limit : int
            Bytes of pinned memory that the table may hold in all, 0 or more.
        layers : sequence of int, optional
            Which, in order; default all, ascending.

        Returns
        -------
        PinReport
            What it holds now. The same is logged at INFO; at WARNING where the runtime refused.

        Raises
        ------
        KeyError
            A layer has no experts here.
        TypeError, ValueError
            `limit` is no integer from 0; the table is closed.
        CheckpointError, OSError
            A file ended early or could not be read: the layer stays unpinned, earlier ones stay pinned.
        RuntimeNotFound, StrataError
            As `strata.runtime.use`.

        Notes
        -----
        A layer takes its experts times the layout's bytes, rounded up to 256.
        """
        from strata.pinned import pinned_empty

        if isinstance(limit, bool):
            raise TypeError(f"limit is {limit!r}: a number of bytes is needed")
        try:
            budget = operator.index(limit)
        except TypeError:
            raise TypeError(f"limit is {limit!r}: a number of bytes is needed") from None
        if budget < 0:
            raise ValueError(f"limit is {budget}: 0 or more bytes are allowed")
        self._check_open()
        wanted = self.layers if layers is None else tuple(layers)
        for layer in wanted:
            self._layer(layer)
        reason = ""
        for layer in wanted:
            if layer in self._pinned:
                continue
            each = self._layer(layer)
            shape = (each.experts, -(-each.layout.nbytes // 256) * 256)
            held = sum(block.nbytes for block in self._pinned.values())
            if held + shape[0] * shape[1] > budget:
                reason = f"layer {layer} takes {shape[0] * shape[1]:,} bytes, {held:,} of {budget:,} are used"
                break
            try:
                block = pinned_empty(shape, np.uint8)
            except HipError as problem:
                reason = f"layer {layer}: {problem}"
                break
            self._fill(each, block)
            self._pinned[layer] = block
        report = self._report(reason)
        _log.log(logging.WARNING if "hip" in reason else logging.INFO, "%d of %d layers pinned, %d bytes%s",
                 len(report.layers), len(self.layers), report.nbytes, f": {reason}" if reason else "")
        return report

    def _report(self, reason: str) -> PinReport:
        left = tuple(layer for layer in self.layers if layer not in self._pinned)
        held = sum(block.nbytes for block in self._pinned.values())
        return PinReport(self.pinned, held, left, reason if left else "")

    def _fill(self, each: LayerExperts, block: npt.NDArray[np.uint8]) -> None:
        """Read a layer's experts, as wanted, into the rows of a block."""
        end = 0
        for field in sorted(each.layout.fields, key=lambda field: field.offset):
            block[:, end : field.offset] = 0  # what lies between: nothing of another owner's goes to the device
            end = max(end, field.offset + field.nbytes)
        for tensor in each.stored:
            field = each.layout[tensor.name]
            change = each.changes.get(tensor.name)
            room = np.empty(tensor.nbytes, np.uint8) if change else None
            for expert in range(each.experts):
                slot = block[expert, field.offset : field.offset + field.nbytes]
                self._read(tensor, expert, slot if room is None else room)
                if change and room is not None:
                    convert(room, tensor, change, slot)

    def _read(self, tensor: StoredTensor, expert: int, into: npt.NDArray[np.uint8]) -> None:
        """Read an expert's tensor, as it is stored, into memory of its size."""
        at = 0
        for piece in tensor.pieces:
            if piece.nbytes:
                part = into[at : at + piece.nbytes]
                self._files[piece.file[expert]].read_into(int(piece.offset[expert]), part.data)
            at += piece.nbytes

    def _of_changes(self, layer: int) -> dict[str, npt.NDArray[np.uint8]]:
        """{tensor: (experts, bytes)} of a layer's tensors that the files do not have as they are wanted."""
        each = self._layer(layer)
        if layer in self._converted or not each.changes:
            return self._converted.get(layer, {})
        made = {}
        for tensor in each.stored:
            if tensor.name not in each.changes:
                continue
            change = each.changes[tensor.name]
            array = np.empty((each.experts, tensor.nbytes), np.uint8)
            room = np.empty(tensor.nbytes, np.uint8)
            for expert in range(each.experts):
                self._read(tensor, expert, room)
                convert(room, tensor, change, array[expert])
            how = " and ".join(change.words())
            _log.info("%s of layer %d is %s into host memory: %d bytes", tensor.name, layer, how, array.nbytes)
            made[tensor.name] = array
        return self._converted.setdefault(layer, made)

    # Its end.

    def close(self) -> None:
        """Close the files and drop what was pinned and converted. Lists that were made keep theirs. Idempotent."""
        self._closed = True
        self._pinned.clear()
        self._converted.clear()
        for file in self._files:
            file.close()

    def __enter__(self) -> ExpertTable:
        self._check_open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return sum(each.experts for each in self._by_layer.values())

    def __contains__(self, layer: object) -> bool:
        return layer in self._by_layer

    def __repr__(self) -> str:
        counts = sorted({each.experts for each in self._by_layer.values()})
        experts = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        state = ", closed" if self._closed else f", {len(self._pinned)} layers pinned" if self._pinned else ""
        return (f"<ExpertTable: {len(self.layers)} layers of {experts} experts, {self.expert_bytes:,} bytes in "
                f"{len(self._files)} files, slots of {self.slot_bytes:,} bytes{state}>")

    def __reduce__(self) -> NoReturn:
        raise TypeError("ExpertTable cannot be pickled or copied: its files are open in this process alone")

    def _layer(self, layer: int) -> LayerExperts:
        try:
            return self._by_layer[layer]
        except (KeyError, TypeError):
            pass
        raise KeyError(f"layer is {layer!r}: {_ranges(self.layers)} have experts")

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the table is closed")


def build_table(
    files: list[CheckpointFile], places: list[TensorPlace], *, pattern: Any, stack: str | None,
    transposed: bool | None, interleaved: bool | None, align: int, uneven_experts: bool,
) -> ExpertTable:  # fmt: skip
    """Find the experts among the tensors of a checkpoint."""
    for name, flag in (("transposed", transposed), ("interleaved", interleaved)):
        if flag is not None and not isinstance(flag, bool):
            raise TypeError(f"{name} is {flag!r}: True, False or None (as stored) is needed")
    SlotLayout((), align=align)  # refuses a wrong one by name
    match = matcher(pattern)
    matches = [match(place.name) if len(place.name) <= _MOST_NAME else None for place in places]
    found, ignored = collect(places, matches)
    where = {number: file.path for number, file in enumerate(files)}
    if not found:
        what = "the pattern" if pattern is not None else "a known family"
        some = f", e.g. {places[0].name[:200]!r}" if places else ""
        raise CheckpointError(f"{where[0]}: no tensor of {len(places)} is named as an expert's of {what}{some}")
    names = sorted(found, key=lambda name: (-len(found[name]), name))
    if stack is None:
        stack = names[0]
        if len(names) > 1:
            _log.info("experts of %s are taken; those of %s are not (stack= chooses)", stack, ", ".join(names[1:]))
    elif stack not in found:
        raise CheckpointError(f"stack is {stack!r}: {', '.join(names)} have experts")
    rows = _rows_of_routers(places, found[stack])
    order = list(pattern_fields(pattern)) if pattern is not None else None
    layers = {}
    for layer, members in sorted(found[stack].items()):
        try:
            layers[layer] = layer_of(layer, members, where, transposed=transposed, interleaved=interleaved,
                                     rows=rows.get(layer), align=align, order=order)
        except CheckpointError:
            raise
        except ValueError as problem:  # a layout that cannot be
            raise CheckpointError(f"{where[members[0][0].file]}: layer {layer}: {problem}") from None
    counts = {each.experts: layer for layer, each in layers.items()}
    if len(counts) > 1 and not uneven_experts:
        (one, first), (two, second) = list(counts.items())[:2]
        raise CheckpointError(f"{where[0]}: layer {first} has {one} experts and layer {second} has {two}: shards may "
                              "be missing (uneven_experts=True allows it)")
    if 0 in counts:
        raise CheckpointError(f"{where[0]}: layer {counts[0]} has no experts")
    return ExpertTable(files, layers, stack, names, ignored)


def pattern_fields(pattern: Any) -> Any:
    """Names of the slot's tensors in a pattern, in order."""
    return getattr(pattern, "fields", pattern)


def _rows_of_routers(places: list[TensorPlace], members: dict[int, list[tuple[TensorPlace, Match]]]) -> dict[int, int]:
    """{layer: experts}, by the router, for layers whose experts are stacked along rows."""
    routers = {place.name: place.shape for place in places if place.name.endswith("router.layer.weight")}
    found = {}
    for layer, each in members.items():
        if any(match.rows for _, match in each):
            stack = each[0][1].stack
            shape = routers.get(f"{stack}.{layer}.ffn.router.layer.weight")
            if shape:
                found[layer] = shape[0]
    return found


def _rows(each: LayerExperts) -> tuple[npt.NDArray[np.int64], ...]:
    """(file, offset, bytes) of a layer's segments, expert by expert."""
    segments = each.segments()
    return (
        np.stack([piece.file for _, piece, _ in segments], 1).reshape(-1),
        np.stack([piece.offset for _, piece, _ in segments], 1).reshape(-1),
        np.tile(np.array([piece.nbytes for _, piece, _ in segments], np.int64), each.experts),
    )


def _ranges(layers: Sequence[int]) -> str:
    if len(layers) > 2 and layers[-1] - layers[0] == len(layers) - 1:
        return f"{layers[0]} to {layers[-1]}"
    return ", ".join(map(str, layers[:20])) + (", …" if len(layers) > 20 else "")
