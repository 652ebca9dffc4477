"""The parts of a layer that mix tokens: full attention, and Gated DeltaNet with its carried state.

The formulas are written once, over an array module that is NumPy's or torch's; `Ops` (see `backend`) has the few
functions in which these differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from examples.prefill_engine.backend import Array, Ops
from examples.prefill_engine.config import ModelConfig

__all__ = ["AttentionState", "GdnState", "Positions", "attention", "gated_delta_net", "gated_delta_rule", "rms_norm"]

EPSILON = 1e-6
ROPE_BASE = 10_000.0
#: Tokens that the delta rule takes at once: inside, matrix products; across, the carried state.
DELTA_BLOCK = 64


@dataclass
class GdnState:
    """What a Gated DeltaNet layer carries from chunk to chunk.

    Attributes
    ----------
    matrix : (gdn_heads, gdn_key_dim, gdn_value_dim) float32
    conv : (conv_width - 1, channels) float32
        The last inputs of the causal convolution.
    """

    matrix: Array
    conv: Array


@dataclass
class AttentionState:
    """Keys and values of the tokens so far, each (kv_heads, tokens, head_dim) float32."""

    keys: Array
    values: Array


@dataclass
class Positions:
    """What depends on a chunk's place alone: rotary angles, and which keys a query must not see.

    `at` are the positions themselves, (tokens,) int64 on the host.
    """

    at: npt.NDArray[np.int64]
    cosine: Array
    sine: Array
    hidden: Array

    @classmethod
    def of(cls, model: ModelConfig, first: int, tokens: int, ops: Ops) -> Positions:
        """For the chunk of `tokens` tokens from token `first`."""
        at = np.arange(first, first + tokens, dtype=np.int64)
        frequencies = ROPE_BASE ** (-np.arange(0, model.rotary_dim, 2) / model.rotary_dim)
        angles = np.concatenate([np.outer(at, frequencies)] * 2, axis=1)
        later = ops.arange(first + tokens)[None, :] > ops.asarray(at)[:, None]
        return cls(at, ops.asarray(np.cos(angles).astype(np.float32)), ops.asarray(np.sin(angles).astype(np.float32)),
                   later)


def rms_norm(ops: Ops, x: Array, weight: Array) -> Array:
    """Root-mean-square norm with a zero-centred weight, over the last axis."""
    mean = (x * x).mean(axis=-1, keepdims=True)
    return x / ops.xp.sqrt(mean + EPSILON) * (1.0 + weight)


def attention(ops: Ops, model: ModelConfig, weights: dict[str, Any], x: Array, state: AttentionState,
              positions: Positions) -> Array:
    """Full attention with gated output over all tokens so far; extends `state`.

    `x` is (tokens, hidden) float32, and so is what is returned.
    """
    xp = ops.xp
    tokens, heads, kv, dim = x.shape[0], model.attention_heads, model.kv_heads, model.head_dim
    query_gate = (x @ weights["self_attn.q_proj.weight"].T).reshape(tokens, heads, 2 * dim)
    query, gate = query_gate[..., :dim], query_gate[..., dim:].reshape(tokens, heads * dim)
    key = (x @ weights["self_attn.k_proj.weight"].T).reshape(tokens, kv, dim)
    value = (x @ weights["self_attn.v_proj.weight"].T).reshape(tokens, kv, dim)
    query = _rotate(ops, model, rms_norm(ops, query, weights["self_attn.q_norm.weight"]), positions)
    key = _rotate(ops, model, rms_norm(ops, key, weights["self_attn.k_norm.weight"]), positions)
    state.keys = xp.concatenate([state.keys, xp.swapaxes(key, 0, 1)], axis=1)
    state.values = xp.concatenate([state.values, xp.swapaxes(value, 0, 1)], axis=1)
    group = heads // kv
    mixed = []
    for head in range(heads):
        scores = query[:, head] @ state.keys[head // group].T * dim**-0.5
        shares = ops.softmax(xp.where(positions.hidden, ops.minus_infinity, scores))
        mixed.append(shares @ state.values[head // group])
    joined = xp.concatenate(mixed, axis=1)
    return (joined * ops.sigmoid(gate)) @ weights["self_attn.o_proj.weight"].T


def _rotate(ops: Ops, model: ModelConfig, x: Array, positions: Positions) -> Array:
    """Rotary position embedding of the first `rotary_dim` of each head."""
    turned, kept = x[..., :model.rotary_dim], x[..., model.rotary_dim:]
    half = model.rotary_dim // 2
    crossed = ops.xp.concatenate([-turned[..., half:], turned[..., :half]], axis=-1)
    turned = turned * positions.cosine[:, None, :] + crossed * positions.sine[:, None, :]
    return ops.xp.concatenate([turned, kept], axis=-1)


def gated_delta_net(ops: Ops, model: ModelConfig, weights: dict[str, Any], x: Array, state: GdnState) -> Array:
    """Gated DeltaNet: a causal convolution, the gated delta rule, a gated norm; advances `state`.

    `x` is (tokens, hidden) float32, and so is what is returned.
    """
    xp = ops.xp
    tokens, heads = x.shape[0], model.gdn_heads
    keys, values = heads * model.gdn_key_dim, heads * model.gdn_value_dim
    projected = x @ weights["linear_attn.in_proj_qkvz.weight"].T
    z = projected[:, 2 * keys + values:].reshape(tokens, heads, model.gdn_value_dim)
    rates = x @ weights["linear_attn.in_proj_ba.weight"].T
    beta = ops.sigmoid(rates[:, :heads])
    decay = -xp.exp(weights["linear_attn.A_log"]) * _softplus(ops, rates[:, heads:] + weights["linear_attn.dt_bias"])

    inputs = xp.concatenate([state.conv, projected[:, :2 * keys + values]], axis=0)
    kernel = weights["linear_attn.conv1d.weight"][:, 0, :]
    convolved = inputs[:tokens] * kernel[:, 0]
    for tap in range(1, model.conv_width):
        convolved = convolved + inputs[tap:tap + tokens] * kernel[:, tap]
    state.conv = xp.concatenate([inputs[tokens:]], axis=0)  # a copy: the chunk's inputs are not kept alive
    convolved = ops.silu(convolved)

    query = convolved[:, :keys].reshape(tokens, heads, model.gdn_key_dim)
    key = convolved[:, keys:2 * keys].reshape(tokens, heads, model.gdn_key_dim)
    value = convolved[:, 2 * keys:].reshape(tokens, heads, model.gdn_value_dim)
    query = _unit(ops, query) * model.gdn_key_dim**-0.5
    mixed = gated_delta_rule(ops, query, _unit(ops, key), value, beta, decay, state)
    mixed = rms_norm(ops, mixed, weights["linear_attn.norm.weight"]) * ops.silu(z)
    return mixed.reshape(tokens, values) @ weights["linear_attn.out_proj.weight"].T


def gated_delta_rule(ops: Ops, query: Array, key: Array, value: Array, beta: Array, decay: Array,
                     state: GdnState) -> Array:
    """Run the gated delta rule over a chunk, a block of tokens at a time.

    With S the carried matrix of a head, for each token ``S = exp(decay) S; u = beta (v - S' k); S = S + k u';
    o = S' q``. Within a block the u of all tokens solve one unit lower triangular system.

    Parameters
    ----------
    query, key : (tokens, heads, key_dim) float32
    value : (tokens, heads, value_dim) float32
    beta, decay : (tokens, heads) float32
        Strength of the correction, 0 to 1; logarithm of the forgetting, at most 0.
    state : GdnState
        Its matrix is advanced.

    Returns
    -------
    (tokens, heads, value_dim) float32
    """
    xp = ops.xp
    tokens, heads, width = value.shape
    blocks = -(-tokens // DELTA_BLOCK)

    def cut(a: Array) -> Array:
        """(blocks, heads, DELTA_BLOCK, n): zeros beyond the last token change nothing."""
        if tokens < blocks * DELTA_BLOCK:
            a = xp.concatenate([a, ops.zeros(blocks * DELTA_BLOCK - tokens, *a.shape[1:])], axis=0)
        return xp.swapaxes(a.reshape(blocks, DELTA_BLOCK, *a.shape[1:]), 1, 2)

    # All that does not need the carried matrix, for all blocks at once.
    q, k, v, b = cut(query), cut(key), cut(value), cut(beta[..., None])
    total = xp.cumsum(cut(decay[..., None])[..., 0], axis=2)
    between = xp.tril(xp.exp(xp.tril(total[..., :, None] - total[..., None, :])))
    since = xp.exp(total)[..., None]
    k_t = xp.swapaxes(k, 2, 3)
    solved = ops.solve_unit_lower(xp.tril(b * (k @ k_t) * between, -1),
                                  xp.concatenate([b * v, b * since * k], axis=3))
    of_values, of_keys = solved[..., :width], solved[..., width:]
    until = xp.swapaxes(k * xp.exp(total[..., -1:] - total)[..., None], 2, 3)
    # What a block makes of the carried matrix: ``step @ matrix + added``. This alone goes block by block.
    rows = ops.arange(k.shape[-1])
    step = since[:, :, -1:] * (rows[:, None] == rows) - until @ of_keys
    added = until @ of_values
    before = [state.matrix]
    for block in range(blocks):
        before.append(ops.multiply_add(added[block], step[block], before[-1]))
    state.matrix = before.pop()
    carried = xp.stack(before)
    mixed = since * (q @ carried) + ((q @ k_t) * between) @ (of_values - of_keys @ carried)
    return xp.swapaxes(mixed, 1, 2).reshape(blocks * DELTA_BLOCK, heads, width)[:tokens]


def _unit(ops: Ops, x: Array) -> Array:
    return x / ops.xp.sqrt((x * x).sum(axis=-1, keepdims=True) + EPSILON)


def _softplus(ops: Ops, x: Array) -> Array:
    size = abs(x)
    return 0.5 * (x + size) + ops.xp.log1p(ops.xp.exp(-size))
