"""The checkpoint: deterministic weights, one safetensors file a layer, with the usual tensor names."""

from __future__ import annotations

import json
import math
import os
import shutil
import stat
import tempfile
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

import numpy as np
import numpy.typing as npt

from examples.prefill_engine.config import ModelConfig
from examples.prefill_engine.errors import InputError
from examples.prefill_engine.tensor_file import TensorFile, write_tensors
from strata.tools.files import cache_home

__all__ = [
    "PROJECTIONS", "Checkpoint", "checkpoint_size", "default_path", "expert_name", "open_checkpoint", "tensor_shapes",
]

#: Parts of an expert, in the order in which they lie in a slot. The files have them in the order of their names.
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")

_UNFINISHED = ".checkpoint-"  #: folders that are being written begin so
_CONFIG = "config.json"
_INDEX = "model.safetensors.index.json"
_MOST_JSON = 200_000_000  # bytes: a device node has no end
_HEADER_BYTES = 250  # of a tensor, at most, in its file's header and in the index

_Float32 = npt.NDArray[np.float32]


def expert_name(layer: int, expert: int, projection: str) -> str:
    """Name of an expert's tensor."""
    return f"model.layers.{layer}.mlp.experts.{expert}.{projection}.weight"


def tensor_shapes(model: ModelConfig, layer: int | None) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a layer's tensors; of those outside the layers for None."""
    named = _dense_shapes(model, layer)
    if layer is not None:
        for expert in range(model.experts):
            for projection in PROJECTIONS:
                named[expert_name(layer, expert, projection)] = _projection_shape(model, projection)
    return named


def _dense_shapes(model: ModelConfig, layer: int | None) -> dict[str, tuple[int, ...]]:
    """The same without the routed experts."""
    hidden = model.hidden
    if layer is None:
        return {"model.embed_tokens.weight": (model.vocab, hidden), "model.norm.weight": (hidden,),
                "lm_head.weight": (model.vocab, hidden)}
    keys, values = model.gdn_heads * model.gdn_key_dim, model.gdn_heads * model.gdn_value_dim
    queries, kv = model.attention_heads * model.head_dim, model.kv_heads * model.head_dim
    if model.is_full_attention(layer):
        mixer: dict[str, tuple[int, ...]] = {
            "self_attn.q_proj.weight": (2 * queries, hidden), "self_attn.k_proj.weight": (kv, hidden),
            "self_attn.v_proj.weight": (kv, hidden), "self_attn.o_proj.weight": (hidden, queries),
            "self_attn.q_norm.weight": (model.head_dim,), "self_attn.k_norm.weight": (model.head_dim,),
        }
    else:
        mixer = {
            "linear_attn.in_proj_qkvz.weight": (2 * keys + 2 * values, hidden),
            "linear_attn.in_proj_ba.weight": (2 * model.gdn_heads, hidden),
            "linear_attn.conv1d.weight": (2 * keys + values, 1, model.conv_width),
            "linear_attn.A_log": (model.gdn_heads,), "linear_attn.dt_bias": (model.gdn_heads,),
            "linear_attn.norm.weight": (model.gdn_value_dim,), "linear_attn.out_proj.weight": (hidden, values),
        }
    shapes = {
        "input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,), **mixer,
        "mlp.gate.weight": (model.experts, hidden), "mlp.shared_expert_gate.weight": (1, hidden),
        "mlp.shared_expert.gate_proj.weight": (model.shared_width, hidden),
        "mlp.shared_expert.up_proj.weight": (model.shared_width, hidden),
        "mlp.shared_expert.down_proj.weight": (hidden, model.shared_width),
    }
    return {f"model.layers.{layer}.{name}": shape for name, shape in shapes.items()}


def stored_as(name: str) -> str:
    """How a tensor is stored: routed experts in bfloat16, the rest in float32."""
    return "BF16" if ".mlp.experts." in name else "F32"


def checkpoint_size(model: ModelConfig) -> tuple[int, int]:
    """Return how many tensors the model has, and the bytes of their values, without listing them."""
    full = model.layers // model.full_every
    tensors = nbytes = 0
    for layer, count in ((None, 1), (model.full_every - 1, full), (0, model.layers - full)):
        if count:
            shapes = _dense_shapes(model, layer).values()
            tensors += count * len(shapes)
            nbytes += count * 4 * sum(math.prod(shape) for shape in shapes)
    experts = model.layers * model.experts
    return tensors + experts * len(PROJECTIONS), nbytes + experts * model.expert_bytes


