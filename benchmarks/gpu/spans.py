"""Spans of experts, each multiplied by one grouped matrix product: ``python -m benchmarks.gpu.spans --out DIR``.

A prefill of small experts (a shape near the reference's) whose weights come from host memory, by strata and by what one
would write in torch. Every arm computes with the same kernels, and all outputs are compared bit by bit.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.gpu import machine
from strata.tools.command import BAD_INPUT, complain, needs, run_command
from strata.tools.files import write_json, write_whole

__all__ = ["Bench", "Model", "Shape", "main", "stream"]

_MAX_SPAN = 32


@dataclass(frozen=True)
class Shape:
    """Sizes of the model: the defaults give experts of 1,382,400 bytes in bfloat16."""

    layers: int = 12
    experts: int = 512
    hidden: int = 1440
    width: int = 160
    top_k: int = 10
    tokens: int = 4205

    @property
    def expert_bytes(self) -> int:
        return 3 * self.hidden * self.width * 2

    @property
    def nbytes(self) -> int:
        return self.layers * self.experts * self.expert_bytes


class Model:
    """Router, grouped experts, residual, norm; weights of the experts come from a function."""

    def __init__(self, shape: Shape, torch: Any) -> None:
        self.shape, self.torch = shape, torch
        generator = torch.Generator("cuda").manual_seed(7)

        def made(*sizes: int, scale: float) -> Any:
            return (torch.randn(*sizes, device="cuda", generator=generator) * scale).bfloat16()

        s = shape
        self.gate_up = torch.empty(s.layers, s.experts, 2 * s.width, s.hidden, dtype=torch.bfloat16)
        self.down = torch.empty(s.layers, s.experts, s.hidden, s.width, dtype=torch.bfloat16)
        for layer in range(s.layers):
            self.gate_up[layer] = made(s.experts, 2 * s.width, s.hidden, scale=0.03).cpu()
            self.down[layer] = made(s.experts, s.hidden, s.width, scale=0.05).cpu()
        self.router = [made(s.experts, s.hidden, scale=0.05) for _ in range(s.layers)]
        self.input = made(s.tokens, s.hidden, scale=1.0)
        self.grouped = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm

    def run(self, spans: Callable[[int], Iterator[tuple[int, int, Any, Any]]]) -> Any:
        """The hidden states after all layers. `spans(layer)` gives first expert, number, and two weights at a time."""
        torch, s, nn = self.torch, self.shape, self.torch.nn.functional
        hidden = self.input
        for layer in range(s.layers):
            share = nn.softmax(nn.linear(hidden, self.router[layer]).float(), -1)
            weight, chosen = share.topk(s.top_k, -1)
            weight = (weight / weight.sum(-1, keepdim=True)).to(hidden.dtype)
            order = chosen.flatten().argsort(stable=True)
            count = torch.bincount(chosen.flatten(), minlength=s.experts)
            rows = hidden[order // s.top_k]
            upto = count.cumsum(0).to(torch.int32)
            ends = [0, *upto.tolist()]  # the layer's one host synchronization
            out = torch.empty(s.tokens * s.top_k, s.hidden, dtype=hidden.dtype, device="cuda")
            for first, number, gate_up, down in spans(layer):
                begin, end = ends[first], ends[first + number]
                if begin == end:
                    continue
                offsets = upto[first : first + number] - begin
                gate, up = self.grouped(rows[begin:end], gate_up.transpose(-2, -1), offs=offsets).chunk(2, -1)
                made = self.grouped(nn.silu(gate) * up, down.transpose(-2, -1), offs=offsets)
                out[order[begin:end]] = made  # each row once: no sum here depends on an order
            mixed = (out.view(s.tokens, s.top_k, s.hidden) * weight[..., None]).sum(1)
            hidden = nn.rms_norm(hidden + mixed, (s.hidden,))
        return hidden


class Bench:
    """Arms over one model; prints and keeps what each came to."""

    def __init__(self, model: Model, repeat: int) -> None:
        self.model, self.repeat = model, repeat
        self.rows: list[dict[str, Any]] = []
        self.outputs: dict[str, Any] = {}
        self.failed: dict[str, str] = {}

    def time(self, name: str, work: Callable[[], Any], nbytes: int | None = None, tokens: bool = True) -> float:
        """Run one arm; the median is over all but its first pass."""
        torch, shape = self.model.torch, self.model.shape
        nbytes = shape.nbytes if nbytes is None else nbytes
        seconds = []
        for _ in range(self.repeat + 1):
            torch.cuda.synchronize()
            began = time.perf_counter()
            with torch.inference_mode():
                made = work()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        taken = median(seconds[1:])
        row = {"arm": name, "first_s": seconds[0], "median_s": taken, "gb_s": nbytes / taken / 1e9}
        if tokens:
            row["tokens_s"] = shape.tokens / taken
            self.outputs[name] = made
        self.rows.append(row)
        print(f"{name:52s} {taken:7.3f} s {row['gb_s']:6.1f} GB/s"
              + (f" {row['tokens_s']:8.0f} tokens/s" if tokens else ""), flush=True)
        return taken


def _goes_on(arm: Callable[..., None]) -> Callable[..., None]:
    """An arm that fails is printed and kept as such; the others still run."""
    @functools.wraps(arm)
    def guarded(bench: Bench, name: str = "64 KiB", **options: Any) -> None:
        try:
            arm(bench, name, **options)
        except Exception as problem:
            traceback.print_exc()
            bench.failed[name] = f"{type(problem).__name__}: {problem}"
    return guarded


@contextmanager
def stream(model: Model, *, span: int, pinned_share: float, copies_only: bool = False, ring: int = 96,
           **options: Any) -> Iterator[Callable[[], Any]]:
    """A function that prefills once: spans of at most `span` slots, experts below `pinned_share` of a layer pinned."""
    import strata
    from strata.integrations.torch import TorchStreamer

    s = model.shape
    layout = strata.SlotLayout({"gate_up": ("bfloat16", (2 * s.width, s.hidden)),
                                "down": ("bfloat16", (s.hidden, s.width))})
    pinned = np.arange(s.experts) < pinned_share * s.experts
    lists = [strata.ExpertCopies.from_stacked(model.gate_up[layer], model.down[layer], layout=layout, pinned=pinned)
             for layer in range(s.layers)]
    with TorchStreamer(layout, gpu_ring=ring, **options) as streamer:
        def work() -> Any:
            with streamer.begin() as request:
                for copies in lists:
                    request.extend(copies)

                def spans(layer: int) -> Iterator[tuple[int, int, Any, Any]]:
                    taken = 0
                    while taken < s.experts:
                        with request.acquire_span(min(span, s.experts - taken)) as held:
                            views = held.tensors()
                            yield taken, len(held), views["gate_up"], views["down"]
                            taken += len(held)

                if copies_only:
                    for layer in range(s.layers):
                        for _ in spans(layer):
                            pass
                    return None
                return model.run(spans)

        yield work


@_goes_on
def _strata(bench: Bench, name: str, **options: Any) -> None:
    """strata's arms; `options` as `stream`."""
    with stream(bench.model, **options) as work:
        bench.time(name, work, tokens=not options.get("copies_only", False))


