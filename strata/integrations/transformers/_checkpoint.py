"""A folder of safetensors files: names, and where their bytes lie."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from strata.sources import File

__all__ = ["Checkpoint", "StoredTensor"]

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
           "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
           "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


@dataclass(frozen=True)
class StoredTensor:
    """One tensor in a file."""

    name: str
    file: int
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Checkpoint:
    """The safetensors files of a folder."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        index, single = self.path / _INDEX, self.path / _SINGLE
        if index.is_file():
            places = json.loads(index.read_text())["weight_map"]
            files = sorted(set(places.values()))
        elif single.is_file():
            files = [_SINGLE]
        else:
            raise FileNotFoundError(f"{self.path} has neither {_INDEX} nor {_SINGLE}: a checkpoint in safetensors files "
                                    "is wanted")
        missing = [name for name in files if not (self.path / name).is_file()]
        if missing:
            raise FileNotFoundError(f"{self.path}: {len(missing)} of {len(files)} files are missing: "
                                    f"{', '.join(missing[:4])}{', …' if len(missing) > 4 else ''}")
        self._tensors: dict[str, StoredTensor] = {}
        self.sources = [File(self.path / name) for name in files]
        for number, name in enumerate(files):
            for stored in _header(self.path / name, number):
                self._tensors[stored.name] = stored

    def names(self) -> Iterable[str]:
        return self._tensors

    def __getitem__(self, name: str) -> StoredTensor:
        return self._tensors[name]

    def load(self, name: str) -> torch.Tensor:
        from safetensors import safe_open

        with safe_open(self.sources[self[name].file].path, "pt") as file:
            return file.get_tensor(name)


def _header(file: Path, number: int) -> Iterable[StoredTensor]:
    with open(file, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        yield StoredTensor(name, number, str(_DTYPES[entry["dtype"]]).removeprefix("torch."), tuple(entry["shape"]), 8 + length + begin, end - begin)
