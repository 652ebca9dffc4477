"""Router, routed experts and the shared expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from examples.prefill_engine.backend import Array, Groups, Ops
from examples.prefill_engine.config import ModelConfig

__all__ = ["RoutePlan", "apply_experts", "combine", "expert_views", "route"]


@dataclass(frozen=True)
class RoutePlan:
    """A layer's routing of a chunk, on the device: tokens sorted by expert, experts in the order of their turn.

    Attributes
    ----------
    bounds : (experts + 1,) int32
        Rows of the expert whose turn is ``k``: ``bounds[k]`` to ``bounds[k + 1]``, exclusive. All that the host needs.
    tokens : (tokens * top_k,) int64
        Token of each row.
    rows : (tokens * top_k,) int64
        Row of each (token, choice).
    """

    bounds: Array
    tokens: Array
    rows: Array

    @classmethod
    def of(cls, ops: Ops, chosen: Array, turn: Array) -> RoutePlan:
        """Sort the choices, (tokens, top_k), by the expert's turn; of one expert in the order of the tokens.

        `turn` is (experts,): the turn of each expert.
        """
        turns, sort = ops.sort(turn[chosen].reshape(-1))
        rows = ops.xp.empty_like(sort)
        rows[sort] = ops.arange(len(sort))
        bounds = ops.first_places(turns, ops.arange(len(turn) + 1))
        return cls(bounds, sort // chosen.shape[1], rows)


def route(ops: Ops, model: ModelConfig, weights: dict[str, Any], x: Array) -> tuple[Array, Array]:
    """Choose `top_k` experts a token, equal shares by number. Returns choices and weights, (tokens, top_k)."""
    shares, chosen = ops.largest(ops.softmax(x @ weights["mlp.gate.weight"].T), model.top_k)
    return chosen, shares / shares.sum(axis=-1, keepdims=True)


def expert_views(model: ModelConfig, slots: Array) -> tuple[Array, Array]:
    """Rows of slots, (n, values) bfloat16, as gate and up, (n, 2 width, hidden), and down, (n, hidden, width)."""
    inner = 2 * model.expert_width * model.hidden
    count = slots.shape[0]
    return (slots[:, :inner].reshape(count, 2 * model.expert_width, model.hidden),
            slots[:, inner:inner + inner // 2].reshape(count, model.hidden, model.expert_width))


def apply_experts(ops: Ops, gate_up: Array, down: Array, x: Array, groups: Groups) -> Array:
    """SwiGLU of the rows that each of n experts was given: two grouped matrix products."""
    width = down.shape[2]
    inner = ops.grouped(x, gate_up, groups)
    return ops.grouped(ops.silu(inner[:, :width]) * inner[:, width:], down, groups)


def combine(ops: Ops, model: ModelConfig, weights: dict[str, Any], x: Array, outputs: Array, rows: Array,
            shares: Array) -> Array:
    """Weigh the experts' outputs, in the order of a token's choices, and add the shared expert's."""
    routed = (outputs[rows].reshape(x.shape[0], model.top_k, model.hidden) * shares[..., None]).sum(axis=1)
    inner = ops.silu(x @ weights["mlp.shared_expert.gate_proj.weight"].T)
    inner = inner * (x @ weights["mlp.shared_expert.up_proj.weight"].T)
    shared = inner @ weights["mlp.shared_expert.down_proj.weight"].T
    return routed + ops.sigmoid(x @ weights["mlp.shared_expert_gate.weight"].T) * shared
