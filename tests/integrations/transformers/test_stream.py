"""Streaming a loaded model: walks, caches, lists of tokens, and what may go wrong in a forward."""

from __future__ import annotations

import copy
import gc
import io
import json
import pickle
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra transformers")
transformers = pytest.importorskip("transformers", reason="needs the extra transformers")

import torch
from safetensors.torch import load_file
from torch import nn

import strata
from strata.integrations.transformers import lists_ahead, stream_experts, streamed, unstream
from tests.integrations.transformers import families
from tests.integrations.transformers.support import one_thread, outputs

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]
__all__ = ["one_thread"]

#: More experts a token than two: the order of the sum shows.
CHOICES = {"num_experts": 16, "num_experts_per_tok": 4}


def made(name: str = "qwen3_moe", **more: Any) -> Any:
    """A small model whose experts transformers computes by ``grouped_mm``."""
    model = families.build(families.by_name(name), **more)
    model.set_experts_implementation("grouped_mm")
    return model


@pytest.fixture
def model() -> Iterator[Any]:
    """A Qwen3-MoE with 16 experts, 4 a token, 3 layers; unstreamed at the end."""
    built = made(**CHOICES, num_hidden_layers=3)
    yield built
    if built.config._experts_implementation == "strata":
        unstream(built)


def logits(model: Any, ids: torch.Tensor, **more: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=ids, **more).logits


# --- the same bits, whichever way they come -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss", "nemotron_h"])
@pytest.mark.parametrize("options", [{}, {"pinned_bytes": 10**9}, {"cache_bytes": 10**6}, {"slots": 1},
                                     {"settings": strata.BatchSettings(3, 2, 3), "host_ring": 4}], ids=str)
def test_bits_of_grouped_mm(name: str, dtype: torch.dtype, options: dict[str, Any]) -> None:
    counts = {"num_local_experts": 16, "n_routed_experts": 16} if name != "qwen3_moe" else CHOICES
    built = made(name, dtype=dtype, **{**counts, "num_experts_per_tok": 4})
    for rows, tokens in ((2, 24), (1, 3)):
        ids = families.prompt(rows, tokens)
        want = outputs(built, ids)
        stream_experts(built, **{"slots": 6, "device": "cpu", **options})
        got = outputs(built, ids)
        again = outputs(built, ids)
        unstream(built)
        for one in (got, again):
            assert torch.equal(one[0], want[0])
            assert torch.equal(one[1], want[1])


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_every_schedule(software: Any, schedule: str) -> None:
    model = made(**CHOICES, num_hidden_layers=3)
    software.configure(schedule=schedule, seed=7)
    ids = families.prompt(2, 24)
    want = outputs(model, ids)
    for options in ({}, {"cache_bytes": 200_000}, {"pinned_bytes": 10**9}):
        stream_experts(model, slots=5, device="cpu", **options)
        got = outputs(model, ids)
        unstream(model)
        assert torch.equal(got[0], want[0])
        assert torch.equal(got[1], want[1])


def test_more_threads_have_the_bits_of_grouped_mm(model: Any) -> None:
    torch.set_num_threads(2)
    ids = families.prompt(3, 40)
    want = logits(model, ids)
    stream_experts(model, slots=6, device="cpu")
    assert torch.equal(logits(model, ids), want)


def test_sizes_that_the_grouped_gemm_refuses() -> None:
    """Rows of 120 bytes: what transformers computes by itself is computed streamed, too."""
    model = made(**CHOICES, moe_intermediate_size=30)
    model.set_experts_implementation("eager")
    ids = families.prompt(1, 12)
    want = logits(model, ids)
    for options in ({}, {"cache_bytes": 10**6}):
        stream_experts(model, slots=6, device="cpu", **options)
        torch.testing.assert_close(logits(model, ids), want)
        unstream(model)


@pytest.mark.parametrize("options", [{}, {"cache_bytes": 10**6}], ids=str)
@pytest.mark.parametrize("tokens", [0, 3])
def test_a_call_that_routes_to_no_expert(model: Any, tokens: int, options: dict[str, Any]) -> None:
    """No tokens, or only indices past the last expert."""
    ids = families.prompt(1, 3)
    want = logits(model, ids)
    stream_experts(model, slots=6, device="cpu", **options)
    for layer in model.model.layers:
        with torch.no_grad():
            got = layer.mlp.experts(torch.ones(tokens, model.config.hidden_size), torch.full((tokens, 4), 16),
                                    torch.ones(tokens, 4))
        assert torch.equal(got, torch.zeros(tokens, model.config.hidden_size))
    assert torch.equal(logits(model, ids), want)


