"""The experts of one layer of a checkpoint: which bytes of which files make each tensor of the slot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from strata.errors import CheckpointError
from strata.layout import SlotLayout
from strata.sources.checkpoint_files import TensorPlace, short
from strata.sources.families import Match

__all__ = ["Change", "LayerExperts", "Piece", "StoredTensor", "collect", "convert", "layer_of"]

_Int64 = npt.NDArray[np.int64]
_PIECES = {"gate": 0, "gate_up": 0, "up": 1, "down": 0}


@dataclass(frozen=True, slots=True)
class Piece:
    """One part of a tensor of the slot: for each expert a place in a file, all of one size."""

    file: _Int64
    offset: _Int64
    nbytes: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of the slot as the files have it: pieces, one after the other, and how they are turned."""

    name: str
    dtype: str
    itemsize: int
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    transposed: bool
    interleaved: bool

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)


class Change(NamedTuple):
    """How a tensor's bytes have to be moved: transposed; gate and up put one after the other, or alternately."""

    transpose: bool
    reorder: bool

    def words(self) -> list[str]:
        """For messages."""
        return [word for word, does in (("transposed", self.transpose), ("reordered", self.reorder)) if does]


@dataclass(frozen=True, slots=True)
class LayerExperts:
    """A layer: its tensors, as stored and as wanted, and where each segment of each expert lies."""

    layer: int
    experts: int
    stored: tuple[StoredTensor, ...]
    layout: SlotLayout
    changes: dict[str, Change]  #: of the tensors that are not in the files as they are wanted

    def segments(self) -> list[tuple[StoredTensor, Piece, int]]:
        """(tensor, piece, place in the slot) of each segment of an expert."""
        rows = []
        for tensor in self.stored:
            at = self.layout[tensor.name].offset
            for piece in tensor.pieces:
                rows.append((tensor, piece, at))
                at += piece.nbytes
        return rows


def collect(
    places: Iterable[TensorPlace], matches: Iterable[Match | None]
) -> tuple[dict[str, dict[int, list[tuple[TensorPlace, Match]]]], list[str]]:
    """({stack: {layer: what belongs to it}}, names that look like experts and that no pattern took)."""
    stacks: dict[str, dict[int, list[tuple[TensorPlace, Match]]]] = {}
    ignored = []
    for place, match in zip(places, matches, strict=True):
        if match is not None:
            stacks.setdefault(match.stack, {}).setdefault(match.layer, []).append((place, match))
        elif "experts." in place.name and "shared" not in place.name:
            ignored.append(place.name)
    return stacks, ignored


def layer_of(
    layer: int,
    members: list[tuple[TensorPlace, Match]],
    where: Mapping[int, str],
    *,
    transposed: bool | None,
    interleaved: bool | None,
    rows: int | None,
    align: int,
    order: list[str] | None,
) -> LayerExperts:
    """Put a layer together.

    `where` names the files. `transposed` and `interleaved` are what is wanted, None: as stored. `rows` is the number of
    experts where they are stacked along rows. `order` is that of the slot's tensors, None: gate and up, down.

    Raises
    ------
    CheckpointError
        A tensor is missing, there twice, or unlike those of the other experts.
    """
    slots: dict[str, dict[str, dict[int, tuple[TensorPlace, Match]]]] = {}
    for place, match in members:
        same = slots.setdefault(match.field, {}).setdefault(match.piece, {})
        if match.expert in same:
            what = "all experts" if match.expert < 0 else f"expert {match.expert}"
            other = same[match.expert][0]
            raise CheckpointError(f"{where[place.file]}: {short(place.name)} and {short(other.name)} are both "
                                  f"{match.field} of {what} of layer {layer}")
        same[match.expert] = (place, match)
    _without_gate(slots)
    _apart_where_types_differ(slots)
    experts = _count(layer, slots, where, rows)
    tensors = [_stored(layer, name, slots[name], experts, where) for name in slots]
    tensors = _turned(tensors)
    tensors.sort(key=lambda tensor: order.index(tensor.name) if order else _rank(tensor.name))
    wanted, changes = [], {}
    for tensor in tensors:
        try:
            shape, change = _wanted(layer, tensor, transposed, interleaved)
        except CheckpointError as problem:
            raise CheckpointError(f"{where[int(tensor.pieces[0].file[0])]}: {problem}") from None
        wanted.append((tensor.name, (tensor.dtype, tensor.itemsize), shape))
        if any(change):
            changes[tensor.name] = change
    return LayerExperts(layer, experts, tuple(tensors), SlotLayout(wanted, align=align), changes)


def _rank(name: str) -> tuple[int, str]:
    return (2 if name.startswith("down") else 1 if name.startswith("up") else 0, name)


