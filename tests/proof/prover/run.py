"""One run of a configuration on the software runtime, with or without one call ignored."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import strata
from strata import _hip
from strata.engine import threads
from strata.errors import StrataError
from strata.runtime.software import checking, control
from tests.proof.prover.configuration import Configuration
from tests.proof.prover.contract import ENGINE, ISSUER, WORKER, Call, Command, Play

__all__ = ["Observed", "Sources", "run"]

SLOT_BYTES = 256
DEADLINE_S = 30.0
HARNESS = "harness"

_UNREAD = 0xA5


class Sources:
    """Host memory of one configuration: a row for each entry, other bytes for each request."""

    def __init__(self, configuration: Configuration) -> None:
        rows = max(len(p.entries) for p in configuration.passes)
        random = np.random.default_rng([rows, len(configuration.passes)])
        shape = (len(configuration.passes) + 1, rows, SLOT_BYTES)
        self.payloads: npt.NDArray[np.uint8] = random.integers(0, 256, shape, np.uint8)
        self.pinned = strata.pinned_empty((rows, SLOT_BYTES), np.uint8)
        self.pageable = np.empty((rows, SLOT_BYTES), np.uint8)
        self.images = strata.pinned_empty((len(configuration.passes) + 1, rows, SLOT_BYTES), np.uint8)
        self.scrap = strata.pinned_empty((2, SLOT_BYTES), np.uint8)  # a row for each compute stream
        self.lists = [self._lists(p.lists) for p in configuration.passes]

    def _lists(self, lists: Sequence[str]) -> list[strata.ExpertCopies]:
        made = []
        row = 0
        for letters in lists:
            addresses: list[int] = []
            sizes: list[int] = []
            pinned: list[bool] = []
            offsets: list[int] = []
            starts = [0]
            for letter in letters:
                pool = self.pageable if letter in "sS" else self.pinned
                parts = 2 if letter in "DS" else 1
                for part in range(parts):
                    offsets.append(part * SLOT_BYTES // parts)
                    addresses.append(pool[row].ctypes.data + offsets[-1])
                    sizes.append(SLOT_BYTES // parts)
                    pinned.append(pool is self.pinned)
                starts.append(len(addresses))
                row += 1
            made.append(strata.ExpertCopies(
                np.array(addresses, np.uint64), np.array(sizes, np.int64), np.array(pinned, np.bool_),
                offsets=np.array(offsets, np.int64), entry_starts=np.array(starts, np.int64)))
        return made

    def rewrite(self, request: int) -> None:
        """Give the sources a request's bytes, and say so to the checker."""
        self.pinned[...] = self.payloads[request]
        self.pageable[...] = self.payloads[request]
        control.host_write(self.pinned.ctypes.data, self.pinned.nbytes)


@dataclass(frozen=True)
class Observed:
    """What a run came to.

    Attributes
    ----------
    calls : list of LoggedCall
        Every HIP call, the harness's own included.
    findings : list of Finding
        The checker's.
    wrong_bytes : int
        Bytes that the engine's kernels read and that were not the entry's.
    error : str
        What was raised, empty where nothing was.
    counters : list of Counters
        Of each request that came to its end.
    """

    calls: list[control.LoggedCall]
    findings: list[control.Finding]
    wrong_bytes: int
    error: str
    counters: list[strata.Counters]

    @property
    def found(self) -> str:
        """What found something wrong: ``order``, ``bytes``, ``error``; empty for nothing."""
        return "order" if self.findings else "bytes" if self.wrong_bytes else "error" if self.error else ""


def run(
    configuration: Configuration,
    played: Play,
    sources: Sources,
    *,
    schedule: str = "lazy",
    ignored: Call | None = None,
    nth: int | None = None,
    check: bool = True,
) -> Observed:
    """Follow the script on the real thing.

    Parameters
    ----------
    schedule : str
        Of the software runtime.
    ignored : Call, optional
        The runtime accepts this call and does nothing.
    nth : int, optional
        It is the thread's `nth` call of the function. Default: as it is where nobody asks twice.
    check : bool
        Whether the happens-before checker is on.

    Raises
    ------
    TimeoutError
        If strata's threads do not get as far as the contract says they do.
    """
    before = control.configuration()
    # A stager's end only asks: something must go on by itself meanwhile.
    control.configure(schedule=schedule, seed=0, idle_ms=2 if configuration.is_stager else 0)
    control.thread_role(ENGINE)
    if ignored is not None:
        control.inject(ignored.function, nth or ignored.ordinal, action="ignore", thread=ignored.role)
    control.call_log(True)
    try:
        with checking.checked() if check else contextlib.nullcontext():
            player = _Player(configuration, sources)
            error = player.play(played.script)
        wrong = 0 if error else player.wrong_bytes()
        return Observed(control.logged_calls(), control.findings() if check else [], wrong, error, player.counters)
    finally:
        control.call_log(False)
        control.clear_injections()
        control.thread_role(None)
        control.configure(**before)  # type: ignore[arg-type]


