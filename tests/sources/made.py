"""Makes checkpoints: real ones' headers over files without weights, and small ones with weights."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BITS = {"BF16": 16, "F16": 16, "F32": 32, "F8_E4M3": 8, "U8": 8, "I32": 32, "F4": 4}
Tensor = tuple[str, str, tuple[int, ...]]


def nbytes(dtype: str, shape: Iterable[int]) -> int:
    return BITS[dtype] * int(np.prod(list(shape), dtype=object) if shape else 1) // 8


def header(tensors: Iterable[Tensor], *, metadata: bool = True) -> tuple[bytes, int]:
    """(the first bytes of a safetensors file, bytes of the data that follow)."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}} if metadata else {}
    at = 0
    for name, dtype, shape in tensors:
        size = nbytes(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    return framed(json.dumps(entries, separators=(",", ":")).encode()), at


def framed(text: bytes) -> bytes:
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_sparse(folder: Path, tensors: list[Tensor], shards: int) -> list[Path]:
    """Files of the right sizes without weights: shards of about equal bytes, in order, and their index."""
    total = sum(nbytes(dtype, shape) for _, dtype, shape in tensors)
    parts: list[list[Tensor]] = [[]]
    done = 0
    for tensor in tensors:
        if done >= total * len(parts) / shards and len(parts) < shards:
            parts.append([])
        parts[-1].append(tensor)
        done += nbytes(*tensor[1:])
    names = ["model.safetensors"] if shards == 1 else [
        f"model-{k + 1:05d}-of-{len(parts):05d}.safetensors" for k in range(len(parts))]  # fmt: skip
    for name, part in zip(names, parts, strict=True):
        begin, size = header(part)
        with (folder / name).open("wb") as file:
            file.write(begin)
            file.truncate(len(begin) + size)
    if shards > 1:
        weight_map = {tensor[0]: name for name, part in zip(names, parts, strict=True) for tensor in part}
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map})
        (folder / "model.safetensors.index.json").write_text(text)
    return [folder / name for name in names]


@dataclass(frozen=True)
class Real:
    """A published checkpoint's layout, compactly. `each` are tensors of an expert, `fused` of all experts of a layer,
    `rest` of a layer besides; {l}, {e} are numbers."""

    name: str
    layers: range
    moe: tuple[int, ...]
    experts: int
    shards: int
    each: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    fused: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    rest: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    besides: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    #: what the table must say of a slot: name, dtype, shape
    slot: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    stack: str = "model.layers"

    def tensors(self, most_layers: int | None = None) -> list[Tensor]:
        """All tensors; of `most_layers` layers with experts where that is given."""
        made: list[Tensor] = list(self.besides)
        moe = self.moe[:most_layers]
        for layer in self.layers:
            made += [(name.format(l=layer), dtype, shape) for name, dtype, shape in self.rest]
            if layer in moe:
                made += [(name.format(l=layer), dtype, shape) for name, dtype, shape in self.fused]
                made += [
                    (name.format(l=layer, e=expert), dtype, shape)
                    for expert in range(self.experts) for name, dtype, shape in self.each
                ]  # fmt: skip
        return made


