"""The example engine against the copies of its own list alone: ``python -m benchmarks.gpu.engine --out DIR``.

One process loads the experts once; then, for several settings and lengths of prompt, both walks are prefilled, and the
list of the walk *all* is streamed with no kernel beside it. A drop is too late where the entry lies in the ring
already.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.gpu import machine
from strata.tools.files import write_json, write_whole

__all__ = ["main"]


def _copies_alone(engine: Any, span: int) -> tuple[float, int]:
    """Seconds and bytes of the walk *all* without kernels."""
    from examples.prefill_engine.walks import AllExperts

    engine.backend.synchronize()
    began = time.perf_counter()
    walk = AllExperts(engine._streamer, engine.cache, engine._sources)
    with walk.request as request:
        for layer in range(engine.model.layers):
            left = len(walk.entries(layer, np.ones(engine.model.experts, bool)))
            while left:
                with request.acquire_span(min(span, left)) as held:
                    left -= len(held)
    engine.backend.synchronize()
    taken = time.perf_counter() - began
    counted = request.counters
    return taken, int(counted.direct_bytes + counted.staged_bytes)


def _measure(checkpoint: Any, sources: Any, run: Any, settings: Any, lengths: Sequence[int],
             repeat: int) -> dict[str, Any]:
    from examples.prefill_engine.arm import sample
    from examples.prefill_engine.engine import Engine, prompt
    from examples.prefill_engine.walks import chosen_walk

    row: dict[str, Any] = {"settings": str(settings), "gpu_ring": run.gpu_ring, "host_ring": run.host_ring,
                           "workers": run.workers, "prompts": []}
    for length in lengths:
        sized = replace(run, tokens=length, chunk=length)
        with Engine(checkpoint, sized, settings, sources=sources) as engine:
            ids = prompt(checkpoint.model, length)
            if "copies_alone_s" not in row:
                alone = [_copies_alone(engine, engine.span) for _ in range(repeat + 1)]
                row["copies_alone_s"], row["bytes"] = median(taken for taken, _ in alone[1:]), alone[0][1]
                rate = row["bytes"] / row["copies_alone_s"] / 1e9
                print(f"{settings} ring {run.gpu_ring} host ring {run.host_ring}: copies alone "
                      f"{row['copies_alone_s']:.3f} s, {rate:.1f} GB/s", flush=True)
            # A prompt below `short_below` takes the short path, whatever walk is named.
            for walk in ("all", "routed") if length >= run.short_below else ("auto",):
                prints, samples = set(), []
                for number in range(repeat + 1):
                    gc.collect()
                    outcome = engine.prefill(ids, walk)
                    prints.add(outcome.fingerprint())
                    if number:
                        samples.append(sample(outcome))
                wall = median(each["run_wall_ms"] for each in samples) / 1e3
                done = median(each["done_prefill_ms"] for each in samples) / 1e3
                counted = outcome.counters
                got = {"tokens": length, "walk": walk, "run_wall_s": wall, "prefill_s": done, "results": len(prints),
                       "fingerprint": sorted(prints)[0], "stall": samples[-1]["stall"],
                       "copied": counted.direct_copies + counted.staged_copies,
                       "dropped": counted.dropped, "dropped_late": counted.dropped_late,
                       "chosen": walk in ("auto", chosen_walk(length, engine.model.top_k, engine.model.experts))}
                row["prompts"].append(got)
                print(f"  {length:5d} tokens, {walk:6s}: {wall:.3f} s ({length / wall:,.0f} tokens/s), copies alone / "
                      f"this {row['copies_alone_s'] / wall:.3f}, {len(prints)} result(s)", flush=True)
    return row


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; 0 where identical requests gave one result and no arm failed, else 1."""
    import strata
    from examples.prefill_engine.checkpoint import open_checkpoint
    from examples.prefill_engine.config import config_from
    from examples.prefill_engine.host_experts import HostExperts

    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.engine", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for engine.json and engine.md")
    parser.add_argument("--shape", default="reference")
    parser.add_argument("--checkpoint", type=Path, help="as of examples.prefill_engine")
    parser.add_argument("--tokens", type=int, nargs="+", help="further lengths of prompts, with the first two arms")
    parser.add_argument("--repeat", type=int, default=2, help="counted passes (default: 2)")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no further arm begins")
    parser.add_argument("--commit", help="commit to name in the result (default: the checkout's)")
    args = parser.parse_args(argv)
    began = time.perf_counter()
    args.out.mkdir(parents=True, exist_ok=True)
    strata.runtime.ensure()
    model, run = config_from(args.shape)
    checkpoint = open_checkpoint(model, args.checkpoint, say=lambda text: None)
    opened = time.perf_counter()
    sources = HostExperts(checkpoint, run.pinned_share)
    print(f"checkpoint {opened - began:.0f} s, experts loaded {time.perf_counter() - opened:.0f} s", flush=True)
    resident, batch = run.cache_slots - run.gpu_ring, strata.BatchSettings
    roomy, narrow = replace(run, host_ring=64), min(96, run.gpu_ring)
    lengths = [run.tokens, *(args.tokens or [])]
    arms = [
        (batch(8, 16, 16), roomy, lengths),
        (batch(8, 16, 16), replace(roomy, gpu_ring=narrow, cache_slots=resident + narrow), lengths),
        (batch(8, 16, 16), run, [run.tokens]),
        (batch(1, 1, 1), roomy, [run.tokens]),
    ]
    rows: list[dict[str, Any]] = []
    failed = []
    for settings, sized, lengths in arms:
        if time.perf_counter() - began > args.budget:
            failed.append(f"{settings} was not begun: the budget of {args.budget:g} s was spent")
            continue
        try:
            rows.append(_measure(checkpoint, sources, sized, settings, lengths, args.repeat))
        except Exception as problem:
            traceback.print_exc()
            failed.append(f"{settings}: {type(problem).__name__}: {problem}")
        head = {"command": "python -m benchmarks.gpu.engine " + " ".join(argv or sys.argv[1:]), "shape": args.shape,
                "commit": machine.commit(args.commit), "machine": machine.describe(), "rows": rows, "failed": failed}
        write_json(args.out / "engine.json", head)
        write_whole(args.out / "engine.md", _markdown(head))
    return int(bool(failed) or any(got["results"] != 1 for row in rows for got in row["prompts"]))


