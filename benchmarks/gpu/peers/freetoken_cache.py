"""FreeToken's ``OffloadMoeCache`` in prefill: two layers of slots, banks of bf16 in pinned memory.

Driven as its own layers do: begin, then for each layer prefetch it and the next, wait, compute, release.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from benchmarks.gpu.cases import Case, bank_columns
from benchmarks.gpu.measuring import Result
from benchmarks.gpu.peers import Bench

__all__ = ["available", "run"]

#: What the cache itself works with: never stood in for.
_NEEDED = ("torch", "triton", "numpy", "freetoken", "flashlib")

_stand_ins: list[str] = []


class _Empty:
    """Takes anything, does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self


class _StandIn(ModuleType):
    """A module whose every name is an empty class: for packages of the server, which the cache never calls."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Empty,), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves the packages that are missing."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None,
                  target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] in _stand_ins:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _import() -> Any:
    """Import the cache's module, with stand-ins for packages that only the rest of FreeToken needs."""
    finder = _Finder()
    sys.meta_path.append(finder)
    try:
        while True:
            try:
                return importlib.import_module("freetoken.moe.offload_cache")
            except ModuleNotFoundError as problem:
                missing = (problem.name or "").partition(".")[0]
                if not missing or missing in _NEEDED or missing in _stand_ins:
                    raise
                _stand_ins.append(missing)
                for name in [n for n in sys.modules if n.partition(".")[0] == "freetoken"]:
                    del sys.modules[name]
    finally:
        if not _stand_ins:
            sys.meta_path.remove(finder)


def available() -> str | None:
    """Needs freetoken and flashlib, and the extension of FreeToken that tells a pinned tensor's device address."""
    try:
        _import()
    except Exception as problem:
        return f"freetoken's OffloadMoeCache cannot be imported: {type(problem).__name__}: {problem}"
    return None


def run(case: Case, bench: Bench) -> Result:
    """Measure a case: layers of ``slots / 2`` experts, ``slots`` of the cache's own."""
    module = _import()
    experts, hidden = case.slots // 2, bench.size.hidden
    gate, down = bank_columns(case.size, hidden)
    gate_bytes = 2 * gate * hidden * 2
    pool = bench.sources.pinned
    if case.entries % experts or case.entries > len(pool):
        raise ValueError(f"{case.entries} entries are no whole layers of {experts} in a pool of {len(pool)}")
    layers = case.entries // experts
    gate_up, downs = [], []
    for layer in pool[:case.entries].view(layers, experts * case.size):
        split = experts * gate_bytes
        gate_up.append(layer[:split].view(torch.bfloat16).view(experts, 2 * gate, hidden))
        downs.append(layer[split:].view(torch.bfloat16).view(experts, hidden, down))
    cache, notes = _cache(module, layers, experts, case.slots, bench.device, {"gate_up": gate_up, "down": downs})
    consumer = bench.consumer(case, gate_bytes)
    consume = consumer.consume
    views = [[consumer.typed(expert.view(-1).view(torch.uint8)) for expert in half]
             for half in cache.prefill_bank_buffers[0]]
    compute_stream = torch.cuda.Stream(bench.device)

    @torch.no_grad()
    def one_pass() -> None:
        with torch.cuda.stream(compute_stream):
            cache.begin_prefill()
            for layer in range(layers):
                cache.prefetch_prefill_layer(layer)
                cache.prefetch_prefill_layer(layer + 1)
                cache.wait_prefill_layer(layer)
                if consume is not None:
                    for view in views[layer % 2]:
                        consume(view)
                cache.release_prefill_layer(layer)

    result = bench.measure(case, one_pass)
    result.notes += [*notes, "the kernel of an expert reads its gate_up bank only"] if consume is not None else notes
    if gate != down:
        result.notes.append(f"down bank of {down} columns beside {gate}, to make {case.size:,} bytes")
    return result


def _cache(module: Any, layers: int, experts: int, slots: int, device: torch.device,
           banks: dict[str, list[torch.Tensor]]) -> tuple[Any, list[str]]:
    notes = [f"stand-ins for packages that the cache does not call: {', '.join(_stand_ins)}"] if _stand_ins else []

    def make() -> Any:
        cache = module.OffloadMoeCache(num_layers=layers, num_experts=experts, cache_size=slots, device=device,
                                       prefill_overlap=True, quant_format="bf16")
        cache.set_bank_sources(banks)
        return cache

    try:
        return make(), notes
    except ImportError as problem:
        # Prefill copies with torch alone; only decode uses the extension's kernel.
        os.environ["FREETOKEN_FUSED_COPY"] = "0"
        module._FUSED_COPY = False
        notes.append(f"decode's fused copy switched off ({problem})")
        return make(), notes