def test_streamed_in_inference_mode_and_called_outside(model: Any) -> None:
    ids = families.prompt(1, 3)
    want = logits(model, ids)
    with torch.inference_mode():
        stream_experts(model, slots=6, device="cpu", cache_bytes=10**6)
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, want)


def test_which_walk_follows_from_the_formula(model: Any) -> None:
    stream_experts(model, slots=6, device="cpu")
    tokens = next(tokens for tokens in range(1, 100) if lists_ahead(tokens, 4, 16))
    assert tokens == 7      # 1 - (1 - 4/16) ** 7 = 0.867
    logits(model, families.prompt(1, tokens - 1))
    assert (streamed(model).forwards_ahead, streamed(model).forwards_routed) == (0, 1)
    streamed(model).evenness.clear()
    logits(model, families.prompt(1, tokens))
    assert (streamed(model).forwards_ahead, streamed(model).forwards_routed) == (1, 1)


def test_an_uneven_router_is_learned(model: Any) -> None:
    """What was routed in the last forward of about as many tokens counts, not what an even router would do."""
    ids = families.prompt(1, 24)
    for layer in model.model.layers:
        with torch.no_grad():
            layer.mlp.gate.weight[4:] = layer.mlp.gate.weight[:4].repeat(3, 1) - 50 * layer.mlp.gate.weight[:4].sum(0)
    want = logits(model, ids)
    stream_experts(model, slots=6, device="cpu")
    streaming = streamed(model)
    assert lists_ahead(24, 4, 16)
    assert torch.equal(logits(model, ids), want)
    assert (streaming.forwards_ahead, streaming.forwards_routed) == (1, 0)
    evenness = streaming.evenness[(24).bit_length()]
    assert 4 / 16 <= evenness < 0.85
    assert not lists_ahead(24, 4, 16, evenness)
    assert torch.equal(logits(model, ids), want)
    assert (streaming.forwards_ahead, streaming.forwards_routed) == (1, 1)
    logits(model, families.prompt(1, 40))       # of another size: the formula again
    assert (streaming.forwards_ahead, streaming.forwards_routed) == (2, 1)


def test_only_what_is_routed_is_copied(model: Any) -> None:
    stream_experts(model, slots=6, device="cpu")
    logits(model, families.prompt(1, 1))
    counters = streamed(model).streamer.counters
    assert counters.direct_copies + counters.staged_copies == 3 * 4     # layers x choices


def test_what_nobody_is_routed_to_is_dropped() -> None:
    """Listed ahead, and left out as soon as the routing is known, where the copy has not begun."""
    model = made(**CHOICES, num_hidden_layers=3)
    ids = families.prompt(1, 2)
    want = logits(model, ids)
    # Pinned: no worker gathers ahead, so that at most the ring's three slots are taken before the routing is known.
    stream_experts(model, slots=3, device="cpu", pinned_bytes=10**9)
    streaming = streamed(model)
    streaming.lists_ahead = lambda *_: True
    assert torch.equal(logits(model, ids), want)
    counters = streaming.streamer.counters
    # At most 4 of 16 experts for each of 2 tokens.
    assert counters.dropped >= 3 * (16 - 8 - 3)
    assert counters.direct_copies + counters.dropped == 3 * 16
    unstream(model)


def test_pinned_and_pageable() -> None:
    model = made(**CHOICES, num_hidden_layers=3)
    layer = sum(parameter.nbytes for parameter in model.model.layers[0].mlp.experts.parameters())
    stream_experts(model, slots=6, device="cpu", pinned_bytes=2 * layer + 1)
    shares = [layer.copies.pinned_share() for layer in streamed(model).layers]
    assert shares == [1.0, 1.0, 0.0]
    unstream(model)


# --- the cache ------------------------------------------------------------------------------------------------------


def test_the_cache_saves_copies(model: Any) -> None:
    ids = families.prompt(1, 1)
    stream_experts(model, slots=6, device="cpu", cache_bytes=10**7)
    logits(model, ids)
    before = streamed(model).streamer.counters
    logits(model, ids)
    after = streamed(model).streamer.counters
    assert after.staged_copies == before.staged_copies
    cache = streamed(model).cache
    assert (cache.hits, cache.misses) == (12, 12)


