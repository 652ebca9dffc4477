"""Small random configurations of every family behind transformers' ``use_experts_implementation``.

A family is a folder of ``transformers/models`` whose modeling file uses the decorator. Its configuration is
`SMALL` (and `SMALL_PART` for encoders of images and sound), as far as its class knows the names, and what the
table says. Prompts are text; parts for images and sound are built, small, and not called.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

#: What a configuration is made of, where its class knows the name.
SMALL: dict[str, Any] = {
    "vocab_size": 96, "unpadded_vocab_size": 96, "vocab_size_per_layer_input": 96, "max_position_embeddings": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_nextn_predict_layers": 0,
    # experts
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "moe_shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
    "num_experts": 8, "n_routed_experts": 8, "num_local_experts": 8, "moe_num_experts": 8,
    "num_experts_per_tok": 2, "moe_k": 2, "moe_topk": 2, "top_k": 2, "top_k_experts": 2,
    "first_k_dense_replace": 0, "num_dense_layers": 0,
    # attention
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4, "swa_head_dim": 16, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16, "v_head_dim": 16, "index_topk": 8, "index_head_dim": 16, "index_n_heads": 4,
    # state space and linear attention
    "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 8, "mamba_n_heads": 8,
    "use_mamba_kernels": False, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_num_heads": 4, "linear_head_dim": 16,
}
#: What an encoder of images or sound is made of.
SMALL_PART: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "depth": 1, "num_heads": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "out_hidden_size": 64, "patch_size": 4,
    "image_size": 16, "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
    "projection_intermediate_size": 32, "projection_hidden_dim": 32, "text_hidden_size": 64,
    "position_embedding_size": 64, "max_image_size": 64,
    "d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32, "output_dim": 64,
    "downsample_hidden_size": 16, "num_mel_bins": 16,
    "output_channels": 16, "mlp_dim": 32, "downsample_channels": [16, 32], "global_attn_indexes": [0],
    "window_size": 2,
}
#: Tokens that stand for images and sound; a prompt has none of them.
SPECIAL: dict[str, Any] = {
    "image_token_id": 90, "video_token_id": 91, "audio_token_id": 92, "image_start_token_id": 93,
    "image_end_token_id": 94, "video_start_token_id": 93, "video_end_token_id": 94, "vision_start_token_id": 93,
    "vision_end_token_id": 94,
}
FIRST_TOKEN, LAST_TOKEN = 3, 89

LINEAR_THEN_FULL = ["linear_attention", "full_attention"]
SPARSE = ["sparse", "sparse"]
TINY_IMAGES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
               "num_key_value_heads": 2, "head_dim": 16, "patch_size": 4, "image_size": 16}


@dataclass(frozen=True)
class Family:
    """One row: the model class, and what its configuration has beyond `SMALL`."""

    name: str
    model: str
    config: dict[str, Any] = field(default_factory=dict)
    #: Whether the family, or its decorator, came after the oldest transformers that is tested.
    newer: bool = False


def _rope(*sections: int) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(sections)}


FAMILIES = [
    Family("afmoe", "AfmoeForCausalLM"),
    Family("aria", "AriaTextForCausalLM", newer=True),
    Family("axk1", "AXK1ForCausalLM"),
    Family("axk2", "AXK2ForCausalLM"),
    Family("bailing_hybrid", "BailingHybridForCausalLM",
           {"layer_types": LINEAR_THEN_FULL, "mlp_layer_types": SPARSE}, newer=True),
    Family("beam", "BeamForCausalLM", {"mlp_layer_types": SPARSE}, newer=True),
    Family("cohere2_moe", "Cohere2MoeForCausalLM"),
    Family("deepseek_ocr2", "DeepseekOcr2ForConditionalGeneration", {"text_config": {"mlp_layer_types": SPARSE}}),
    Family("deepseek_v2", "DeepseekV2ForCausalLM"),
    Family("deepseek_v3", "DeepseekV3ForCausalLM"),
    Family("deepseek_v32", "DeepseekV32ForCausalLM"),
    Family("deepseek_v4", "DeepseekV4ForCausalLM"),
    Family("diffusion_gemma", "DiffusionGemmaForBlockDiffusion",
           {"vision_config": {"model_type": "gemma4_vision", **TINY_IMAGES}}),
    Family("dots1", "Dots1ForCausalLM"),
    Family("dots3_note", "Dots3NoteForCausalLM", newer=True),
    Family("ernie4_5_moe", "Ernie4_5_MoeForCausalLM"),
    Family("ernie4_5_vl_moe", "Ernie4_5_VLMoeForConditionalGeneration",
           {"text_config": {"rope_parameters": _rope(2, 2, 4), "moe_intermediate_size": [32, 32],
                            "mlp_layer_types": SPARSE}}),
    Family("exaone_moe", "ExaoneMoeForCausalLM"),
    Family("flex_olmo", "FlexOlmoForCausalLM"),
    Family("flint", "FlintForCausalLM", {"num_hidden_layers": 3}, newer=True),
    Family("gemma4", "Gemma4ForCausalLM", {"enable_moe_block": True, "hidden_size_per_layer_input": 0}),
    Family("glm4_moe", "Glm4MoeForCausalLM"),
    Family("glm4_moe_lite", "Glm4MoeLiteForCausalLM"),
    Family("glm4v_moe", "Glm4vMoeForConditionalGeneration", {"text_config": {"rope_parameters": _rope(2, 1, 1)}}),
    Family("glm5_next", "Glm5NextForConditionalGeneration",
           {"text_config": {"layer_types": LINEAR_THEN_FULL, "mlp_layer_types": SPARSE, "qk_rope_head_dim": 0,
                            "index_kpool": 2, "indexer_types": ["full", "full"]}}),
    Family("glm_moe_dsa", "GlmMoeDsaForCausalLM"),
    Family("gpt_oss", "GptOssForCausalLM"),
    Family("granitemoe", "GraniteMoeForCausalLM"),
    Family("granitemoe_swa", "GraniteMoeSWAForCausalLM"),
    Family("granitemoehybrid", "GraniteMoeHybridForCausalLM",
           {"layer_types": LINEAR_THEN_FULL, "mamba_chunk_size": 8}),
    Family("granitemoeshared", "GraniteMoeSharedForCausalLM"),
    Family("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM"),
    Family("hy_v3", "HYV3ForCausalLM"),
    Family("hy_v4", "HYV4ForCausalLM"),
    Family("hy_v4_vl", "HYV4VLForConditionalGeneration",
           {"text_config": {"rope_parameters": _rope(4, 2, 2), "mlp_layer_types": SPARSE}}, newer=True),
    Family("inkling", "InklingForCausalLM"),
    Family("inkling2", "Inkling2ForCausalLM", newer=True),
    Family("inkling2_loop", "Inkling2LoopForCausalLM", newer=True),
    Family("jamba", "JambaForCausalLM", {"attn_layer_period": 2, "attn_layer_offset": 1, "num_hidden_layers": 4}),
    Family("kimi_linear", "KimiLinearForCausalLM", {"layer_types": LINEAR_THEN_FULL, "mlp_layer_types": SPARSE}),
    Family("kolibri1", "Kolibri1ForCausalLM", newer=True),
    Family("laguna", "LagunaForCausalLM"),
    Family("lara_mini", "LaraMiniForCausalLM", newer=True),
    Family("lfm2_moe", "Lfm2MoeForCausalLM", {"layer_types": ["conv", "full_attention"]}),
    Family("mellum", "MellumForCausalLM"),
    Family("mimo_v2_flash", "MiMoV2FlashForCausalLM", {"num_attention_heads": 8}),
    Family("minimax", "MiniMaxForCausalLM"),
    Family("minimax_m2", "MiniMaxM2ForCausalLM"),
    Family("minimax_m3_vl", "MiniMaxM3VLForCausalLM"),
    Family("mistral4", "Mistral4ForCausalLM"),
    Family("mistral_large4", "MistralLarge4ForConditionalGeneration",
           {"text_config": {"mlp_layer_types": SPARSE}, "vision_config": {"model_type": "pixtral", **TINY_IMAGES}},
           newer=True),
    Family("mixtral", "MixtralForCausalLM"),
    Family("muse_spark", "MuseSparkForConditionalGeneration",
           {"text_config": {"mlp_layer_types": SPARSE, "moe_hidden_size": 64},
            "vision_config": {"pos_emb_height": 4, "pos_emb_width": 4, "max_position_embeddings": 16},
            "audio_config": {"num_hidden_layers": 1, "hidden_sizes": [32], "depths": [1], "patch_sizes": [4]}},
           newer=True),
    Family("nemotron_h", "NemotronHForCausalLM", {"chunk_size": 8}),      # prompts are padded to it
    Family("olmoe", "OlmoeForCausalLM"),
    Family("openai_privacy_filter", "OpenAIPrivacyFilterForTokenClassification"),
    Family("phimoe", "PhimoeForCausalLM"),
    Family("qwen2_moe", "Qwen2MoeForCausalLM"),
    Family("qwen3_5_moe", "Qwen3_5MoeForCausalLM", {"layer_types": LINEAR_THEN_FULL}),
    Family("qwen3_moe", "Qwen3MoeForCausalLM"),
    Family("qwen3_next", "Qwen3NextForCausalLM", {"layer_types": LINEAR_THEN_FULL}),
    Family("qwen3_omni_moe", "Qwen3OmniMoeThinkerForConditionalGeneration", {"vision_start_token_id": 93}),
    Family("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration"),
    Family("qwen4_exp", "Qwen4ExpForCausalLM",
           {"layer_types": LINEAR_THEN_FULL, "indexer_budget": 8, "indexer_compress_ratio": 2, "indexer_n_heads": 2,
            "indexer_kv_heads": 1, "indexer_head_dim": 16}),
    Family("solar_open", "SolarOpenForCausalLM"),
    Family("unlimited_ocr", "UnlimitedOcrForConditionalGeneration", {"text_config": {"mlp_layer_types": SPARSE}},
           newer=True),
    Family("zaya", "ZayaForCausalLM", {"num_experts_per_tok": 1, "num_key_value_heads": 2}),
]

#: The bytes of a random model are made on the CPU in a moment; more than this is a row that is not small.
MOST_PARAMETERS = 50_000_000


def behind_the_decorator() -> set[str]:
    """Folders of ``transformers/models`` that use ``use_experts_implementation``, by their source."""
    models = Path(transformers.__file__).parent / "models"
    return {
        path.parent.name for path in models.glob("*/modeling_*.py")
        if any(line.startswith("@use_experts_implementation") for line in path.read_text().splitlines())
    }


def small_config(cls: Any, more: dict[str, Any], base: dict[str, Any] = SMALL) -> Any:
    """A small configuration of a class, with its parts."""
    known = {f.name for f in fields(cls)} if is_dataclass(cls) else set(inspect.signature(cls.__init__).parameters)
    values = {name: value for name, value in {**base, **SPECIAL}.items() if name in known}
    parts = getattr(cls, "sub_configs", {})
    for name, part in parts.items():
        if is_dataclass(part) and part.__name__ not in ("PreTrainedConfig", "PretrainedConfig"):
            values[name] = small_config(part, more.get(name, {}),
                                        SMALL if name == "text_config" else SMALL_PART).to_dict()
        elif name in more:
            values[name] = more[name]
    values.update({name: value for name, value in more.items() if name not in parts})
    return cls(**values)


def build(family: Family, *, dtype: torch.dtype = torch.float32, seed: int = 0, **more: Any) -> Any:
    """A model of a family with random weights, in evaluation mode."""
    module = importlib.import_module(f"transformers.models.{family.name}.modeling_{family.name}")
    cls = getattr(module, family.model)
    config = small_config(cls.config_class, {**family.config, **more})
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in cls(config).parameters())
    assert size < MOST_PARAMETERS, f"{family.name} has {size} parameters"
    torch.manual_seed(seed)
    model = cls(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.1)
            else:
                parameter.normal_(1, 0.05)
    return model.to(dtype)


def by_name(name: str) -> Family:
    """A row."""
    return next(family for family in FAMILIES if family.name == name)


def prompt(rows: int = 2, tokens: int = 10, seed: int = 1) -> torch.Tensor:
    """Token numbers without special ones, (rows, tokens)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(FIRST_TOKEN, LAST_TOKEN + 1, (rows, tokens), generator=generator)