@_goes_on
def _double_buffer(bench: Bench, name: str) -> None:
    """Two layers of slots, one copy a tensor and layer: what one writes in torch by hand."""
    torch, model, s = bench.model.torch, bench.model, bench.model.shape
    copy = torch.cuda.Stream()
    rooms = [(torch.empty_like(model.gate_up[0], device="cuda"), torch.empty_like(model.down[0], device="cuda"))
             for _ in range(2)]

    def work() -> Any:
        compute = torch.cuda.current_stream()
        ready = [torch.cuda.Event() for _ in range(s.layers)]
        used = [torch.cuda.Event() for _ in range(s.layers)]
        copy.wait_stream(compute)

        def load(layer: int) -> None:
            with torch.cuda.stream(copy):
                if layer >= 2:
                    copy.wait_event(used[layer - 2])
                for room, source in zip(rooms[layer % 2], (model.gate_up[layer], model.down[layer]), strict=True):
                    room.copy_(source, non_blocking=True)
                ready[layer].record(copy)

        def spans(layer: int) -> Iterator[tuple[int, int, Any, Any]]:
            compute.wait_event(ready[layer])
            for first in range(0, s.experts, _MAX_SPAN):
                end = min(first + _MAX_SPAN, s.experts)
                yield first, end - first, rooms[layer % 2][0][first:end], rooms[layer % 2][1][first:end]
            used[layer].record(compute)
            if layer + 2 < s.layers:
                load(layer + 2)

        load(0)
        load(1)
        return model.run(spans)

    bench.time(name, work)


