"""The example engine's choice of a walk against both walks, at prompts of 1 to 4,205 tokens, in simulated time.

The lists are the reference request's: 512 experts a layer, 10 of them a token, 96 slots, every tenth layer of 48, all
experts absent. A copy, a layer's mixers and a grouped product take their time in the software runtime's streams; each
token takes any 10 experts alike.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import numpy.typing as npt

import strata
from benchmarks.measuring import Row, command, show
from examples.prefill_engine.walks import chosen_walk, expected_routed_share
from strata import _hip
from strata.runtime.software import control

LAYERS, EXPERTS, TOP_K, RING, SPAN = 5, 512, 10, 96, 32
LENGTHS = (1, 8, 16, 32, 48, 64, 128, 256, 1024, 4205)
NBYTES = 1024  # of an entry; its time is that of 1,382,400 bytes at 27 GB/s
COPY_NS = 50_000
MIXERS_NS = 1_000_000
TOKEN_NS = 2_000
PRODUCT_NS = 200_000
SHORT_BELOW = 64
PASSES = 9


def serve(streamer: strata.ExpertStreamer, copies: strata.ExpertCopies, routed: npt.NDArray[np.bool_], walk: str,
          tokens: int) -> float:
    """Seconds of one prompt: *all*, *routed*, or *listed*, which is *all* without drops."""
    stream = streamer.compute_stream
    ahead = walk != "routed"
    began = time.perf_counter()
    with streamer.begin(copies if ahead else None, long_prefill=tokens >= SHORT_BELOW) as request:
        for layer in range(LAYERS):
            control.delay(stream, MIXERS_NS + tokens * TOKEN_NS)
            _hip.synchronize_stream(stream)  # the host reads the routing
            first = layer * EXPERTS
            wanted = np.flatnonzero(routed[layer])
            if not ahead:
                request.extend(copies.take(first + wanted))
            elif walk == "all":
                request.drop(first + np.flatnonzero(~routed[layer]))
            left = EXPERTS if ahead else len(wanted)
            while left:
                with request.acquire_span(min(SPAN, left)) as span:
                    left -= len(span)
                    if not ahead or routed[layer, span.begin - first:span.end - first].any():
                        control.delay(stream, PRODUCT_NS)
    _hip.synchronize_stream(stream)
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    strata.runtime.use("software")
    control.configure(schedule="timed")
    pool = strata.pinned_empty((EXPERTS, NBYTES), np.uint8)
    copies = strata.ExpertCopies.from_buffers(list(pool), pinned=True).take(np.tile(np.arange(EXPERTS), LAYERS))
    rng = np.random.default_rng(0)
    rows: list[Row] = []
    with strata.ExpertStreamer(
        NBYTES, gpu_ring=RING, settings=strata.BatchSettings(8, 16, 16), submission="group", timing=False
    ) as streamer:
        control.cost("copy", stream_ns=COPY_NS)
        try:
            for tokens in LENGTHS:
                share = expected_routed_share(tokens, TOP_K, EXPERTS)
                routed = rng.random((LAYERS, EXPERTS)) < share
                chosen = chosen_walk(tokens, TOP_K, EXPERTS) if tokens >= SHORT_BELOW else "routed"
                samples: dict[str, list[float]] = {walk: [] for walk in ("listed", "all", "routed")}
                for _ in range(PASSES):
                    for walk, took in samples.items():
                        took.append(serve(streamer, copies, routed, walk, tokens))
                took_ms = {walk: 1e3 * statistics.median(took) for walk, took in samples.items()}
                better = min(("listed", "routed"), key=took_ms.__getitem__)
                ratio = statistics.median(mine / other for mine, other in zip(
                    samples[chosen], samples[better], strict=True))
                shown = ", ".join(f"{walk} {ms:.1f}" for walk, ms in took_ms.items())
                rows.append((f"{tokens:,} tokens, expected share {share:.3f}: {chosen} ({shown} ms)", f"{ratio:.3f} x",
                             f"1.05 x {better}", ratio <= 1.05))
        finally:
            control.clear_costs()
    show(f"The chosen walk against the better of both without drops, the median of {PASSES} turns", rows)


if __name__ == "__main__":
    raise SystemExit(command(__spec__.name, __doc__, main))
