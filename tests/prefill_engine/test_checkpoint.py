"""The checkpoint: format, determinism, and what is refused."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from examples.prefill_engine import checkpoint as checkpoint_module
from examples.prefill_engine.checkpoint import Checkpoint, checkpoint_size, expert_name, open_checkpoint, tensor_shapes
from examples.prefill_engine.config import ModelConfig, config_from
from examples.prefill_engine.errors import InputError
from examples.prefill_engine.tensor_file import TensorFile, rounded, write_tensors
from tests.support.scripts import environment

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
    assert checkpoint.tensor("model.layers.3.mlp.experts.7.gate_proj.weight").shape == (32, 32)
    assert checkpoint.tensor("model.layers.3.mlp.experts.7.down_proj.weight").shape == (32, 32)
    assert checkpoint.tensor("model.layers.3.self_attn.q_proj.weight").shape == (64, 32)
    assert checkpoint.tensor("model.layers.2.linear_attn.conv1d.weight").shape == (48, 1, 4)


def test_the_safetensors_package_reads_the_files(tiny_path: Path, checkpoint: Checkpoint) -> None:
    safetensors = pytest.importorskip("safetensors")
    tensors = dict(safetensors.deserialize((tiny_path / LAYER_0).read_bytes()))
    assert len(tensors) == 14 + 16 * 3
    for name, found in tensors.items():
        values = checkpoint.tensor(name)
        assert found["dtype"] == ("BF16" if values.dtype == np.uint16 else "F32")
        assert (bytes(found["data"]), tuple(found["shape"])) == (values.tobytes(), values.shape)


def test_files_of_the_safetensors_package_are_read(tmp_path: Path) -> None:
    numpy_face = pytest.importorskip("safetensors.numpy")
    values = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.float32([7])}
    numpy_face.save_file(values, tmp_path / "f.safetensors")
    file = TensorFile(tmp_path / "f.safetensors")
    np.testing.assert_array_equal(file.tensor("b", (2, 3)), values["b"])
    np.testing.assert_array_equal(file.tensor("a", (1,)), values["a"])


def test_each_tensor_has_the_values_that_were_filled_in(tmp_path: Path) -> None:
    shapes = {"b": (2, 3), "a": (4,), "none": (0, 2), "c": (1, 1)}
    stored = {"b": "F32", "a": "BF16", "none": "F32", "c": "BF16"}
    write_tensors(tmp_path / "f", shapes, stored.__getitem__, lambda name, values: values.fill(ord(name[0])))
    file = TensorFile(tmp_path / "f")
    for name, shape in shapes.items():
        found = file.tensor(name, shape, stored[name])
        if stored[name] == "BF16":
            found = (found.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(found, np.full(shape, ord(name[0]), np.float32))


@pytest.mark.parametrize(("value", "bits"), [
    (1.0, 0x3F80), (-2.0, 0xC000), (0.0, 0), (1 + 2**-8, 0x3F80), (1 + 3 * 2**-8, 0x3F82), (1 + 2**-8 + 2**-20, 0x3F81),
    (1 + 2**-9, 0x3F80)])
def test_rounding_is_to_nearest_and_to_even(value: float, bits: int) -> None:
    assert rounded(np.float32([value])).tolist() == [bits]


def test_values_are_those_of_a_generator_for_each_tensor(checkpoint: Checkpoint) -> None:
    def drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
        generator = np.random.Generator(np.random.PCG64([0, zlib.crc32(name.encode())]))
        return generator.random(shape, dtype=np.float32)

    half = np.float32(0.5)
    name = "model.layers.2.mlp.experts.5.down_proj.weight"
    np.testing.assert_array_equal(
        checkpoint.tensor(name), rounded((drawn(name, (32, 32)) - half) * np.float32(np.sqrt(12 / 32))))
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


@pytest.mark.parametrize(("field", "value"), [("shape", [16, 64]), ("dtype", "F16")])
def test_another_shape_or_dtype(copied: Path, field: str, value: object) -> None:
    name = expert_name(0, 3, "up_proj")
    rewrite_header(copied / LAYER_0, lambda header: header[name].__setitem__(field, value))
    with pytest.raises(InputError, match=r"BF16 of shape \(32, 32\) is wanted"):
        Checkpoint(copied)


def test_another_dtype_of_another_size(copied: Path) -> None:
    rewrite_header(copied / LAYER_0, lambda header: header[expert_name(0, 3, "up_proj")].__setitem__("dtype", "F32"))
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
    assert run.gpu_ring * model.expert_bytes == 2_177_280_000


# --- files that mean harm, and machines that are small ---------------------------------------------------------------


@pytest.mark.parametrize("field", ["shape", "data_offsets"])
@pytest.mark.parametrize("value", ["[1e999, 1]", "[1, -1]", "[true, 1]", '["16", 32]', "[4e3, 1]", "7", "null",
                                   "[" + "9" * 400 + ", 1]", "[" + "1, " * 40 + "1]", "[" * 100_000])
def test_a_header_that_means_harm(copied: Path, field: str, value: str) -> None:
    name = expert_name(0, 3, "up_proj")
    rewrite_header(copied / LAYER_0, lambda header: header[name].__setitem__(field, "HERE"))
    content = (copied / LAYER_0).read_bytes()
    length = int.from_bytes(content[:8], "little")
    text = content[8:8 + length].replace(b'"HERE"', value.encode())
    (copied / LAYER_0).write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length:])
    with pytest.raises(InputError, match=LAYER_0):
        Checkpoint(copied)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("text", ["[" * 100_000, '{"layers": 1e999}', '{"layers": ' + "9" * 5000 + "}", "\xff", "", "[]",
                                  '{"weight_map": 1e999}', '{"hidden": -1}'])
def test_a_config_that_means_harm(copied: Path, name: str, text: str) -> None:
    (copied / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError):
        Checkpoint(copied)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="FIFOs are Unix's")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", LAYER_0])
def test_a_fifo_is_not_waited_for(copied: Path, name: str) -> None:
    (copied / name).unlink()
    os.mkfifo(copied / name)
    with pytest.raises(InputError, match="is no regular file"):
        Checkpoint(copied)


@pytest.mark.parametrize("field", ["experts", "layers", "hidden", "vocab", "expert_width", "gdn_heads"])
@pytest.mark.parametrize("value", [10**12, 2**40, 10**30, 1e999, True, "4", None])
def test_a_config_of_another_size_takes_no_memory(copied: Path, field: str, value: object) -> None:
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(InputError):
        Checkpoint(copied)


@pytest.mark.parametrize("file", ["layer\0", "../up", "/etc/passwd", "n" * 300, "", 7, None, "folder", "fifo"])
def test_names_of_files_that_mean_harm(copied: Path, file: object) -> None:
    (copied / "folder").mkdir()
    os.mkfifo(copied / "fifo")
    index = copied / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"][expert_name(0, 3, "up_proj")] = file
    index.write_text(json.dumps(content))
    with pytest.raises(InputError):
        Checkpoint(copied)


@pytest.mark.parametrize("name", ["a\0b", "n" * 300])
def test_a_path_that_cannot_be_one(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        open_checkpoint(config_from("tiny")[0], tmp_path / name)
    assert os.listdir(tmp_path) == []


def listed_size(model: ModelConfig) -> tuple[int, int]:
    """Tensors and bytes, by adding them up."""
    shapes = [named for layer in (None, *range(model.layers)) for named in tensor_shapes(model, layer).items()]
    return len(shapes), sum(math.prod(shape) * (2 if "experts." in name and "shared" not in name else 4)
                            for name, shape in shapes)


def test_the_size_is_known_without_a_list(tiny_path: Path) -> None:
    model = config_from("tiny")[0]
    assert checkpoint_size(model) == listed_size(model)
    for changes in ({"full_every": 1}, {"full_every": 7}, {"layers": 1}, {"layers": 9, "full_every": 2}):
        model = config_from("tiny", **changes)[0]
        assert checkpoint_size(model) == listed_size(model)
    nbytes = sum(path.stat().st_size for path in tiny_path.iterdir())
    tensors, values = checkpoint_size(config_from("tiny")[0])
    assert values < nbytes < values + tensors * 250


def test_free_space_is_asked_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = config_from("tiny")[0]
    tensors, values = checkpoint_size(model)
    asked = []

    def usage(path: Path) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(free=values)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(InputError, match=rf"takes {values + tensors * 250:,} bytes, and {values:,} are free"):
        open_checkpoint(model, tmp_path / "no" / "such" / "place")
    assert asked == [tmp_path]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("sizes", [{"experts": 10**12}, {"layers": 10**12}, {"vocab": 2**40}])
def test_a_model_larger_than_any_disk_is_refused(tmp_path: Path, sizes: dict) -> None:
    with pytest.raises(InputError, match="are free there"):
        open_checkpoint(config_from("tiny", **sizes)[0], tmp_path / "large")


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: object, name: str, values: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_module, "_fill", fail)
    with pytest.raises(InputError, match="No space left on device"):
        open_checkpoint(config_from("tiny")[0], tmp_path / "full")
    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_has_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """SIGKILL leaves it; what a living process writes, or is about to, is let be."""
    fcntl = pytest.importorskip("fcntl")
    program = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        from examples.prefill_engine import checkpoint
        from examples.prefill_engine.config import config_from
        checkpoint._fill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        checkpoint.open_checkpoint(config_from("tiny")[0], Path(sys.argv[1]))
    """)
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "checkpoint")], env=environment(),
                          cwd=Path(__file__).resolve().parents[2], timeout=120)
    assert done.returncode == -signal.SIGKILL
    (killed,) = os.listdir(tmp_path)
    assert killed.startswith(".checkpoint-")
    assert os.listdir(tmp_path / killed)
    (tmp_path / ".checkpoint-new").mkdir()
    (tmp_path / ".checkpoint-another").mkdir()
    (tmp_path / ".checkpoint-another" / "model-00001-of-00005.safetensors").touch()
    writes = os.open(tmp_path / ".checkpoint-another", os.O_RDONLY)
    try:
        fcntl.flock(writes, fcntl.LOCK_EX)
        open_checkpoint(config_from("tiny")[0], tmp_path / "checkpoint")
    finally:
        os.close(writes)
    assert sorted(os.listdir(tmp_path)) == [".checkpoint-another", ".checkpoint-new", "checkpoint"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (1, 129), (signal.SIGINT, 130)])