def _link(bench: Bench) -> None:
    """One large copy from pinned memory."""
    torch, model = bench.model.torch, bench.model
    room = torch.empty(model.gate_up[0].numel(), dtype=torch.bfloat16, device="cuda")
    source = model.gate_up[0].view(-1)
    bench.time("one large pinned copy", lambda: [room.copy_(source, non_blocking=True) for _ in range(8)],
               8 * room.numel() * 2, tokens=False)


@_goes_on
def _small_experts(bench: Bench, name: str, nbytes: int = 65536, experts: int = 32768) -> None:
    """64 KiB experts that lie back to back, all of them or 32 at a time: neighbours in one copy, copies alone."""
    import strata

    source = strata.pinned_empty((experts, nbytes), np.uint8)
    source[:] = 1
    whole = strata.ExpertCopies.from_stacked(source)
    runs = np.random.default_rng(1).permutation(experts // 32) * 32
    apart = strata.ExpertCopies.concatenate(strata.ExpertCopies.from_stacked(source[k : k + 32]) for k in runs)
    arms = (("single, 1/1/1", whole, "single", 1, 256), ("group, 32", whole, "group", 32, 256),
            ("coalesced, 32 neighbours, groups of 32", apart, "coalesced", 32, 256),
            ("coalesced, 32 neighbours, groups of 64", apart, "coalesced", 64, 256),
            ("coalesced, 32 neighbours, groups of 256", apart, "coalesced", 256, 1024),
            ("coalesced, 256 neighbours", whole, "coalesced", 256, 1024),
            ("coalesced, the ring's half", whole, "coalesced", 512, 1024))
    for arm, copies, submission, batch, ring in arms:
        settings = strata.BatchSettings(batch, 1, 1)
        with strata.ExpertStreamer(nbytes, gpu_ring=ring, settings=settings, submission=submission) as streamer:
            def work(streamer: Any = streamer, copies: Any = copies, batch: int = batch) -> None:
                with streamer.begin(copies) as request:
                    for _ in request.spans(max(32, batch)):
                        pass

            bench.time(f"{name}, {arm}", work, experts * nbytes, tokens=False)


def _copies_of_32(bench: Bench, nbytes: int = 32 * 65536) -> None:
    """A bare loop of copies of 2 MiB each: what a copy of 32 neighbours comes to without strata."""
    torch, model = bench.model.torch, bench.model
    source = model.gate_up[0].view(torch.uint8).view(-1)
    room = torch.empty_like(source, device="cuda")
    places = range(0, source.numel() - nbytes, nbytes)
    bench.time("64 KiB, bare loop of copies of 32 neighbours",
               lambda: [room[k : k + nbytes].copy_(source[k : k + nbytes], non_blocking=True)
                        for _ in range(8) for k in places], 8 * len(places) * nbytes, tokens=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; 0 where every output is the same and no arm failed, else 1; 2 where there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.spans", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for spans.json and spans.md")
    parser.add_argument("--layers", type=int, default=12, help="layers of 512 experts, 0.7 GB each (default: 12)")
    parser.add_argument("--repeat", type=int, default=3, help="counted passes of each arm (default: 3)")
    parser.add_argument("--commit", help="commit to name in the result (default: the checkout's)")
    args = parser.parse_args(argv)
    return run_command(parser.prog, lambda: _run(args, list(sys.argv[1:] if argv is None else argv)))


def _run(args: argparse.Namespace, given: list[str]) -> int:
    needs("torch", "torch")
    import torch

    if not torch.cuda.is_available():
        return complain("python -m benchmarks.gpu.spans", None, RuntimeError("torch sees no GPU"), BAD_INPUT)
    import strata
    from strata.integrations.torch import pin

    strata.runtime.use("cuda" if torch.version.cuda else "rocm")
    args.out.mkdir(parents=True, exist_ok=True)
    model = Model(Shape(layers=args.layers), torch)
    bench = Bench(model, args.repeat)
    print(f"# {model.shape.layers} layers of {model.shape.experts} experts of {model.shape.expert_bytes:,} bytes, "
          f"{model.shape.nbytes / 1e9:.1f} GB", flush=True)
    batch = strata.BatchSettings
    with ExitStack() as pins:
        pins.enter_context(pin([model.gate_up, model.down]))
        _link(bench)
        _strata(bench, "copies alone, pinned, group", span=32, pinned_share=1, copies_only=True, ring=128,
                settings=batch(32, 8, 8), submission="group")
        _strata(bench, "copies alone, pinned, single", span=32, pinned_share=1, copies_only=True)
        _strata(bench, "one expert at a time, 1/1/1", span=1, pinned_share=1)
        _strata(bench, "spans of 32, single, 96 slots", span=32, pinned_share=1)
        _strata(bench, "spans of 32, group of 16, 96 slots", span=32, pinned_share=1, settings=batch(16, 8, 8),
                submission="group")
        _strata(bench, "spans of 32, group of 32, 96 slots", span=32, pinned_share=1, settings=batch(32, 8, 8),
                submission="group")
        _strata(bench, "spans of 32, group of 32, 128 slots", span=32, pinned_share=1, ring=128,
                settings=batch(32, 8, 8), submission="group")
        _strata(bench, "spans of 32, coalesced by 32, 96 slots", span=32, pinned_share=1, settings=batch(32, 8, 8),
                submission="coalesced")
        _strata(bench, "spans of 32, group, shared dependencies, 96 slots", span=32, pinned_share=1,
                settings=batch(32, 8, 8), submission="group", share_dependencies=True)
        _double_buffer(bench, "double buffer of layers, 1,024 slots, pinned")
        for ring, size in ((32, 8), (64, 8), (64, 16)):
            for copies_only in (True, False):
                what = "copies alone" if copies_only else "spans of 32"
                _strata(bench, f"{what}, mixed 71 % pinned, group, host ring {ring}, batch {size}", span=32,
                        pinned_share=0.71, copies_only=copies_only, settings=batch(32, size, size), submission="group",
                        host_ring=ring, workers=8)
                _strata(bench, f"{what}, pageable, group, host ring {ring}, batch {size}", span=32, pinned_share=0,
                        copies_only=copies_only, settings=batch(32, size, size), submission="group", host_ring=ring,
                        workers=8)
        _strata(bench, "spans of 32, pageable, what nobody chose", span=32, pinned_share=0)
        _small_experts(bench)
        _copies_of_32(bench)
    _double_buffer(bench, "double buffer of layers, pageable")
    reference = next(iter(bench.outputs.values()))
    for row in bench.rows:
        made = bench.outputs.get(row["arm"])
        row["equal"] = None if made is None else bool(torch.equal(made, reference))
    head = {"command": "python -m benchmarks.gpu.spans " + " ".join(given),
            "commit": machine.commit(args.commit), "machine": machine.describe(), "rows": bench.rows,
            "failed": bench.failed}
    write_json(args.out / "spans.json", head)
    write_whole(args.out / "spans.md", _markdown(head, model.shape))
    wrong = [row["arm"] for row in bench.rows if row["equal"] is False]
    print("all outputs are equal" if not wrong else f"outputs differ: {wrong}")
    return int(bool(wrong or bench.failed))


def _markdown(head: dict[str, Any], shape: Shape) -> str:
    link = next(row["gb_s"] for row in head["rows"] if row["arm"] == "one large pinned copy")
    lines = ["# Spans of experts on a GPU", "",
             f"`{head['command']}`, commit {head['commit']}. {head['machine']['device']}, torch "
             f"{head['machine']['versions']['torch']}. {shape.layers} layers of {shape.experts} experts of "
             f"{shape.expert_bytes:,} bytes, {shape.tokens} tokens, top {shape.top_k}. Medians.", "",
             "| arm | s | GB/s | of one large copy | tokens/s | equal bits |", "|---|---|---|---|---|---|"]
    for row in head["rows"]:
        equal = {None: "", True: "yes", False: "NO"}[row["equal"]]
        tokens = f"{row['tokens_s']:,.0f}" if "tokens_s" in row else ""
        lines.append(f"| {row['arm']} | {row['median_s']:.3f} | {row['gb_s']:.1f} | {row['gb_s'] / link:.3f} | "
                     f"{tokens} | {equal} |")
    lines += [f"| {name} | failed: {why} | | | | |" for name, why in head["failed"].items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
