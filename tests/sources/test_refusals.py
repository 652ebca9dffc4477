"""Checkpoints that are not right: each is refused by file and tensor, and nothing stays open."""

from __future__ import annotations

import gc
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

import strata
from strata.errors import CheckpointError
from tests.sources.made import framed, gguf_header, gguf_string, gguf_value, header, write_sparse

H, W = 8, 4


def experts(layers: int = 2, count: int = 3) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(f"model.layers.{layer}.mlp.experts.{e}.{p}_proj.weight", "BF16", (H, W) if p == "down" else (W, H))
            for layer in range(layers) for e in range(count) for p in ("gate", "up", "down")]  # fmt: skip


def name(layer: int, expert: int, part: str) -> str:
    return f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Any:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def refused(path: Any, message: str, opener: Any = strata.sources.safetensors, **how: Any) -> None:
    with pytest.raises(CheckpointError, match=message):
        opener(path, **how)


# Headers of safetensors files.

GOOD: dict[str, Any] = {"dtype": "BF16", "shape": [4, 2], "data_offsets": [0, 16]}


@pytest.mark.parametrize(("raw", "message"), [
    (b"", "0 bytes: a safetensors file has 8 at least"),
    (b"1234567", "7 bytes: a safetensors file has 8 at least"),
    (struct.pack("<Q", 100) + b"{}", "its header has 100 bytes: the file has 2 after the length"),
    (struct.pack("<Q", 2**63) + b"{}", f"its header has {2**63} bytes"),
    (struct.pack("<Q", 100_000_001), "its header has 100000001 bytes"),
    (framed(b""), "its header is no JSON"),
    (framed(b"{"), "its header is no JSON"),
    (framed(b"[]"), "its header is a JSON list: an object is needed"),
    (framed(b"\xff\xfe"), "its header is no JSON"),
    (framed(b'{"a": NaN}'), "its header is no JSON: NaN is no JSON"),
    (framed(b"[" * 100_000), "its header is nested too deeply"),
    (framed(b'{"a":{"a":' * 50_000), "its header is nested too deeply"),
    (framed(b'{"w":{"dtype":"BF16","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,0]}}'), "its header is no JSON"),
])  # fmt: skip
def test_headers_that_are_none(tmp_path: Path, raw: bytes, message: str) -> None:
    (tmp_path / "m.safetensors").write_bytes(raw)
    refused(tmp_path / "m.safetensors", rf"m\.safetensors: {message}")


@pytest.mark.parametrize(("entry", "message"), [
    (5, "'w' is a int: an object with dtype, shape and data_offsets is needed"),
    ({**GOOD, "dtype": "BF17"}, "'w' has dtype 'BF17': BOOL, "),
    ({**GOOD, "dtype": ["BF16"]}, "'w' has dtype"),
    ({**GOOD, "shape": [4, -2]}, r"'w' has shape \[4, -2\]"),
    ({**GOOD, "shape": [4, 2.0]}, r"'w' has shape \[4, 2.0\]"),
    ({**GOOD, "shape": [True, 8]}, r"'w' has shape \[True, 8\]"),
    ({**GOOD, "shape": 8}, "'w' has shape 8"),
    ({**GOOD, "shape": [1] * 65}, "'w' has shape"),
    ({**GOOD, "shape": [2**62, 2**62]}, f"'w' has data_offsets .*: {2**125} bytes are needed for BF16"),
    ({**GOOD, "shape": [2**63]}, "'w' has shape"),
    ({**GOOD, "data_offsets": [0, 17]}, r"'w' has data_offsets \[0, 17\]: 16 bytes are needed for BF16 \[4, 2\]"),
    ({**GOOD, "data_offsets": [16, 0]}, r"'w' has data_offsets \[16, 0\]"),
    ({**GOOD, "data_offsets": [-16, 0]}, r"'w' has data_offsets \[-16, 0\]: two numbers from 0"),
    ({**GOOD, "data_offsets": [0]}, "'w' has data_offsets"),
    ({**GOOD, "data_offsets": [0, 1e999]}, "'w' has data_offsets|no JSON"),
    ({**GOOD, "data_offsets": [2**62, 2**62 + 16]}, f"'w' ends at byte .*{2**62 + 16 + 0}|'w' ends at byte"),
    ({**GOOD, "data_offsets": [8, 24]}, "'w' ends at byte .*, and the file at .*: it is truncated"),
    ({"dtype": "F4", "shape": [3], "data_offsets": [0, 2]}, "'w' has data_offsets"),
    ({"dtype": "F4", "shape": [2, 3], "data_offsets": [0, 3]}, "'w' has shape .* of F4: rows of whole bytes"),
    ({}, "'w' has dtype None"),
])  # fmt: skip
def test_tensors_that_are_none(tmp_path: Path, entry: Any, message: str) -> None:
    raw = framed(json.dumps({"w": entry}).encode())
    (tmp_path / "m.safetensors").write_bytes(raw + bytes(16))
    refused(tmp_path / "m.safetensors", rf"m\.safetensors: (its header is )?({message})")