def test_the_least_recently_used_makes_room() -> None:
    from strata.integrations.transformers._cache import ExpertCache

    cache = ExpertCache(2, 8, torch.device("cpu"))
    slot = torch.arange(8, dtype=torch.uint8)
    assert cache.split(0, [1, 2]) == ({}, [1, 2])
    rows = [cache.fill(0, 1, slot, ()), cache.fill(0, 2, slot + 1, ())]
    assert cache.split(0, [1])[0] == {1: rows[0]}       # 2 is now the oldest
    assert cache.fill(1, 1, slot + 2, {rows[0]}) == rows[1]
    assert cache.split(0, [1, 2]) == ({1: rows[0]}, [2])
    assert cache.split(1, [1]) == ({1: rows[1]}, [])
    assert cache.fill(2, 0, slot, {0, 1}) is None
    assert cache.bytes[rows[1]].tolist() == (slot + 2).tolist()
    cache.clear()
    assert len(cache) == 0
    assert cache.split(1, [1]) == ({}, [1])


def test_a_cache_for_no_expert_is_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="cache_bytes is 100: not one expert"):
        stream_experts(model, device="cpu", cache_bytes=100)
    assert logits(model, families.prompt()) is not None


# --- as transformers' users call it ---------------------------------------------------------------------------------


def test_padding(model: Any) -> None:
    ids = families.prompt(3, 12)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    mask[2, :1] = 0
    want = model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False, pad_token_id=0)
    stream_experts(model, slots=6, device="cpu")
    assert torch.equal(model.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False, pad_token_id=0), want)


@pytest.mark.parametrize("options", [{"use_cache": False}, {"cache_implementation": "static"}, {"num_beams": 2},
                                     {"prefill_chunk_size": 8}, {"assistant_early_exit": None}], ids=str)
def test_ways_to_generate(model: Any, options: dict[str, Any]) -> None:
    ids = families.prompt(2, 20)
    arguments = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, **options}
    want = model.generate(ids, **arguments)
    stream_experts(model, slots=6, device="cpu", cache_bytes=300_000)
    assert torch.equal(model.generate(ids, **arguments), want)
    assert torch.equal(model.generate(ids, **arguments), want)


def test_a_part_of_the_model_is_called(model: Any) -> None:
    ids = families.prompt()
    embeddings = model.get_input_embeddings()(ids)
    with torch.no_grad():
        want = [model.model(input_ids=ids).last_hidden_state, model(inputs_embeds=embeddings).logits,
                model.model.layers[1].mlp(embeddings)]
        stream_experts(model, slots=6, device="cpu")
        for _ in range(2):
            got = [model.model(input_ids=ids).last_hidden_state, model(inputs_embeds=embeddings).logits,
                   model.model.layers[1].mlp(embeddings)]
            for one, other in zip(got, want, strict=True):
                assert torch.equal(one[0] if isinstance(one, tuple) else one, other[0] if isinstance(other, tuple) else other)


def test_layers_in_another_order(model: Any) -> None:
    """A forward that calls its layers backwards goes on with what is routed; the next one knows."""
    ids = families.prompt(1, 12)
    model.model.layers = nn.ModuleList(list(model.model.layers))
    want = None
    for streaming in (False, True):
        if streaming:
            stream_experts(model, slots=6, device="cpu")
        layers = list(model.model.layers)
        model.model.layers = nn.ModuleList(layers[::-1])
        for k, layer in enumerate(model.model.layers):
            layer.self_attn.layer_idx = k
        if not streaming:
            want = logits(model, ids, use_cache=False)
            model.model.layers = nn.ModuleList(layers)
    for _ in range(2):
        assert torch.equal(logits(model, ids, use_cache=False), want)
    assert streamed(model).out_of_order >= 1
    before = streamed(model).out_of_order
    assert torch.equal(logits(model, ids, use_cache=False), want)
    assert streamed(model).out_of_order == before
    assert [layer.index for layer in streamed(model).order] == [2, 1, 0]


def test_two_models_in_one_process() -> None:
    ids = families.prompt()
    models = [made(seed=seed, **CHOICES) for seed in (0, 1)]
    want = [outputs(each, ids) for each in models]
    assert not torch.equal(want[0][0], want[1][0])
    for each in models:
        stream_experts(each, slots=5, device="cpu")
    for each, expected in zip(models, want, strict=True):
        got = outputs(each, ids)
        assert torch.equal(got[0], expected[0])
        assert torch.equal(got[1], expected[1])
    unstream(models[0])
    assert torch.equal(outputs(models[1], ids)[0], want[1][0])
    assert torch.equal(outputs(models[0], ids)[0], want[0][0])
    unstream(models[1])


