"""Streaming the experts of a model that is loaded, and undoing it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

import strata
from strata.integrations.torch import Pinned, TorchStreamer, pin
from strata.integrations.torch.streamer import place
from strata.integrations.transformers._cache import ExpertCache
from strata.integrations.transformers._experts import ExpertsLayer, find_layers
from strata.integrations.transformers._streamed import StreamedModel, layer_of

__all__ = ["IMPLEMENTATION", "STREAMER_OPTIONS", "check_sizes", "start", "stream_experts", "streamed", "target_device",
           "unstream"]

IMPLEMENTATION = "strata"
#: Bytes of slots where nobody says: the ring hides the copies, more of it hides no more.
_RING_BYTES = 2**30
_MOST_SLOTS = 96
_LEAST_SLOTS = 4
#: Arguments of `strata.ExpertStreamer` that are the caller's: not those that follow from the model, its slots, or the
#: device.
STREAMER_OPTIONS = set(inspect.signature(strata.ExpertStreamer).parameters) - {
    "slot_bytes", "gpu_ring", "slots", "device"}

#: Where a model keeps what streams its experts, and what computed them before.
_ATTRIBUTE = "_strata_model"
#: transformers' question whether generate compiles; an answer of the model's own comes first.
_AUTO_COMPILE = "_valid_auto_compile_criteria"


def stream_experts(
    model: nn.Module,
    *,
    device: torch.device | str | int | None = None,
    slots: int | None = None,
    pinned_bytes: int = 0,
    cache_bytes: int = 0,
    **options: Any,
) -> nn.Module:
    """Stream the experts of a loaded model from host memory.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Loaded on the CPU, in evaluation mode. Everything but its experts moves to `device`.
    device : torch.device, str or int, optional
        Default: the current CUDA (or HIP) device where there is one, else the CPU over strata's software runtime.
    slots : int, optional
        Experts that the ring in device memory holds. Default: as many as fit 1 GiB, 4 to 96.
    pinned_bytes : int, default 0
        Host memory that may be pinned: experts move into pinned memory, layer by layer, while they fit.
    cache_bytes : int, default 0
        Device memory for experts that stay from one forward to the next, least recently used. Decoding uses it.
    **options
        Further arguments of `strata.ExpertStreamer`: `workers`, `host_ring`, `settings`, `submission`,
        `share_dependencies`, `run_ahead`, `copy_stream`, `compute_stream`, `timing`, `stall_timeout`.

    Returns
    -------
    model
        The same object; `unstream` undoes it.

    Raises
    ------
    TypeError, ValueError
        For what cannot be streamed, by name; the model is as it was.
    ImportError
        For a transformers outside the tested range.

    Notes
    -----
    One thread at a time uses the model. Its experts stay parameters on the CPU, so that checkpoints are saved as
    before; do not move the model with ``.to()`` afterwards.
    """
    _check_model(model)
    check_sizes(slots, cache_bytes, options)
    where = target_device(device)
    layers = find_layers(model)
    for layer in layers:
        for name, parameter in layer.parameters().items():
            if parameter.device.type == "meta":
                raise ValueError(f"{layer.name}.{name} is on the meta device: its weights were not loaded; "
                                 "strata.integrations.transformers.from_pretrained leaves experts in their files")
            if parameter.device.type != "cpu":
                raise ValueError(f"{layer.name}.{name} is on {parameter.device} already: experts are streamed from "
                                 "host memory, so load the model on the CPU")
            if not parameter.is_contiguous():
                raise ValueError(f"{layer.name}.{name} is not contiguous")
    with contextlib.ExitStack() as pins:
        left = _bytes("pinned_bytes", pinned_bytes)
        for layer in layers:
            tensors = [parameter.data for parameter in layer.parameters().values()]
            got = pin(tensors, left) if left else Pinned(left=tensors)
            pins.enter_context(got)
            left = 0 if got.left else left - got.nbytes
            layer.copies = strata.ExpertCopies.from_stacked(*tensors, layout=layer.layout, pinned=not got.left)
        start(model, layers, where, slots=slots, cache_bytes=cache_bytes, pins=pins, options=options)
    return model


# Outside of inference mode: the forwards need not be in it.
@torch.inference_mode(False)
def start(
    model: nn.Module, layers: list[ExpertsLayer], device: torch.device, *, slots: int | None, cache_bytes: int,
    pins: contextlib.ExitStack, options: dict[str, Any],
) -> None:
    """Begin to stream layers whose copies are known; where that fails, the model is as it was."""
    slot_bytes = max(layer.layout.nbytes for layer in layers)
    if slots is None:
        slots = max(_LEAST_SLOTS, min(_MOST_SLOTS, _RING_BYTES // slot_bytes))
    with contextlib.ExitStack() as undo:
        streamer = TorchStreamer(slot_bytes, gpu_ring=slots, device=device, **options)
        undo.callback(streamer.close)
        row_bytes = streamer.memory.shape[1]
        rows = cache_bytes // row_bytes
        if cache_bytes and not rows:
            raise ValueError(f"cache_bytes is {cache_bytes}: not one expert of {row_bytes} bytes fits; 0 is no cache")
        cache = ExpertCache(rows, row_bytes, device) if rows else None
        _move_rest(model, layers, device, undo)
        before = _implementations(model)
        undo.callback(model.set_experts_implementation, before)
        model.set_experts_implementation(IMPLEMENTATION)
        for layer in layers:
            config: Any = layer.module.config
            if config._experts_implementation != IMPLEMENTATION:
                raise ValueError(
                    f"{layer.name}: {type(model).__name__}.set_experts_implementation does not reach its configuration "
                    f"({type(config).__name__} says {config._experts_implementation!r})"
                )
        mine = pins.pop_all()
        undo.callback(mine.close)
        streaming = StreamedModel(model, layers, streamer, cache, mine)
        undo.pop_all()
    model.__dict__[_ATTRIBUTE] = (streaming, before)
    # On a static cache, generate would compile the model by itself.
    model.__dict__[_AUTO_COMPILE] = _never


def unstream(model: nn.Module) -> nn.Module:
    """Stop streaming a model's experts: transformers computes them as before.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        One that `stream_experts` or `from_pretrained` returned.

    Returns
    -------
    model
        The same object. Experts are where they were: on the CPU after `stream_experts`, and without weights, on the
        meta device, after `from_pretrained`: then a forward raises a `RuntimeError`. Everything else stays on its
        device.

    Raises
    ------
    ValueError
        If its experts are not streamed.
    RuntimeError
        If another thread is in a forward of it.
    """
    streaming = streamed(model)
    streaming.close()
    _, before = model.__dict__.pop(_ATTRIBUTE)
    model.__dict__.pop(_AUTO_COMPILE, None)
    if not any(parameter.is_meta for layer in streaming.layers for parameter in layer.parameters().values()):
        model.set_experts_implementation(before)
    # Else nothing can compute them any more, and a forward says so.
    return model


def streamed(model: nn.Module) -> StreamedModel:
    """What streams a model's experts: its counters, its cache.

    Raises
    ------
    ValueError
        If its experts are not streamed.
    """
    found = model.__dict__.get(_ATTRIBUTE)
    if found is None:
        raise ValueError(f"this {type(model).__name__}'s experts are not streamed")
    streaming: StreamedModel = found[0]
    return streaming


def _never(*_: Any, **__: Any) -> bool:
    return False


def _check_model(model: nn.Module) -> None:
    import transformers

    if isinstance(model, torch._dynamo.OptimizedModule):
        raise TypeError("model is a compiled module: torch.compile of the whole model is not supported; pass the "
                        "model itself")
    if not isinstance(model, transformers.PreTrainedModel):
        raise TypeError(f"model is a {type(model).__name__}; a transformers.PreTrainedModel is wanted")
    if any(layer_of(module) for module in model.modules()):
        raise ValueError("this model's experts are streamed already: unstream() it first")
    if getattr(model, "_compiled_call_impl", None) is not None:
        raise ValueError("model.compile() was called: torch.compile of the whole model is not supported")
    if model.training:
        raise ValueError("the model is in training mode; streaming is for inference: call model.eval()")
    if getattr(model, "_tp_size", None) not in (None, 1) or getattr(model, "device_mesh", None) is not None:
        raise ValueError("the model is split by tensor parallelism; streaming takes whole experts modules")
    places = set((getattr(model, "hf_device_map", None) or {}).values())
    offloaded = any(getattr(getattr(module, "_hf_hook", None), "offload", False) for module in model.modules())
    if len(places) > 1 or offloaded:
        raise ValueError(f"the model is spread by device_map over {sorted(map(str, places))}: accelerate's hooks would "
                         "move its weights in every forward; load it without device_map")


def target_device(device: torch.device | str | int | None) -> torch.device:
    """Where a model computes.

    Raises
    ------
    ValueError
        For another kind of device, or a GPU that torch does not see.
    StrataError
        If the runtime and the device do not go together.
    """
    if device is not None:
        where = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if where.type not in ("cuda", "cpu"):
            raise ValueError(f"device is {where}; a CUDA or HIP device, or the CPU, is wanted")
        if where.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device is {where}, and this torch ({torch.__version__}) sees no GPU; 'cpu' computes "
                             "over strata's software runtime")
    return place(None, device)


def check_sizes(slots: int | None, cache_bytes: int, options: Mapping[str, Any]) -> None:
    """Refuse what nobody needs a loaded model for."""
    if slots is not None:
        if isinstance(slots, bool) or not isinstance(slots, int):
            raise TypeError(f"slots is {slots!r}; an integer from 1 is wanted")
        if slots < 1:
            raise ValueError(f"slots is {slots}; it must be at least 1")
    _bytes("cache_bytes", cache_bytes)
    unknown = sorted(set(options) - STREAMER_OPTIONS)
    if unknown:
        raise TypeError(f"{unknown[0]} is no argument that the model's streamer takes: "
                        f"{', '.join(sorted(STREAMER_OPTIONS))} are")


def _bytes(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; a number of bytes (int) is wanted")
    if value < 0:
        raise ValueError(f"{name} is {value}; it must be at least 0")
    return value


def _implementations(model: nn.Module) -> dict[str, str | None]:
    """What computes a model's experts now, in the form that ``set_experts_implementation`` takes."""
    config: Any = model.config
    parts = {name: getattr(config, name, None) for name in getattr(config, "sub_configs", {})}
    return {"": config._experts_implementation,
            **{name: part._experts_implementation for name, part in parts.items() if part is not None}}


def _move_rest(
    model: nn.Module, layers: list[ExpertsLayer], device: torch.device, undo: contextlib.ExitStack
) -> None:
    """Move everything but the experts."""
    kept = {id(parameter) for layer in layers for parameter in layer.parameters().values()}
    for parameter in model.parameters():
        if id(parameter) not in kept and parameter.device != device:
            undo.callback(setattr, parameter, "data", parameter.data)
            parameter.data = parameter.data.to(device)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.device != device:
                undo.callback(module._buffers.__setitem__, name, buffer)
                module._buffers[name] = buffer.to(device)
