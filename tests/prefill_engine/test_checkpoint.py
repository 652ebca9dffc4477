"""The checkpoint: format, determinism, and what is refused."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from examples.prefill_engine.checkpoint import Checkpoint, expert_name, open_checkpoint
from examples.prefill_engine.config import config_from
from examples.prefill_engine.errors import InputError
from examples.prefill_engine.tensor_file import TensorFile, write_tensors

LAYER_0 = "model-00001-of-00005.safetensors"


def rewrite_header(path: Path, change) -> None:
    """Apply `change` to a file's header, as an object, and leave the data as it is."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length:])


def test_two_writings_are_the_same(tiny_path: Path, tmp_path: Path) -> None:
    open_checkpoint(config_from("tiny")[0], tmp_path / "again")
    names = sorted(p.name for p in tiny_path.iterdir())
    assert names == sorted(p.name for p in (tmp_path / "again").iterdir())
    assert len(names) == 5 + 2
    for name in names:
        assert (tiny_path / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name
    assert [p.name for p in tmp_path.iterdir()] == ["again"]  # nothing half-written is left


def test_another_seed_has_other_weights(tmp_path: Path, checkpoint: Checkpoint) -> None:
    other = open_checkpoint(config_from("tiny", seed=5)[0], tmp_path / "other")
    name = expert_name(1, 2, "up_proj")
    assert not np.array_equal(other.tensor(name), checkpoint.tensor(name))


def test_the_usual_names_and_layouts(checkpoint: Checkpoint) -> None:
    assert checkpoint.tensor("model.layers.3.mlp.experts.7.gate_proj.weight").shape == (16, 32)
    assert checkpoint.tensor("model.layers.3.mlp.experts.7.down_proj.weight").shape == (32, 16)
    assert checkpoint.tensor("model.layers.3.self_attn.q_proj.weight").shape == (64, 32)
    assert checkpoint.tensor("model.layers.2.linear_attn.conv1d.weight").shape == (48, 1, 4)


def test_the_safetensors_package_reads_the_files(tiny_path: Path, checkpoint: Checkpoint) -> None:
    numpy_face = pytest.importorskip("safetensors.numpy")
    tensors = numpy_face.load_file(tiny_path / LAYER_0)
    assert len(tensors) == 14 + 16 * 3
    for name, values in tensors.items():
        np.testing.assert_array_equal(values, checkpoint.tensor(name))


def test_files_of_the_safetensors_package_are_read(tmp_path: Path) -> None:
    numpy_face = pytest.importorskip("safetensors.numpy")
    values = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.float32([7])}
    numpy_face.save_file(values, tmp_path / "f.safetensors")
    file = TensorFile(tmp_path / "f.safetensors")
    np.testing.assert_array_equal(file.tensor("b", (2, 3)), values["b"])
    np.testing.assert_array_equal(file.tensor("a", (1,)), values["a"])


def test_each_tensor_has_the_values_that_were_filled_in(tmp_path: Path) -> None:
    shapes = {"b": (2, 3), "a": (4,), "none": (0, 2), "c": (1, 1)}
    write_tensors(tmp_path / "f", shapes, lambda name, values: values.fill(ord(name[0])))
    file = TensorFile(tmp_path / "f")
    for name, shape in shapes.items():
        np.testing.assert_array_equal(file.tensor(name, shape), np.full(shape, ord(name[0]), np.float32))


def test_values_are_those_of_a_generator_for_each_tensor(checkpoint: Checkpoint) -> None:
    def drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
        generator = np.random.Generator(np.random.PCG64([0, zlib.crc32(name.encode())]))
        return generator.random(shape, dtype=np.float32)

    half = np.float32(0.5)
    name = "model.layers.2.mlp.experts.5.down_proj.weight"
    np.testing.assert_array_equal(
        checkpoint.tensor(name), (drawn(name, (32, 16)) - half) * np.float32(np.sqrt(12 / 16)))
    name = "model.norm.weight"
    np.testing.assert_array_equal(checkpoint.tensor(name), (drawn(name, (32,)) - half) * np.float32(0.2))
    name = "model.layers.0.linear_attn.A_log"
    np.testing.assert_array_equal(checkpoint.tensor(name), np.log(np.float32(0.05) + drawn(name, (2,))))


