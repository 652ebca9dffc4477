"""Experts from a file, mapped and read, against pinned memory: ``python -m benchmarks.gpu.files --out DIR``.

Of one file, as experts of 9.4 MB and of 1.4 MB, three segments each; the slots' bytes are compared with the file's.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.gpu import machine
from strata.tools.command import BAD_INPUT, complain, needs, run_command
from strata.tools.files import write_json, write_whole

__all__ = ["main"]

_SIZES = (9_437_184, 1_382_400)
_LARGE = 4 << 20  # from this size on, one expert a copy is at the link's speed


class Source:
    """One file, its mapping, and the same bytes on the GPU to compare with."""

    def __init__(self, path: Path, nbytes: int, torch: Any) -> None:
        self.path, self.torch = path, torch
        self.resident = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device="cuda",
                                      generator=torch.Generator("cuda").manual_seed(3))
        with path.open("wb") as out:
            for begin in range(0, nbytes, 1 << 28):
                out.write(self.resident[begin : begin + (1 << 28)].cpu().numpy().data)
        self.mapped: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, "r")

    def lists(self, expert: int, how: str) -> Any:
        """The file's experts, as `how` says: mapped, read, direct, pinned."""
        import strata

        count = len(self.mapped) // expert
        third = expert // 3
        if how == "mapped":
            rows = self.mapped[: count * expert].reshape(count * 3, third)
            experts = [tuple(rows[3 * k : 3 * k + 3]) for k in range(count)]
            return strata.ExpertCopies.from_buffers(experts, pinned=False)
        if how == "pinned":
            block = strata.pinned_empty((count, expert), np.uint8)
            np.copyto(block.reshape(-1), self.mapped[: count * expert])
            return strata.ExpertCopies.from_stacked(block, pinned=True)
        segments = np.arange(3 * count)
        return strata.ExpertCopies(segments * third, np.full(3 * count, third), False,
                                   offsets=segments % 3 * third, entry_starts=np.arange(0, 3 * count + 1, 3),
                                   files=[strata.sources.File(self.path, direct=how == "direct")],
                                   file_index=np.zeros(3 * count, np.int64))

    def forget(self) -> None:
        """Ask the system to drop the file from the page cache."""
        os.sync()
        handle = os.open(self.path, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def _one_pass(streamer: Any, copies: Any, span: int, each: Callable[[int, Any], None] | None = None) -> float:
    import torch

    torch.cuda.synchronize()
    began = time.perf_counter()
    with streamer.begin(copies) as request:
        taken = 0
        while taken < len(copies):
            with request.acquire_span(min(span, len(copies) - taken)) as held:
                if each is not None:
                    each(taken, held.tensors()["bytes"])
                taken += len(held)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def _arm(source: Source, expert: int, how: str, workers: int | None, options: dict[str, Any], repeat: int,
         cold: bool) -> dict[str, Any]:
    from strata.integrations.torch import TorchStreamer

    torch, copies = source.torch, source.lists(expert, how)
    ring = 96 if expert < _LARGE else 48
    wrong = torch.zeros(1, dtype=torch.int64, device="cuda")

    def check(first: int, views: Any) -> None:
        begin = first * expert
        wrong.add_((views != source.resident[begin : begin + len(views) * expert].view(-1, expert)).sum())

    with TorchStreamer(expert, gpu_ring=ring, workers=workers, timing=True, **options) as streamer:
        span = min(32, ring // 2)
        _one_pass(streamer, copies, span, check)
        if cold:
            source.forget()
        seconds = [_one_pass(streamer, copies, span) for _ in range(1 if cold else repeat)]
        counted = streamer.counters.as_dict()
    taken = median(seconds)
    passes = len(seconds) + 1
    return {"expert": expert, "source": how, "cache": "cold" if cold else "warm", "workers": workers,
            "options": {name: str(value) for name, value in options.items()}, "seconds": taken,
            "gb_s": len(copies) * expert / taken / 1e9, "wrong_bytes": int(wrong),
            "seconds_a_pass": {name: value / passes for name, value in counted.items() if name.endswith("_s")}}


def _link(source: Source, nbytes: int = 2**30) -> float:
    torch = source.torch
    pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    room = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    rates = []
    for _ in range(8):
        torch.cuda.synchronize()
        began = time.perf_counter()
        room.copy_(pinned, non_blocking=True)
        torch.cuda.synchronize()
        rates.append(nbytes / (time.perf_counter() - began) / 1e9)
    return median(rates[2:])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; 0 where every byte is right and no arm failed, else 1; 2 where there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.files", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for files.json and files.md")
    parser.add_argument("--gigabytes", type=float, default=8, help="size of the file (default: 8)")
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 12])
    parser.add_argument("--repeat", type=int, default=3, help="counted passes of each arm (default: 3)")
    parser.add_argument("--folder", type=Path, help="where the file is made (default: a temporary folder)")
    parser.add_argument("--commit", help="commit to name in the result (default: the checkout's)")
    args = parser.parse_args(argv)
    return run_command(parser.prog, lambda: _run(args, list(sys.argv[1:] if argv is None else argv)))