def test_checkpoints_have_nothing_of_it(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "before")
    stream_experts(model, slots=5, device="cpu", cache_bytes=10**6)
    logits(model, families.prompt())
    model.save_pretrained(tmp_path / "after")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("before", "after"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (tmp_path / "before" / "config.json").read_text() == (tmp_path / "after" / "config.json").read_text()
    assert "strata" not in json.dumps(model.config.to_dict())


def test_unstream_gives_back_everything(model: Any) -> None:
    stream_experts(model, slots=5, device="cpu")
    streaming = weakref.ref(streamed(model))
    logits(model, families.prompt())
    assert unstream(model) is model
    assert model.config._experts_implementation == "grouped_mm"
    assert not model.model._forward_hooks
    assert not model.model._forward_pre_hooks
    gc.collect()
    assert streaming() is None
    with pytest.raises(ValueError, match="not streamed"):
        unstream(model)
    with pytest.raises(ValueError, match="not streamed"):
        streamed(model)


def test_a_model_that_is_dropped_frees_its_slots() -> None:
    built = made()
    stream_experts(built, slots=5, device="cpu")
    logits(built, families.prompt())
    gone = weakref.ref(built)
    del built
    gc.collect()
    assert gone() is None       # the fixture of all tests looks at memory, streams and events


# --- what is refused ------------------------------------------------------------------------------------------------


def test_a_dense_model_is_refused() -> None:
    config = transformers.Qwen3Config(vocab_size=96, hidden_size=64, intermediate_size=48, num_hidden_layers=1,
                                      num_attention_heads=4, num_key_value_heads=4, head_dim=16)
    with pytest.raises(ValueError, match="Qwen3ForCausalLM has no experts module"):
        stream_experts(transformers.Qwen3ForCausalLM(config).eval(), device="cpu")


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(TypeError, match="Linear"):
        stream_experts(nn.Linear(2, 2).eval(), device="cpu")


def test_experts_without_weights_are_refused() -> None:
    with torch.device("meta"):
        built = transformers.Qwen3MoeForCausalLM(families.small_config(transformers.Qwen3MoeConfig, {})).eval()
    with pytest.raises(ValueError, match=r"meta device.*from_pretrained"):
        stream_experts(built, device="cpu")


def test_experts_elsewhere_are_refused(model: Any) -> None:
    """A parameter that says it is on a GPU; none is needed to be told so."""
    class Elsewhere(nn.Parameter):
        device = torch.device("cuda:0")

    experts = model.model.layers[1].mlp.experts
    experts.down_proj = Elsewhere(experts.down_proj.data, requires_grad=False)
    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.experts\.down_proj is on cuda:0 already"):
        stream_experts(model, device="cpu")


def test_wrong_shapes_are_refused(model: Any) -> None:
    experts = model.model.layers[1].mlp.experts
    experts.down_proj = nn.Parameter(experts.down_proj.data[:7].clone())
    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.experts\.down_proj has the shape \(7, "):
        stream_experts(model, device="cpu")


def test_twice_is_refused(model: Any) -> None:
    stream_experts(model, slots=5, device="cpu")
    with pytest.raises(ValueError, match="streamed already"):
        stream_experts(model, slots=5, device="cpu")


@pytest.mark.parametrize(("options", "kind", "words"), [
    ({"slots": 0}, ValueError, "slots is 0"), ({"slots": True}, TypeError, "slots is True"),
    ({"slots": 2.0}, TypeError, "slots is 2.0"), ({"cache_bytes": -1}, ValueError, "cache_bytes is -1"),
    ({"pinned_bytes": "1GB"}, TypeError, "pinned_bytes is '1GB'"), ({"device": "mps"}, ValueError, "device is mps"),
    ({"workers": 0}, ValueError, "workers is 0"), ({"gpu_ring": 4}, TypeError, "gpu_ring is no argument"),
])
def test_arguments_are_checked(model: Any, options: dict[str, Any], kind: type[Exception], words: str) -> None:
    want = logits(model, families.prompt())
    with pytest.raises(kind, match=words):
        stream_experts(model, **{"device": "cpu", **options})
    assert torch.equal(logits(model, families.prompt()), want)


def test_no_memory_for_the_slots_leaves_the_model_as_it_was(software: Any, model: Any) -> None:
    want = logits(model, families.prompt())
    software.inject("hipMalloc", nth=1, status=2)
    with pytest.raises((MemoryError, strata.HipError), match="hipMalloc"):
        stream_experts(model, slots=5, device="cpu")
    software.clear_injections()
    assert torch.equal(logits(model, families.prompt()), want)
    stream_experts(model, slots=5, device="cpu")
    assert torch.equal(logits(model, families.prompt()), want)


def test_training_is_refused(model: Any) -> None:
    model.train()
    with pytest.raises(ValueError, match=r"training mode.*model\.eval\(\)"):
        stream_experts(model, device="cpu")
    model.eval()
    stream_experts(model, slots=5, device="cpu")
    with pytest.raises(RuntimeError, match=r"gradients.*torch\.no_grad"):
        model(input_ids=families.prompt())
    model.train()
    with pytest.raises(RuntimeError, match=r"for inference: call model\.eval\(\)"), torch.no_grad():
        model(input_ids=families.prompt())
    model.eval()
    logits(model, families.prompt())


def test_a_model_spread_by_accelerate_is_refused(model: Any) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerate.cpu_offload(model, execution_device="cpu")
    with pytest.raises(ValueError, match=r"device_map|accelerate"):
        stream_experts(model, device="cpu")


def test_a_device_map_is_refused(model: Any) -> None:
    model.hf_device_map = {"model.layers.0": 0, "model.layers.1": "cpu"}
    with pytest.raises(ValueError, match=r"device_map over \['0', 'cpu'\]"):
        stream_experts(model, device="cpu")
    del model.hf_device_map


def test_expert_parallelism_is_refused(model: Any) -> None:
    model.model.layers[0].mlp.experts._is_expert_parallel = True
    with pytest.raises(ValueError, match="expert parallelism"):
        stream_experts(model, device="cpu")


def test_tensor_parallelism_is_refused(model: Any) -> None:
    model._tp_size = 2
    with pytest.raises(ValueError, match="tensor parallelism"):
        stream_experts(model, device="cpu")


def test_a_compiled_model_is_refused(model: Any) -> None:
    with pytest.raises(TypeError, match=r"torch\.compile"):
        stream_experts(torch.compile(model), device="cpu")
    model.compile()
    with pytest.raises(ValueError, match=r"torch\.compile"):
        stream_experts(model, device="cpu")
    model._compiled_call_impl = None


@pytest.mark.slow
@pytest.mark.parametrize("fullgraph", [True, False])
def test_compiling_a_streamed_model_is_refused(model: Any, fullgraph: bool) -> None:
    want = logits(model, families.prompt())
    stream_experts(model, slots=5, device="cpu")
    compiled = torch.compile(model, backend="eager", fullgraph=fullgraph)
    with pytest.raises(Exception, match=r"torch\.compile of a model whose experts are streamed"):
        logits(compiled, families.prompt())
    torch._dynamo.reset()
    assert torch.equal(logits(model, families.prompt()), want)


@pytest.mark.slow
def test_a_part_without_experts_may_be_compiled(model: Any) -> None:
    stream_experts(model, slots=5, device="cpu")
    want = logits(model, families.prompt())
    model.model.layers[0].self_attn.compile(backend="eager")
    assert torch.equal(logits(model, families.prompt()), want)
    torch._dynamo.reset()


def test_generate_on_a_static_cache_does_not_compile(model: Any) -> None:
    """As it would on a GPU, where a static cache makes generate compile by itself."""
    from transformers.generation.configuration_utils import CompileConfig

    config = CompileConfig()
    config._compile_all_devices = True
    ids = families.prompt(1, 6)
    arguments = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "cache_implementation": "static"}
    want = model.generate(ids, **arguments)
    stream_experts(model, slots=5, device="cpu")
    assert torch.equal(model.generate(ids, compile_config=config, **arguments), want)
    assert not hasattr(model, "_compiled_call")
    unstream(model)
    assert "_valid_auto_compile_criteria" not in model.__dict__


def test_a_copy_is_refused(model: Any) -> None:
    stream_experts(model, slots=5, device="cpu")
    for attempt in (lambda: copy.deepcopy(model), lambda: pickle.dump(model, io.BytesIO()),
                    lambda: torch.save(model, io.BytesIO())):
        with pytest.raises(TypeError, match=r"cannot be copied or pickled: unstream\(\)"):
            attempt()


def test_a_module_that_nobody_streams_is_named(model: Any) -> None:
    stream_experts(model, slots=5, device="cpu")
    twin = type(model)(model.config).eval()      # shares the configuration, and with it the implementation
    twin.config._experts_implementation = "strata"
    with pytest.raises(RuntimeError, match="not streamed"):
        logits(twin, families.prompt())


@pytest.mark.parametrize(("version", "fits"), [("5.16.2", False), ("5.17.0", True), ("5.24.1", True), ("5.25.0", False),
                                               ("5.20.0.dev0", True), ("6.0", False), ("4.57.1", False), ("x", False)])
def test_versions(version: str, fits: bool) -> None:
    from strata.integrations.transformers._versions import check_version

    if fits:
        check_version(version)
        return
    with pytest.raises(ImportError, match=rf"transformers {version} is not supported.*5\.17 to 5\.24"):
        check_version(version)


# --- failures in the middle -----------------------------------------------------------------------------------------


class Boom(Exception):
    """Raised by a test in the middle of a forward."""


def break_once(module: nn.Module, error: BaseException) -> Any:
    """Make the next call of a module raise."""
    def hook(*_: Any) -> None:
        handle.remove()
        raise error
    handle = module.register_forward_pre_hook(hook)
    return handle


@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt, torch.OutOfMemoryError])
@pytest.mark.parametrize("tokens", [1, 20])
@pytest.mark.parametrize("where", ["attention", "act_fn", "norm"])
@pytest.mark.parametrize("options", [{}, {"cache_bytes": 300_000}], ids=str)
def test_the_next_forward_is_right(
    model: Any, error: type[BaseException], tokens: int, where: str, options: dict[str, Any]
) -> None:
    ids = families.prompt(1, tokens)
    want = logits(model, ids)
    stream_experts(model, slots=5, device="cpu", **options)
    logits(model, ids)
    layer = model.model.layers[1]
    broken = {"attention": layer.self_attn, "act_fn": layer.mlp.experts.act_fn, "norm": model.model.norm}[where]
    # Instances of the test's own: an exception keeps the frames that it passed, and with them the slots.
    break_once(broken, error())
    with pytest.raises(error):
        logits(model, ids)
    for _ in range(2):
        assert torch.equal(logits(model, ids), want)
    break_once(broken, error())
    with pytest.raises(error):
        logits(model, ids)


