"""The arithmetic of a layer of routed experts: transformers' own ``grouped_mm``, by runs of experts.

The rows are sorted by expert, each run of experts is one grouped GEMM, and the weighted rows go to a buffer of
(token, choice) rows that is summed in router order. These are the operations of ``grouped_mm_experts_forward``
(``transformers/integrations/moe.py``), so the bits are equal; only the weights come in pieces.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

__all__ = ["RoutedRows"]

_grouped_mm = getattr(nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


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
    counts : list of int
        Rows of each expert. Reading them is the one host synchronization of a layer.
    """

    def __init__(
        self, module: nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> None:
        self.module = module
        self.hidden_states = hidden_states
        self.tokens, self.choices = top_k_index.shape
        ids = top_k_index.reshape(-1)
        self.experts, self.rows = torch.sort(ids)
        self.token_of_row = self.rows // self.choices
        self.weights = top_k_weights.reshape(-1)[self.rows].unsqueeze(-1)
        # As there: histc takes no integers on a CPU, and on CUDA with deterministic algorithms nothing else.
        of = self.experts.float() if ids.device.type == "cpu" else self.experts.int()
        n: int = module.num_experts
        self.ends = torch.cumsum(torch.histc(of, bins=n, min=0, max=n - 1), dim=0, dtype=torch.int32)
        self.host_ends = [0, *self.ends.tolist()]
        self.counts = [b - a for a, b in zip(self.host_ends, self.host_ends[1:], strict=False)]
        self.buffer: torch.Tensor | None = None

    def routed(self) -> list[int]:
        """Experts that have rows, ascending."""
        return [expert for expert, count in enumerate(self.counts) if count]

    def multiply(self, experts: Sequence[int], weights: dict[str, torch.Tensor]) -> None:
        """Multiply the rows of some experts.

        Parameters
        ----------
        experts : sequence of int
            Ascending; no expert between the first and the last that is left out has rows.
        weights : dict
            For each parameter of the module a (len(experts), ...) tensor, strided as it may be.
        """
        first, last = experts[0], experts[-1] + 1
        begin, end = self.host_ends[first], self.host_ends[last]
        if begin == end:
            return
        module = self.module
        counts = [self.counts[expert] for expert in experts]
        if last - first == len(experts):
            ends = self.ends[first:last]
            if begin:
                ends = ends - begin
        else:
            total, on_host = 0, []
            for count in counts:
                total += count
                on_host.append(total)
            ends = _to_device(on_host, self.ends)
        of_row = None
        if module.has_bias:
            of_row = torch.repeat_interleave(
                torch.arange(len(experts), device=ends.device), _to_device(counts, ends), output_size=end - begin
            )
        rows = self.hidden_states.index_select(0, self.token_of_row[begin:end])
        up = "gate_up_proj" if module.has_gate else "up_proj"
        out = self._linear(rows, up, weights, ends, counts, of_row)
        out = module._apply_gate(out) if module.has_gate else module.act_fn(out)
        out = self._linear(out, "down_proj", weights, ends, counts, of_row)
        if getattr(module, "has_post_expert_norm", False):
            out = module.post_expert_norm(out)
        out = out * self.weights[begin:end]
        if self.buffer is None:
            # Rows of no expert at all (an index past the last) count as zero.
            new = torch.empty if self.host_ends[-1] == len(self.rows) else torch.zeros
            self.buffer = new((len(self.rows), out.shape[-1]), dtype=out.dtype, device=out.device)
        self.buffer.index_copy_(0, self.rows[begin:end], out)

    def sum(self) -> torch.Tensor:
        """The layer's output, (tokens, hidden): each token's rows are added up in the router's order."""
        if self.buffer is None:
            return torch.zeros_like(self.hidden_states)
        summed = self.buffer.view(self.tokens, self.choices, -1).sum(dim=1)
        return summed.to(self.hidden_states.dtype)

    def _linear(
        self,
        rows: torch.Tensor,
        name: str,
        weights: dict[str, torch.Tensor],
        ends: torch.Tensor,
        counts: Sequence[int],
        of_row: torch.Tensor | None,
    ) -> torch.Tensor:
        weight = weights[name]
        if not self.module.is_transposed:
            weight = weight.transpose(-2, -1)
        rows = rows.to(weight.dtype)
        if _takes_grouped(rows, weight):
            assert _grouped_mm is not None
            out: torch.Tensor = _grouped_mm(rows, weight, offs=ends)
        else:
            out = _one_by_one(rows, weight, counts)
        if of_row is not None:
            out.add_(weights[name + "_bias"][of_row])
        return out


def _takes_grouped(rows: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the grouped GEMM takes these without a host synchronization of its own."""
    if _grouped_mm is None:
        return False
    if rows.device.type != "cuda":
        return True
    if weight.dtype != torch.bfloat16 or torch.cuda.get_device_capability(weight.device) < (8, 0):
        return False
    size = weight.element_size()
    strides = (*weight.stride(), rows.stride(0))
    return all(stride == 1 or stride * size % 16 == 0 for stride in strides)


def _one_by_one(rows: torch.Tensor, weight: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    out = torch.empty(rows.shape[0], weight.shape[-1], dtype=rows.dtype, device=rows.device)
    begin = 0
    for index, count in enumerate(counts):
        if count:
            torch.mm(rows[begin:begin + count], weight[index], out=out[begin:begin + count])
            begin += count
    return out


def _to_device(numbers: list[int], like: torch.Tensor) -> torch.Tensor:
    """A small int32 tensor beside another, without waiting for the device."""
    if like.device.type == "cpu":
        return torch.tensor(numbers, dtype=torch.int32)
    return torch.tensor(numbers, dtype=torch.int32, pin_memory=True).to(like.device, non_blocking=True)
