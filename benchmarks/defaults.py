"""What strata chooses where nobody does, against one dependency an entry, on a link of the software runtime."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import strata
from benchmarks.measuring import Row, command, show
from strata import _hip
from strata.runtime.software import control

# A link that this machine's workers can feed, and what calls took on the H200 (results/h200), in nanoseconds.
GB_S = 1.0
CALL_NS = 2_000
PASSES = 7
PASS_BYTES = 160 << 20
EIGHT = strata.BatchSettings(8, 16, 16)
SINGLE = {"settings": strata.BatchSettings(), "submission": "single", "host_ring": 16, "workers": 1}
ARMS: dict[str, dict[str, Any]] = {
    "1/1/1": SINGLE,
    "1/1/1 again": SINGLE,
    "no setting": {},
    "8/16/16": {"settings": EIGHT},
    "8/16/16 over 16": {"settings": EIGHT, "host_ring": 16},
}
SIZES = (64 << 10, 1_382_400, 9_437_184)


def lists(nbytes: int) -> Iterator[tuple[str, strata.ExpertCopies]]:
    """All pinned, half, and all pageable, over a pool of 16 experts each."""
    pools = [strata.pinned_empty((16, nbytes), np.uint8), np.ones((16, nbytes), np.uint8)]
    count = max(8, PASS_BYTES // nbytes)
    for what, kinds in (("pinned", [0]), ("mixed", [0] * 8 + [1] * 8), ("pageable", [1])):
        chosen = [kinds[k % len(kinds)] for k in range(count)]
        yield what, strata.ExpertCopies.from_buffers(
            [pools[kind][k % 16] for k, kind in enumerate(chosen)], pinned=[kind == 0 for kind in chosen])


def wall(streamer: strata.ExpertStreamer, copies: strata.ExpertCopies) -> float:
    """Seconds of one pass, the last entry's use included."""
    began = time.perf_counter()
    with streamer.begin(copies) as request:
        for span in request.spans(8):
            del span
    _hip.synchronize_stream(streamer.compute_stream)
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    strata.runtime.use("software")
    control.configure(schedule="timed")
    rows: list[Row] = []
    for nbytes in SIZES:
        for what, copies in lists(nbytes):
            samples: dict[str, list[float]] = {name: [] for name in ARMS}
            streamers = {name: strata.ExpertStreamer(nbytes, gpu_ring=32, timing=False, **arguments)
                         for name, arguments in ARMS.items()}
            try:
                for streamer in streamers.values():
                    wall(streamer, copies)
                control.cost("copy", stream_ns=CALL_NS, per_byte_ns=1 / GB_S)
                for kind in ("record", "wait"):
                    control.cost(kind, stream_ns=CALL_NS)
                for _ in range(PASSES):
                    for name, streamer in streamers.items():
                        samples[name].append(wall(streamer, copies))
            finally:
                control.clear_costs()
                for streamer in streamers.values():
                    streamer.close()
            single = samples.pop("1/1/1")
            for name, seconds in samples.items():
                ratio = statistics.median(mine / one for mine, one in zip(seconds, single, strict=True))
                asked = name in ("no setting", "8/16/16")
                chosen = f"{streamers[name].submission}, {streamers[name].host_ring} buffers"
                rows.append((f"{nbytes / 1e6:.2f} MB, {what}, {name} ({chosen})", f"{ratio:.3f} x",
                             "1.05 x 1/1/1" if asked else "", ratio <= 1.05 if asked else None))
    show(f"Defaults on a link of {GB_S:g} GB/s: time against 1/1/1, the median of {PASSES} turns", rows)


if __name__ == "__main__":
    raise SystemExit(command(__spec__.name, __doc__, main))