def test_ctrl_c_in_generate(model: Any) -> None:
    ids = families.prompt(1, 12)
    want = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
    stream_experts(model, slots=5, device="cpu")
    calls = iter(range(100))

    def interrupt(*_: Any) -> None:
        if next(calls) == 7:
            raise KeyboardInterrupt

    handle = model.model.layers[2].mlp.experts.act_fn.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
    handle.remove()
    assert torch.equal(model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0), want)


def test_a_failed_copy_is_raised_and_the_next_forward_is_right(software: Any, model: Any) -> None:
    ids = families.prompt(1, 20)
    want = logits(model, ids)
    stream_experts(model, slots=5, device="cpu")
    logits(model, ids)
    software.inject("hipMemcpyAsync", nth=5, status=1)
    with pytest.raises(strata.HipError, match="hipMemcpyAsync"):
        logits(model, ids)
    software.clear_injections()
    assert torch.equal(logits(model, ids), want)


def test_a_second_thread_is_refused_while_the_first_is_in_a_forward(model: Any) -> None:
    ids = families.prompt(1, 20)
    want = logits(model, ids)
    stream_experts(model, slots=5, device="cpu")
    inside, go_on = threading.Event(), threading.Event()

    def wait(*_: Any) -> None:
        inside.set()
        assert go_on.wait(60)

    handle = model.model.layers[1].self_attn.register_forward_pre_hook(wait)
    results: list[torch.Tensor] = []
    first = threading.Thread(target=lambda: results.append(logits(model, ids)))
    first.start()
    assert inside.wait(60)
    handle.remove()
    try:
        with pytest.raises(RuntimeError, match="another thread"):
            logits(model, ids)
        with pytest.raises(RuntimeError, match="another thread"):
            unstream(model)
    finally:
        go_on.set()
        first.join(60)
    assert torch.equal(results[0], want)
    assert torch.equal(logits(model, ids), want)


def test_another_thread_may_go_on_after_an_interrupt(model: Any) -> None:
    """What a thread left behind is no forward of its any more."""
    ids = families.prompt(1, 20)
    want = logits(model, ids)
    stream_experts(model, slots=5, device="cpu")
    break_once(model.model.layers[1].self_attn, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        logits(model, ids)
    results: list[torch.Tensor] = []
    other = threading.Thread(target=lambda: results.append(logits(model, ids)))
    other.start()
    other.join(60)
    assert torch.equal(results[0], want)