def test_tensors_that_overlap(tmp_path: Path) -> None:
    entries = {"a": GOOD, "b": {**GOOD, "data_offsets": [14, 30]}}
    (tmp_path / "m.safetensors").write_bytes(framed(json.dumps(entries).encode()) + bytes(40))
    refused(tmp_path / "m.safetensors", r"'b' begins at byte \d+, but 'a' ends at \d+: they overlap")


def test_a_name_twice_in_a_header(tmp_path: Path) -> None:
    entry = json.dumps(GOOD)
    (tmp_path / "m.safetensors").write_bytes(framed(f'{{"w":{entry},"w":{entry}}}'.encode()) + bytes(16))
    refused(tmp_path / "m.safetensors", "its header is no JSON: 'w' is there twice")


def test_a_file_that_is_truncated(tmp_path: Path) -> None:
    path = write_sparse(tmp_path, experts(), 1)[0]
    os.truncate(path, path.stat().st_size - 1)
    refused(path, f"{name(1, 2, 'down')}' ends at byte .*: it is truncated")


# Paths, folders, indices.


def test_paths_that_are_none(tmp_path: Path) -> None:
    refused(tmp_path, "no .safetensors file in this folder")
    refused(tmp_path, "no .gguf file in this folder", strata.sources.gguf)
    refused([], "paths is empty")
    refused("a\0b", "NUL|null")
    refused(["a\0b"], "NUL|null")
    refused("a\0b", "NUL|null", strata.sources.gguf)
    refused("/dev/zero", "/dev/zero.* no regular file")
    refused([tmp_path], "no regular file")
    os.mkfifo(tmp_path / "pipe.safetensors")
    refused(tmp_path, "pipe.safetensors.* no regular file")
    for opener in (strata.sources.safetensors, strata.sources.gguf):
        with pytest.raises(FileNotFoundError):
            opener(tmp_path / "none")
        for wrong in (5, None, [5], [None]):
            with pytest.raises(TypeError, match="path"):
                opener(wrong)


def test_a_folder_without_an_index(tmp_path: Path) -> None:
    paths = write_sparse(tmp_path, experts(), 2)
    (tmp_path / "model.safetensors.index.json").unlink()
    refused(tmp_path, r"2 .safetensors files and no index \(model.safetensors.index.json\)")
    with strata.sources.safetensors(paths) as table:
        assert len(table) == 6
    refused(paths[:1], r"model-00002-of-00002.safetensors is missing: 1 of 2 shards are given")
    refused(paths[1], r"model-00001-of-00002.safetensors is missing: 1 of 2 shards are given")


def test_shards_that_are_missing(tmp_path: Path) -> None:
    paths = write_sparse(tmp_path, experts(8), 4)
    paths[2].unlink()
    refused(tmp_path, r"model.safetensors.index.json: the shard .*00003-of-00004.safetensors is missing$")
    paths[1].unlink()
    refused(tmp_path, r"the shard .*00002-of-00004.safetensors is missing \(and 1 more\)")


