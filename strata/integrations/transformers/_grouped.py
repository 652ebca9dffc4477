"""The arithmetic of a layer of routed experts: transformers' own ``grouped_mm``, by runs of experts.

The rows are sorted by expert, each run of experts is one grouped GEMM, and the weighted rows are put back and summed in
router order. These are the operations of ``grouped_mm_experts_forward`` (``transformers/integrations/moe.py``), so the
bits are equal; only the weights come in pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import nn

import strata
from strata.integrations.torch.views import SlotTensors

__all__ = ["Projection", "RoutedRows", "SlotWeights", "to_device"]

_grouped_mm = getattr(nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


class Projection(NamedTuple):
    """One of the two matrices of some experts.

    Attributes
    ----------
    weight : (experts, in, out) tensor
        Strided as it may be.
    bias : (experts, out) tensor or None
    grouped : bool
        Whether the grouped GEMM takes it without a host synchronization of its own.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    grouped: bool


class SlotWeights:
    """The experts that lie in the rows of a tensor of bytes, as pairs of projections: up (or gate and up), and down.

    Parameters
    ----------
    slots : (slots, bytes) uint8 tensor
    layout : SlotLayout
    transposed : bool
        Whether the weights lie as (in, out).
    """

    def __init__(self, slots: torch.Tensor, layout: strata.SlotLayout, transposed: bool) -> None:
        self.transposed = transposed
        self._views = SlotTensors(slots, layout).every
        self._runs: dict[tuple[int, int], list[Projection]] = {}

    def run(self, first: int, count: int) -> list[Projection]:
        """Neighbouring rows, without a copy; made once."""
        found = self._runs.get((first, count))
        if found is None:
            found = self._runs[first, count] = self._pair(
                {name: view[first:first + count] for name, view in self._views.items()})
        return found

    def copied(self, places: torch.Tensor) -> list[Projection]:
        """Rows in any order, copied."""
        return self._pair({name: view.index_select(0, places) for name, view in self._views.items()})

    def _pair(self, views: dict[str, torch.Tensor]) -> list[Projection]:
        pair = []
        for name, view in views.items():
            if not name.endswith("_bias"):
                weight = view if self.transposed else view.transpose(-2, -1)
                pair.append(Projection(weight, views.get(name + "_bias"), _takes_grouped(weight)))
        return pair


class RoutedRows:
    """The (token, choice) rows of one call, sorted by expert.

    Parameters
    ----------
    module : torch.nn.Module
        The experts module: its flags, its gate, its activation.
    hidden_states : (tokens, hidden) tensor
    top_k_index : (tokens, k) integer tensor
        Experts of each token.
    top_k_weights : (tokens, k) tensor

    Attributes
    ----------
    host_ends : list of int
        Expert ``e`` has the rows ``host_ends[e]`` to ``host_ends[e + 1]``. Reading them is the one host synchronization
        of a layer.
    routed : list of int
        Experts that have rows, ascending.

    Notes
    -----
    An operation costs the host the same for few rows and for many: what can be done for the whole layer is not done for
    each run. So the hidden states are copied once a choice, (tokens x k, hidden), and the results are as many rows, as
    in transformers' own.
    """

    def __init__(
        self, module: nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> None:
        self.hidden_states = hidden_states
        self.shape = top_k_index.shape
        self.act = module._apply_gate if module.has_gate else module.act_fn
        self.norm = module.post_expert_norm if getattr(module, "has_post_expert_norm", False) else None
        experts, self.order = torch.sort(top_k_index.reshape(-1))
        self.rows = hidden_states.index_select(0, self.order // top_k_index.shape[1])
        self.weights = top_k_weights.take(self.order).unsqueeze(-1)
        bounds = torch.arange(module.num_experts + 1, dtype=experts.dtype, device=experts.device)
        self.ends = torch.searchsorted(experts, bounds, out_int32=True)
        self.host_ends: list[int] = self.ends.tolist()
        self.routed = [expert for expert, (begin, end) in enumerate(pairwise(self.host_ends)) if begin < end]
        self.out: torch.Tensor | None = None

    def multiply(self, experts: Sequence[int], projections: Sequence[Projection]) -> None:
        """Multiply the rows of some experts.

        Parameters
        ----------
        experts : sequence of int
            Ascending; no expert between the first and the last that is left out has rows.
        projections : two Projection
            Of these experts.
        """
        first, last = experts[0], experts[-1] + 1
        begin, end = self.host_ends[first], self.host_ends[last]
        if begin == end:
            return
        up, down = projections
        neighbours = last - first == len(experts)
        on_host = []
        if not (neighbours and up.grouped and down.grouped):
            on_host = [self.host_ends[expert + 1] - begin for expert in experts]
        if not neighbours:
            ends = to_device(on_host, self.ends.device)
        else:
            ends = self.ends[first + 1:last + 1]
            if begin:
                ends = ends - begin
        out = self.act(_linear(self.rows[begin:end], up, ends, on_host))
        out = _linear(out, down, ends, on_host)
        if self.norm is not None:
            out = self.norm(out)
        weights = self.weights[begin:end]
        if self.out is None:
            # Rows of no expert at all (an index past the last) count as zero.
            new = torch.empty if self.host_ends[-1] == len(self.rows) else torch.zeros
            self.out = new((len(self.rows), out.shape[-1]), dtype=torch.result_type(out, weights), device=out.device)
        torch.mul(out, weights, out=self.out[begin:end])

    def sum(self) -> torch.Tensor:
        """The layer's output, (tokens, hidden): each token's rows are added up in the router's order."""
        if self.out is None:
            return torch.zeros_like(self.hidden_states)
        del self.rows
        unsorted = torch.empty_like(self.out).index_copy_(0, self.order, self.out)
        return unsorted.view(*self.shape, -1).sum(dim=1).to(self.hidden_states.dtype)


def _linear(rows: torch.Tensor, projection: Projection, ends: torch.Tensor, on_host: Sequence[int]) -> torch.Tensor:
    weight = projection.weight
    if rows.dtype != weight.dtype:
        rows = rows.to(weight.dtype)
    if projection.grouped:
        assert _grouped_mm is not None
        out: torch.Tensor = _grouped_mm(rows, weight, offs=ends)
    else:
        out = _one_by_one(rows, weight, on_host)
    if projection.bias is not None:
        row = torch.arange(len(rows), dtype=ends.dtype, device=ends.device)
        out.add_(projection.bias[torch.searchsorted(ends, row, right=True)])
    return out


def _takes_grouped(weight: torch.Tensor) -> bool:
    if _grouped_mm is None:
        return False
    if weight.is_cuda and (weight.dtype != torch.bfloat16
                           or torch.cuda.get_device_capability(weight.device) < (8, 0)):
        return False
    # The rows are contiguous: their stride is the weight's `in`.
    strides = (weight.stride(0), max(weight.stride()[1:]), weight.shape[1])
    return all(stride * weight.element_size() % 16 == 0 for stride in strides)


def _one_by_one(rows: torch.Tensor, weight: torch.Tensor, ends: Sequence[int]) -> torch.Tensor:
    out = torch.empty(rows.shape[0], weight.shape[-1], dtype=rows.dtype, device=rows.device)
    begin = 0
    for index, end in enumerate(ends):
        if begin < end:
            torch.mm(rows[begin:end], weight[index], out=out[begin:end])
            begin = end
    return out


def to_device(numbers: list[int], device: torch.device) -> torch.Tensor:
    """A small int32 tensor, without waiting for the device."""
    return torch.tensor(numbers, dtype=torch.int32, pin_memory=device.type != "cpu").to(device, non_blocking=True)
