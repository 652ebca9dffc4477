"""Models whose experts stay in their files: the same bits as the same checkpoint loaded whole."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra transformers")
transformers = pytest.importorskip("transformers", reason="needs the extra transformers")

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import strata
from strata.integrations.transformers import OLDEST, from_pretrained, stream_experts, streamed, unstream
from tests.integrations.transformers import families
from tests.integrations.transformers.families import FAMILIES, Family
from tests.integrations.transformers.support import IS_OLDEST, one_thread, outputs

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]
__all__ = ["one_thread"]

QUICK = {"qwen3_moe", "gpt_oss", "mixtral", "ernie4_5_vl_moe", "diffusion_gemma", "qwen3_vl_moe"}


def saved(folder: Path, name: str = "qwen3_moe", **options: Any) -> Any:
    """A checkpoint of a family's small model; the model."""
    model = families.build(families.by_name(name), **options)
    model.save_pretrained(folder, max_shard_size="200KB")
    return model


@pytest.mark.parametrize(
    "family", [pytest.param(family, id=family.name, marks=() if family.name in QUICK else pytest.mark.slow)
               for family in FAMILIES])
def test_bits_are_those_of_the_whole_model(tmp_path: Path, family: Family) -> None:
    if family.newer and IS_OLDEST:
        pytest.skip(f"came after transformers {OLDEST[0]}.{OLDEST[1]}")
    built = saved(tmp_path, family.name)
    ids = families.prompt()
    # Loaded whole in the same way, since the CPU's GEMMs look at where their operands lie.
    whole = stream_experts(type(built).from_pretrained(tmp_path), slots=5, device="cpu")
    logits, tokens = outputs(whole, ids)
    unstream(whole)
    model = from_pretrained(tmp_path, model_class=type(built), slots=5, device="cpu")
    assert type(model) is type(built)
    experts = [parameter for layer in streamed(model).layers for parameter in layer.parameters().values()]
    assert experts
    assert all(parameter.is_meta for parameter in experts)
    assert not any(parameter.is_meta for parameter in model.parameters() if not any(parameter is e for e in experts))
    loaded = dict(model.named_parameters())
    assert loaded.keys() == dict(built.named_parameters()).keys()
    for name, want in built.named_parameters():
        got = loaded[name]
        assert got.is_meta or torch.equal(got, want), name
        assert got.shape == want.shape
        assert got.dtype == want.dtype
    got_logits, got_tokens = outputs(model, ids)
    assert torch.equal(got_logits, logits)
    assert torch.equal(got_tokens, tokens)
    unstream(model)


def test_experts_of_their_own_are_pieces_of_the_file(tmp_path: Path) -> None:
    """A published Qwen3-MoE keeps gate, up and down of each expert apart: three segments an expert, none converted."""
    saved(tmp_path)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 1
    with safe_open(files[0], "pt") as file:
        assert any("experts.0.gate_proj" in name or "experts.0.down_proj" in name for name in file.keys())
    model = from_pretrained(tmp_path, slots=5, device="cpu")
    assert all(len(layer.copies.nbytes) == 3 * layer.experts for layer in streamed(model).layers)
    unstream(model)


def test_the_class_is_the_configuration_s(tmp_path: Path) -> None:
    saved(tmp_path, "mixtral")
    model = from_pretrained(tmp_path, device="cpu")
    assert type(model) is transformers.MixtralForCausalLM
    assert not model.training
    unstream(model)


def test_half_precision_stays(tmp_path: Path) -> None:
    saved(tmp_path, dtype=torch.bfloat16)
    model = from_pretrained(tmp_path, device="cpu")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    outputs(model, families.prompt())
    unstream(model)


def test_another_dtype_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(ValueError, match=r"float32.*bfloat16.*leave dtype at 'auto'"):
        from_pretrained(tmp_path, dtype=torch.bfloat16, device="cpu")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    saved(tmp_path)
    gone = sorted(tmp_path.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(strata.CheckpointError, match=gone.name):
        from_pretrained(tmp_path, device="cpu")


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(strata.CheckpointError, match=r"no \.safetensors file"):
        from_pretrained(tmp_path, device="cpu")


def test_another_configuration_is_refused_by_name(tmp_path: Path) -> None:
    saved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["moe_intermediate_size"] = 16
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"gate_proj.*\(32, 64\); \(16, 64\) is wanted for .*gate_up_proj"):
        from_pretrained(tmp_path, device="cpu")


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    built = families.build(families.by_name("qwen3_moe"))
    built.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.experts.5.up_proj.weight"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ValueError, match=r"7 tensors .*up_proj.* for model\.layers\.1\.mlp\.experts\.gate_up_proj; 8"):
        from_pretrained(tmp_path, device="cpu")


def test_other_missing_weights_are_named(tmp_path: Path) -> None:
    built = families.build(families.by_name("qwen3_moe"))
    built.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ValueError, match=r"missing \['model\.norm\.weight'\]"):
        from_pretrained(tmp_path, device="cpu")


@pytest.mark.parametrize("option", [{"device_map": "auto"}, {"tp_plan": "auto"}, {"quantization_config": object()}])
def test_other_ways_to_place_weights_are_refused(tmp_path: Path, option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(ValueError, match=name):
        from_pretrained(tmp_path, device="cpu", **option)


def test_a_quantized_checkpoint_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="quantized"):
        from_pretrained(tmp_path, device="cpu")


