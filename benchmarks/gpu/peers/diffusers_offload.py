"""diffusers' group offloading with a stream: one group a layer, the next one prefetched while one computes."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable

import torch

from benchmarks.gpu.cases import Case
from benchmarks.gpu.measuring import Result
from benchmarks.gpu.peers import Bench

__all__ = ["available", "run"]


def available() -> str | None:
    """Needs diffusers and accelerate."""
    try:
        from diffusers.hooks import apply_group_offloading  # noqa: F401
    except Exception as problem:
        return f"diffusers cannot be imported: {type(problem).__name__}: {problem}"
    return None


class _Layer(torch.nn.Module):
    """Experts of a layer, one parameter each."""

    def __init__(self, experts: list[torch.Tensor], consume: Callable[[torch.Tensor], object] | None) -> None:
        super().__init__()
        self.experts = torch.nn.ParameterList(torch.nn.Parameter(e, requires_grad=False) for e in experts)
        self.order = tuple(self.experts)
        self.consume = consume

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        if self.consume is not None:
            for expert in self.order:
                self.consume(expert.data)
        return token


class _Model(torch.nn.Module):
    """Layers in a row. Its own parameter is what makes diffusers trace their order and prefetch."""

    def __init__(self, layers: list[_Layer]) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1), requires_grad=False)
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            token = layer(token)
        return token


def run(case: Case, bench: Bench) -> Result:
    """Measure a case: groups of ``slots / 2`` experts, since one group computes while the next one arrives."""
    from diffusers.hooks import apply_group_offloading

    logging.getLogger("diffusers").setLevel(logging.ERROR)
    experts = case.slots // 2
    consumer = bench.consumer(case)
    sources = [consumer.typed(source) for source in bench.sources.tensors(case.memory, case.entries)]
    model = _Model([_Layer(sources[first:first + experts], consumer.consume)
                    for first in range(0, case.entries, experts)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        apply_group_offloading(model, onload_device=bench.device, offload_device=torch.device("cpu"),
                               offload_type="block_level", num_blocks_per_group=1, use_stream=True,
                               record_stream=case.options["record_stream"])
    token = torch.zeros(1, device=bench.device)

    @torch.no_grad()
    def one_pass() -> None:
        model(token)

    one_pass()  # the order of the layers is learned here
    result = bench.measure(case, one_pass, consumer)
    result.notes.append(f"groups of {experts} experts; device memory comes from torch's allocator anew for each group")
    return result
