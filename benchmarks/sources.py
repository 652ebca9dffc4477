"""Opening a checkpoint of 60 GB in 300 shards, and making lists of its experts: time and memory."""

from __future__ import annotations

import json
import resource
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import strata
from benchmarks.measuring import Row, command, median_ns, show

LAYERS, EXPERTS, HIDDEN, WIDTH, SHARDS = 48, 128, 2048, 768, 300
FUSED_EXPERTS = 24_576


def make(folder: Path) -> int:
    """Files of the right sizes and headers, without weights; returns their bytes."""
    names = [
        (f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight",
         [HIDDEN, WIDTH] if part == "down" else [WIDTH, HIDDEN])
        for layer in range(LAYERS) for expert in range(EXPERTS) for part in ("gate", "up", "down")
    ]  # fmt: skip
    size = 2 * HIDDEN * WIDTH
    weight_map, total = {}, 0
    for shard, part in enumerate(np.array_split(np.arange(len(names)), SHARDS)):
        file = f"model-{shard + 1:05d}-of-{SHARDS:05d}.safetensors"
        header = {}
        for k, index in enumerate(part.tolist()):
            name, shape = names[index]
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [k * size, (k + 1) * size]}
            weight_map[name] = file
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (folder / file).open("wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            out.truncate(8 + len(text) + len(part) * size)
        total += len(part) * size
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return total


def opened(folder: str) -> None:
    """In a process of its own: open, make all lists, and say what it took."""
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    began, began_busy = time.perf_counter(), time.process_time()
    with strata.sources.safetensors(folder) as table:
        took, busy = time.perf_counter() - began, time.process_time() - began_busy
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        began = time.perf_counter()
        lists = [table.copies(layer) for layer in table.layers]
        listed = time.perf_counter() - began
        print(json.dumps([took, busy, grown, listed, sum(map(len, lists))]))


def main() -> None:
    """Measure and print."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        total = make(Path(folder))
        say = [sys.executable, "-c", f"from benchmarks.sources import opened; opened({folder!r})"]
        done = [subprocess.run(say, check=True, capture_output=True, text=True) for _ in range(3)]
        runs = [json.loads(each.stdout) for each in done]
    took, busy, grown, listed, entries = (sorted(column)[1] for column in zip(*runs, strict=True))
    what = f"open {total / 1e9:.0f} GB in {SHARDS} shards, {LAYERS * EXPERTS * 3:,} tensors"
    rows.append((what, f"{took:.2f} s", "1 s", took < 1))
    rows.append(("the same, processor time", f"{busy:.2f} s", "", None))
    rows.append(("memory that it takes", f"{grown / 1e6:.0f} MB", "100 MB", grown < 100e6))
    rows.append((f"lists of all {entries:,} experts", f"{listed * 1e3:.0f} ms", "", None))
    gate_up, down = np.zeros((FUSED_EXPERTS, 300), np.uint8), np.zeros((FUSED_EXPERTS, 200), np.uint8)
    stacked = median_ns(lambda: strata.ExpertCopies.from_stacked(gate_up, down, pinned=False)) / 1e6
    what = f"from_stacked, {FUSED_EXPERTS:,} experts of two tensors"
    rows.append((what, f"{stacked:.1f} ms", "20 ms", stacked <= 20))
    show("sources", rows)


if __name__ == "__main__":
    sys.exit(command("benchmarks.sources", __doc__, main))