def _without_gate(slots: dict[str, dict[str, dict[int, tuple[TensorPlace, Match]]]]) -> None:
    """Experts without a gate have an up_proj alone."""
    names = [name for name in slots if name.startswith("gate_up_proj")]
    if names and all(set(slots[name]) == {"up"} for name in names):
        for name in names:
            slots[name.replace("gate_up_proj", "up_proj", 1)] = slots.pop(name)


def _apart_where_types_differ(slots: dict[str, dict[str, dict[int, tuple[TensorPlace, Match]]]]) -> None:
    """Gate and up of different block formats are tensors of their own."""
    for name in [name for name in slots if set(slots[name]) == {"gate", "up"}]:
        pieces = slots[name]
        types = [{place.dtype for place, _ in pieces[piece].values()} for piece in ("gate", "up")]
        if types[0] != types[1] and all(len(each) == 1 for each in types):
            del slots[name]
            for piece in ("gate", "up"):
                slots[name.replace("gate_up", piece, 1)] = {piece: pieces[piece]}


def _count(
    layer: int, slots: Mapping[str, Mapping[str, Mapping[int, tuple[TensorPlace, Match]]]], where: Mapping[int, str],
    rows: int | None,
) -> int:  # fmt: skip
    """Number of experts: of tensors of one each, 0 to n - 1; of one that has them all, its first axis."""
    seen: dict[int, str] = {}
    for pieces in slots.values():
        for tensors in pieces.values():
            if -1 in tensors and len(tensors) > 1:
                place = tensors[-1][0]
                raise CheckpointError(f"{where[place.file]}: {short(place.name)} holds all experts of layer {layer}, "
                                      "and some have tensors of their own")
            if -1 in tensors:
                place, match = tensors[-1]
                if match.rows:
                    if rows is None:
                        raise CheckpointError(f"{where[place.file]}: {short(place.name)} holds experts along its "
                                              "rows, and there is no router that tells how many")
                    count = rows
                elif not place.shape:
                    raise CheckpointError(f"{where[place.file]}: {short(place.name)} has no dimensions: [experts, ...] "
                                          "is needed")
                else:
                    count = place.shape[0]
                if count and not place.nbytes:  # a count that nothing stands behind
                    raise CheckpointError(f"{where[place.file]}: {short(place.name)} has shape {list(place.shape)}: no "
                                          f"bytes for {count} experts")
                seen.setdefault(count, place.name)
            else:
                count = max(tensors) + 1
                if count > len(tensors):
                    missing = min(set(range(len(tensors) + 1)) - set(tensors))
                    place, match = tensors[max(tensors)]
                    raise CheckpointError(f"{where[place.file]}: {match.field} ({match.piece}) of expert {missing} of "
                                          f"layer {layer} is missing, and {short(place.name)} is there")
                seen.setdefault(count, tensors[count - 1][0].name)
    if len(seen) > 1:
        (one, first), (two, second) = list(seen.items())[:2]
        raise CheckpointError(f"{where[min(where)]}: layer {layer} has {one} experts by {short(first)}, and {two} by "
                              f"{short(second)}")
    return next(iter(seen))


def _stored(
    layer: int, name: str, pieces: Mapping[str, Mapping[int, tuple[TensorPlace, Match]]], experts: int,
    where: Mapping[int, str],
) -> StoredTensor:  # fmt: skip
    keys = sorted(pieces, key=lambda piece: _PIECES[piece] if piece in _PIECES else int(piece))
    if name.startswith("gate_up") and keys in (["gate"], ["up"]):
        place = next(iter(pieces[keys[0]].values()))[0]
        raise CheckpointError(f"{where[place.file]}: layer {layer} has {short(place.name)}, and no "
                              f"{'up' if keys == ['gate'] else 'gate'} to go with it")
    first_place, first = next(iter(pieces[keys[0]].values()))
    made = []
    for key in keys:
        tensors = pieces[key]
        likes, _ = tensors[-1 if -1 in tensors else 0]
        for place, _ in tensors.values():
            if (place.dtype, place.itemsize) != (first_place.dtype, first_place.itemsize):
                raise CheckpointError(f"{where[place.file]}: {short(place.name)} is {place.dtype}, and "
                                      f"{short(first_place.name)} is {first_place.dtype}: experts of one layer are "
                                      "alike")
            if place.shape != likes.shape:
                raise CheckpointError(f"{where[place.file]}: {short(place.name)} has shape {list(place.shape)}, and "
                                      f"{short(likes.name)} {list(likes.shape)}: experts of one layer are alike")
        if -1 in tensors:
            made.append(_of_all(*tensors[-1], experts, where))
        else:
            rows = [tensors[expert][0] for expert in range(experts)]
            made.append(Piece(np.array([place.file for place in rows], np.int64),
                              np.array([place.offset for place in rows], np.int64), likes.nbytes, likes.shape))
    shape = made[0].shape
    if len(made) > 1:
        for piece, key in zip(made[1:], keys[1:], strict=True):
            if piece.shape[1:] != shape[1:]:
                place = next(iter(pieces[key].values()))[0]
                raise CheckpointError(f"{where[place.file]}: {short(place.name)} has rows of {list(piece.shape[1:])}, "
                                      f"and {short(first_place.name)} of {list(shape[1:])}: they go into one {name}")
        shape = (sum(piece.shape[0] if piece.shape else 1 for piece in made), *shape[1:])
    return StoredTensor(name, first_place.dtype, first_place.itemsize, shape, tuple(made), first.transposed,
                        first.interleaved)


