"""What tables stream: the right bytes in the right places, from read files, mapped files, pinned layers, conversions."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import strata
from tests.sources.made import gguf_header

EXPERTS, HIDDEN, WIDTH = 5, 8, 6
save_file = pytest.importorskip("safetensors.numpy").save_file
WAYS = [{}, {"mapped": True}]


def weights(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**16, shape, dtype=np.uint16)


def gate(layer: int) -> np.ndarray:
    return weights(100 + layer, EXPERTS, WIDTH, HIDDEN)


def up(layer: int) -> np.ndarray:
    return weights(200 + layer, EXPERTS, WIDTH, HIDDEN)


def down(layer: int) -> np.ndarray:
    return weights(300 + layer, EXPERTS, HIDDEN, WIDTH)


def fused(layer: int) -> np.ndarray:
    return np.concatenate([gate(layer), up(layer)], 1)


def alternating(layer: int) -> np.ndarray:
    return np.stack([gate(layer), up(layer)], 2).reshape(EXPERTS, 2 * WIDTH, HIDDEN)


def streamed(table: strata.sources.ExpertTable, layer: int, experts: Any = None, **how: Any) -> list[dict[str, np.ndarray]]:
    """The slots' tensors of a request."""
    copies = table.copies(layer, experts, **how)
    layout = table.layout(layer)
    shown = []
    with strata.ExpertStreamer(table.slot_bytes, gpu_ring=4, host_ring=2) as streamer, streamer.begin(copies) as request:
        for slot in request:
            slot.synchronize()
            memory = np.zeros(table.slot_bytes, np.uint8)
            array = slot.array()
            memory[: array.size] = array[: table.slot_bytes]
            shown.append({name: view.copy() for name, view in layout.views(memory).items()})
    return shown


def apart(folder: Path, names: tuple[str, str, str], block: str = "mlp") -> Path:
    tensors = {}
    for layer in range(3):
        for expert in range(EXPERTS):
            for name, array in zip(names, (gate(layer), up(layer), down(layer)), strict=True):
                tensors[f"model.layers.{layer}.{block}.experts.{expert}.{name}.weight"] = array[expert].copy()
    save_file(tensors, folder / "model.safetensors")
    return folder / "model.safetensors"


def check(table: strata.sources.ExpertTable, expected: Any, **how: Any) -> None:
    for layer in table.layers:
        wanted = expected(layer)
        slots = streamed(table, layer, **how)
        assert len(slots) == EXPERTS
        for expert, slot in enumerate(slots):
            assert slot.keys() == wanted.keys()
            for name, array in slot.items():
                np.testing.assert_array_equal(array.view(np.uint16).reshape(wanted[name][expert].shape),
                                              wanted[name][expert])


def usual(layer: int) -> dict[str, np.ndarray]:
    return {"gate_up_proj": fused(layer), "down_proj": down(layer)}


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(("names", "block"), [(("gate_proj", "up_proj", "down_proj"), "mlp"),
                                              (("w1", "w3", "w2"), "block_sparse_moe")])
def test_experts_that_are_apart_fill_the_fused_layout(tmp_path, names, block, how) -> None:
    with strata.sources.safetensors(apart(tmp_path, names, block)) as table:
        check(table, usual, **how)


@pytest.mark.parametrize("how", WAYS)
def test_shards(tmp_path, how) -> None:
    """An expert's tensors lie in three files."""
    import json

    weight_map = {}
    for k, (name, of) in enumerate((("gate_proj", gate), ("up_proj", up), ("down_proj", down))):
        tensors = {f"model.layers.{layer}.mlp.experts.{e}.{name}.weight": of(layer)[e].copy()
                   for layer in range(2) for e in range(EXPERTS)}
        save_file(tensors, tmp_path / f"part-{k}.safetensors")
        weight_map |= dict.fromkeys(tensors, f"part-{k}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for paths in (tmp_path, str(tmp_path), tmp_path / "model.safetensors.index.json",
                  [tmp_path / f"part-{k}.safetensors" for k in (2, 0, 1)]):
        with strata.sources.safetensors(paths) as table:
            assert len(table.paths) == 3
            check(table, usual, **how)


def save_fused(folder: Path, tensors: dict[str, Any]) -> Path:
    save_file({f"model.layers.{layer}.{name}": np.ascontiguousarray(of(layer)) for layer in range(2)
               for name, of in tensors.items()}, folder / "model.safetensors")  # fmt: skip
    return folder / "model.safetensors"