@pytest.mark.parametrize("left", [0, 5, 200, 20_000])
def test_truncated(copied: Path, left: int) -> None:
    with open(copied / LAYER_0, "r+b") as file:
        file.truncate(left)
    with pytest.raises(InputError, match=LAYER_0):
        Checkpoint(copied)


def test_a_tail(copied: Path) -> None:
    with open(copied / LAYER_0, "ab") as file:
        file.write(b"x")
    with pytest.raises(InputError, match="has a tail"):
        Checkpoint(copied)


def test_no_header(copied: Path) -> None:
    (copied / LAYER_0).write_bytes((20).to_bytes(8, "little") + b"{not json" + b" " * 100)
    with pytest.raises(InputError, match="header cannot be read"):
        Checkpoint(copied)


def test_a_missing_file(copied: Path) -> None:
    (copied / LAYER_0).unlink()
    with pytest.raises(InputError, match=LAYER_0):
        Checkpoint(copied)


def test_a_missing_tensor(copied: Path) -> None:
    name = expert_name(0, 3, "up_proj")
    rewrite_header(copied / LAYER_0, lambda header: header.__setitem__("other", header.pop(name)))
    with pytest.raises(InputError, match=f"lacks the tensor {name}"):
        Checkpoint(copied)


def test_a_tensor_that_the_index_lacks(copied: Path) -> None:
    index = copied / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    del content["weight_map"]["lm_head.weight"]
    index.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"lm_head\.weight"):
        Checkpoint(copied)


@pytest.mark.parametrize(("field", "value"), [("shape", [32, 16]), ("dtype", "I32")])
def test_another_shape_or_dtype(copied: Path, field: str, value: object) -> None:
    name = expert_name(0, 3, "up_proj")
    rewrite_header(copied / LAYER_0, lambda header: header[name].__setitem__(field, value))
    with pytest.raises(InputError, match=r"F32 of shape \(16, 32\) is wanted"):
        Checkpoint(copied)


def test_another_dtype_of_another_size(copied: Path) -> None:
    rewrite_header(copied / LAYER_0, lambda header: header[expert_name(0, 3, "up_proj")].__setitem__("dtype", "BF16"))
    with pytest.raises(InputError, match="bytes from"):
        Checkpoint(copied)


def test_another_model_or_seed_than_asked_for(tiny_path: Path) -> None:
    with pytest.raises(InputError, match=r"seed 0 \(asked for: 4\)"):
        open_checkpoint(config_from("tiny", seed=4)[0], tiny_path)
    with pytest.raises(InputError, match=r"top_k 2 \(asked for: 3\)"):
        open_checkpoint(config_from("tiny", top_k=3)[0], tiny_path)


@pytest.mark.parametrize(("sizes", "words"), [
    ({"layers": 0}, "layers is 0"), ({"top_k": 17}, "top_k is 17"), ({"kv_heads": 3}, "kv_heads"),
    ({"rotary_dim": 3}, "rotary_dim is 3"), ({"chunk": 0}, "chunk is 0"),
    ({"pinned_share": 1.5}, "pinned_share is 1.5"), ({"nonsense": 1}, "nonsense"),
    ({"shape": "huge"}, "shape is 'huge'"),
])
def test_sizes_that_are_refused(sizes: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        config_from(**{"shape": "tiny", **sizes})


def test_the_reference_shape() -> None:
    model, run = config_from("reference")
    assert (model.layers, model.experts, model.expert_bytes, run.tokens) == (48, 512, 1_382_400, 4205)
    assert model.layers * model.experts - (run.cache_slots - run.gpu_ring) == 19_651
