"""Where a checkpoint keeps a model's experts, by transformers' own table of conversions.

transformers keeps for each family how a checkpoint's tensors become a model's parameters: names that change, and
operations. Where the operations only stack experts and put gate and up one after the other, an expert's bytes lie
in the file as they lie in a slot, piece by piece. Anything else (a transposition, rows that interleave) is
converted once, into host memory.
"""

from __future__ import annotations

import copy
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from strata.integrations.transformers._experts import ExpertsLayer
from strata.layout import SlotField
from strata.sources.checkpoint_files import CheckpointFile, TensorPlace
from strata.sources.safetensors_files import open_safetensors

__all__ = ["Checkpoint", "Piece", "find_places"]

logger = logging.getLogger("strata")

_LAST_NUMBER = re.compile(r"(.*\.)(\d+)(\..*)")


class Checkpoint:
    """The tensors of a folder of safetensors files, and where they lie; only headers have been read.

    Raises
    ------
    OSError, CheckpointError
        Naming file and tensor: nothing there, a missing shard, a header that lies.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.files: list[CheckpointFile]
        self.files, places = open_safetensors(path)
        self.places = {place.name: place for place in places}

    def tensor(self, name: str) -> torch.Tensor:
        """One tensor, copied from its file."""
        place = self.places[name]
        memory = torch.empty(place.nbytes, dtype=torch.uint8, device="cpu")
        self.files[place.file].read_into(place.offset, memoryview(memory.numpy()))
        return memory.view(getattr(torch, place.dtype)).view(place.shape)


class Piece(NamedTuple):
    """A run of bytes that each expert of a layer has."""

    #: For each expert, where it begins: in a file, or in host memory.
    first: Any
    nbytes: int
    #: For each expert, which file of the checkpoint; -1 is host memory.
    files: Any
    #: What keeps that memory.
    owner: torch.Tensor | None = None


@dataclass
class _Sources:
    """What the checkpoint has for one parameter."""

    converter: Any = None
    #: Names by source pattern, in order.
    names: dict[str, list[str]] = dataclass_field(default_factory=dict)


def find_places(model: nn.Module, layers: list[ExpertsLayer], checkpoint: Checkpoint) -> dict[str, list[Piece]]:
    """Find the pieces of every parameter of experts.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        With its parameters on the meta device.
    layers : list of ExpertsLayer
    checkpoint : Checkpoint

    Returns
    -------
    dict
        By the parameter's full name, the pieces of an expert in the order in which they lie in a slot.

    Raises
    ------
    ValueError
        Naming the parameter, the tensor and the file: something is missing, or has another shape or dtype.
    """
    wanted = {layer.full_name(each.name): (layer, each) for layer in layers for each in layer.layout.fields}
    tied: dict[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    sources = _sources(model, {*wanted, *tied.values()}, checkpoint)
    pieces: dict[str, list[Piece]] = {}
    converted: dict[str, torch.Tensor] = {}
    for name, (layer, field) in wanted.items():
        found = sources.get(name) or sources.get(tied.get(name, ""))
        if found is None:
            if name in converted:
                pieces[name] = _converted(name, converted.pop(name), layer, field)
                continue
            raise ValueError(f"{checkpoint.path} has no tensors for {name} ({type(model).__name__}): {layer.experts} "
                             f"experts of {field.shape} are wanted")
        kinds = [type(op).__name__ for op in found.converter.operations] if found.converter is not None else []
        if not kinds:
            (keys,) = found.names.values()
            stored = checkpoint.places[keys[0]]
            _same(name, checkpoint, stored, (layer.experts, *field.shape), field)
            pieces[name] = _stacked(stored.offset, stored.file, layer, field)
        elif kinds in (["MergeModulelist"], ["MergeModulelist", "Concatenate"]) and _plain(found.converter.operations):
            pieces[name] = _separate(name, found, layer, field, checkpoint)
        else:
            logger.info("%s is converted once into host memory (%s): %d bytes", name, ", ".join(kinds),
                        layer.experts * field.nbytes)
            converted.update(_convert(name, found, model, checkpoint))
            if name not in converted:
                raise ValueError(f"transformers' conversion of {name} ({', '.join(kinds)}) gave {sorted(converted)}")
            pieces[name] = _converted(name, converted.pop(name), layer, field)
    return pieces


def _sources(model: nn.Module, wanted: set[str], checkpoint: Checkpoint) -> dict[str, _Sources]:
    """Sort the checkpoint's names by the parameter that they become."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    transforms = get_model_conversion_mapping(model)
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    state: dict[str, Any] = model.state_dict()
    prefix: str = model.base_model_prefix
    groups: dict[str, list[tuple[int, str]]] = {}
    for key in checkpoint.places:
        numbered = _LAST_NUMBER.match(key)
        alike, number = (f"{numbered[1]}*{numbered[3]}", int(numbered[2])) if numbered else (key, 0)
        groups.setdefault(alike, []).append((number, key))
    sources: dict[str, _Sources] = {}
    for alike in sorted(groups, key=_natural):
        target, pattern = "", None
        for _, key in sorted(groups[alike]):
            # Experts of a layer differ by one number, which a converter's pattern takes as it comes: ask once for all.
            if pattern is None or "*" not in pattern:
                target, pattern = rename_source_key(key, renamings, converters, prefix, state)
                if target not in state and key in state:
                    target, pattern = rename_source_key(key, [], [], prefix, state)
            if target not in wanted:
                continue
            entry = sources.setdefault(target, _Sources())
            if pattern is not None:
                entry.converter = by_pattern[pattern]
            entry.names.setdefault(pattern or key, []).append(key)
    return sources