@pytest.mark.parametrize("how", WAYS)
def test_fused_tensors(tmp_path, how) -> None:
    path = save_fused(tmp_path, {"mlp.experts.gate_up_proj": fused, "mlp.experts.down_proj": down})
    with strata.sources.safetensors(path) as table:
        check(table, usual, **how)
        copies = table.copies(1)
        assert copies.nbytes.tolist() == [2 * 2 * WIDTH * HIDDEN, 2 * WIDTH * HIDDEN] * EXPERTS


@pytest.mark.parametrize("how", [*WAYS, {"pinned": True}])
@pytest.mark.parametrize("wanted", [True, False, None])
@pytest.mark.parametrize("stored", [True, False])
def test_transposed_tensors_are_turned_where_that_is_asked_for(tmp_path, caplog, stored, wanted, how) -> None:
    def turn(of):
        return lambda layer: of(layer).transpose(0, 2, 1) if stored else of(layer)

    path = save_fused(tmp_path, {"feed_forward.experts.gate_up_proj": turn(fused), "feed_forward.experts.down_proj": turn(down)})
    shown = stored if wanted is None else wanted

    def expected(layer):
        return {name: array.transpose(0, 2, 1) if shown else array for name, array in usual(layer).items()}

    with caplog.at_level(logging.INFO, "strata"), strata.sources.safetensors(path, transposed=wanted) as table:
        assert table.conversions(0) == (() if shown == stored else ("gate_up_proj", "down_proj"))
        if how.get("pinned"):
            assert table.pin(10**9).left == ()
            how = {}
        check(table, expected, **how)
        check(table, expected, **how)
    words = [record.message for record in caplog.records if "transposed into host memory" in record.message]
    if shown == stored or "layers pinned" in caplog.text:
        assert words == []
    else:
        assert words[0] == f"gate_up_proj of layer 0 is transposed into host memory: {EXPERTS * 4 * WIDTH * HIDDEN} bytes"
        assert len(words) == 4  # once a tensor and layer


@pytest.mark.parametrize("wanted", [True, False, None])
def test_gate_and_up_alternately_or_in_turn(tmp_path, wanted) -> None:
    """As gpt-oss has them: transposed, with biases, alternating."""
    def bias(layer):
        return weights(layer, EXPERTS, 2 * WIDTH)

    path = save_fused(tmp_path, {
        "mlp.experts.gate_up_proj": lambda layer: alternating(layer).transpose(0, 2, 1),
        "mlp.experts.down_proj": lambda layer: down(layer).transpose(0, 2, 1),
        "mlp.experts.gate_up_proj_bias": bias,
        "mlp.experts.down_proj_bias": lambda layer: weights(50 + layer, EXPERTS, HIDDEN),
    })

    def expected(layer):
        up_bias = bias(layer) if wanted is not False else np.concatenate([bias(layer)[:, ::2], bias(layer)[:, 1::2]], 1)
        weight = alternating(layer) if wanted is not False else fused(layer)
        return {"gate_up_proj": weight.transpose(0, 2, 1), "gate_up_proj_bias": up_bias,
                "down_proj": down(layer).transpose(0, 2, 1), "down_proj_bias": weights(50 + layer, EXPERTS, HIDDEN)}

    with strata.sources.safetensors(path, interleaved=wanted) as table:
        check(table, expected)
        assert table.conversions(1) == (("gate_up_proj", "gate_up_proj_bias") if wanted is False else ())


def test_what_is_apart_may_be_wanted_alternating_and_transposed(tmp_path) -> None:
    path = apart(tmp_path, ("gate_proj", "up_proj", "down_proj"))
    with strata.sources.safetensors(path, interleaved=True, transposed=True) as table:
        check(table, lambda layer: {"gate_up_proj": alternating(layer).transpose(0, 2, 1),
                                    "down_proj": down(layer).transpose(0, 2, 1)})