def _run(args: argparse.Namespace, given: list[str]) -> int:
    needs("torch", "torch")
    import torch

    if not torch.cuda.is_available():
        return complain("python -m benchmarks.gpu.files", None, RuntimeError("torch sees no GPU"), BAD_INPUT)
    import strata

    strata.runtime.use("cuda" if torch.version.cuda else "rocm")
    args.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    head = {"command": "python -m benchmarks.gpu.files " + " ".join(given),
            "commit": machine.commit(args.commit), "machine": machine.describe(), "rows": rows}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        source = Source(Path(folder) / "experts", int(args.gigabytes * 1e9), torch)
        head["link_gb_s"] = _link(source)
        print(f"one large pinned copy: {head['link_gb_s']:.1f} GB/s", flush=True)
        for expert, how, workers, options, cold in _arms(args.workers):
            try:
                row = _arm(source, expert, how, workers, options, args.repeat, cold)
                print(f"{expert:9,} {how:7s} {row['cache']} workers {workers} {row['options']}: "
                      f"{row['gb_s']:.1f} GB/s, {row['gb_s'] / head['link_gb_s']:.3f}, {row['wrong_bytes']} wrong",
                      flush=True)
            except Exception as problem:
                traceback.print_exc()
                row = {"expert": expert, "source": how, "cache": "cold" if cold else "warm", "workers": workers,
                       "options": {name: str(value) for name, value in options.items()},
                       "failed": f"{type(problem).__name__}: {problem}"}
            rows.append(row)
    write_json(args.out / "files.json", head)
    write_whole(args.out / "files.md", _markdown(head))
    return int(any(row.get("wrong_bytes", 1) for row in rows))


def _arms(workers: Sequence[int]) -> list[tuple[int, str, int | None, dict[str, Any], bool]]:
    import strata

    batch = strata.BatchSettings
    arms: list[tuple[int, str, int | None, dict[str, Any], bool]] = []
    for expert in _SIZES:
        large = expert >= _LARGE
        chosen: dict[str, Any] = ({"host_ring": 16, "settings": batch(8, 4, 4)} if large else
                                  {"host_ring": 64, "settings": batch(32, 16, 16), "submission": "group"})
        arms.append((expert, "pinned", None, {}, False))
        for how in ("mapped", "read"):
            arms.append((expert, how, None, {}, False))
            for count in workers:
                arms.append((expert, how, count, {}, False))
                arms.append((expert, how, count, chosen, False))
    arms += [(_SIZES[0], how, max(workers), {}, True) for how in ("mapped", "read")]
    arms.append((_SIZES[0], "direct", max(workers), {}, False))
    return arms


def _markdown(head: dict[str, Any]) -> str:
    lines = ["# Experts from a file", "",
             f"`{head['command']}`, commit {head['commit']}. {head['machine']['device']}, torch "
             f"{head['machine']['versions']['torch']}. One large pinned copy: {head['link_gb_s']:.1f} GB/s. "
             "Medians.", "",
             "| bytes of an expert | source | page cache | workers | options | GB/s | of one large copy | wrong bytes "
             "|",
             "|---|---|---|---|---|---|---|---|"]
    for row in head["rows"]:
        options = ", ".join(f"{name} {value}" for name, value in row["options"].items()) or "defaults"
        start = (f"| {row['expert']:,} | {row['source']} | {row['cache']} | {row['workers'] or 'default'} | {options} "
                 "| ")
        lines.append(start + (f"failed: {row['failed']} | | |" if "failed" in row else
                              f"{row['gb_s']:.1f} | {row['gb_s'] / head['link_gb_s']:.3f} | {row['wrong_bytes']} |"))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