def test_a_signal_while_writing_leaves_nothing(tmp_path: Path, number: int, status: int) -> None:
    """Every thread of the writer's waits for the signal, so it comes in the middle."""
    program = textwrap.dedent("""
        import os, signal, sys, threading
        from examples.prefill_engine import __main__ as command, checkpoint
        number, place = int(sys.argv[1]), sys.argv[2]
        if number == signal.SIGHUP:
            signal.signal(number, signal.SIG_DFL)        # whoever started the tests with nohup ignores it
        first = threading.Lock()
        def fill(model, name, values):
            values.fill(0)
            if first.acquire(blocking=False):
                os.kill(os.getpid(), number)
                threading.Event().wait(1.0)  # the main thread unwinds meanwhile
        checkpoint._fill = fill
        sys.exit(command.main(["run", "--shape", "tiny", "--runtime", "software", "--checkpoint", place]))
    """)
    done = subprocess.run([sys.executable, "-c", program, str(int(number)), str(tmp_path / "checkpoint")],
                          cwd=Path(__file__).resolve().parents[2], env=environment(), capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("sizes", [{"workers": 1000}, {"workers": 65}, {"workers": 0}, {"seed": -1}, {"seed": 2**64},
                                   {"tokens": 2**41}, {"host_ring": 0}])
def test_sizes_out_of_range(sizes: dict) -> None:
    with pytest.raises(InputError, match=rf"{next(iter(sizes))} is -?\d+: an integer from"):
        config_from("tiny", **sizes)
