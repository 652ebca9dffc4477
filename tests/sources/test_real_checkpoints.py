"""Headers of published checkpoints: every family's experts are found, as they lie, without reading a weight."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import strata
from strata.sources.checkpoint_files import CheckpointFile
from tests.sources.made import REAL, Real, nbytes, write_sparse


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of all reads of checkpoints' files."""
    sizes: list[int] = []
    original = CheckpointFile.read_into

    def read_into(self: CheckpointFile, offset: int, room: memoryview) -> None:
        sizes.append(len(room))
        original(self, offset, room)

    monkeypatch.setattr(CheckpointFile, "read_into", read_into)
    return sizes


def check(real: Real, folder: Path, most_layers: int | None, reads: list[int]) -> None:
    tensors = real.tensors(most_layers)
    paths = write_sparse(folder, tensors, real.shards)
    with strata.sources.safetensors(folder) as table:
        moe = real.moe[:most_layers]
        assert table.layers == moe
        assert len(table) == len(moe) * real.experts
        assert table.stack == real.stack
        assert table.ignored == tuple(name for name, _, _ in tensors if "self_attention.experts." in name)
        for layer in moe:
            assert table.experts(layer) == real.experts
            layout = table.layout(layer)
            assert tuple((f.name, f.dtype, f.shape) for f in layout.fields) == real.slot
            assert table.conversions(layer) == ()
        check_places(real, table)
        # A header, its length and the index, each once: nothing of the weights, and nothing is mapped.
        headers = sum(path.stat().st_size for path in folder.glob("*.json"))
        for path in paths:
            with path.open("rb") as file:
                headers += 8 + int.from_bytes(file.read(8), "little")
        assert sum(reads) == headers
        assert not any(file.mapped for file in table._files)
        assert "layers of" in repr(table)


def check_places(real: Real, table: strata.sources.ExpertTable) -> None:
    """Every segment is where an independent walk through the headers finds it; all experts' bytes are there once."""
    expected = set()
    for path in table.paths:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            for name, entry in json.loads(file.read(length)).items():
                if name != "__metadata__" and name.startswith(real.stack) and (
                    "experts." in name or "_linear" in name) and "shared" not in name and "attention" not in name:
                    begin, end = entry["data_offsets"]
                    parts = 1 if ".experts." in name and name.split(".experts.")[1][0].isdigit() else real.experts
                    size = (end - begin) // parts
                    expected |= {(path, 8 + length + begin + k * size, size) for k in range(parts)}
    found = set(zip((table.paths[k] for k in table.file_index.tolist()), table.offset.tolist(), table.nbytes.tolist(),
                    strict=True))
    assert len(found) == len(table.offset)
    assert found == expected
    assert table.expert_bytes == sum(size for _, _, size in expected)


@pytest.mark.parametrize("real", REAL, ids=lambda real: real.name)
def test_a_published_layout(real: Real, tmp_path: Path, reads: list[int]) -> None:
    check(real, tmp_path, 2, reads)


@pytest.mark.slow
@pytest.mark.parametrize("real", REAL, ids=lambda real: real.name)
def test_a_published_layout_in_full(real: Real, tmp_path: Path, reads: list[int]) -> None:
    check(real, tmp_path, None, reads)


def test_there_are_ten_and_more() -> None:
    assert len(REAL) >= 10
    assert sum(nbytes(*tensor[1:]) for tensor in REAL[1].tensors()) > 58e9


def test_lists_of_a_large_checkpoint_are_made_without_reading_it(tmp_path: Path, reads: list[int]) -> None:
    real = REAL[1]
    write_sparse(tmp_path, real.tensors(), real.shards)
    with strata.sources.safetensors(tmp_path) as table:
        before = len(reads)
        copies = strata.ExpertCopies.concatenate([table.copies(layer) for layer in table.layers])
        assert len(copies) == 48 * 128
        assert copies.slot_bytes == table.slot_bytes == 9437184
        assert copies.staged.all()
        assert len(reads) == before
    assert os.path.getsize(table.paths[0]) > 3e9


def test_the_other_stack_can_be_chosen(tmp_path: Path) -> None:
    real = next(real for real in REAL if real.name.startswith("Qwen3-Next"))
    write_sparse(tmp_path, real.tensors(2), 4)
    with strata.sources.safetensors(tmp_path) as table:
        assert table.stacks == ("model.layers", "mtp.layers")
    with strata.sources.safetensors(tmp_path, stack="mtp.layers") as table:
        assert table.layers == (0,)
        assert table.experts(0) == 512
    with pytest.raises(strata.CheckpointError, match=r"stack is 'x': model\.layers, mtp\.layers have experts"):
        strata.sources.safetensors(tmp_path, stack="x")