class Checkpoint:
    """An opened checkpoint.

    Parameters
    ----------
    path : Path
        Folder with ``config.json``, ``model.safetensors.index.json`` and the files that it names.

    Raises
    ------
    InputError
        Naming the file, and the tensor where there is one: a file is missing, truncated or unreadable, a tensor is
        missing or has another shape or dtype.

    Attributes
    ----------
    model : ModelConfig
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        sizes = _read_json(path / _CONFIG)
        try:
            self.model = ModelConfig(**sizes)
        except TypeError as problem:
            raise InputError(f"{path / _CONFIG}: {problem}") from None
        weight_map = _read_json(path / _INDEX).get("weight_map")
        if not isinstance(weight_map, dict):
            raise InputError(f"{path / _INDEX} has no weight_map")
        tensors, _ = checkpoint_size(self.model)
        if tensors > 2 * len(weight_map):  # one that is missing is named below; 10**12 of them shall not be listed
            raise InputError(
                f"{path / _INDEX} names {len(weight_map):,} tensors; the model of {_CONFIG} has {tensors:,}")
        self._files: dict[str, TensorFile] = {}
        self._where: dict[str, str] = weight_map
        self._tensors: dict[str, npt.NDArray[Any]] = {}
        for layer in (None, *range(self.model.layers)):
            for name, shape in tensor_shapes(self.model, layer).items():
                self._tensors[name] = self._open(name, shape)

    def _open(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        file = self._where.get(name)
        if not isinstance(file, str) or Path(file).name != file:
            raise InputError(f"{self.path / _INDEX} names no file of this folder for the tensor {name}")
        if file not in self._files:
            self._files[file] = TensorFile(self.path / file)
        return self._files[file].tensor(name, shape, stored_as(name))

    def tensor(self, name: str) -> npt.NDArray[Any]:
        """A tensor as an array over the mapped file: float32, or of experts the bits of bfloat16, uint16."""
        return self._tensors[name]

    def dense(self, layer: int | None) -> dict[str, _Float32]:
        """A layer's tensors by name without its prefix, routed experts left out; those outside for None."""
        prefix = "" if layer is None else f"model.layers.{layer}."
        return {name[len(prefix):]: self._tensors[name] for name in _dense_shapes(self.model, layer)}

    def expert(self, layer: int, expert: int) -> list[npt.NDArray[np.uint16]]:
        """An expert's gate, up and down, bfloat16: its segments, in the order of a slot."""
        return [self._tensors[expert_name(layer, expert, projection)] for projection in PROJECTIONS]


def default_path(model: ModelConfig) -> Path:
    """Folder in the user's cache for the checkpoint of this shape and seed."""
    digest = zlib.crc32(json.dumps(model.as_dict(), sort_keys=True).encode())
    return cache_home() / "strata" / "prefill_engine" / f"{model.layers}x{model.experts}-{digest:08x}"


def open_checkpoint(model: ModelConfig, path: Path | None = None, *,
                    say: Callable[[str], None] = lambda text: None) -> Checkpoint:
    """Open the checkpoint of this shape and seed; write it first where there is none.

    Parameters
    ----------
    model : ModelConfig
    path : Path, optional
        Default: `default_path`.
    say : callable, optional
        Called with a line of progress while it is written.

    Raises
    ------
    InputError
        As `Checkpoint`; or what lies there has another shape or seed; or there is no place for it. Nothing
        half-written is left then, nor after Ctrl-C or SIGTERM.
    """
    path = default_path(model) if path is None else path
    if not os.path.exists(path):
        try:
            _write(model, path, say)
        except InputError:
            raise
        except (OSError, ValueError, MemoryError) as problem:  # a NUL in the path; a tensor larger than the memory
            raise InputError(f"the checkpoint {str(path)!r:.200} cannot be written: "
                             f"{getattr(problem, 'strerror', None) or problem}") from None
    checkpoint = Checkpoint(path)
    wanted, found = model.as_dict(), checkpoint.model.as_dict()
    other = [f"{name} {found[name]} (asked for: {wanted[name]})" for name in wanted if wanted[name] != found[name]]
    if other:
        raise InputError(f"the checkpoint {path} is of another model: {', '.join(other)}")
    return checkpoint