def test_experts_along_rows(tmp_path) -> None:
    """As DBRX has them, whose w2 is transposed."""
    def rows(of):
        return lambda layer: of(layer).reshape(-1, of(layer).shape[-1])

    def flipped(layer):
        return down(layer).transpose(0, 2, 1)

    tensors = {f"transformer.blocks.{layer}.ffn.{name}": np.ascontiguousarray(of(layer)) for layer in range(2)
               for name, of in {"experts.mlp.w1": rows(gate), "experts.mlp.v1": rows(up), "experts.mlp.w2": rows(flipped),
                                "router.layer.weight": lambda layer: weights(1, EXPERTS, HIDDEN)}.items()}
    save_file(tensors, tmp_path / "m.safetensors")
    with strata.sources.safetensors(tmp_path) as table:
        check(table, lambda layer: {"gate_up_proj": fused(layer), "down_proj": flipped(layer)})
    with strata.sources.safetensors(tmp_path, transposed=False) as table:
        assert table.conversions(0) == ("down_proj",)
        check(table, usual)
    tensors = {name: array for name, array in tensors.items() if "router" not in name}
    save_file(tensors, tmp_path / "m.safetensors")
    with pytest.raises(strata.CheckpointError, match="holds experts along its rows, and there is no router"):
        strata.sources.safetensors(tmp_path)


def test_a_pattern_of_ones_own(tmp_path) -> None:
    tensors = {}
    for layer in range(2):
        for e in range(EXPERTS):
            tensors[f"net.{layer}.x{e}.g"], tensors[f"net.{layer}.x{e}.u"] = gate(layer)[e].copy(), up(layer)[e].copy()
        tensors[f"net.{layer}.all.d"] = down(layer)
    save_file(tensors, tmp_path / "m.safetensors")
    pattern = {"down": "net.{layer}.all.d", "in": ["net.{layer}.x{expert}.g", "*.{layer}.x{expert}.u"]}
    for given in (pattern, strata.sources.ExpertPattern(pattern)):
        with strata.sources.safetensors(tmp_path, pattern=given) as table:
            assert table.layout(0).names == ("down", "in")
            check(table, lambda layer: {"down": down(layer), "in": fused(layer)})


def test_some_experts_in_some_order(tmp_path) -> None:
    with strata.sources.safetensors(apart(tmp_path, ("w1", "w3", "w2"))) as table:
        slots = streamed(table, 2, [4, 0, 0])
        for slot, expert in zip(slots, (4, 0, 0), strict=True):
            np.testing.assert_array_equal(slot["down_proj"], down(2)[expert])
        with pytest.raises(IndexError, match="indices holds 5: 0 to 4 is allowed"):
            table.copies(0, [5])


# Pinned layers.