def _plain(operations: list[Any]) -> bool:
    """Stacking along the experts, then one after the other along the rows."""
    return operations[0].dim == 0 and (len(operations) == 1 or operations[1].dim == 1)


def _separate(
    name: str, found: _Sources, layer: ExpertsLayer, field: SlotField, checkpoint: Checkpoint
) -> list[Piece]:
    patterns = found.converter.source_patterns
    rows = field.shape[0]
    share, rest = divmod(rows, len(patterns))
    if rest:
        raise ValueError(f"{name} has {rows} rows; {len(patterns)} equal parts are wanted")
    pieces = []
    for pattern in patterns:
        keys = found.names.get(pattern, [])
        if len(keys) != layer.experts:
            raise ValueError(f"{checkpoint.path} has {len(keys)} tensors {pattern!r} for {name}; {layer.experts} are "
                             "wanted, one an expert")
        stored = [checkpoint.places[key] for key in keys]
        for each in stored:
            _same(name, checkpoint, each, (share, *field.shape[1:]), field)
        pieces.append(Piece([each.offset for each in stored], stored[0].nbytes, [each.file for each in stored]))
    return pieces


def _stacked(
    first: int, file: int, layer: ExpertsLayer, field: SlotField, owner: torch.Tensor | None = None
) -> list[Piece]:
    """The piece of one tensor of all experts, ``[experts, ...]``."""
    firsts = first + np.arange(layer.experts) * field.nbytes
    return [Piece(firsts, field.nbytes, np.full(layer.experts, file), owner)]


def _same(name: str, checkpoint: Checkpoint, stored: TensorPlace, shape: tuple[int, ...], field: SlotField) -> None:
    where = f"{checkpoint.files[stored.file].path}: {stored.name}"
    if stored.shape != shape:
        raise ValueError(f"{where} has the shape {stored.shape}; {shape} is wanted for {name}, by the model's "
                         "configuration")
    if stored.dtype != field.dtype:
        raise ValueError(f"{where} is {stored.dtype}, and {name} is {field.dtype}: experts are streamed as they lie in "
                         "the file; leave dtype at 'auto'")


def _converted(name: str, tensor: torch.Tensor, layer: ExpertsLayer, field: SlotField) -> list[Piece]:
    shape = (layer.experts, *field.shape)
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has the shape {tuple(tensor.shape)} after transformers' conversion; {shape} is "
                         "wanted")
    tensor = tensor.to(getattr(torch, field.dtype)).contiguous()
    return _stacked(tensor.data_ptr(), -1, layer, field, tensor)


def _convert(name: str, found: _Sources, model: nn.Module, checkpoint: Checkpoint) -> Mapping[str, torch.Tensor]:
    """Let transformers convert a parameter (or those that come with it)."""
    mapping = copy.deepcopy(found.converter)
    with torch.device("cpu"):       # the model is being built on the meta device
        for pattern, keys in found.names.items():
            for key in keys:
                mapping.add_tensor(name, key, pattern, checkpoint.tensor(key))
        result = mapping.convert(name, model=model, config=model.config)
    return {key: value[0] if isinstance(value, list) else value for key, value in result.items()}


def _natural(name: str) -> list[Any]:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)]
