"""Router, routed experts and the shared expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from examples.prefill_engine.backend import Array, Ops
from examples.prefill_engine.config import ModelConfig

__all__ = ["RoutePlan", "apply_expert", "combine", "expert_views", "route"]


@dataclass(frozen=True)
class RoutePlan:
    """A layer's routing of a chunk, as the host sees it: tokens sorted by expert.

    Attributes
    ----------
    bounds : (experts + 1,) int64
        Rows of expert ``e``: ``bounds[e]`` to ``bounds[e + 1]``, exclusive.
    tokens : (tokens * top_k,) int64
        Token of each row.
    rows : (tokens * top_k,) int64
        Row of each (token, choice).
    """

    bounds: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]

    @classmethod
    def of(cls, chosen: npt.NDArray[np.int64], experts: int) -> RoutePlan:
        """Sort the choices, (tokens, top_k), by expert; of one expert in the order of the tokens."""
        order = np.argsort(chosen, axis=None, kind="stable")
        rows = np.empty_like(order)
        rows[order] = np.arange(len(order))
        bounds = np.zeros(experts + 1, np.int64)
        np.cumsum(np.bincount(chosen.ravel(), minlength=experts), out=bounds[1:])
        return cls(bounds, order // chosen.shape[1], rows)

    def routed(self) -> npt.NDArray[np.bool_]:
        """(experts,) bool: whether any token takes the expert."""
        return np.diff(self.bounds) > 0


def route(ops: Ops, model: ModelConfig, weights: dict[str, Any], x: Array) -> tuple[Array, Array]:
    """Choose `top_k` experts a token, equal shares by number. Returns choices and weights, (tokens, top_k)."""
    shares, chosen = ops.largest(ops.softmax(x @ weights["mlp.gate.weight"].T), model.top_k)
    return chosen, shares / shares.sum(axis=-1, keepdims=True)


def expert_views(model: ModelConfig, slot: Array) -> tuple[Array, Array]:
    """A slot's float32 values as gate and up, (2 width, hidden), and down, (hidden, width)."""
    inner = 2 * model.expert_width * model.hidden
    return (slot[:inner].reshape(2 * model.expert_width, model.hidden),
            slot[inner:inner + inner // 2].reshape(model.hidden, model.expert_width))


def apply_expert(ops: Ops, gate_up: Array, down: Array, x: Array) -> Array:
    """SwiGLU of the rows that an expert was given."""
    width = down.shape[1]
    inner = x @ gate_up.T
    return (ops.silu(inner[:, :width]) * inner[:, width:]) @ down.T


def combine(ops: Ops, model: ModelConfig, weights: dict[str, Any], x: Array, outputs: Array, rows: Array,
            shares: Array) -> Array:
    """Weigh the experts' outputs, in the order of a token's choices, and add the shared expert's."""
    routed = (outputs[rows].reshape(x.shape[0], model.top_k, model.hidden) * shares[..., None]).sum(axis=1)
    inner = ops.silu(x @ weights["mlp.shared_expert.gate_proj.weight"].T)
    inner = inner * (x @ weights["mlp.shared_expert.up_proj.weight"].T)
    shared = inner @ weights["mlp.shared_expert.down_proj.weight"].T
    return routed + ops.sigmoid(x @ weights["mlp.shared_expert_gate.weight"].T) * shared
