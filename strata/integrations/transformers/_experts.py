"""The experts modules of a model: which there are, what an expert consists of, and what cannot be streamed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import strata
from strata.layout import SlotField

__all__ = ["ExpertsLayer", "field_view", "find_layers"]

#: What ``use_experts_implementation`` leaves on a module.
_FLAGS = ("has_gate", "has_bias", "is_transposed", "is_concatenated")
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
#: Classes with a registry, or a forward, of their own.
_QUANTIZED = ("FP8Experts", "Mxfp4GptOssExperts")


def field_view(field: SlotField, slots: torch.Tensor) -> torch.Tensor:
    """One parameter of every slot of a (slots, bytes) tensor, without a copy: (slots, *shape)."""
    rows = slots[:, field.offset:field.offset + field.nbytes].view(getattr(torch, field.dtype))
    return rows.unflatten(1, field.shape)


@dataclass(eq=False)
class ExpertsLayer:
    """One experts module and how its experts lie in a slot."""

    name: str
    module: nn.Module
    index: int
    layout: strata.SlotLayout
    experts: int
    copies: Any = None
    #: For each parameter a (slots, ...) view of the ring, and of the cache.
    ring_views: dict[str, torch.Tensor] = field(default_factory=dict)
    cache_views: dict[str, torch.Tensor] = field(default_factory=dict)

    def full_name(self, parameter: str) -> str:
        """A parameter's name in the model."""
        return f"{self.name}.{parameter}" if self.name else parameter

    def look_at(self, ring: torch.Tensor, cache: torch.Tensor | None) -> None:
        """Make the views of the slots, and of the cache's rows, once."""
        self.ring_views = {each.name: field_view(each, ring) for each in self.layout.fields}
        if cache is not None:
            self.cache_views = {each.name: field_view(each, cache) for each in self.layout.fields}

    def views(self, span: Any) -> dict[str, torch.Tensor]:
        """The parameters of a span's experts, by name: (span's length, ...) views of the ring."""
        end = span.slot + span.end - span.begin
        return {name: view[span.slot:end] for name, view in self.ring_views.items()}

    def parameters(self) -> dict[str, nn.Parameter]:
        """The module's parameters that are streamed, by name."""
        return {name: getattr(self.module, name) for name in self.layout.names}


def find_layers(model: nn.Module) -> list[ExpertsLayer]:
    """Find the experts modules of a model, in module order.

    Raises
    ------
    ValueError
        Where there is none, or one is of a kind that cannot be streamed.
    """
    layers: list[ExpertsLayer] = []
    for name, module in model.named_modules():
        if type(module).__name__ in _QUANTIZED:
            raise ValueError(
                f"{name} is a {type(module).__name__}: quantized experts have kernels of their own that take all "
                "experts of a layer as one tensor, so they cannot be streamed; load the model dequantized"
            )
        if all(hasattr(module, flag) for flag in _FLAGS):
            layers.append(_layer(name, module, len(layers)))
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no experts module: no module of it is behind transformers' "
            "use_experts_implementation (a dense model, or a family that computes its experts in another way)"
        )
    return layers


def _layer(name: str, module: nn.Module, index: int) -> ExpertsLayer:
    if getattr(module, "_is_expert_parallel", False):
        raise ValueError(f"{name} is split by expert parallelism; streaming takes whole experts modules")
    experts = int(module.num_experts)
    up = "gate_up_proj" if module.has_gate else "up_proj"
    wanted = [up, "down_proj"]
    if module.has_bias:
        wanted = [up, up + "_bias", "down_proj", "down_proj_bias"]
    own = dict(module.named_parameters(recurse=False))
    missing = [key for key in wanted if key not in own]
    if missing:
        raise ValueError(f"{name} ({type(module).__name__}) has no parameter {missing[0]}; it has {sorted(own)}")
    examples = {}
    for key in wanted:
        parameter = own[key]
        if type(parameter.data) is not torch.Tensor:
            raise ValueError(f"{name}.{key} is a {type(parameter.data).__name__}: tensor parallelism and other tensor "
                             "subclasses cannot be streamed")
        if parameter.ndim < 2 or parameter.shape[0] != experts:
            raise ValueError(f"{name}.{key} has the shape {tuple(parameter.shape)}; ({experts}, ...) is wanted: one "
                             f"row of num_experts = {experts} each")
        if parameter.dtype not in _DTYPES:
            raise ValueError(f"{name}.{key} is {parameter.dtype}; experts of {', '.join(map(str, _DTYPES))} can be "
                             "streamed: quantized ones have kernels of their own")
        examples[key] = (str(parameter.dtype).removeprefix("torch."), tuple(parameter.shape[1:]))
    return ExpertsLayer(name, module, index, strata.SlotLayout(examples), experts)