def _write(model: ModelConfig, path: Path, say: Callable[[str], None]) -> None:
    """Write beside the place and rename: nobody ever sees half a checkpoint."""
    tensors, nbytes = checkpoint_size(model)
    _check_space(path, nbytes + tensors * _HEADER_BYTES)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path.parent)
    folder = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=path.parent))
    stop = threading.Event()
    lock = _lock(folder)
    try:
        total = model.layers + 1
        groups: tuple[int | None, ...] = (*range(model.layers), None)
        names = [f"model-{k:05d}-of-{total:05d}.safetensors" for k in range(1, total + 1)]
        weight_map: dict[str, str] = {}

        def fill(name: str, values: _Float32) -> None:
            if stop.is_set():
                raise InterruptedError
            _fill(model, name, values)

        def write(group: int | None, name: str) -> None:
            write_tensors(folder / name, tensor_shapes(model, group), stored_as, fill)

        with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
            running = [pool.submit(write, group, name) for group, name in zip(groups, names, strict=True)]
            try:
                for number, (group, name, written) in enumerate(zip(groups, names, running, strict=True), 1):
                    say(f"writing the checkpoint, {nbytes / 1e9:.2f} GB: file {number} of {total}")
                    weight_map.update(dict.fromkeys(tensor_shapes(model, group), name))
                    written.result()
            except BaseException:
                stop.set()  # the pool waits for its threads, which else would write to the end
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        (folder / _INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        (folder / _CONFIG).write_text(json.dumps(model.as_dict(), indent=1) + "\n")
        try:
            os.rename(folder, path)
        except OSError:
            if not path.is_dir():
                raise
            # Another process was first; its files are the same.
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """Lock a folder as long as this process lives; None where another has it locked, or there are no such locks."""
    if fcntl is None:
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _remove_abandoned(parent: Path) -> None:
    """Remove what a killed process has left unfinished: its lock is gone. An empty one may be about to be locked."""
    for folder in parent.glob(f"{_UNFINISHED}*"):
        try:
            if any(folder.iterdir()) and (lock := _lock(folder)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)
        except OSError:  # somebody else's, or gone already
            continue


def _check_space(path: Path, nbytes: int) -> None:
    there = path.parent
    while not os.path.exists(there) and there != there.parent:
        there = there.parent
    free = shutil.disk_usage(there).free
    if nbytes > free:
        raise InputError(f"the checkpoint {str(path)!r:.200} takes {nbytes:,} bytes, and {free:,} are free there")


def _fill(model: ModelConfig, name: str, values: _Float32) -> None:
    """Write a tensor's values: uniform, scaled by its inputs, from a generator of its own."""
    random = np.random.Generator(np.random.PCG64([model.seed, zlib.crc32(name.encode())]))
    random.random(out=values, dtype=np.float32)
    if name.endswith("A_log"):
        values += np.float32(0.05)
        np.log(values, out=values)  # decays of a token between nearly none and two thirds
        return
    values -= np.float32(0.5)
    if name.endswith(("norm.weight", "dt_bias")):
        values *= np.float32(0.2)
        return
    gain = 8.0 if name == "model.embed_tokens.weight" else 1.0
    values *= np.float32(gain * np.sqrt(12.0 / values.shape[-1]))


def _projection_shape(model: ModelConfig, projection: str) -> tuple[int, int]:
    wide = (model.expert_width, model.hidden)
    return wide[::-1] if projection == "down_proj" else wide


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # nobody may ever write to a FIFO
            raise InputError(f"{path} is no regular file")
        with open(path, "rb") as file:
            text = file.read(_MOST_JSON + 1)
        if len(text) > _MOST_JSON:
            raise InputError(f"{path} is longer than {_MOST_JSON:,} bytes")
        content = json.loads(text)
    except (OSError, ValueError, RecursionError) as problem:
        if isinstance(problem, InputError):
            raise
        raise InputError(f"{path}: {problem}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}; an object is wanted")
    return content