def _markdown(head: dict[str, Any]) -> str:
    lines = ["# The example engine against the copies of its list alone", "",
             f"`{head['command']}`, commit {head['commit']}. {head['machine']['device']}, torch "
             f"{head['machine']['versions']['torch']}. Shape `{head['shape']}`. Medians.", "",
             "| settings | GPU ring | host ring | copies alone, s (GB/s) | tokens | walk | run wall, s | of the better "
             "walk | tokens/s | copies alone / run wall | copied | dropped in time | too late |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in head["rows"]:
        alone = row["copies_alone_s"]
        best: dict[int, float] = {}
        for got in row["prompts"]:
            best[got["tokens"]] = min(got["run_wall_s"], best.get(got["tokens"], got["run_wall_s"]))
        settings = row["settings"].partition("(")[2].rstrip(")")
        lines += [f"| {settings} | {row['gpu_ring']} | {row['host_ring']} | {alone:.3f} "
                  f"({row['bytes'] / alone / 1e9:.1f}) | {got['tokens']} | {got['walk']}"
                  f"{' (chosen)' if got['chosen'] else ''} | {got['run_wall_s']:.3f} | "
                  f"{got['run_wall_s'] / best[got['tokens']]:.2f} | {got['tokens'] / got['run_wall_s']:,.0f} | "
                  f"{alone / got['run_wall_s']:.3f} | {got['copied']} | {got['dropped']} | {got['dropped_late']} |"
                  for got in row["prompts"]]
    lines += ["", *head["failed"]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