@pytest.mark.parametrize(("index", "message"), [
    ("{}", "no weight_map"), ("[]", "a JSON list"), ('{"weight_map": {}}', "no weight_map"), ("{", "no JSON"), ("", "no JSON"),
    ('{"weight_map": {"w": 5}}', "'w' lies in 5"), ('{"weight_map": {"w": "/etc/passwd"}}', "'w' lies in '/etc/passwd'"),
    ('{"weight_map": {"w": "../x"}}', r"'w' lies in '\.\./x'"), ('{"weight_map": {"w": ""}}', "'w' lies in ''"),
    ('{"weight_map": {"w": "a\\u0000b"}}', "'w' lies in"), ('{"weight_map": {"w": "."}}', "is missing"),
    ('{"weight_map": {"w": "model.safetensors.index.json"}}', "index.json: "),
])  # fmt: skip
def test_indices_that_are_wrong(tmp_path: Path, index: str, message: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    refused(tmp_path, message)


def test_an_index_that_names_what_is_not_there(tmp_path: Path) -> None:
    write_sparse(tmp_path, experts(), 2)
    index = tmp_path / "model.safetensors.index.json"
    value = json.loads(index.read_text())
    value["weight_map"]["other"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(value))
    refused(tmp_path, "model-00001-of-00002.safetensors: 'other' is not in it, but .*index.json says so")


def test_the_index_says_which_of_two_files_has_a_tensor(tmp_path: Path) -> None:
    """Some checkpoints repeat a tensor in a shard that is not the one the index names."""
    first, second = write_sparse(tmp_path, experts(), 2)
    os.replace(second, tmp_path / "other")
    raw, size = header(experts())  # all tensors again
    second.write_bytes(raw + bytes(size))
    with strata.sources.safetensors(tmp_path) as table:
        assert len(table) == 6
        assert [table.paths[k] for k in table.file_index[[0, -1]].tolist()] == [str(first), str(second)]


def test_stacks_that_differ_by_a_number_are_apart(tmp_path: Path) -> None:
    tensors = [(label.replace("model.layers", f"mtp.{k}.layers"), *row) for k in range(2) for label, *row in experts(2 - k)]
    write_sparse(tmp_path, tensors, 1)
    with strata.sources.safetensors(tmp_path) as table:
        assert table.stacks == ("mtp.0.layers", "mtp.1.layers")
        assert table.layers == (0, 1)


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    write_sparse(tmp_path, experts(), 1)
    (tmp_path / "b.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes())
    refused([tmp_path / "b.safetensors", tmp_path / "model.safetensors"], f"{name(0, 0, 'gate')}' is in .*b.safetensors, too")
    with pytest.raises(CheckpointError, match="is in"):
        strata.sources.safetensors([tmp_path / "b.safetensors"] * 2)


# Experts that do not fit together.


def change(tensors: list, old: str, new: Any) -> list:
    """Replace a tensor, or leave it out."""
    made = []
    for tensor in tensors:
        if tensor[0] != old:
            made.append(tensor)
        elif new is not None:
            made += new
    assert made != tensors
    return made


@pytest.mark.parametrize(("old", "new", "message"), [
    (name(1, 1, "up"), None, r"gate_up_proj \(up\) of expert 1 of layer 1 is missing, and '.*experts.2.up_proj.weight' is there"),
    (name(1, 2, "up"), None, r"layer 1 has 3 experts by .*gate_proj.*, and 2 by .*up_proj"),
    (name(0, 0, "down"), None, r"down_proj \(down\) of expert 0 of layer 0 is missing"),
    (name(0, 1, "gate"), [(name(0, 1, "gate"), "BF16", (W, H + 1))], r"experts.1.gate_proj.weight' has shape \[4, 9\], and .* \[4, 8\]"),
    (name(0, 1, "gate"), [(name(0, 1, "gate"), "F32", (W, H))], "experts.1.gate_proj.weight' is float32, and .*experts.0.gate_proj.weight' is bfloat16"),
    (name(0, 1, "down"), [(name(0, 1, "down"), "F32", (H, W))], "experts.1.down_proj.weight' is float32"),
    (name(0, 1, "gate"), [(name(0, 1, "gate"), "BF16", (W, H)), (name(0, 1, "gate").replace("gate_proj", "w1"), "BF16", (W, H))],
     r"experts.1.w1.weight' and '.*experts.1.gate_proj.weight' are both gate_up_proj of expert 1 of layer 0"),
    (name(0, 1, "gate"), [(name(0, 1, "gate"), "BF16", (W, H)), ("model.layers.0.mlp.experts.gate_proj", "BF16", (3, W, H))],
     "experts.gate_proj' holds all experts of layer 0, and some have tensors of their own"),
    (name(0, 1, "gate"), [(name(0, 1, "gate"), "BF16", (W, H)), (name(0, 10**6, "gate"), "BF16", (W, H))], "has number 1000000: layers and experts from 0"),
    (name(0, 1, "gate"), [(name(0, 1, "gate"), "BF16", (W, H)), (name(10**30, 1, "gate"), "BF16", (W, H))], "has number 1000"),
    (name(0, 1, "gate"), [(name(0, 1, "gate"), "BF16", (W, H)), (name(0, 10**5, "gate"), "BF16", (W, H))], r"expert 3 of layer 0 is missing"),
])  # fmt: skip
def test_experts_that_do_not_fit_together(tmp_path: Path, old: str, new: Any, message: str) -> None:
    write_sparse(tmp_path, change(experts(), old, new), 1)
    refused(tmp_path, message)


def test_gate_and_up_that_do_not_fit_together(tmp_path: Path) -> None:
    tensors = [(n, d, (*s[:1], H + 2) if "up_proj" in n else s) for n, d, s in experts()]
    write_sparse(tmp_path, tensors, 1)
    refused(tmp_path, r"up_proj.weight' has rows of \[10\], and .* of \[8\]: they go into one gate_up_proj")
    write_sparse(tmp_path, [tensor for tensor in experts() if "up_proj" not in tensor[0]], 1)
    refused(tmp_path, r"layer 0 has '.*gate_proj.weight', and no up to go with it")


def test_layers_with_different_numbers_of_experts(tmp_path: Path) -> None:
    write_sparse(tmp_path, [tensor for tensor in experts(3) if ".layers.1.mlp.experts.2." not in tensor[0]], 1)
    refused(tmp_path, r"layer 2 has 3 experts and layer 1 has 2: shards may be missing \(uneven_experts=True allows it\)")
    with strata.sources.safetensors(tmp_path, uneven_experts=True) as table:
        assert [table.experts(layer) for layer in table.layers] == [3, 2, 3]
        assert len(table.copies(1)) == 2
        assert "2 to 3 experts" in repr(table)


def test_fused_tensors_that_do_not_fit_together(tmp_path: Path) -> None:
    fused = [("model.layers.0.mlp.experts.gate_up_proj", "BF16", (3, 2 * W, H)), ("model.layers.0.mlp.experts.down_proj", "BF16", (4, H, W))]
    write_sparse(tmp_path, fused, 1)
    refused(tmp_path, "layer 0 has 3 experts by '.*gate_up_proj', and 4 by '.*down_proj'")
    write_sparse(tmp_path, [("model.layers.0.mlp.experts.gate_up_proj", "BF16", ())], 1)
    refused(tmp_path, "has no dimensions")
    write_sparse(tmp_path, [("model.layers.0.mlp.experts.gate_up_proj", "BF16", (0, 4, 4))], 1)
    refused(tmp_path, "layer 0 has no experts")
    write_sparse(tmp_path, [("model.layers.0.mlp.experts.gate_up_proj", "BF16", (2**60, 0, 4))], 1)
    refused(tmp_path, f"no bytes for {2**60} experts")


def test_patterns_that_match_nothing(tmp_path: Path) -> None:
    write_sparse(tmp_path, [("model.layers.0.mlp.gate_proj.weight", "BF16", (4, 4))], 1)
    refused(tmp_path, "no tensor of 1 is named as an expert's of a known family, e.g. 'model.layers.0.mlp.gate_proj.weight'")
    refused(tmp_path, "no tensor of 1 is named as an expert's of the pattern", pattern={"w": "x.{layer}.{expert}"})
    write_sparse(tmp_path, [], 1)
    refused(tmp_path, "no tensor of 0")


def test_patterns_that_match_one_expert_twice(tmp_path: Path) -> None:
    write_sparse(tmp_path, experts(), 1)
    refused(tmp_path, "are both w of expert 0 of layer 0", pattern={"w": "model.layers.{layer}.mlp.experts.{expert}.*"})


@pytest.mark.parametrize(("pattern", "error", "message"), [
    (5, TypeError, "pattern is a int"), ({}, TypeError, "pattern is {}"), ({"w": 5}, TypeError, "int|string"),
    ({"w": []}, TypeError, "one or more patterns"), ({"": "{layer}"}, TypeError, "a name and one or more"),
    ({"w": "x.{expert}"}, ValueError, "{layer} once"), ({"w": "{layer}{layer}"}, ValueError, "{layer} once"),
    ({"w": "{layer}.{expert}.{other}"}, ValueError, "{expert} at most once"), ({"w": "{layer}{expert}{expert}"}, ValueError, "at most once"),
])  # fmt: skip
def test_patterns_that_are_none(tmp_path: Path, pattern: Any, error: type, message: str) -> None:
    write_sparse(tmp_path, experts(), 1)
    with pytest.raises(error, match=message):
        strata.sources.safetensors(tmp_path, pattern=pattern)


@pytest.mark.parametrize(("how", "error", "message"), [
    ({"transposed": 1}, TypeError, "transposed is 1: True, False or None"), ({"interleaved": "no"}, TypeError, "interleaved is 'no'"),
    ({"align": 3}, ValueError, "align is 3: a power of two"),
])  # fmt: skip
def test_arguments_that_are_none(tmp_path: Path, how: dict[str, Any], error: type, message: str) -> None:
    write_sparse(tmp_path, experts(), 1)
    with pytest.raises(error, match=message):
        strata.sources.safetensors(tmp_path, **how)


def test_layers_that_are_not_there(tmp_path: Path) -> None:
    write_sparse(tmp_path, experts(3), 1)
    with strata.sources.safetensors(tmp_path) as table:
        for layer in (3, -1, "0", None, [0]):
            with pytest.raises(KeyError, match="0 to 2 have experts"):
                table.copies(layer)
            with pytest.raises(KeyError, match="0 to 2 have experts"):
                table.layout(layer)
        assert 2 in table
        assert 3 not in table


def test_names_that_look_like_experts_are_told(tmp_path: Path) -> None:
    odd = "model.layers.0.mlp.experts.0.gate_proj.weight.of.something else"
    write_sparse(tmp_path, [*experts(), (odd, "BF16", (2,)), ("model.layers.0.mlp.experts." + "x." * 5000, "BF16", (2,))], 1)
    with strata.sources.safetensors(tmp_path) as table:
        assert table.ignored[0] == odd
        assert len(table.ignored) == 2


# GGUF.


def gguf_file(folder: Path, tensors: Any = None, values: Any = (), cut: int = 0, **how: Any) -> Path:
    begin, size, _ = gguf_header(tensors or [(f"blk.0.ffn_{p}_exps.weight", "F16", (2, 4, 4)) for p in ("gate", "up", "down")],
                                 list(values), **how)  # fmt: skip
    path = folder / "m.gguf"
    with path.open("wb") as file:
        file.write(begin)
        file.truncate(len(begin) + size - cut)
    return path


def one(kind: str = "F16", shape: tuple[int, ...] = (2, 4, 4), label: str = "blk.0.ffn_down_exps.weight") -> list:
    return [(label, kind, shape)]


@pytest.mark.parametrize(("make", "message"), [
    (lambda f: gguf_file(f, version=1), "GGUF version 1: 2 and 3 are supported"),
    (lambda f: gguf_file(f, version=4), "GGUF version 4: 2 and 3 are supported"),
    (lambda f: gguf_file(f, version=0x03000000), "written for big-endian machines"),
    (lambda f: gguf_file(f, version=0), "GGUF version 0"),
    (lambda f: gguf_file(f, cut=1), "ends at byte .*: it is truncated"),
    (lambda f: gguf_file(f, one() * 2), "'blk.0.ffn_down_exps.weight' is there twice"),
    (lambda f: gguf_file(f, one("Q4_K", (2, 4, 100))), "has rows of 100: blocks of 256 are needed for Q4_K"),
    (lambda f: gguf_file(f, one(shape=(1,) * 9)), "has 9 dimensions: at most 8"),
    (lambda f: gguf_file(f, values=[gguf_value("general.alignment", 4, struct.pack("<I", 48))]), "general.alignment is 48"),
    (lambda f: gguf_file(f, values=[gguf_value("general.alignment", 4, struct.pack("<I", 0))]), "general.alignment is 0"),
    (lambda f: gguf_file(f, values=[gguf_value("general.alignment", 8, gguf_string("x"))]), "general.alignment is of type 8"),
    (lambda f: gguf_file(f, values=[gguf_value("general.alignment", 4, struct.pack("<I", 64))] * 2), "'general.alignment' is there twice"),
    (lambda f: gguf_file(f, values=[gguf_value("general.alignment", 4, struct.pack("<I", 128))]), "lies at 64: a multiple of 128 is needed"),
    (lambda f: gguf_file(f, values=[gguf_value("x", 13, b"")]), "metadata value 'x' is of type 13"),
    (lambda f: gguf_file(f, values=[gguf_value("x", 8, struct.pack("<Q", 2**62))]), "in the middle of the metadata value 'x'"),
    (lambda f: gguf_file(f, values=[gguf_value("x", 9, struct.pack("<IQ", 8, 2**61))]), "in the middle of the metadata value 'x'"),
    (lambda f: gguf_file(f, values=[gguf_value("x", 9, struct.pack("<IQ", 10, 2**61))]), "in the middle of the metadata value 'x'"),
    (lambda f: gguf_file(f, values=[gguf_value("x", 9, struct.pack("<IQ", 9, 1) * 9)]), "'x' is nested too deeply"),
    (lambda f: gguf_file(f, values=[gguf_value("x", 9, struct.pack("<IQ", 8, 1) + struct.pack("<Q", 2**63))]), "in the middle of the metadata value 'x'"),
    (lambda f: gguf_file(f, values=[gguf_value("split.count", 2, struct.pack("<H", 2))]), "part 0 of 2, and no name"),
])  # fmt: skip
def test_gguf_headers_that_are_wrong(tmp_path: Path, make: Any, message: str) -> None:
    refused(make(tmp_path), message, strata.sources.gguf)


@pytest.mark.parametrize(("raw", "message"), [
    (b"", "begins with b'': no GGUF file"), (b"GGU", "no GGUF file"), (b"FUGG" + bytes(100), "begins with b'FUGG'"),
    (b"GGUF", "in the middle of its version"), (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), f"{2**60} tensors by its header, in 24 bytes"),
    (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), f"{2**60} metadata values by its header"),
    (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", 2**40) + bytes(40), f"the name of a tensor has {2**40} bytes"),
    (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + gguf_string(b"\xff\xff") + bytes(40), "the name of a tensor is no UTF-8"),
    (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + gguf_string("w") + struct.pack("<IQIQ", 1, 4, 99, 0) + bytes(40), "'w' has type 99, which is not known"),
    (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + gguf_string("w") + struct.pack("<IQIQ", 1, 2**62, 0, 0) + bytes(40), "'w' ends at byte"),
    (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + gguf_string("w") + struct.pack("<IQIQ", 1, 4, 0, 7) + bytes(99), "'w' lies at 7: a multiple of 32"),
])  # fmt: skip
def test_gguf_files_that_are_none(tmp_path: Path, raw: bytes, message: str) -> None:
    (tmp_path / "m.gguf").write_bytes(raw)
    refused(tmp_path / "m.gguf", message, strata.sources.gguf)


def split(folder: Path, part: int, count: int, *, named: str | None = None, tensors: int | None = None) -> Path:
    values = [gguf_value("split.no", 2, struct.pack("<H", part)), gguf_value("split.count", 2, struct.pack("<H", count))]
    if tensors is not None:
        values.append(gguf_value("split.tensors.count", 5, struct.pack("<i", tensors)))
    path = gguf_file(folder, [(f"blk.{part}.ffn_{p}_exps.weight", "F16", (2, 4, 4)) for p in ("gate", "up", "down")], values)
    return path.rename(folder / (named or f"m-{part + 1:05d}-of-{count:05d}.gguf"))


def test_parts_of_a_gguf(tmp_path: Path) -> None:
    parts = [split(tmp_path, part, 3, tensors=9) for part in range(3)]
    for paths in (tmp_path, *parts, parts, parts[::-1]):
        with strata.sources.gguf(paths) as table:
            assert table.layers == (0, 1, 2)
    refused(parts[:2], "part 2 of 3 is missing", strata.sources.gguf)
    refused([parts[0], parts[0], parts[1]], "part 0 of 3, as", strata.sources.gguf)
    parts[1].unlink()
    refused(parts[0], r"00001-of-00003.gguf: .*m-00002-of-00003.gguf is missing$", strata.sources.gguf)
    split(tmp_path, 0, 3, named=parts[1].name)
    refused(parts[0], "part 0 of 3", strata.sources.gguf)
    split(tmp_path, 1, 4, named=parts[1].name)
    refused(parts[0], "part 1 of 4, others of 3", strata.sources.gguf)
    split(tmp_path, 1, 3, tensors=8)
    split(tmp_path, 2, 3, tensors=8)
    refused(parts, "8 tensors in all its parts by its header, 9 are there", strata.sources.gguf)
    alone = split(tmp_path, 0, 2, named="m-00002-of-00002.gguf")
    refused(alone, "part 0 of 2 by its header, which its name does not say", strata.sources.gguf)


def test_two_ggufs_in_a_folder(tmp_path: Path) -> None:
    gguf_file(tmp_path).rename(tmp_path / "a.gguf")
    gguf_file(tmp_path)
    refused(tmp_path, r"2 checkpoints \(.*\): pass one", strata.sources.gguf)


def test_header_makes_what_is_read() -> None:
    raw, size = header(experts())
    assert int.from_bytes(raw[:8], "little") == len(raw) - 8
    assert size == 2 * 3 * 3 * 2 * H * W
