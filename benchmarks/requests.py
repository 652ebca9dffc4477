"""What a request costs: an empty one, and one a layer against one for all layers."""

from __future__ import annotations

import sys

import numpy as np

import strata
from benchmarks.measuring import Row, command, median_ns, null_runtime, show
from strata.runtime.software import control

LAYERS, EXPERTS = 48, 40
NBYTES = 1_382_400
EMPTY = 1000


def stream(streamer: strata.ExpertStreamer, lists: list[strata.ExpertCopies]) -> None:
    """One request a list."""
    for copies in lists:
        with streamer.begin(copies) as request:
            for _ in request:
                pass


def empty(streamer: strata.ExpertStreamer) -> None:
    """Many requests of nothing."""
    for _ in range(EMPTY):
        streamer.begin().finish()


def by_layers(nbytes: int, distinct: int) -> tuple[float, float]:
    """Nanoseconds of 48 requests of 40 entries, and of one of 1,920."""
    weights = strata.pinned_empty((distinct, nbytes), np.uint8)
    weights[:] = 1
    experts = strata.ExpertCopies.from_buffers(list(weights), pinned=True)
    whole = experts.take(np.arange(LAYERS * EXPERTS) % distinct)
    layers = [whole.take(np.arange(k * EXPERTS, (k + 1) * EXPERTS)) for k in range(LAYERS)]
    with strata.ExpertStreamer(nbytes, gpu_ring=96, settings=strata.BatchSettings(8, 16, 16), timing=False) as s:
        return median_ns(lambda: stream(s, layers)), median_ns(lambda: stream(s, [whole]))


def main() -> None:
    """Measure and print."""
    null_runtime()
    rows: list[Row] = []
    with strata.ExpertStreamer(64, gpu_ring=96, timing=False) as streamer:
        took = median_ns(lambda: empty(streamer)) / EMPTY / 1000
    rows.append(("begin and finish of an empty request, null schedule", f"{took:.1f} us", "50 us", took <= 50))
    layers, whole = by_layers(64, 96)
    rows.append(("48 requests of 40 / one of 1,920, null schedule", f"{layers / whole:.2f}", "", None))
    control.configure(schedule="eager")
    layers, whole = by_layers(NBYTES, 256)
    ratio = layers / whole
    rows.append((f"48 requests of 40 / one of 1,920, {NBYTES:,} bytes each", f"{ratio:.3f}", "1.100", ratio <= 1.1))
    rows.append(("one request of 1,920", f"{whole / 1e6:.0f} ms", "", None))
    show("requests", rows)


if __name__ == "__main__":
    sys.exit(command("benchmarks.requests", __doc__, main))
