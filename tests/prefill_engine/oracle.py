"""The model a second time: float64, one token after another, no blocks, no sorting, no slots.

Shares no code with the engine; reads the checkpoint's tensors by name.
"""

from __future__ import annotations

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def norm(x, weight):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6) * (1 + weight)


def delta_rule(query, key, value, beta, decay, matrix):
    """(tokens, heads, …) by the recurrence itself; returns outputs and the last matrix."""
    matrix = matrix.astype(np.float64).copy()
    outputs = np.zeros(value.shape)
    for t in range(len(query)):
        for h in range(query.shape[1]):
            matrix[h] *= np.exp(decay[t, h])
            u = beta[t, h] * (value[t, h] - key[t, h] @ matrix[h])
            matrix[h] += np.outer(key[t, h], u)
            outputs[t, h] = query[t, h] @ matrix[h]
    return outputs, matrix


def rotate(x, at, rotary):
    """Rotary embedding of one head at one position, pair by pair."""
    x = x.copy()
    half = rotary // 2
    for j in range(half):
        angle = at * 10_000.0 ** (-2 * j / rotary)
        a, b = x[j], x[j + half]
        x[j], x[j + half] = a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)
    return x


def forward(checkpoint, ids):
    """Residual stream (tokens, hidden) after the last layer, GDN matrices by layer, and the logits of the last."""
    m = checkpoint.model

    def get(name):
        stored = checkpoint.tensor(name)
        if stored.dtype == np.uint16:  # bfloat16: sign, 8 bits of exponent, 7 of fraction
            bits = stored.astype(np.int64)
            return np.ldexp(1 + (bits & 0x7F) / 128, (bits >> 7 & 0xFF) - 127) * (1 - 2 * (bits >> 15))
        return np.array(stored, np.float64)

    x = get("model.embed_tokens.weight")[ids]
    matrices = {}
    for layer in range(m.layers):
        p = f"model.layers.{layer}."
        h = norm(x, get(p + "input_layernorm.weight"))
        if layer % 4 == 3:
            x = x + _attention(m, get, p + "self_attn.", h)
        else:
            mixed, matrices[layer] = _delta_net(m, get, p + "linear_attn.", h)
            x = x + mixed
        h = norm(x, get(p + "post_attention_layernorm.weight"))
        x = x + np.stack([_moe(m, get, p + "mlp.", row) for row in h])
    logits = norm(x[-1], get("model.norm.weight")) @ get("lm_head.weight").T
    return x, matrices, logits


def _attention(m, get, p, h):
    n, d = len(h), m.head_dim
    qg = (h @ get(p + "q_proj.weight").T).reshape(n, m.attention_heads, 2 * d)
    k = norm((h @ get(p + "k_proj.weight").T).reshape(n, m.kv_heads, d), get(p + "k_norm.weight"))
    v = (h @ get(p + "v_proj.weight").T).reshape(n, m.kv_heads, d)
    q = norm(qg[..., :d], get(p + "q_norm.weight"))
    out = np.zeros((n, m.attention_heads, d))
    for t in range(n):
        for head in range(m.attention_heads):
            kv = head * m.kv_heads // m.attention_heads
            mine = rotate(q[t, head], t, m.rotary_dim)
            scores = np.array([mine @ rotate(k[s, kv], s, m.rotary_dim) for s in range(t + 1)]) / np.sqrt(d)
            e = np.exp(scores - scores.max())
            out[t, head] = (e / e.sum()) @ v[:t + 1, kv]
    return (out * sigmoid(qg[..., d:])).reshape(n, -1) @ get(p + "o_proj.weight").T


def _delta_net(m, get, p, h):
    n, heads, dk, dv = len(h), m.gdn_heads, m.gdn_key_dim, m.gdn_value_dim
    projected = h @ get(p + "in_proj_qkvz.weight").T
    rates = h @ get(p + "in_proj_ba.weight").T
    channels = heads * (2 * dk + dv)
    kernel = get(p + "conv1d.weight")[:, 0]
    conv = np.zeros((n, channels))
    for t in range(n):
        for tap in range(m.conv_width):
            at = t - (m.conv_width - 1) + tap
            if at >= 0:
                conv[t] += kernel[:, tap] * projected[at, :channels]
    conv = silu(conv)
    q = conv[:, :heads * dk].reshape(n, heads, dk)
    k = conv[:, heads * dk:2 * heads * dk].reshape(n, heads, dk)
    v = conv[:, 2 * heads * dk:].reshape(n, heads, dv)
    q, k = (a / np.sqrt((a * a).sum(-1, keepdims=True) + 1e-6) for a in (q, k))
    decay = -np.exp(get(p + "A_log")) * np.log1p(np.exp(rates[:, heads:] + get(p + "dt_bias")))
    out, matrix = delta_rule(q / np.sqrt(dk), k, v, sigmoid(rates[:, :heads]), decay, np.zeros((heads, dk, dv)))
    z = projected[:, channels:].reshape(n, heads, dv)
    return (norm(out, get(p + "norm.weight")) * silu(z)).reshape(n, -1) @ get(p + "out_proj.weight").T, matrix


def _moe(m, get, p, row):
    def swiglu(name):
        inner = silu(get(name + "gate_proj.weight") @ row) * (get(name + "up_proj.weight") @ row)
        return get(name + "down_proj.weight") @ inner

    logits = get(p + "gate.weight") @ row
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    chosen = sorted(range(m.experts), key=lambda e: -shares[e])[:m.top_k]
    total = sum(shares[e] for e in chosen)
    out = sigmoid(get(p + "shared_expert_gate.weight")[0] @ row) * swiglu(p + "shared_expert.")
    for e in chosen:
        out = out + shares[e] / total * swiglu(f"{p}experts.{e}.")
    return out
