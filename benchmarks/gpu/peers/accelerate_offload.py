"""accelerate's ``cpu_offload``: hooks that bring a module's weights before its forward and drop them after it.

It moves modules, so each expert is one. (A ``ParameterList`` is never moved, and looks as fast as no transfer.)
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.gpu.cases import Case
from benchmarks.gpu.measuring import Result
from benchmarks.gpu.peers import Bench

__all__ = ["available", "run"]


def available() -> str | None:
    """Needs accelerate."""
    try:
        from accelerate import cpu_offload  # noqa: F401
    except Exception as problem:
        return f"accelerate cannot be imported: {type(problem).__name__}: {problem}"
    return None


class _Expert(torch.nn.Module):
    def __init__(self, weight: torch.Tensor, consume: Callable[[torch.Tensor], object] | None,
                 seen: list[torch.device]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.consume = consume
        self.seen = seen

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        self.seen[0] = self.weight.device
        if self.consume is not None:
            self.consume(self.weight.data)
        return token


class _Model(torch.nn.Module):
    def __init__(self, experts: list[_Expert]) -> None:
        super().__init__()
        self.experts = torch.nn.ModuleList(experts)

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        for expert in self.experts:
            token = expert(token)
        return token


def run(case: Case, bench: Bench) -> Result:
    """Measure a case.

    Raises
    ------
    RuntimeError
        If an expert's weights were not on the device in its forward: nothing was transferred then.
    """
    from accelerate import cpu_offload

    consumer = bench.consumer(case)
    seen = [torch.device("meta")]
    model = _Model([_Expert(consumer.typed(source), consumer.consume, seen)
                    for source in bench.sources.tensors(case.memory, case.entries)])
    cpu_offload(model, execution_device=bench.device)
    token = torch.zeros(1, device=bench.device)

    @torch.no_grad()
    def one_pass() -> None:
        model(token)

    one_pass()
    if seen[0].type != bench.device.type:
        raise RuntimeError(f"the weights were on {seen[0]} in forward: nothing was moved")
    result = bench.measure(case, one_pass, consumer)
    result.notes.append(f"{case.entries} experts a pass")
    return result
