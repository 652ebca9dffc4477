"""One streamer's life, in steps that a fault can strike: construction, a request, its end, the closing."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

import strata
from strata import _hip
from strata.runtime.software import control
from tests.faults.threads import ENGINE, ISSUER, WORKER, in_role, threads_named
from tests.support.sources import Material, material

NBYTES = 96

#: Handles and memory, as `control.live` counts them.
HANDLES = (
    "streams",
    "events",
    "device_allocations",
    "device_bytes",
    "pinned_allocations",
    "pinned_bytes",
    "registered_ranges",
    "registered_bytes",
)


@dataclass(frozen=True)
class Configuration:
    """What a streamer is made of, and the list that it streams."""

    name: str
    kinds: str
    batches: tuple[int, int, int] = (2, 2, 2)
    gpu_ring: int = 8
    host_ring: int = 3
    workers: int = 1
    pageable: int = 0
    lent: bool = False
    submission: str = "single"
    device: int = 0
    schedule: str = "eager"

    @property
    def settings(self) -> strata.BatchSettings:
        return strata.BatchSettings(*self.batches)


CONFIGURATIONS = {
    each.name: each
    for each in (
        Configuration("direct", "dDdzdedDddddzdDddddddddd", batches=(4, 1, 1)),
        Configuration("staged", "sSssssSsssssssssssSsssss", batches=(1, 2, 2), host_ring=4),
        Configuration("pageable", "sSssssSsssssssssssss", pageable=2),
        Configuration("mixed", "ddssDsSzdddsssssDDdssdds", workers=2),
        Configuration("lent", "dddssSsDDzdddsssssddds", batches=(3, 2, 3), lent=True),
        Configuration("grouped", "dDdzdedDddddzdDdssdddddd", batches=(4, 1, 1), submission="group"),
        Configuration("second device", "ddssDsSzdddsssssDDds", device=1),
        Configuration("lazy", "ddssDsSzdddsssssDDdssdds", schedule="lazy"),
    )
}


@dataclass
class Sources:
    """A list of copies, and what its slots must show even where the sources have been overwritten since."""

    material: Material
    shown: Material

    @classmethod
    def make(cls, kinds: str, seed: int) -> Sources:
        made = material(kinds, NBYTES, seed)
        shown = Material(
            made.copies, kinds, [[(o, np.array(data)) for o, data in rows] for rows in made.segments], made.pools
        )
        return cls(made, shown)

    def overwrite(self) -> None:
        """What an engine may do once strata reads no source any more."""
        for pool in self.material.pools:
            pool[...] = 0xEE

    def restore(self) -> None:
        """Put the sources back to what they were."""
        for rows, kept in zip(self.material.segments, self.shown.segments, strict=True):
            for (_, data), (_, before) in zip(rows, kept, strict=True):
                data[...] = before


class Kernels:
    """What the engine runs on its compute stream: copies of the slots to the host, compared later."""

    def __init__(self, rows: int) -> None:
        self._images = strata.pinned_empty((rows, NBYTES), np.uint8)
        self._read: list[tuple[int, int]] = []

    def read(self, slot: strata.Slot, stream: int) -> None:
        """Queue a copy of a slot. It is no call of strata's, and neither counted nor failed as one."""
        image = self._images[len(self._read)]
        self._read.append((slot.entry, stream))
        with in_role("kernel"):
            _hip.memcpy_d2h_async(image.ctypes.data, slot.address, NBYTES, stream)

    def wrong(self, shown: Material) -> int:
        """Wait for what was queued; count wrong bytes."""
        for stream in {stream for _, stream in self._read}:
            _hip.synchronize_stream(stream)
        bad = sum(shown.wrong(entry, self._images[row]) for row, (entry, _) in enumerate(self._read))
        self._read.clear()
        return bad

    def forget(self) -> None:
        """What was queued by a test that failed."""
        self._read.clear()


