"""Ways to run the model: each takes the checkpoint and gives a model that is ready for a forward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

__all__ = ["ARMS", "Arm", "move_all_but_experts", "without"]

GIB = 2**30


@dataclass(frozen=True)
class Arm:
    """One way.

    Attributes
    ----------
    name : str
    open : callable
        (path, device, loaded) to a context manager of a model; `loaded` is the model on the host, or None where the
        arm loads by itself.
    slow : bool
        Measured with fewer repetitions.
    own : bool
        Loads by itself.
    """

    name: str
    open: Callable[[Path, torch.device, Any], contextlib.AbstractContextManager[Any]]
    slow: bool = False
    own: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def without(device: torch.device, name: str) -> str | None:
    """Why an arm cannot run here; None where it can."""
    if name.startswith("diffusers"):
        try:
            from diffusers.hooks import apply_group_offloading  # noqa: F401
        except Exception as problem:
            return f"diffusers cannot be imported: {type(problem).__name__}: {problem}"
    if name.startswith("accelerate"):
        try:
            import accelerate  # noqa: F401
        except Exception as problem:
            return f"accelerate cannot be imported: {type(problem).__name__}: {problem}"
    if device.type == "cpu" and name.startswith(("diffusers", "double")):
        return "needs a GPU: it is about streams"
    return None


def experts_of(model: nn.Module) -> list[nn.Module]:
    """The experts modules."""
    return [module for module in model.modules() if hasattr(module, "is_concatenated")]


def move_all_but_experts(model: nn.Module, device: torch.device) -> None:
    """Move the few per cent that are not experts."""
    kept = {id(parameter) for module in experts_of(model) for parameter in module.parameters(recurse=False)}
    for parameter in model.parameters():
        if id(parameter) not in kept:
            parameter.data = parameter.data.to(device)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)


def _strata(**options: Any) -> Callable[..., contextlib.AbstractContextManager[Any]]:
    @contextlib.contextmanager
    def opened(path: Path, device: torch.device, loaded: Any) -> Iterator[Any]:
        from strata.integrations.transformers import stream_experts, unstream

        stream_experts(loaded, device=device, **options)
        try:
            yield loaded
        finally:
            unstream(loaded)
    return opened


def _strata_files(**options: Any) -> Callable[..., contextlib.AbstractContextManager[Any]]:
    @contextlib.contextmanager
    def opened(path: Path, device: torch.device, loaded: Any) -> Iterator[Any]:
        from strata.integrations.transformers import from_pretrained, unstream

        model = from_pretrained(path, device=device, **options)
        try:
            yield model
        finally:
            unstream(model)
    return opened


@contextlib.contextmanager
def _accelerate(path: Path, device: torch.device, loaded: Any) -> Iterator[Any]:
    """accelerate's ``cpu_offload`` of the experts; everything else on the device."""
    from accelerate import cpu_offload
    from accelerate.hooks import remove_hook_from_submodules

    move_all_but_experts(loaded, device)
    kept = [{name: p.data for name, p in module.named_parameters(recurse=False)} for module in experts_of(loaded)]
    for module in experts_of(loaded):
        cpu_offload(module, execution_device=device)
    try:
        yield loaded
    finally:
        for module in experts_of(loaded):
            remove_hook_from_submodules(module)
        _put_back(loaded, kept)


@contextlib.contextmanager
def _diffusers(path: Path, device: torch.device, loaded: Any) -> Iterator[Any]:
    """diffusers' group offloading: leaf level, a stream of its own, pinned as it goes."""
    from diffusers.hooks import HookRegistry, apply_group_offloading

    move_all_but_experts(loaded, device)
    kept = [{name: p.data for name, p in module.named_parameters(recurse=False)} for module in experts_of(loaded)]
    apply_group_offloading(loaded.model, onload_device=device, offload_device=torch.device("cpu"),
                           offload_type="leaf_level", use_stream=True, non_blocking=True, low_cpu_mem_usage=True)
    try:
        yield loaded
    finally:
        for module in loaded.modules():
            registry = getattr(module, "_diffusers_hook", None)
            if isinstance(registry, HookRegistry):
                for name in list(registry.hooks):
                    registry.remove_hook(name, recurse=False)
        _put_back(loaded, kept)
        move_all_but_experts(loaded, device)


