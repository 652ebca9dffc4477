"""The experts modules of a model: which there are, what an expert consists of, and what cannot be streamed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import strata

__all__ = ["ExpertsLayer", "find_layers"]

#: What ``use_experts_implementation`` leaves on a module.
_FLAGS = ("has_gate", "has_bias", "is_transposed", "is_concatenated")
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
#: Classes with a registry, or a forward, of their own.
_QUANTIZED = ("FP8Experts", "Mxfp4GptOssExperts")


@dataclass(eq=False)
class ExpertsLayer:
    """One experts module and how its experts lie in a slot."""

    name: str
    module: nn.Module
    index: int
    layout: strata.SlotLayout
    experts: int
    choices: int
    copies: Any = None
    #: The slots of the ring, and the rows of the cache, as this layer's experts.
    ring: Any = None
    cached: Any = None

    def full_name(self, parameter: str) -> str:
        """A parameter's name in the model."""
        return f"{self.name}.{parameter}" if self.name else parameter

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
    return ExpertsLayer(name, module, index, strata.SlotLayout(examples), experts, _choices(module))


def _choices(module: nn.Module) -> int:
    """Experts a token; where the module does not say, one: the walk is a matter of speed alone."""
    config = getattr(module, "config", None)
    for name in ("num_experts_per_tok", "top_k_experts", "moe_k", "moe_topk", "top_k", "num_experts_per_token"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return 1