class Bench:
    """What the engine of a configuration has, whatever becomes of the streamer: sources, streams, slots to lend."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.first = Sources.make(configuration.kinds, 1)
        self.second = Sources.make(configuration.kinds[::-1], 2)
        self.kernels = Kernels(len(configuration.kinds))
        self.streams: list[int] = []
        self.slots: list[int] | None = None
        self._memory = 0
        if configuration.lent:
            self.streams = [_hip.create_stream(), _hip.create_stream()]
            stride = NBYTES + 32
            self._memory = _hip.malloc(configuration.gpu_ring * stride)
            self.slots = [self._memory + k * stride for k in reversed(range(configuration.gpu_ring))]

    def clear(self) -> None:
        """Give streams and slots back, and let go of pinned memory, whoever still holds the bench."""
        del self.first, self.second, self.kernels
        for stream in self.streams:
            _hip.destroy_stream(stream)
        if self._memory:
            _hip.free(self._memory)


@contextlib.contextmanager
def bench(name: str) -> Iterator[Bench]:
    """The bench of a configuration, in a runtime as the configuration wants it; afterwards all is as it was."""
    configuration = CONFIGURATIONS[name]
    gc.collect()
    before = control.configuration()
    control.configure(schedule=configuration.schedule, devices=max(int(before["devices"]), configuration.device + 1))
    made = Bench(configuration)
    if configuration.pageable:
        room = (configuration.host_ring - configuration.pageable) * NBYTES
        control.configure(pinned_limit=control.live()["pinned_bytes"] + room)
    try:
        yield made
    finally:
        control.clear_injections()
        _hip.use_device(0)
        made.clear()
        control.configure(**before)  # type: ignore[arg-type]


def forget_last_error() -> None:
    """HIP's last error of this thread, of a run before: a refusal that is told and cleared takes it along."""
    with contextlib.suppress(strata.HipError):
        _hip.destroy_event(1)
    assert _hip.last_error() == 0


class Life:
    """A streamer and the requests that it serves. A context manager that closes what a failed test leaves open.

    All calls are made in the role *engine*, but for the engine's own reads of the slots.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.configuration = bench.configuration
        self.turn = 0
        self.before = control.live()
        self.streamer: strata.ExpertStreamer | None = None

    def __enter__(self) -> Life:
        forget_last_error()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bench.kernels.forget()
        if self.streamer is not None:
            with contextlib.suppress(strata.StrataError):
                self.streamer.close()

    def construct(self) -> strata.ExpertStreamer:
        """Make the streamer."""
        own, streams = self.configuration, self.bench.streams
        with in_role(ENGINE), threads_named(ISSUER):
            self.streamer = strata.ExpertStreamer(
                NBYTES, gpu_ring=own.gpu_ring, host_ring=own.host_ring, workers=own.workers, settings=own.settings,
                slots=self.bench.slots, compute_stream=streams[0] if streams else None, device=own.device,
                submission=own.submission,
            )
        return self.streamer

    def begin(self, copies: strata.ExpertCopies) -> tuple[strata.Request, int]:
        """Begin a request; its compute stream takes turns where streams are lent."""
        assert self.streamer is not None
        streams = self.bench.streams
        stream = streams[self.turn % 2] if streams else self.streamer.compute_stream
        self.turn += 1
        with in_role(ENGINE), threads_named(WORKER):
            return self.streamer.begin(copies, compute_stream=stream), stream

    def close(self) -> None:
        """Close the streamer."""
        assert self.streamer is not None
        with in_role(ENGINE):
            self.streamer.close()

    def left_over(self) -> dict[str, int]:
        """What is alive now and was not before the streamer was made."""
        after = control.live()
        return {key: after[key] - self.before[key] for key in HANDLES if after[key] != self.before[key]}


@dataclass
class Stream:
    """A request on its way through the engine: read, hold, skip, extend, end."""

    life: Life
    sources: Sources
    ending: str = "finish"
    request: strata.Request | None = None
    compute: int = 0

    def run(self) -> None:
        """From begin up to the end, which `end` makes."""
        each = self.sources.material
        half, stop = len(each) // 2, len(each) * 3 // 4
        self.request, self.compute = self.life.begin(each.take(0, half))
        with in_role(ENGINE), threads_named(WORKER):
            self._take(0, half)
            self.request.extend(each.take(half, len(each)))
            if self.ending == "abort":
                self._take(half, stop)
                self.life.bench.kernels.read(self.request.acquire(), self.compute)
            else:
                self._take(half, len(each))

    def _take(self, begin: int, end: int) -> None:
        """Two slots are held at a time; one entry is skipped; one is waited for on the host."""
        request = self.request
        assert request is not None
        held: list[strata.Slot] = []
        for entry in range(begin, end):
            if entry == begin + 3:
                request.skip()
                continue
            slot = request.acquire()
            if entry == begin + 1 and self.life.configuration.schedule == "eager":
                slot.synchronize()
            self.life.bench.kernels.read(slot, self.compute)
            held.append(slot)
            if len(held) == 2:
                held.pop(0).release()
        for slot in held:
            slot.release()

    def end(self) -> None:
        """Finish, or abort with one slot held."""
        assert self.request is not None
        with in_role(ENGINE):
            if self.ending == "abort":
                self.request.abort()
            else:
                self.request.finish()

    def whole(self) -> None:
        """The request and its end."""
        self.run()
        self.end()

    def wrong(self) -> int:
        """Wrong bytes in what was read; the sources may have changed since."""
        return self.life.bench.kernels.wrong(self.sources.shown)