def _put_back(model: nn.Module, kept: list[dict[str, torch.Tensor]]) -> None:
    for module, tensors in zip(experts_of(model), kept, strict=True):
        for name, tensor in tensors.items():
            module._parameters[name] = nn.Parameter(tensor, requires_grad=False)


@contextlib.contextmanager
def _double_buffer(path: Path, device: torch.device, loaded: Any) -> Iterator[Any]:
    """Two buffers of a whole layer each, filled from pinned memory by a stream of their own, a layer ahead."""
    move_all_but_experts(loaded, device)
    modules = experts_of(loaded)
    kept = [{name: p.data for name, p in module.named_parameters(recurse=False)} for module in modules]
    pinned = [{name: tensor.pin_memory() for name, tensor in tensors.items()} for tensors in kept]
    buffers = [{name: torch.empty_like(tensor, device=device) for name, tensor in kept[0].items()} for _ in range(2)]
    side = torch.cuda.Stream(device)
    ready = [torch.cuda.Event() for _ in modules]
    used = [torch.cuda.Event() for _ in modules]

    def load(layer: int) -> None:
        with torch.cuda.stream(side):
            if layer >= 2:
                side.wait_event(used[layer - 2])
            for name, tensor in pinned[layer].items():
                buffers[layer % 2][name].copy_(tensor, non_blocking=True)
            ready[layer].record(side)

    def begin(*_: Any) -> None:
        side.wait_stream(torch.cuda.current_stream(device))
        for layer in range(min(2, len(modules))):
            load(layer)

    def before(layer: int) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            torch.cuda.current_stream(device).wait_event(ready[layer])
        return hook

    def after(layer: int) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            used[layer].record(torch.cuda.current_stream(device))
            if layer + 2 < len(modules):
                load(layer + 2)
        return hook

    handles = [loaded.model.register_forward_pre_hook(begin)]
    for layer, module in enumerate(modules):
        for name, buffer in buffers[layer % 2].items():
            module._parameters[name] = nn.Parameter(buffer, requires_grad=False)
        handles += [module.register_forward_pre_hook(before(layer)), module.register_forward_hook(after(layer))]
    try:
        yield loaded
    finally:
        for handle in handles:
            handle.remove()
        _put_back(loaded, kept)


@contextlib.contextmanager
def _resident(path: Path, device: torch.device, loaded: Any) -> Iterator[Any]:
    """Everything on the device: what the others are compared with, bit by bit."""
    move_all_but_experts(loaded, device)
    kept = [{name: p.data for name, p in module.named_parameters(recurse=False)} for module in experts_of(loaded)]
    for module, tensors in zip(experts_of(loaded), kept, strict=True):
        for name, tensor in tensors.items():
            module._parameters[name] = nn.Parameter(tensor.to(device), requires_grad=False)
    try:
        yield loaded
    finally:
        _put_back(loaded, kept)


ARMS = [
    Arm("resident", _resident),
    Arm("strata, files", _strata_files(), own=True),
    Arm("strata, files, 2 GiB cache", _strata_files(cache_bytes=2 * GIB), own=True),
    Arm("strata, pageable", _strata()),
    Arm("strata, pinned", _strata(pinned_bytes=2**46)),
    Arm("strata, pinned, 16 slots", _strata(pinned_bytes=2**46, slots=16)),
    Arm("accelerate cpu_offload", _accelerate, slow=True),
    Arm("diffusers leaf_level, stream", _diffusers, slow=True),
    Arm("double buffer of layers, pinned", _double_buffer),
]