def test_a_dense_checkpoint_is_refused(tmp_path: Path) -> None:
    config = transformers.Qwen3Config(vocab_size=96, hidden_size=64, intermediate_size=48, num_hidden_layers=1,
                                      num_attention_heads=4, num_key_value_heads=4, head_dim=16)
    transformers.Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="no experts module"):
        from_pretrained(tmp_path, device="cpu")


def test_a_model_without_its_experts_cannot_be_saved(tmp_path: Path) -> None:
    saved(tmp_path / "a")
    model = from_pretrained(tmp_path / "a", device="cpu")
    with pytest.raises((NotImplementedError, RuntimeError, ValueError)):
        model.save_pretrained(tmp_path / "b")
    unstream(model)


def test_after_unstream_a_forward_says_what_is_missing(tmp_path: Path) -> None:
    saved(tmp_path)
    model = from_pretrained(tmp_path, slots=5, device="cpu")
    unstream(model)
    with pytest.raises(RuntimeError, match=r"no weights.*unstream\(\) was called; load the model again"):
        outputs(model, families.prompt())
    with pytest.raises(ValueError, match="meta device"):
        stream_experts(model, device="cpu")


@pytest.mark.parametrize(("options", "kind", "words"), [
    ({"slots": 0}, ValueError, "slots is 0"),
    ({"cache_bytes": -1}, ValueError, "cache_bytes is -1"),
    ({"workers": 3}, TypeError, r"streamer=\{'workers': …\}"),
    ({"streamer": [3]}, TypeError, r"streamer is \[3\]; a dict"),
    ({"streamer": {"gpu_ring": 3}}, TypeError, "gpu_ring is no argument that the model's streamer takes: .*workers"),
    ({"pinned_bytes": 3}, ValueError, "pinned_bytes is 3.*for stream_experts"),
    ({"torch_dtype": torch.float16}, ValueError, "torch_dtype is torch.float16.*dtype="),
    ({"output_loading_info": True}, ValueError, "output_loading_info is True"),
    ({"load_in_8bit": True}, ValueError, "load_in_8bit is True"),
    ({"model_class": 3}, TypeError, "model_class is 3; a subclass of transformers.PreTrainedModel"),
    ({"model_class": transformers.AutoModelForCausalLM}, TypeError, "model_class is .*AutoModelForCausalLM"),
    ({"device": "mps"}, ValueError, "device is mps"),
], ids=lambda value: next(iter(value)) if isinstance(value, dict) else "")
def test_arguments_are_looked_at_before_anything_is_opened(options: dict[str, Any], kind: type[Exception], words: str) -> None:
    here = Path(__file__).parent        # a folder, but no checkpoint
    with pytest.raises(kind, match=words):
        from_pretrained(here, **{"device": "cpu", **options})


def test_a_path_that_is_no_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"'Qwen/Qwen3-30B-A3B', which is no folder here.*snapshot_download"):
        from_pretrained("Qwen/Qwen3-30B-A3B")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match=r"file', which is no folder here"):
        from_pretrained(tmp_path / "file")
    with pytest.raises(TypeError, match="path is None"):
        from_pretrained(None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"device is cuda:0, and this torch .* sees no GPU"):
        from_pretrained(tmp_path, device=0)


def test_other_weights_of_another_shape_are_named(tmp_path: Path) -> None:
    saved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["vocab_size"] = 97
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"of another shape .*embed_tokens\.weight"):
        from_pretrained(tmp_path, device="cpu")


def test_again_and_again_leaves_nothing(tmp_path: Path, software: Any) -> None:
    """Also where the model is dropped without unstream(). (The fixture of all tests looks at what is left.)"""
    saved(tmp_path)
    ids = families.prompt(1, 4)
    want, before = None, {}
    for k in range(4):
        model = from_pretrained(tmp_path, slots=5, device="cpu")
        logits = outputs(model, ids)[0]
        assert want is None or torch.equal(logits, want)
        want = logits
        if k % 2:
            unstream(model)
        del model
        gc.collect()
        now = {name: count for name, count in software.live().items() if name in ("streams", "device_bytes", "pinned_bytes")}
        assert k == 0 or now == before
        before = now


def test_a_shard_that_shrinks_gives_an_error_and_then_the_right_bits(tmp_path: Path) -> None:
    """Its name and the place in it; nothing is left running, and with the file whole again the model is right."""
    built = families.build(families.by_name("qwen3_moe"))
    built.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    parts = {"experts.safetensors": {name: value for name, value in stored.items() if ".experts." in name}}
    parts["rest.safetensors"] = {name: value for name, value in stored.items() if ".experts." not in name}
    for file, part in parts.items():
        save_file(part, tmp_path / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, part in parts.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    model = from_pretrained(tmp_path, slots=5, device="cpu")
    ids = families.prompt(1, 12)
    with torch.inference_mode():
        want = model(input_ids=ids).logits
        shard = tmp_path / "experts.safetensors"
        whole = shard.read_bytes()
        os.truncate(shard, len(whole) // 2)
        for _ in range(2):
            with pytest.raises(strata.SourceReadError, match=r"experts\.safetensors"):
                model(input_ids=ids)
        with shard.open("r+b") as file:
            file.write(whole)
        assert torch.equal(model(input_ids=ids).logits, want)
    unstream(model)