def _apart(block: str, names: tuple[str, str, str], h: int, w: int, dtype: str = "BF16", scale: int = 0) -> Any:
    gate, up, down = names
    rows = []
    for name, shape in ((gate, (w, h)), (up, (w, h)), (down, (h, w))):
        rows.append((f"{block}.experts.{{e}}.{name}.weight", dtype, shape))
        if scale:
            rows.append((f"{block}.experts.{{e}}.{name}.weight_scale_inv", "F32",
                         tuple(-(-size // scale) for size in shape)))  # fmt: skip
    return tuple(rows)


def _usual(h: int, w: int, dtype: str = "bfloat16") -> Any:
    return (("gate_up_proj", dtype, (2 * w, h)), ("down_proj", dtype, (h, w)))


def _scaled(h: int, w: int, scale: int) -> Any:
    return (
        ("gate_up_proj", "float8_e4m3fn", (2 * w, h)), ("gate_up_proj_scale_inv", "float32", (2 * w // scale, h // scale)),
        ("down_proj", "float8_e4m3fn", (h, w)), ("down_proj_scale_inv", "float32", (h // scale, w // scale)),
    )  # fmt: skip


_PROJ = ("gate_proj", "up_proj", "down_proj")
_W = ("w1", "w3", "w2")
_L = "model.layers.{l}"


def _attention(h: int, prefix: str = _L) -> Any:
    return tuple((f"{prefix}.self_attn.{name}_proj.weight", "BF16", (h, h)) for name in "qkvo")


REAL = [
    Real("Mixtral-8x7B-v0.1", range(32), tuple(range(32)), 8, 19,
         _apart(f"{_L}.block_sparse_moe", _W, 4096, 14336), slot=_usual(4096, 14336),
         rest=(*_attention(4096), (f"{_L}.block_sparse_moe.gate.weight", "BF16", (8, 4096)))),
    Real("Qwen3-30B-A3B", range(48), tuple(range(48)), 128, 16, _apart(f"{_L}.mlp", _PROJ, 2048, 768),
         rest=(*_attention(2048), (f"{_L}.mlp.gate.weight", "BF16", (128, 2048))), slot=_usual(2048, 768)),
    Real("Qwen1.5-MoE-A2.7B", range(24), tuple(range(24)), 60, 8, _apart(f"{_L}.mlp", _PROJ, 2048, 1408),
         rest=((f"{_L}.mlp.shared_expert.gate_proj.weight", "BF16", (5632, 2048)),
               (f"{_L}.mlp.shared_expert_gate.weight", "BF16", (1, 2048))), slot=_usual(2048, 1408)),
    Real("DeepSeek-V2-Lite", range(27), tuple(range(1, 27)), 64, 4, _apart(f"{_L}.mlp", _PROJ, 2048, 1408),
         rest=((f"{_L}.mlp.shared_experts.gate_proj.weight", "BF16", (2816, 2048)),), slot=_usual(2048, 1408)),
    Real("DeepSeek-V3", range(62), tuple(range(3, 62)), 256, 163,
         _apart(f"{_L}.mlp", _PROJ, 7168, 2048, "F8_E4M3", 128), slot=_scaled(7168, 2048, 128),
         rest=((f"{_L}.mlp.shared_experts.up_proj.weight", "F8_E4M3", (2048, 7168)),)),
    Real("OLMoE-1B-7B-0924", range(16), tuple(range(16)), 64, 3, _apart(f"{_L}.mlp", _PROJ, 2048, 1024),
         rest=_attention(2048), slot=_usual(2048, 1024)),
    Real("gpt-oss-20b", range(24), tuple(range(24)), 32, 3, fused=(
        (f"{_L}.mlp.experts.gate_up_proj_blocks", "U8", (32, 5760, 90, 16)),
        (f"{_L}.mlp.experts.gate_up_proj_scales", "U8", (32, 5760, 90)),
        (f"{_L}.mlp.experts.gate_up_proj_bias", "BF16", (32, 5760)),
        (f"{_L}.mlp.experts.down_proj_blocks", "U8", (32, 2880, 90, 16)),
        (f"{_L}.mlp.experts.down_proj_scales", "U8", (32, 2880, 90)),
        (f"{_L}.mlp.experts.down_proj_bias", "BF16", (32, 2880))),
        rest=((f"{_L}.mlp.router.weight", "BF16", (32, 2880)), (f"{_L}.mlp.router.bias", "BF16", (32,))), slot=(
        ("gate_up_proj_bias", "bfloat16", (5760,)), ("gate_up_proj_blocks", "uint8", (5760, 90, 16)),
        ("gate_up_proj_scales", "uint8", (5760, 90)), ("down_proj_bias", "bfloat16", (2880,)),
        ("down_proj_blocks", "uint8", (2880, 90, 16)), ("down_proj_scales", "uint8", (2880, 90)))),
    Real("Llama-4-Scout-17B-16E", range(48), tuple(range(48)), 16, 50, fused=(
        ("language_model.model.layers.{l}.feed_forward.experts.gate_up_proj", "BF16", (16, 5120, 16384)),
        ("language_model.model.layers.{l}.feed_forward.experts.down_proj", "BF16", (16, 8192, 5120))),
        rest=(("language_model.model.layers.{l}.feed_forward.shared_expert.gate_proj.weight", "BF16", (8192, 5120)),),
        slot=(("gate_up_proj", "bfloat16", (5120, 16384)), ("down_proj", "bfloat16", (8192, 5120))),
        stack="language_model.model.layers"),
    Real("granite-3.0-1b-a400m", range(24), tuple(range(24)), 32, 1, fused=(
        (f"{_L}.block_sparse_moe.input_linear.weight", "BF16", (32, 1024, 1024)),
        (f"{_L}.block_sparse_moe.output_linear.weight", "BF16", (32, 1024, 512))),
        rest=((f"{_L}.block_sparse_moe.router.layer.weight", "BF16", (32, 1024)),), slot=_usual(1024, 512)),
    Real("dbrx-base", range(40), tuple(range(40)), 16, 61, fused=tuple(
        (f"transformer.blocks.{{l}}.ffn.experts.mlp.{w}", "BF16", (172032, 6144)) for w in ("w1", "v1", "w2")),
        rest=(("transformer.blocks.{l}.ffn.router.layer.weight", "BF16", (16, 6144)),), stack="transformer.blocks",
        slot=(("gate_up_proj", "bfloat16", (21504, 6144)), ("down_proj", "bfloat16", (10752, 6144)))),
    Real("Phi-3.5-MoE-instruct", range(32), tuple(range(32)), 16, 17,
         _apart(f"{_L}.block_sparse_moe", _W, 4096, 6400), slot=_usual(4096, 6400)),
    Real("GLM-4.5-Air", range(47), tuple(range(1, 47)), 128, 47, _apart(f"{_L}.mlp", _PROJ, 4096, 1408),
         rest=((f"{_L}.mlp.shared_experts.up_proj.weight", "BF16", (1408, 4096)),), slot=_usual(4096, 1408)),
    Real("MiniMax-M2", range(62), tuple(range(62)), 256, 130,
         _apart(f"{_L}.block_sparse_moe", _W, 3072, 1536, "F8_E4M3", 128), slot=_scaled(3072, 1536, 128)),
    Real("jetmoe-8b", range(24), tuple(range(24)), 8, 4, fused=(
        (f"{_L}.mlp.input_linear.weight", "BF16", (8, 11264, 2048)),
        (f"{_L}.mlp.output_linear.weight", "BF16", (8, 2048, 5632))),
        rest=((f"{_L}.self_attention.experts.input_linear.weight", "BF16", (8, 2048, 2048)),
              (f"{_L}.mlp.router.layer.weight", "BF16", (8, 2048))), slot=_usual(2048, 5632)),
    Real("Qwen3-VL-30B-A3B", range(48), tuple(range(48)), 128, 13, fused=(
        ("model.language_model.layers.{l}.mlp.experts.gate_up_proj", "BF16", (128, 2048, 1536)),
        ("model.language_model.layers.{l}.mlp.experts.down_proj", "BF16", (128, 768, 2048))),
        slot=(("gate_up_proj", "bfloat16", (2048, 1536)), ("down_proj", "bfloat16", (768, 2048))),
        stack="model.language_model.layers"),
    Real("Qwen3-Next-80B-A3B", range(48), tuple(range(48)), 512, 41, _apart(f"{_L}.mlp", _PROJ, 2048, 512),
         besides=tuple((f"mtp.layers.0.mlp.experts.{e}.{p}.weight", "BF16", (2048, 512) if p[0] == "d" else (512, 2048))
                       for e in range(512) for p in _PROJ), slot=_usual(2048, 512)),
    Real("Nemotron-3-Nano-30B-A3B", range(52), tuple(range(1, 52, 2)), 128, 13, (
        ("backbone.layers.{l}.mixer.experts.{e}.up_proj.weight", "BF16", (1856, 2688)),
        ("backbone.layers.{l}.mixer.experts.{e}.down_proj.weight", "BF16", (2688, 1856))),
        rest=(("backbone.layers.{l}.mixer.shared_experts.up_proj.weight", "BF16", (3712, 2688)),),
        slot=(("up_proj", "bfloat16", (1856, 2688)), ("down_proj", "bfloat16", (2688, 1856))), stack="backbone.layers"),
]  # fmt: skip


# GGUF, written here so that it can be written wrong, too.

GGML = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144),
        "Q6_K": (14, 256, 210), "BF16": (30, 1, 2), "MXFP4": (39, 32, 17)}  # fmt: skip


def gguf_string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def gguf_value(key: str, kind: int, raw: bytes) -> bytes:
    return gguf_string(key) + struct.pack("<I", kind) + raw


def gguf_header(
    tensors: list[tuple[str, str, tuple[int, ...]]], values: list[bytes] = [], *, version: int = 3, align: int = 32,  # noqa: B006
) -> tuple[bytes, int, list[int]]:  # fmt: skip
    """(the file up to its data, bytes of data, place of each tensor in the data). Shapes are as NumPy has them."""
    rows = []
    at = 0
    places = []
    for name, kind, shape in tensors:
        number, block, size = GGML[kind]
        rows.append(gguf_string(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in reversed(shape))
                    + struct.pack("<IQ", number, at))
        places.append(at)
        at += int(np.prod(shape)) // block * size
        at = -(-at // align) * align
    begin = b"GGUF" + struct.pack("<IQQ", version, len(rows), len(values)) + b"".join(values) + b"".join(rows)
    return begin + b"\0" * (-len(begin) % align), at, places
