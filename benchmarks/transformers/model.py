"""The model that is measured: Qwen3-30B-A3B's shape with random weights, as a checkpoint on disk."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

__all__ = ["SHAPES", "Shape", "config_of", "make_checkpoint"]


@dataclass(frozen=True)
class Shape:
    """Sizes of a Qwen3-MoE."""

    hidden: int
    width: int
    experts: int
    choices: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int

    @property
    def expert_bytes(self) -> int:
        """Bytes of an expert in bfloat16: gate, up and down."""
        return 3 * self.hidden * self.width * 2


SHAPES = {
    "qwen3-30b-a3b": Shape(2048, 768, 128, 8, 32, 4, 128, 32768),
    "tiny": Shape(64, 32, 16, 4, 4, 2, 16, 256),
}


def config_of(shape: Shape, layers: int) -> Any:
    """transformers' configuration of a shape."""
    from transformers import Qwen3MoeConfig

    return Qwen3MoeConfig(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=3 * shape.hidden,
        moe_intermediate_size=shape.width, num_hidden_layers=layers, num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads, head_dim=shape.head, num_experts=shape.experts,
        num_experts_per_tok=shape.choices, decoder_sparse_step=1, max_position_embeddings=65536, norm_topk_prob=True,
        tie_word_embeddings=False, dtype="bfloat16", architectures=["Qwen3MoeForCausalLM"], pad_token_id=0,
        bos_token_id=1, eos_token_id=None,
    )


def make_checkpoint(folder: Path, shape: Shape, layers: int, device: torch.device, seed: int = 0) -> int:
    """Write a checkpoint as they are published: a file a layer, gate, up and down of each expert apart.

    Returns
    -------
    int
        Bytes of all files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator(device).manual_seed(seed)

    def weight(*size: int) -> torch.Tensor:
        return (torch.randn(*size, generator=generator, device=device) * 0.02).to(torch.bfloat16).cpu()

    h, w, d = shape.hidden, shape.width, shape.head
    places: dict[str, str] = {}
    total = 0

    def write(number: int, tensors: dict[str, torch.Tensor]) -> None:
        nonlocal total
        file = f"model-{number + 1:05d}-of-{layers + 1:05d}.safetensors"
        save_file(tensors, folder / file, {"format": "pt"})
        places.update(dict.fromkeys(tensors, file))
        total += sum(tensor.nbytes for tensor in tensors.values())

    for layer in range(layers):
        at = f"model.layers.{layer}."
        tensors = {
            at + "input_layernorm.weight": torch.ones(h, dtype=torch.bfloat16),
            at + "post_attention_layernorm.weight": torch.ones(h, dtype=torch.bfloat16),
            at + "self_attn.q_norm.weight": torch.ones(d, dtype=torch.bfloat16),
            at + "self_attn.k_norm.weight": torch.ones(d, dtype=torch.bfloat16),
            at + "self_attn.q_proj.weight": weight(shape.heads * d, h),
            at + "self_attn.k_proj.weight": weight(shape.kv_heads * d, h),
            at + "self_attn.v_proj.weight": weight(shape.kv_heads * d, h),
            at + "self_attn.o_proj.weight": weight(h, shape.heads * d),
            at + "mlp.gate.weight": weight(shape.experts, h),
        }
        for name, size in (("gate_proj", (w, h)), ("up_proj", (w, h)), ("down_proj", (h, w))):
            stacked = weight(shape.experts, *size)
            for expert in range(shape.experts):
                tensors[f"{at}mlp.experts.{expert}.{name}.weight"] = stacked[expert].clone()
        write(layer, tensors)
    write(layers, {"model.embed_tokens.weight": weight(shape.vocabulary, h),
            "model.norm.weight": torch.ones(h, dtype=torch.bfloat16), "lm_head.weight": weight(shape.vocabulary, h)})
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": places}))
    config_of(shape, layers).save_pretrained(folder)
    return total

