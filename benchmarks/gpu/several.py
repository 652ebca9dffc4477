"""Several GPUs, one process each, against one: ``python -m benchmarks.gpu.several --gpus 2``.

Every process has the experts of `benchmarks.gpu.spans` in pinned memory of its own, and prefills over spans of 32. The
first one does so alone, and then all do at once.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from strata.tools.cli.arguments import positive
from strata.tools.command import BAD_INPUT, complain, needs, run_command

__all__ = ["main"]

_PROG = "python -m benchmarks.gpu.several"
_PATIENCE_S = 300


def _process(index: int, device: str, layers: int, passes: int, together: Any, results: Any) -> None:
    """One GPU's process; puts (index, seconds alone or None, seconds beside the others)."""
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["HIP_VISIBLE_DEVICES"] = device
    import torch

    import strata
    from benchmarks.gpu.spans import Model, Shape, stream
    from strata.integrations.torch import pin

    strata.runtime.use("cuda" if torch.version.cuda else "rocm")
    model = Model(Shape(layers=layers), torch)
    took: list[float | None] = []
    with pin([model.gate_up, model.down]), stream(
            model, span=32, pinned_share=1, settings=strata.BatchSettings(32, 8, 8),
            submission="group") as prefill, torch.inference_mode():
        prefill()
        for alone in (True, False):
            together.wait(_PATIENCE_S)
            if alone and index:
                took.append(None)
                continue
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(passes):
                prefill()
            torch.cuda.synchronize()
            took.append(time.perf_counter() - began)
    results.put((index, *took))


def _guarded(index: int, device: str, layers: int, passes: int, together: Any, results: Any) -> None:
    """`_process`; where it fails, nobody waits for it any longer."""
    try:
        _process(index, device, layers, passes, together, results)
    except BaseException:
        together.abort()
        raise


def _devices(count: int) -> list[str]:
    """What names the GPUs that torch sees: where the caller chose some of the machine's, these."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("HIP_VISIBLE_DEVICES")
    return chosen.split(",")[:count] if chosen else [str(index) for index in range(count)]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 2 where there are fewer GPUs than asked for."""
    parser = argparse.ArgumentParser(prog=_PROG, description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=positive, default=2, help="how many (default: 2)")
    parser.add_argument("--layers", type=positive, default=6, help="layers of 512 experts, 0.7 GB each (default: 6)")
    parser.add_argument("--passes", type=positive, default=10, help="prefills that are timed (default: 10)")
    args = parser.parse_args(argv)
    return run_command(_PROG, lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    needs("torch", "torch")
    import torch

    from benchmarks.gpu.spans import Shape

    there = torch.cuda.device_count()
    if args.gpus > there:
        return complain(_PROG, None, RuntimeError(f"--gpus is {args.gpus}; torch sees {there}"), BAD_INPUT)
    context = multiprocessing.get_context("spawn")
    together, results = context.Barrier(args.gpus), context.Queue()
    processes = [context.Process(target=_guarded, args=(k, device, args.layers, args.passes, together, results))
                 for k, device in enumerate(_devices(args.gpus))]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    failed = [process.exitcode for process in processes if process.exitcode]
    if failed:
        return complain(_PROG, None, RuntimeError(f"a process failed (exit status {failed[0]})"), 1)
    rows = sorted(results.get() for _ in processes)
    nbytes = args.passes * Shape(layers=args.layers).nbytes
    alone, beside = rows[0][1], max(row[2] for row in rows)
    print(f"one GPU: {nbytes / alone / 1e9:.1f} GB/s; {args.gpus} GPUs at once: "
          f"{args.gpus * nbytes / beside / 1e9:.1f} GB/s, {args.gpus * alone / beside:.2f} times one")
    return 0


if __name__ == "__main__":
    sys.exit(main())
