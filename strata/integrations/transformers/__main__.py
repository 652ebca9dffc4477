"""Make a tiny checkpoint of a Qwen3-MoE with random weights, to try `from_pretrained` with."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Write the checkpoint; 2 where the folder has something already."""
    parser = argparse.ArgumentParser(prog="python -m strata.integrations.transformers", description=__doc__)
    parser.add_argument("folder", type=Path, help="a folder that is made")
    folder = parser.parse_args(arguments).folder
    if folder.exists() and any(folder.iterdir() if folder.is_dir() else [folder]):
        print(f"{parser.prog}: {folder} exists and is not empty", file=sys.stderr)
        return 2
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, moe_intermediate_size=32, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=16, num_experts_per_tok=4,
        max_position_embeddings=512, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    )).eval()
    model.save_pretrained(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