@contextlib.contextmanager
def _by_harness() -> Iterator[None]:
    """Calls in here are the harness's, not strata's."""
    control.thread_role(HARNESS)
    try:
        yield
    finally:
        control.thread_role(ENGINE)


@contextlib.contextmanager
def _threads_called(name: str) -> Iterator[None]:
    """Native threads of strata's that are started in here have this name."""
    threads.rename(name)
    try:
        yield
    finally:
        threads.rename(None)


def _reaches(done: Callable[[], bool], what: str) -> None:
    """Poll: strata's threads get there by themselves."""
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"strata's threads never got there: {what}")
        time.sleep(0)


class _Player:
    """The engine: does what the script says."""

    def __init__(self, configuration: Configuration, sources: Sources) -> None:
        self.c = configuration
        self.sources = sources
        self.request: Any = None
        self.taken: dict[int, strata.Slot | strata.Span] = {}
        self.addresses: dict[int, int] = {}  # of entries that are held
        self.holds: list[control.Hold] = []
        self.counters: list[strata.Counters] = []
        self.reads: list[tuple[int, int]] = []
        self.streamer: strata.ExpertStreamer | None = None
        self.stager: strata.HostStager | None = None
        self.number = 0
        self.named = False
        sources.images[...] = _UNREAD

    def play(self, script: Sequence[Command]) -> str:
        """Follow the script to its end, or to an error of strata's, whose text is returned."""
        with contextlib.ExitStack() as self.stack:
            with _by_harness():
                self.streams = [self.own(_hip.create_stream(), _hip.destroy_stream) for _ in range(2)]
                count = self.c.gpu_ring or max(len(p.entries) for p in self.c.passes)
                if self.c.lent or self.c.is_stager:
                    base = self.own(_hip.malloc(count * SLOT_BYTES), _hip.free)
                    self.lent = [base + k * SLOT_BYTES for k in range(count)]
            self.stack.callback(control.thread_role, HARNESS)
            try:
                for command in script:
                    getattr(self, command.name)(*command.arguments)
            except StrataError as problem:
                return f"{type(problem).__name__}: {problem}"
            finally:
                for latch in self.holds:
                    latch.release()
                self.taken.clear()
                with contextlib.suppress(StrataError):
                    self.close()
                with _by_harness():
                    for stream in self.streams:
                        _hip.synchronize_stream(stream)
        return ""

    def own(self, handle: int, give_back: Callable[[int], None]) -> int:
        self.stack.callback(give_back, handle)
        return handle

    def wrong_bytes(self) -> int:
        """Compare what was read with what the entries were."""
        return sum(int(np.count_nonzero(self.sources.images[k] != self.sources.payloads[k])) for k in self.reads)

    # --- the script's commands ------------------------------------------------------------------------------------

    def open(self) -> None:
        if self.c.pinned_buffers is not None:
            pinned = control.live()["pinned_bytes"] + self.c.pinned_buffers * SLOT_BYTES
            control.configure(pinned_limit=pinned)
        if self.c.is_stager:
            with _threads_called(WORKER):
                self.stager = strata.HostStager(SLOT_BYTES, host_ring=self.c.host_ring, workers=self.c.workers,
                                                stage_batch=self.c.settings.stage_batch)
            return
        with _threads_called(ISSUER):
            self.streamer = strata.ExpertStreamer(
                SLOT_BYTES, gpu_ring=self.c.gpu_ring, host_ring=self.c.host_ring, workers=self.c.workers,
                settings=self.c.settings, slots=self.lent if self.c.lent else None, compute_stream=self.streams[0],
                submission=self.c.submission, share_dependencies=self.c.share)
        checking.name_handles(self.streamer)

    def rewrite(self, request: int) -> None:
        self.sources.rewrite(request)

    def use_slots(self, stream: int) -> None:
        with _by_harness():
            for address in self.lent:
                _hip.memcpy_d2h_async(self.sources.scrap[stream].ctypes.data, address, SLOT_BYTES, self.streams[stream])

    def begin(self, number: int) -> None:
        assert self.streamer is not None
        here = self.c.passes[number]
        self.number = number
        self.stream = self.streams[here.stream]
        self.request = self.streamer.begin(long_prefill=here.long_prefill, compute_stream=self.stream)

    def extend(self, number: int, index: int) -> None:
        assert self.streamer is not None
        with _threads_called(WORKER):
            self.request.extend(self.sources.lists[number][index])
        if not self.named and "s" in self.c.passes[number].lists[index].lower():
            checking.name_handles(self.streamer)  # the host buffers' events exist from now on
            self.named = True

    def hold(self) -> None:
        assert self.streamer is not None
        self.holds.append(control.hold(self.streamer.copy_stream))

    def unhold(self) -> None:
        self.holds.pop(0).release()

    def published(self, issued: int) -> None:
        request = self.request
        _reaches(lambda: request.issued >= issued, f"issued {issued}, now {request.issued}")

    def settle(self, issued: int, counters: Sequence[tuple[str, int]], accesses: int) -> None:
        request = self.request

        def there() -> bool:
            now = request.counters
            return (request.issued >= issued and all(getattr(now, name) >= count for name, count in counters)
                    and control.checked_accesses() >= accesses * checked)

        checked = control.checked_accesses() > 0
        _reaches(there, f"issued {issued}, {dict(counters)}, {accesses} accesses; now issued {request.issued}, "
                        f"{request.counters.as_dict()}")

    def acquire(self, entry: int) -> None:
        self.taken[entry] = slot = self.request.acquire()
        self.addresses[entry] = slot.address

    def acquire_span(self, limit: int, begin: int, end: int) -> None:
        self.taken[begin] = span = self.request.acquire_span(limit)
        if (span.begin, span.end) != (begin, end):
            raise StrataError(f"the span is {span.begin} to {span.end}; {begin} to {end} was expected")
        self.addresses.update((k, span.address + (k - begin) * span.stride) for k in range(begin, end))

    def skip(self) -> None:
        self.request.skip()

    def read(self, entry: int) -> None:
        self.reads.append((self.number, entry))
        image = self.sources.images[self.number, entry]
        with _by_harness():
            _hip.memcpy_d2h_async(image.ctypes.data, self.addresses[entry], SLOT_BYTES, self.stream)

    def release(self, entry: int) -> None:
        self.taken.pop(entry).release()

    def flush(self) -> None:
        self.request.flush()

    def drain(self, stream: int) -> None:
        with _by_harness():
            _hip.synchronize_stream(self.streams[stream])

    def finish(self) -> None:
        if self.stager is not None:
            self.stager.finish()
            self.counters.append(self.stager.counters)
        else:
            self.request.finish()
            self.counters.append(self.request.counters)

    def abort(self) -> None:
        self.request.abort()
        self.taken.clear()
        self.counters.append(self.request.counters)

    def close(self) -> None:
        for owner in (self.streamer, self.stager):
            if owner is not None:
                owner.close()

    def start(self, number: int) -> None:
        assert self.stager is not None
        self.number = number
        self.stream = self.streams[0]
        self.stager.start(self.sources.lists[number][0])

    def stage(self, entry: int, job: int) -> None:
        assert self.stager is not None
        buffer = self.stager.wait(job)
        row = self.lent[entry]
        self.reads.append((self.number, entry))
        with _by_harness():
            _hip.memcpy_h2d_async(row, buffer, SLOT_BYTES, self.stream)
            _hip.memcpy_d2h_async(self.sources.images[self.number, entry].ctypes.data, row, SLOT_BYTES, self.stream)
        self.stager.submitted(job, self.stream)

    def settle_stager(self, host_reuse_waits: int, accesses: int) -> None:
        stager = self.stager
        assert stager is not None
        checked = control.checked_accesses() > 0
        _reaches(lambda: (stager.counters.host_reuse_waits >= host_reuse_waits
                          and control.checked_accesses() >= accesses * checked),
                 f"{host_reuse_waits} host reuse waits, {accesses} accesses")