def _of_all(place: TensorPlace, match: Match, experts: int, where: Mapping[int, str]) -> Piece:
    """The piece of each expert in a tensor that holds all of them."""
    if match.rows:
        if not place.shape or experts < 1 or place.shape[0] % experts:
            raise CheckpointError(f"{where[place.file]}: {short(place.name)} has shape {list(place.shape)}: rows of "
                                  f"{experts} experts are needed")
        shape = (place.shape[0] // experts, *place.shape[1:])
    else:
        shape = place.shape[1:]
    nbytes = place.nbytes // experts if experts else 0
    return Piece(np.full(experts, place.file, np.int64), place.offset + np.arange(experts, dtype=np.int64) * nbytes,
                 nbytes, shape)


def _turned(tensors: list[StoredTensor]) -> list[StoredTensor]:
    """Find out by the shapes which way fused tensors lie, and by their companions whether gate and up alternate."""
    by_name = {tensor.name: tensor for tensor in tensors}
    up, down = by_name.get("gate_up_proj"), by_name.get("down_proj")
    way = None
    if up and down and len(up.pieces) == 1 and len(up.shape) == len(down.shape) == 2 and not down.transposed:
        (a, b), (c, d) = up.shape, down.shape
        if a == d and b == 2 * c:
            way = True  # [in, 2 * width] and [width, in]; no shape is this and the usual [2 * width, in] at once
    alternate = "gate_up_proj_blocks" in by_name or ("gate_up_proj_bias" in by_name
                                                     and len(by_name["gate_up_proj_bias"].pieces) == 1)
    made = []
    for tensor in tensors:
        turned = tensor.transposed or (way is True and tensor.name in ("gate_up_proj", "down_proj"))
        mixed = tensor.name.startswith("gate_up") and len(tensor.pieces) == 1 and (tensor.interleaved or alternate)
        made.append(StoredTensor(tensor.name, tensor.dtype, tensor.itemsize, tensor.shape, tensor.pieces,
                                 turned and len(tensor.shape) == 2, mixed))
    return made


def _wanted(
    layer: int, tensor: StoredTensor, transposed: bool | None, interleaved: bool | None
) -> tuple[tuple[int, ...], Change]:
    """(shape in the slot, how the bytes have to be moved for it)."""
    transpose = transposed is not None and transposed != tensor.transposed and is_weight(tensor)
    if transpose and (len(tensor.shape) != 2 or tensor.dtype[0].isupper()):
        raise CheckpointError(f"{tensor.name} of layer {layer} is {tensor.dtype} {list(tensor.shape)}: "
                              "it cannot be transposed")
    reorder = interleaved is not None and tensor.name.startswith("gate_up") and interleaved != tensor.interleaved
    if reorder:
        rows = tensor.shape[-1] if tensor.transposed else tensor.shape[0] if tensor.shape else 1
        if rows % 2:
            raise CheckpointError(f"{tensor.name} of layer {layer} has {rows} rows: gate and up are two halves")
    return tensor.shape[::-1] if transpose else tensor.shape, Change(transpose, reorder)


def is_weight(tensor: StoredTensor) -> bool:
    """Whether a tensor lies one way or the other: biases, scales and blocks do not."""
    return tensor.name in ("gate_up_proj", "up_proj", "gate_proj", "down_proj") and len(tensor.shape) >= 2


def convert(stored: npt.NDArray[np.uint8], tensor: StoredTensor, change: Change, out: npt.NDArray[np.uint8]) -> None:
    """Turn one expert's tensor from how it is stored to how it is wanted.

    `stored` and `out` are its bytes, before and after.
    """
    element = np.dtype(f"u{tensor.itemsize}" if tensor.itemsize in (1, 2, 4, 8) else (np.void, tensor.itemsize))
    array = stored.view(element).reshape(tensor.shape)
    if change.reorder:
        axis = 1 if tensor.transposed else 0
        half = array.shape[axis] // 2
        order = np.arange(2 * half).reshape((half, 2) if tensor.interleaved else (2, half)).T.reshape(-1)
        array = np.take(array, order, axis)
    if change.transpose:
        array = array.T
    out.view(element).reshape(array.shape)[...] = array
