"""Headers of safetensors files: 8 bytes of length, JSON, data. The index of a sharded checkpoint."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from strata.errors import CheckpointError
from strata.sources.checkpoint_files import CheckpointFile, TensorPlace, check_places, folder_files, readable, short

__all__ = ["open_safetensors"]

_MOST_HEADER = 100_000_000  # the format's own limit
_MOST_DIMENSIONS = 64

#: dtype in the file: (name of ours, bits of an element).
_DTYPES = {
    "BOOL": ("bool", 8), "U8": ("uint8", 8), "I8": ("int8", 8), "U16": ("uint16", 16), "I16": ("int16", 16),
    "U32": ("uint32", 32), "I32": ("int32", 32), "U64": ("uint64", 64), "I64": ("int64", 64),
    "F16": ("float16", 16), "BF16": ("bfloat16", 16), "F32": ("float32", 32), "F64": ("float64", 64),
    "C64": ("complex64", 64), "F8_E4M3": ("float8_e4m3fn", 8), "F8_E5M2": ("float8_e5m2", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8), "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8), "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "F4": ("float4_e2m1fn_x2", 4), "F6_E2M3": ("uint8", 6), "F6_E3M2": ("uint8", 6),
}  # fmt: skip


def open_safetensors(paths: Any) -> tuple[list[CheckpointFile], list[TensorPlace]]:
    """Open the files of a checkpoint and find its tensors; nothing but headers and the index is read.

    Raises
    ------
    CheckpointError
        Naming file and tensor.
    OSError
        A file cannot be opened or read.
    """
    names, weight_map, index = _files_of(paths)
    files: list[CheckpointFile] = []
    try:
        places: dict[str, TensorPlace] = {}
        for number, name in enumerate(names):
            files.append(CheckpointFile(name))
            wanted = None if weight_map is None else weight_map[name]
            found = read_header(files[-1], number)
            for place in found:
                if wanted is not None and place.name not in wanted:
                    continue  # the index says that it is another file's
                other = places.setdefault(place.name, place)
                if other is not place:
                    raise CheckpointError(f"{files[number].path}: {short(place.name)} is in {files[other.file].path}, "
                                          "too")
            if wanted is not None:
                missing = wanted - {place.name for place in found}
                if missing:
                    raise CheckpointError(f"{files[number].path}: {short(min(missing))} is not in it, but {index} says "
                                          f"so{_more(len(missing) - 1)}")
        return files, list(places.values())
    except BaseException:
        for file in files:
            file.close()
        raise


def read_header(file: CheckpointFile, number: int) -> list[TensorPlace]:
    """The tensors of one file."""
    if file.size < 8:
        raise CheckpointError(f"{file.path}: {file.size} bytes: a safetensors file has 8 at least")
    length = int.from_bytes(file.read(0, 8), "little")
    if length > min(_MOST_HEADER, file.size - 8):
        raise CheckpointError(f"{file.path}: its header has {length} bytes: the file has {file.size - 8} after the "
                              f"length, and {_MOST_HEADER} are allowed")
    header = parse_json(file.read(8, length), file.path)
    first = 8 + length
    places = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            places.append(_place(name, entry, number, first))
        except CheckpointError as problem:
            raise CheckpointError(f"{file.path}: {short(name)} {problem}") from None
    check_places(places, file, first)
    return places


def parse_json(text: bytes, path: str) -> dict[str, Any]:
    """A JSON object whose names all differ."""
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_no_name_twice, parse_constant=_no_constant)
    except RecursionError:
        raise CheckpointError(f"{path}: its header is nested too deeply") from None
    except ValueError as problem:
        raise CheckpointError(f"{path}: its header is no JSON: {str(problem)[:200]}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: its header is a JSON {type(value).__name__}: an object is needed")
    return value


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{short(twice)} is there twice")
    return made


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _place(name: str, entry: Any, number: int, first: int) -> TensorPlace:
    if not isinstance(entry, dict):
        raise CheckpointError(f"is a {type(entry).__name__}: an object with dtype, shape and data_offsets is needed")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise CheckpointError(f"has dtype {brief(dtype)}: {', '.join(_DTYPES)} are known")
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS or not all(map(_is_count, shape)):
        raise CheckpointError(f"has shape {brief(shape)}: up to {_MOST_DIMENSIONS} sizes from 0 are needed")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise CheckpointError(f"has data_offsets {brief(offsets)}: two numbers from 0 are needed")
    begin, end = offsets
    kind, bits = _DTYPES[dtype]
    total = bits
    for size in shape:
        total *= size
    if begin > end or (end - begin) * 8 != total:
        raise CheckpointError(f"has data_offsets {offsets}: {-(-total // 8)} bytes are needed for {dtype} "
                              f"{brief(shape)}")
    if bits < 8:  # as bytes: its last axis is packed
        if not shape or shape[-1] * bits % 8:
            raise CheckpointError(f"has shape {brief(shape)} of {dtype}: rows of whole bytes are needed")
        shape = [*shape[:-1], shape[-1] * bits // 8]
        bits = 8
    return TensorPlace(name, kind, bits // 8, tuple(shape), number, first + begin, end - begin)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


# Which files.


def _files_of(paths: Any) -> tuple[list[Path], dict[Path, set[str]] | None, str]:
    """(files, what the index says of each, the index's name)."""
    if not isinstance(paths, (str, os.PathLike)):
        if not isinstance(paths, Iterable):
            raise TypeError(f"paths is a {type(paths).__name__}: a path, or paths, are needed")
        names = list(paths)
        for name in names:
            readable(name)
        if not names:
            raise CheckpointError("paths is empty: a file or folder is needed")
        return _whole([Path(os.fsdecode(name)) for name in names]), None, ""
    path = Path(os.fsdecode(os.fspath(paths)))
    try:
        is_folder = path.is_dir()
    except ValueError as problem:  # a NUL in a name
        raise CheckpointError(f"{readable(path)}: {problem}") from None
    if not is_folder:
        return _of_index(path) if path.name.endswith(".index.json") else (_whole([path]), None, "")
    indices = folder_files(path, ".safetensors.index.json")
    if indices:
        preferred = [index for index in indices if index.name == "model.safetensors.index.json"]
        if len(indices) > 1 and not preferred:
            raise CheckpointError(f"{readable(path)}: {len(indices)} indices ({indices[0].name}, …): pass one of them")
        return _of_index(preferred[0] if preferred else indices[0])
    shards = folder_files(path, ".safetensors")
    if not shards:
        raise CheckpointError(f"{readable(path)}: no .safetensors file in this folder")
    if len(shards) > 1:
        raise CheckpointError(f"{readable(path)}: {len(shards)} .safetensors files and no index "
                              "(model.safetensors.index.json): pass the files that belong together")
    return _whole(shards), None, ""


_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.safetensors$")


def _whole(paths: list[Path]) -> list[Path]:
    """Refuse shards whose names say that there are others."""
    numbers: dict[tuple[str, int], set[int]] = {}
    for path in paths:
        match = _SHARD.search(path.name)
        if match:
            key = (str(path)[: -len(match.group(0))], int(match.group(2)))
            numbers.setdefault(key, set()).add(int(match.group(1)))
    for (stem, count), there in numbers.items():
        missing = next((k for k in range(1, count + 1) if k not in there), None)
        if missing is not None:
            raise CheckpointError(f"{readable(stem)}-{missing:05d}-of-{count:05d}.safetensors is missing: {len(there)} "
                                  f"of {count} shards are given (pass the index, or the folder)")
    return paths


def _of_index(index: Path) -> tuple[list[Path], dict[Path, set[str]], str]:
    file = CheckpointFile(index)
    try:
        if file.size > _MOST_HEADER:
            raise CheckpointError(f"{file.path}: {file.size} bytes: an index of at most {_MOST_HEADER} is allowed")
        value = parse_json(file.read(0, file.size), file.path)
    finally:
        file.close()
    weight_map = value.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{file.path}: no weight_map from tensors to files in it")
    by_name: dict[str, set[str]] = {}
    for tensor, name in weight_map.items():
        if not isinstance(name, str):
            raise CheckpointError(f"{file.path}: {short(tensor)} lies in {brief(name)}: a file's name is needed")
        by_name.setdefault(name, set()).add(tensor)
    shards: dict[Path, set[str]] = {}
    for name, tensors in by_name.items():
        if not name or "\0" in name or Path(name).is_absolute() or ".." in Path(name).parts:
            raise CheckpointError(f"{file.path}: {short(min(tensors))} lies in {brief(name)}: a file below the index "
                                  "is needed")
        shards.setdefault(index.parent / name, set()).update(tensors)
    missing = sorted(path for path in shards if not path.is_file())
    if missing:
        raise CheckpointError(f"{file.path}: the shard {readable(missing[0])} is missing{_more(len(missing) - 1)}")
    return sorted(shards), shards, file.path


def _more(count: int) -> str:
    return f" (and {count} more)" if count else ""