def test_pinning_within_a_budget(tmp_path, caplog) -> None:
    path = apart(tmp_path, ("gate_proj", "up_proj", "down_proj"))
    with strata.sources.safetensors(path) as table, caplog.at_level(logging.INFO, "strata"):
        layer_bytes = EXPERTS * -(-table.slot_bytes // 256) * 256
        report = table.pin(2 * layer_bytes + 5)
        assert report.layers == table.pinned == (0, 1)
        assert report.nbytes == 2 * layer_bytes
        assert report.left == (2,)
        assert report.reason == f"layer 2 takes {layer_bytes:,} bytes, {2 * layer_bytes:,} of {2 * layer_bytes + 5:,} are used"
        assert caplog.records[-1].message.startswith(f"2 of 3 layers pinned, {2 * layer_bytes} bytes: layer 2 takes")
        assert [table.copies(layer).staged.tolist() for layer in range(3)] == [[0] * 5, [0] * 5, [1] * 5]
        assert table.copies(0).slot_bytes == table.layout(0).nbytes
        check(table, usual)
        before = table.copies(0).addresses.tolist()
        assert table.pin(10**9).left == ()
        assert table.pin(10**9).reason == ""
        assert table.copies(0).addresses.tolist() == before  # what is pinned stays where it is
        check(table, usual)
        assert "3 layers pinned" in repr(table)
        kept = table.copies(1, [3])
    layout = table.layout(1)
    with strata.ExpertStreamer(table.slot_bytes, gpu_ring=1) as streamer, streamer.begin(kept) as request:  # past close
        slot = request.acquire()
        slot.synchronize()
        np.testing.assert_array_equal(layout.views(slot.array()[: layout.nbytes])["down_proj"], down(1)[3])
        slot.release()


def test_what_lies_between_pinned_tensors_is_zero(tmp_path, monkeypatch) -> None:
    """A pinned expert is one segment, gaps included: nothing that was in the memory before goes along."""
    make = strata.pinned_empty

    def full_of_others_bytes(shape, dtype):
        array = make(shape, dtype)
        array[...] = 0xAA
        return array

    monkeypatch.setattr("strata.pinned.pinned_empty", full_of_others_bytes)
    with strata.sources.safetensors(apart(tmp_path, ("w1", "w3", "w2"))) as table:
        layout = table.layout(0)
        end, begin = layout["gate_up_proj"].nbytes, layout["down_proj"].offset
        assert end < begin
        table.pin(10**9)
        copies = table.copies(0)
        with strata.ExpertStreamer.for_copies(copies, gpu_ring=2) as streamer, streamer.begin(copies) as request:
            for slot in request:
                slot.synchronize()
                assert not slot.array()[end:begin].any()


def test_pinning_chosen_layers(tmp_path) -> None:
    with strata.sources.safetensors(apart(tmp_path, ("w1", "w3", "w2"))) as table:
        assert table.pin(10**9, [2, 0]).layers == (0, 2)
        with pytest.raises(KeyError, match="layer is 7: 0 to 2 have experts"):
            table.pin(10**9, [1, 7])
        assert table.pinned == (0, 2)
        for limit, error in ((-1, ValueError), (1.5, TypeError), (True, TypeError), (None, TypeError)):
            with pytest.raises(error, match="limit is"):
                table.pin(limit)


def test_pinning_that_the_runtime_refuses(tmp_path, caplog, software) -> None:
    with strata.sources.safetensors(apart(tmp_path, ("w1", "w3", "w2"))) as table:
        layer_bytes = EXPERTS * -(-table.slot_bytes // 256) * 256
        software.configure(pinned_limit=layer_bytes + 100)
        with caplog.at_level(logging.WARNING, "strata"):
            report = table.pin(10**9)
        assert report.layers == (0,)
        assert "hipErrorOutOfMemory" in report.reason
        assert "1 of 3 layers pinned" in caplog.text


def test_a_file_that_shrinks(tmp_path) -> None:
    """An error that names it; what was pinned before stays, and nothing half-read is taken for a layer."""
    path = apart(tmp_path, ("w1", "w3", "w2"))
    with strata.sources.safetensors(path) as table:
        cut = int(table.offset[table.layer_starts[1] : table.layer_starts[2]].max())
        os.truncate(path, cut)
        with pytest.raises(strata.CheckpointError, match=r"model.safetensors: ends at byte \d+, \d+ bytes when it was opened"):
            table.pin(10**9)
        with pytest.raises(strata.CheckpointError, match=r"model.safetensors: \d+ bytes, \d+ when it was opened"):
            table.copies(1, mapped=True)
        assert table.pinned == (0,)
        copies = table.copies(2)
        with (
            pytest.raises(OSError, match=r"model\.safetensors"),
            strata.ExpertStreamer(table.slot_bytes, gpu_ring=8, host_ring=2) as streamer,
            streamer.begin(copies) as request,
        ):
            for slot in request:
                slot.synchronize()


def test_a_name_that_is_replaced(tmp_path) -> None:
    path = apart(tmp_path, ("w1", "w3", "w2"))
    with strata.sources.safetensors(path) as table:
        path.rename(tmp_path / "old")
        path.write_bytes(b"other")
        check(table, usual)
        check(table, usual, mapped=True)


def test_reads_past_the_page_cache(tmp_path) -> None:
    path = apart(tmp_path, ("w1", "w3", "w2"))
    with strata.sources.safetensors(path) as table:
        try:
            strata.sources.File(path, direct=True)
        except OSError as problem:
            pytest.skip(f"no direct reads here: {problem}")
        check(table, usual, direct=True)
        with pytest.raises(ValueError, match="mapped and direct are both True"):
            table.copies(0, mapped=True, direct=True)
    with strata.sources.safetensors(path) as table:
        path.rename(tmp_path / "old")
        path.write_bytes((tmp_path / "old").read_bytes())
        with pytest.raises(strata.CheckpointError, match="another file has this name since it was opened"):
            table.copies(0, direct=True)


def test_a_closed_table(tmp_path) -> None:
    table = strata.sources.safetensors(apart(tmp_path, ("w1", "w3", "w2")))
    copies = table.copies(0)
    table.close()
    table.close()
    assert table.closed
    assert repr(table).endswith("closed>")
    for use in (lambda: table.copies(0), lambda: table.pin(10), table.__enter__):
        with pytest.raises(ValueError, match="the table is closed"):
            use()
    assert len(copies) == EXPERTS
    with pytest.raises(TypeError, match="ExpertTable cannot be pickled or copied: its files are open in this process"):
        __import__("pickle").dumps(table)


# GGUF.


def test_gguf_blocks_are_raw_bytes(tmp_path) -> None:
    rng = np.random.default_rng(1)
    tensors = []
    for layer in range(2):
        tensors += [
            (f"blk.{layer}.attn_q.weight", "F16", (16, 16)),
            (f"blk.{layer}.ffn_gate_exps.weight", "Q4_K", (EXPERTS, 3, 512)),
            (f"blk.{layer}.ffn_up_exps.weight", "Q4_K" if layer else "Q6_K", (EXPERTS, 3, 512)),
            (f"blk.{layer}.ffn_down_exps.weight", "Q8_0", (EXPERTS, 512, 32)),
        ]
    begin, size, places = gguf_header(tensors)
    data = rng.integers(0, 256, size, dtype=np.uint8)
    (tmp_path / "m.gguf").write_bytes(begin + data.tobytes())
    with strata.sources.gguf(tmp_path / "m.gguf") as table:
        assert table.layout(0).names == ("gate_proj", "up_proj", "down_proj")  # of two formats
        assert table.layout(1).names == ("gate_up_proj", "down_proj")
        assert table.layout(1)["gate_up_proj"].dtype == "Q4_K"
        assert table.layout(1)["gate_up_proj"].shape == (6, 2)
        assert table.layout(1)["down_proj"].shape == (512, 1)
        for how in WAYS:
            slots = streamed(table, 1, **how)
            for e, slot in enumerate(slots):
                parts = [data[places[4 + k] + e * n : places[4 + k] + (e + 1) * n] for k, n in ((1, 864), (2, 864), (3, 17408))]
                assert slot["gate_up_proj"].tobytes() == np.concatenate(parts[:2]).tobytes()
                assert slot["down_proj"].tobytes() == parts[2].tobytes()
        with pytest.raises(strata.CheckpointError, match=r"gate_proj of layer 0 is Q4_K \[3, 2\]: it cannot be transposed"):
            strata.sources.gguf(tmp_path / "m.gguf", transposed=True)


def test_gguf_as_the_package_writes_it(tmp_path) -> None:
    """The package's own writer and reader as the oracle: places, bytes, split files."""
    gguf = pytest.importorskip("gguf")
    for split in (0, 4):
        folder = tmp_path / str(split)
        folder.mkdir()
        writer = gguf.GGUFWriter(folder / "m.gguf", "qwen3moe", split_max_tensors=split)
        writer.add_uint32("qwen3moe.expert_count", EXPERTS)
        writer.add_array("tokenizer.ggml.tokens", [f"token {k}" for k in range(500)])
        writer.add_array("tokenizer.ggml.scores", [0.5] * 500)
        for layer in range(3):
            for name, of in (("gate", gate), ("up", up), ("down", down)):
                writer.add_tensor(f"blk.{layer}.ffn_{name}_exps.weight", of(layer).view(np.float16))
            writer.add_tensor(f"blk.{layer}.ffn_norm.weight", np.zeros(HIDDEN, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        names = sorted(folder.glob("*.gguf"))
        assert len(names) == (3 if split else 1)
        expected = {tensor.name: (str(name), tensor.data_offset, tensor.n_bytes)
                    for name in names for tensor in gguf.GGUFReader(name).tensors}  # fmt: skip
        for paths in (folder, names[0], names[-1], names):
            with strata.sources.gguf(paths) as table:
                check(table, lambda layer: {"gate_up_proj": fused(layer), "down_proj": down(layer)})
                path, offset, size = expected["blk.2.ffn_down_exps.weight"]
                k = int(table.layer_starts[2]) + 2
                assert (table.paths[table.file_index[k]], table.offset[k]) == (path, offset)
                assert table.nbytes[k] * EXPERTS == size


def test_ggml_types_are_the_packages(tmp_path) -> None:
    gguf = pytest.importorskip("gguf")
    from strata.sources.gguf_files import GGML_TYPES

    names = {"F32": "float32", "F16": "float16", "F64": "float64", "BF16": "bfloat16", "I8": "int8", "I16": "int16",
             "I32": "int32", "I64": "int64"}  # fmt: skip
    theirs = {int(kind): (names.get(kind.name, kind.name), *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert {number: GGML_TYPES[number] for number in theirs if number in GGML_TYPES} == {
        number: row for number, row in theirs.items() if number in GGML_TYPES
    }
    assert set(theirs) <= set(GGML_TYPES)
