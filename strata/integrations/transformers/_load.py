"""Building a model from a checkpoint whose experts stay in their files."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any

import numpy as np
import torch
from torch import nn

import strata
from strata.integrations.transformers._experts import ExpertsLayer, find_layers
from strata.integrations.transformers._places import Checkpoint, Piece, find_places
from strata.integrations.transformers._stream import STREAMER_OPTIONS, check_sizes, start, target_device

__all__ = ["from_pretrained"]

_PLACED = "everything but the experts goes to one device, and the experts stay in their files"
_PLAIN = "the experts are streamed as they lie in the files"
#: Arguments of transformers' from_pretrained that are not taken, and why.
_REFUSED = {
    **dict.fromkeys(("device_map", "max_memory", "offload_folder", "tp_plan", "tp_size", "distributed_config"),
                    _PLACED),
    **dict.fromkeys(("quantization_config", "load_in_8bit", "load_in_4bit", "gguf_file", "state_dict",
                     "adapter_kwargs"), _PLAIN),
    "torch_dtype": "dtype= is its name now",
    "experts_implementation": "it is strata's",
    "output_loading_info": "what is missing or does not fit raises a ValueError",
    "ignore_mismatched_sizes": "what does not fit raises a ValueError",
    "pinned_bytes": "it is for stream_experts, whose experts are in host memory",
}


def from_pretrained(
    path: str | os.PathLike[str],
    *,
    model_class: type[nn.Module] | None = None,
    device: torch.device | str | int | None = None,
    slots: int | None = None,
    cache_bytes: int = 0,
    dtype: torch.dtype | str = "auto",
    streamer: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Build a model whose experts stay in their files: everything else is loaded to the device.

    Parameters
    ----------
    path : str or path
        A folder with ``config.json`` and safetensors files.
    model_class : class, optional
        A transformers model class. Default: the one that the configuration names.
    device, slots, cache_bytes : optional
        As `stream_experts`.
    dtype : torch.dtype or "auto"
        Of what is loaded. Experts are streamed as they lie in the files, so theirs must be the same.
    streamer : dict, optional
        Further arguments of `strata.ExpertStreamer`.
    **kwargs
        Further arguments of transformers' ``from_pretrained``: `config`, `attn_implementation`, ….

    Returns
    -------
    transformers.PreTrainedModel
        In evaluation mode. Its experts are parameters on the meta device: it cannot be saved.

    Raises
    ------
    OSError, CheckpointError
        If a file is missing or is not what its header says, by name.
    TypeError, ValueError
        For what cannot be streamed, and for a checkpoint that does not fit its configuration, by name. Arguments and
        experts are looked at before anything is loaded.
    """
    import transformers

    for name, why in _REFUSED.items():
        if kwargs.get(name) is not None:
            raise ValueError(f"{name} is {kwargs[name]!r}: strata's from_pretrained does not take it: {why}")
    for name in kwargs:
        if name in STREAMER_OPTIONS:
            raise TypeError(f"{name} is an argument of the streamer: pass streamer={{{name!r}: …}}")
    if model_class is not None and not (isinstance(model_class, type)
                                        and issubclass(model_class, transformers.PreTrainedModel)):
        raise TypeError(f"model_class is {model_class!r}; a subclass of transformers.PreTrainedModel is wanted; "
                        "the default is the one that the configuration names")
    if streamer is not None and not isinstance(streamer, dict):
        raise TypeError(f"streamer is {streamer!r}; a dict of arguments of strata.ExpertStreamer is wanted")
    check_sizes(slots, cache_bytes, streamer or {})
    _check_folder(path)
    where = target_device(device)
    checkpoint = Checkpoint(path)
    config = kwargs.pop("config", None)
    if config is None:
        config = transformers.AutoConfig.from_pretrained(path)
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"{path} is quantized ({config.quantization_config}): quantized experts have kernels of their "
                         "own and are not streamed")
    cls: Any = model_class or _class_of(config)
    taken: list[tuple[list[ExpertsLayer], dict[str, list[Piece]], dict[str, str]]] = []

    def build(self: Any, *args: Any, **options: Any) -> None:
        cls.__init__(self, *args, **options)
        layers = find_layers(self)
        pieces = find_places(self, layers, checkpoint)
        _hide(layers)
        tied = getattr(self, "all_tied_weights_keys", None) or {}
        self.all_tied_weights_keys = {name: other for name, other in tied.items() if name not in pieces}
        # What is left out on purpose is no finding of transformers' report.
        self._keys_to_ignore_on_load_unexpected |= {f"^{re.escape(name)}$" for name in pieces}
        taken.append((layers, pieces, tied))

    # A class of the moment: between its making and the loading of its weights, the experts are taken out of sight.
    hiding: Any = type(cls.__name__, (cls,), {"__init__": build, "__module__": cls.__module__})
    model, report = hiding.from_pretrained(
        path, config=config, dtype=dtype, device_map={"": where}, output_loading_info=True,
        ignore_mismatched_sizes=True,       # they are named below
        **kwargs
    )
    model.__class__ = cls
    if len(taken) != 1:
        raise RuntimeError(f"{cls.__name__}.from_pretrained built {len(taken)} models; 1 was expected")
    if report["missing_keys"] or report["mismatched_keys"]:
        raise ValueError(f"{path} does not fit {cls.__name__}: missing {sorted(report['missing_keys'])[:4]}, of "
                         f"another shape {sorted(report['mismatched_keys'])[:4]}")
    layers, pieces, tied = taken[0]
    _show(layers, tied)
    model.all_tied_weights_keys = tied
    for layer in layers:
        layer.copies = _copies(layer, pieces, checkpoint)
    model.eval()
    start(model, layers, where, slots=slots, cache_bytes=cache_bytes, pins=contextlib.ExitStack(),
          options=streamer or {})
    return model


