"""Mutated and truncated headers: an error that names the file, or a table whose segments lie in the file. Never more."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import strata
from strata.errors import CheckpointError
from tests.sources.made import gguf_header, gguf_string, gguf_value, header

QUICK, WHOLE = 800, 25_000  #: of each format


def safetensors_seed() -> bytes:
    tensors = [(f"model.layers.{layer}.mlp.experts.{e}.{p}_proj.weight", "BF16", (4, 2))
               for layer in range(2) for e in range(2) for p in ("gate", "up", "down")]  # fmt: skip
    tensors += [("model.layers.2.mlp.experts.gate_up_proj", "BF16", (2, 8, 4)), ("model.layers.2.mlp.experts.down_proj", "BF16", (2, 4, 4))]
    raw, size = header(tensors)
    return raw + bytes(size)


def gguf_seed() -> bytes:
    values = [gguf_value("general.architecture", 8, gguf_string("x")),
              gguf_value("tokens", 9, struct.pack("<IQ", 8, 3) + gguf_string("a") * 3),
              gguf_value("scores", 9, struct.pack("<IQ", 6, 3) + bytes(12)), gguf_value("n", 4, bytes(4))]
    tensors = [(f"blk.{layer}.ffn_{p}_exps.weight", "Q8_0", (2, 2, 32)) for layer in range(2) for p in ("gate", "up", "down")]
    raw, size, _ = gguf_header(tensors, values)
    return raw + bytes(size)


INTERESTING = [b"\0", b"\xff", b"{", b"}", b"[", b"]", b'"', b"-", b"9", b"e", b"\x80", b"null", b"1e999", b"9" * 25,
               struct.pack("<Q", 2**63), struct.pack("<Q", 2**64 - 1), struct.pack("<I", 2**32 - 1), bytes(8)]


def mutate(rng: random.Random, seed: bytes) -> bytes:
    raw = bytearray(seed)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        kind = rng.randrange(6)
        at = rng.randrange(len(raw) + 1)
        if kind == 0 and raw:
            raw[at % len(raw)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            piece = rng.choice(INTERESTING)
            raw[at : at + len(piece)] = piece
        elif kind == 2:
            raw[at:at] = rng.choice(INTERESTING)
        elif kind == 3:
            del raw[at : at + rng.randrange(1, 20)]
        elif kind == 4:
            del raw[at:]
        else:
            other = rng.randrange(len(raw) + 1)
            raw[at : at + 16] = raw[other : other + 16]
    return bytes(raw)


def length_mended(rng: random.Random, raw: bytes) -> bytes:
    """With the length of the header put right, so that what is in it gets looked at."""
    if rng.random() < 0.7 and len(raw) > 9:
        end = raw.rfind(b"}", 8, len(raw))
        return struct.pack("<Q", max(0, end + 1 - 8)) + raw[8:]
    return raw


def run(tmp_path: Path, opener, seed: bytes, count: int, start: int) -> dict[str, int]:  # type: ignore[no-untyped-def]
    path = tmp_path / "m"
    seen = {"refused": 0, "opened": 0}
    path.write_bytes(seed)
    opener(path).copies(0)  # what is imported at the first use is not measured
    for k in range(start, start + count):
        rng = random.Random(k)
        raw = mutate(rng, seed)
        if opener is strata.sources.safetensors:
            raw = length_mended(rng, raw)
        path.write_bytes(raw)
        measured = k % 50 == 0
        if measured:
            tracemalloc.start()
        try:
            with opener(path, uneven_experts=True) as table:
                ends = table.offset + table.nbytes
                assert (table.offset >= 0).all(), k
                assert ends.max(initial=0) <= len(raw), k
                assert (table.nbytes >= 0).all()
                for layer in table.layers:
                    copies = table.copies(layer)
                    assert np.all(copies.offsets + copies.nbytes <= table.slot_bytes)
                seen["opened"] += 1
        except CheckpointError as problem:
            assert str(path) in str(problem), (k, problem)
            assert len(str(problem)) < 3000, k  # whatever the header says
            seen["refused"] += 1
        finally:
            if measured:
                _, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                assert peak < 100_000 + 60 * len(raw), k  # of a kilobyte or two in the file
    return seen


SEEDS = {"safetensors": (strata.sources.safetensors, safetensors_seed), "gguf": (strata.sources.gguf, gguf_seed)}


@pytest.mark.parametrize("kind", SEEDS)
def test_mutated_headers(tmp_path: Path, kind: str) -> None:
    opener, seed = SEEDS[kind]
    opener_seen = run(tmp_path, opener, seed(), QUICK, 0)
    assert opener_seen["refused"] > QUICK // 3
    assert opener_seen["opened"] > QUICK // 100


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", SEEDS)
def test_mutated_headers_in_number(tmp_path: Path, kind: str) -> None:
    opener, seed = SEEDS[kind]
    run(tmp_path, opener, seed(), WHOLE, QUICK)


@pytest.mark.parametrize("kind", SEEDS)
def test_every_truncation(tmp_path: Path, kind: str) -> None:
    opener, seed = SEEDS[kind]
    raw = seed()
    for length in range(0, len(raw) - (24 if kind == "gguf" else 0), 3):  # the last tensor of a GGUF is padded
        (tmp_path / "m").write_bytes(raw[:length])
        with pytest.raises(CheckpointError):
            opener(tmp_path / "m")
    (tmp_path / "m").write_bytes(raw)
    opener(tmp_path / "m").close()
