"""transformers as the oracle: what it saves is what tables find, in the parameters' own names and shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import strata

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")

SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 24, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
}  # fmt: skip
#: model type: what its configuration needs besides.
FAMILIES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": {"num_experts": 4, "shared_expert_intermediate_size": 16},
    "qwen3_moe": {"num_experts": 4},
    "olmoe": {"num_experts": 4},
    "deepseek_v3": {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "kv_lora_rank": 8,
                    "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8},
    "glm4_moe": {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "gpt_oss": {"num_local_experts": 4},
    "granitemoe": {"num_local_experts": 4},
    "phimoe": {"num_local_experts": 4},
    "minimax": {"num_local_experts": 4, "layer_types": ["full_attention"] * 3},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_layer_start_index": 0},
    "lfm2_moe": {"num_experts": 4, "num_dense_layers": 1, "layer_types": ["full_attention"] * 3},
    "minimax_m2": {"num_local_experts": 4},
    "flex_olmo": {"num_experts": 4, "pad_token_id": 0, "eos_token_id": 1},
    "hunyuan_v1_moe": {"num_experts": 4, "moe_topk": 2},
    "nemotron_h": {"n_routed_experts": 4, "layers_block_type": ["moe"] * 3, "moe_shared_expert_intermediate_size": 16,
                   "n_group": 1, "topk_group": 1},
    "deepseek_v2": {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 8,
                    "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8},
    "qwen3_next": {"num_experts": 4, "shared_expert_intermediate_size": 16, "layer_types": ["full_attention"] * 3},
    "jamba": {"num_experts": 4, "expert_layer_period": 1, "expert_layer_offset": 0, "attn_layer_period": 1,
              "attn_layer_offset": 0, "use_mamba_kernels": False},
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_saves(tmp_path: Path, family: str) -> None:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **SMALL, **FAMILIES[family])
    with torch.device("cpu"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    modules = {name: module for name, module in model.named_modules()
               if name.endswith("experts") and hasattr(module, "is_transposed") and hasattr(module, "down_proj")}
    assert modules
    for module in modules.values():
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    flags = next(iter(modules.values()))
    with strata.sources.safetensors(tmp_path, transposed=flags.is_transposed,
                                    interleaved=not flags.is_concatenated) as table:
        layers = {int(part): module for name, module in modules.items()
                  for part in name.split(".") if part.isdigit()}  # fmt: skip
        assert table.layers == tuple(sorted(layers))
        for layer, module in layers.items():
            assert table.conversions(layer) == ()
            layout = table.layout(layer)
            parameters = dict(module.named_parameters(recurse=False))
            assert set(layout.names) == set(parameters)
            for name, parameter in parameters.items():
                assert layout[name].shape == tuple(parameter.shape[1:])
                assert layout[name].dtype == "bfloat16"
            copies = table.copies(layer)
            with strata.ExpertStreamer.for_copies(copies, gpu_ring=2, host_ring=2) as streamer, streamer.begin(copies) as request:
                for slot in request:
                    slot.synchronize()
                    memory = np.zeros(layout.nbytes, np.uint8)
                    memory[: slot.array().size] = slot.array()[: layout.nbytes]
                    for name, view in layout.views(memory).items():
                        expected = parameters[name].detach()[slot.entry].contiguous().view(torch.uint8).numpy()
                        assert view.tobytes() == expected.tobytes(), (layer, slot.entry, name)