def _check_folder(path: Any) -> None:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path is {path!r}; a folder with config.json and safetensors files is wanted")
    if not os.path.isdir(path):
        kind = NotADirectoryError if os.path.exists(path) else FileNotFoundError
        raise kind(f"path is {os.fspath(path)!r}, which is no folder here. Nothing is downloaded: for a model of the "
                   "hub, pass the folder that huggingface_hub.snapshot_download returns")


def _class_of(config: Any) -> Any:
    import transformers

    for name in getattr(config, "architectures", None) or []:
        if hasattr(transformers, name):
            return getattr(transformers, name)
    return transformers.AutoModelForCausalLM._model_mapping[type(config)]


def _hide(layers: list[ExpertsLayer]) -> None:
    """Make the experts' parameters plain attributes, so that nothing is allocated or read for them."""
    for layer in layers:
        for name, parameter in layer.parameters().items():
            delattr(layer.module, name)
            # Some families' initialization names them: on the meta device it does nothing.
            setattr(layer.module, name, parameter.data)


def _show(layers: list[ExpertsLayer], tied: dict[str, str]) -> None:
    """Make them parameters again, without weights; those that are tied are one."""
    made: dict[str, nn.Parameter] = {}
    # The ones that others are tied to come first.
    for layer, name in sorted(((each, name) for each in layers for name in each.layout),
                              key=lambda pair: pair[0].full_name(pair[1]) in tied):
        full = layer.full_name(name)
        empty = getattr(layer.module, name)
        delattr(layer.module, name)
        parameter = made.get(tied.get(full, ""))
        made[full] = nn.Parameter(empty, requires_grad=False) if parameter is None else parameter
        layer.module.register_parameter(name, made[full])


def _copies(layer: ExpertsLayer, pieces: dict[str, list[Piece]], checkpoint: Checkpoint) -> strata.ExpertCopies:
    """One entry an expert; its segments in the order in which they lie in the slot."""
    placed = []
    for field in layer.layout.fields:
        at = field.offset
        for piece in pieces[layer.full_name(field.name)]:
            placed.append((*piece, at))
            at += piece.nbytes
    first, sizes, files, owners, offsets = zip(*placed, strict=True)
    return strata.ExpertCopies(
        np.array(first, np.uint64).T.reshape(-1), np.tile(sizes, layer.experts), False,
        offsets=np.tile(offsets, layer.experts), entry_starts=np.arange(layer.experts + 1) * len(placed),
        owners=[owner for owner in owners if owner is not None], file_index=np.array(files, np.int64).T.reshape(-1),
        files=[file.source(False) for file in checkpoint.files],
    )
