"""Streamers driven at random beside their model: every counter, every byte, every error is compared."""

from __future__ import annotations

import contextlib
import gc
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import event
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import strata
from strata import _hip
from strata.runtime.software import control
from strata.runtime.software.checking import checked
from tests.faults.threads import alive, asleep, threads_named, wait_until
from tests.model import contract

NBYTES = 64
ROWS = 1024
SCHEDULES = ("eager", "lazy", "random", "copies-first", "compute-first")
STATUSES = (3, 2, 719)
MOST_STREAMERS = 2

#: Not counted, or seconds, of which there are none without timing.
_NAMES = [name for name in strata.Counters().as_dict() if not name.endswith("_s")]


class Sources:
    """Pinned and pageable memory full of random bytes, in which every entry has places of its own."""

    def __init__(self) -> None:
        rng = np.random.default_rng(20260101)
        self.pinned = strata.pinned_empty(2**16, np.uint8)
        self.pageable = np.empty(2**16, np.uint8)
        for pool in (self.pinned, self.pageable):
            pool[:] = rng.integers(0, 256, pool.size, dtype=np.uint8)
        self.images = strata.pinned_empty((ROWS, NBYTES), np.uint8)
        self.images[:] = 0xA5


@dataclass(frozen=True)
class Entry:
    """Segments of an entry: (pinned, place in its pool, bytes, offset in the slot)."""

    segments: tuple[tuple[bool, int, int, int], ...]

    @property
    def item(self) -> contract.Item:
        full = [segment for segment in self.segments if segment[2]]
        return contract.Item(tuple(n for _, _, n, _ in full), any(not pinned for pinned, _, _, _ in full))

    @property
    def extent(self) -> int:
        return max((offset + n for _, _, n, offset in self.segments if n), default=0)


#: How an entry lies in memory: its segments' sizes. A whole one's size varies.
SHAPES = {"whole": (0,), "segments": (9, 10, 11), "empty segment": (17, 0), "no bytes": (0, 0), "nothing": ()}


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    """A list in runs of one kind, as checkpoints are: pinned, pageable, or both in one entry."""
    found: list[Entry] = []
    for _ in range(draw(st.integers(1, 4))):
        pinned = draw(st.sampled_from([(True,), (True,), (False,), (False,), (True, False), (False, True)]))
        shape = draw(st.sampled_from(["whole"] * 4 + list(SHAPES)))
        place = draw(st.integers(0, 2**15))
        for entry in range(draw(st.integers(1, 12))):
            segments, offset = [], 1
            for k, size in enumerate(SHAPES[shape]):
                if shape == "whole":
                    size, offset = NBYTES - (place + entry) % 11, 0
                segments.append((pinned[k % len(pinned)], place + 331 * entry + 97 * k, size, offset))
                offset += size + 7
            found.append(Entry(tuple(reversed(segments))))
    return found


#: Who makes a call that fails, and which; how many of its kind from then on.
FAULTS = st.tuples(
    st.sampled_from([
        *[("engine", call) for call in ("hipStreamWaitEvent", "hipEventRecord")],
        *[("issuer", call) for call in ("hipMemcpyAsync", "hipMemcpyAsync", "hipStreamWaitEvent", "hipEventRecord")],
        ("worker", "hipEventSynchronize"),
    ]),
    st.integers(1, 8),
    st.sampled_from(STATUSES),
)


@dataclass
class Fault:
    """A call that fails: the engine's n-th, or one of the issuer's or the workers' behind where they are now."""

    who: str
    call: str
    status: int
    injection: control.Injection
    #: The engine's: calls left until it strikes, this one included. Others: which call of its kind in the request.
    at: int


@dataclass(repr=False, eq=False)
class Bench:
    """A streamer, its model, and the request that runs."""

    number: int
    streamer: strata.ExpertStreamer
    slots: contract.Slots
    batches: contract.Batches
    host_ring: int
    workers: int
    pinned: list[bool]
    lent: list[int] | None
    memory: int
    #: Where the engine's kernels go: of the streamer, and of the latest request.
    default: int
    compute: int
    grouped: bool
    host_ring_made: bool = False
    request: strata.Request | None = None
    model: contract.Request | None = None
    listed: list[Entry] = field(default_factory=list)
    held: list[strata.Slot] = field(default_factory=list)
    lowest: int = 0
    totals: Counter[str] = field(default_factory=Counter)
    fault: Fault | None = None
    hold: control.Hold | None = None
    cancelled: bool = False
    requests: int = 0
    #: The slot that a loop over the request holds: its next turn, or finish(), releases it.
    iterated: strata.Slot | None = None

    def __repr__(self) -> str:
        """Short: a failure prints it at every step."""
        return f"streamer {self.number}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


class Struck(Exception):
    """An injected fault has ended the request, and all that it left behind was right."""


class Machine(RuleBasedStateMachine):
    """Opens, closes and uses streamers; `contract` says what has to come of it."""

    sources: Sources
    streams: list[int]

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.benches: list[Bench] = []
        self.opened = 0
        self.begun = 0
        self.reads: list[tuple[Entry, int]] = []
        self.configuration = control.configuration()
        self.before = control.live()
        self.streams = [_hip.create_stream(), _hip.create_stream()]
        self.stack.enter_context(checked())
        logger = logging.getLogger("strata")
        level = logger.level
        logger.setLevel(logging.ERROR)
        self.stack.callback(logger.setLevel, level)

    # --- how it ends --------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            for bench in list(self.benches):
                self._close(bench)
            self._compare()
            assert [str(finding) for finding in control.findings()] == []
            wait_until(lambda: not alive(*(f"{who}{k}" for who in ("issuer", "worker") for k in range(self.opened))),
                       "the threads of all streamers have ended")
        finally:
            control.clear_injections()
            for bench in self.benches:
                if bench.hold is not None:
                    bench.hold.release()
                    bench.hold = None
                with contextlib.suppress(strata.StrataError):
                    bench.streamer.close()
                if bench.memory:
                    _hip.free(bench.memory)
            control.thread_role(None)
            for stream in self.streams:
                _hip.synchronize_stream(stream)
                _hip.destroy_stream(stream)
            self.stack.close()
            control.configure(**self.configuration)  # type: ignore[arg-type]
        after = control.live()
        for key in ("streams", "events", "device_allocations", "pinned_allocations", "pinned_bytes"):
            assert after[key] == self.before[key], key

    # --- streamers --------------------------------------------------------------------------------------------------

    @initialize(schedule=st.sampled_from(SCHEDULES), seed=st.integers(0, 2**16))
    def configure(self, schedule: str, seed: int) -> None:
        control.configure(schedule=schedule, seed=seed, idle_ms=1)
        event(f"schedule {schedule}")

    @precondition(lambda self: len(self.benches) < MOST_STREAMERS)
    @rule(data=st.data(), gpu_ring=st.integers(1, 9), host_ring=st.integers(1, 6), workers=st.integers(1, 3),
          asked=st.tuples(*[st.integers(0, 10)] * 3), lent=st.booleans(), grouped=st.booleans())
    def open(
        self, data: st.DataObject, gpu_ring: int, host_ring: int, workers: int, asked: tuple[int, int, int],
        lent: bool, grouped: bool,
    ) -> None:
        """A streamer, with or without slots of its own; some of its host buffers will not be pinned."""
        pinned = data.draw(st.lists(st.booleans() | st.just(True), min_size=host_ring, max_size=host_ring), label="pinned")
        memory = _hip.malloc(gpu_ring * (NBYTES + 16)) if lent else 0
        slots = [memory + k * (NBYTES + 16) for k in reversed(range(gpu_ring))] if lent else None
        number, self.opened = self.opened, self.opened + 1
        control.thread_role(f"engine{number}")
        with threads_named(f"issuer{number}"):
            streamer = strata.ExpertStreamer(
                NBYTES, gpu_ring=gpu_ring, host_ring=host_ring, workers=workers, settings=strata.BatchSettings(*asked),
                slots=slots, compute_stream=self.streams[0] if lent else None,
                submission="group" if grouped else "single",
            )
        batches = contract.Batches.clamped(*asked, gpu_ring, host_ring)
        settings = streamer.settings
        assert (settings.copy_batch, settings.stage_batch, settings.stage_copy_batch) == (
            batches.copy, batches.stage, batches.stage_copy)
        assert streamer.max_held == gpu_ring - max(batches.copy, batches.stage_copy) + 1
        self.benches.append(Bench(
            number, streamer, contract.Slots(gpu_ring), batches, host_ring, workers, pinned, slots, memory,
            streamer.compute_stream, streamer.compute_stream, grouped,
        ))
        assert not lent or streamer.compute_stream == self.streams[0]

    @precondition(lambda self: any(bench.requests > 2 for bench in self.benches))
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self._close(self._choose(data, lambda each: each.requests > 2))

    def _close(self, bench: Bench) -> None:
        """Closing aborts what runs."""
        self._quiet(bench)
        control.thread_role(f"engine{bench.number}")
        running = bench.request is not None
        if bench.model is not None:
            bench.model.abort()
        bench.streamer.close()
        if running:
            self._over(bench)
        assert bench.streamer.closed
        if bench.memory:
            _hip.synchronize_stream(bench.compute)
            for stream in self.streams:
                _hip.synchronize_stream(stream)
            _hip.free(bench.memory)
            bench.memory = 0
        self.benches.remove(bench)

    @precondition(lambda self: self.begun > 2 and all(bench.request is None for bench in self.benches))
    @rule(schedule=st.sampled_from(SCHEDULES), seed=st.integers(0, 2**16))
    def change_schedule(self, schedule: str, seed: int) -> None:
        """Only where nothing is pending; so it is the one rule that waits for all streams."""
        for bench in self.benches:
            self._quiet(bench)
        control.thread_role("test")
        for bench in self.benches:
            for stream in (bench.streamer.copy_stream, bench.default, bench.compute):
                _hip.synchronize_stream(stream)
        self._compare()
        control.configure(schedule=schedule, seed=seed, idle_ms=1)
        self.begun = 0
        event(f"schedule {schedule}")

    # --- requests ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: any(bench.request is None for bench in self.benches))
    @rule(data=st.data(), listed=entries())
    def begin(self, data: st.DataObject, listed: list[Entry]) -> None:
        """The usual request."""
        self._begin(self._choose(data, lambda each: each.request is None), listed)

    @precondition(lambda self: any(bench.request is None for bench in self.benches))
    @rule(data=st.data(), listed=st.none() | entries(), long=st.booleans(), stream=st.sampled_from([None, 0, 1]),
          lend=st.booleans())
    def begin_otherwise(
        self, data: st.DataObject, listed: list[Entry] | None, long: bool, stream: int | None, lend: bool
    ) -> None:
        """A short one, on another stream, with other slots, or without a list."""
        bench = self._choose(data, lambda each: each.request is None)
        slots = data.draw(st.permutations(bench.lent), label="slots") if lend and bench.lent else None
        self._begin(bench, listed, long=long, stream=stream, slots=slots)

    @precondition(lambda self: self._no_fault() and any(bench.request is None for bench in self.benches))
    @rule(data=st.data(), listed=entries(), fault=FAULTS)
    def begin_with_a_fault(self, data: st.DataObject, listed: list[Entry], fault: tuple[tuple[str, str], int, int]) -> None:
        """One of the first calls of the request fails."""
        bench = self._choose(data, lambda each: each.request is None)
        (who, call), nth, status = fault
        self._arm(bench, who, self._call_of(bench, call), nth, status, nth)
        self._begin(bench, listed)

    def _begin(
        self, bench: Bench, listed: list[Entry] | None, *, long: bool = True, stream: int | None = None,
        slots: list[int] | None = None,
    ) -> None:
        """A request begins at once, whatever the last one has left on the streams."""
        compute = bench.default if stream is None else self.streams[stream]
        lent = bench.lent is not None
        waits = bench.slots.begin_waits(lent, compute)
        bench.listed, bench.held, bench.lowest, bench.cancelled = [], [], 0, False
        bench.requests += 1
        self.begun += 1

        def begin() -> strata.Request:
            return bench.streamer.begin(
                None if listed is None else self._copies(listed), long_prefill=long, slots=slots,
                compute_stream=None if stream is None else compute,
            )

        fault = bench.fault
        if fault is not None and (
            self._engine_strikes(bench, "hipEventRecord", len(waits))
            or self._engine_strikes(bench, "hipStreamWaitEvent", len(waits))
        ):
            try:
                with self._engine(bench, []):
                    begin()
            except strata.HipError as problem:
                assert (problem.call, problem.status) == (fault.call, fault.status)
                assert (problem.entry, problem.slot) == (None, None)
            else:
                raise AssertionError("a request began without its fence")
            bench.fault = None  # and nothing has changed
            event("struck: the begin fence")
            return
        batches = bench.batches if long else contract.Batches(1, 1, 1)
        bench.slots.begin(lent, compute)
        bench.model = contract.Request(bench.slots, bench.host_ring, batches, bench.pinned, len(waits), bench.grouped)
        bench.compute = compute
        if listed:
            self._list(bench, listed)
        with self._engine(bench, listed or []):
            bench.request = begin()
        assert bench.streamer.compute_stream == compute
        with self._struck(bench):
            self._hear(bench)

    @precondition(lambda self: self._any_running())
    @rule(data=st.data(), listed=entries())
    def extend(self, data: st.DataObject, listed: list[Entry]) -> None:
        bench = self._running(data)
        if bench.cancelled:
            return self._cancelled(bench, lambda request: request.extend(self._copies(listed)))
        with self._struck(bench):
            with self._engine(bench, listed):
                assert bench.request is not None
                bench.request.extend(self._copies(listed))
            self._list(bench, listed)
            self._hear(bench)

    @precondition(lambda self: self._any_running())
    @rule(data=st.data())
    def second_begin(self, data: st.DataObject) -> None:
        """It is refused, and the first goes on."""
        bench = self._running(data)
        with self._engine(bench, []):
            try:
                bench.streamer.begin()
            except strata.StrataError as problem:
                assert "still running" in str(problem)
            else:
                raise AssertionError("a second request began")

    # --- entries ------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self._any_running())
    @rule(data=st.data(), count=st.integers(1, 5))
    def acquire(self, data: st.DataObject, count: int) -> None:
        """Take slots and have the engine's kernels read them; hold them."""
        bench = self._running(data)
        with self._struck(bench):
            for _ in range(count):
                if not self._acquire(bench):
                    return

    @precondition(lambda self: self._any_running())
    @rule(data=st.data(), count=st.integers(1, 9))
    def stream(self, data: st.DataObject, count: int) -> None:
        """What an engine does most: acquire and release in turn."""
        bench = self._running(data)
        with self._struck(bench):
            for _ in range(count):
                while bench.held:
                    self._release(bench)
                if not self._acquire(bench):
                    return
            while bench.held:
                self._release(bench)

    @precondition(lambda self: self._any_running())
    @rule(data=st.data(), count=st.integers(1, 4))
    def release(self, data: st.DataObject, count: int) -> None:
        bench = self._running(data)
        with self._struck(bench):
            for _ in range(min(count, len(bench.held))):
                self._release(bench)

    @precondition(lambda self: self._any_running(lambda each: len(each.held) > 1))
    @rule(data=st.data())
    def release_out_of_order(self, data: st.DataObject) -> None:
        bench = self._running(data, lambda each: len(each.held) > 1)
        if bench.cancelled:
            return self._cancelled(bench, lambda request: bench.held[1].release())
        with self._struck(bench):
            try:
                self._call(bench, bench.held[1].release)
            except strata.StrataError as problem:
                assert "released in the order in which they were acquired" in str(problem)
            else:
                raise AssertionError("a slot was released before an older one")

    @precondition(lambda self: self._any_running())
    @rule(data=st.data(), count=st.integers(1, 4))
    def skip(self, data: st.DataObject, count: int) -> None:
        """Pass entries; behind held ones their turn comes later."""
        bench = self._running(data)
        if bench.cancelled:
            return self._cancelled(bench, lambda request: request.skip())
        with self._struck(bench):
            for _ in range(count):
                assert bench.model is not None
                assert bench.request is not None
                if not self._may_take(bench, bench.request.skip):
                    return
                at_once = bench.model.acquired == bench.model.consumed
                if at_once and self._engine_strikes(bench, "hipEventRecord", 1):
                    entry = bench.model.acquired
                    self._engine_fails(bench, bench.request.skip, entry, before=lambda: None)
                self._call(bench, bench.request.skip)
                bench.model.skip()
                self._hear(bench)

    @precondition(lambda self: self._any_running(lambda each: each.fault is None and not each.cancelled))
    @rule(data=st.data(), count=st.integers(1, 6))
    def iterate(self, data: st.DataObject, count: int) -> None:
        """A loop over the request that is left in its middle keeps its last slot."""
        bench = self._running(data, lambda each: each.fault is None and not each.cancelled)
        request, model = bench.request, bench.model
        assert request is not None
        assert model is not None
        while bench.held:
            self._release(bench)
        self._let_go()
        if any(taken is False for taken in model.between.values()):
            return
        seen = 0
        while seen < count and model.acquired < len(model.items):
            slot = self._call(bench, lambda: next(request))
            assert isinstance(slot, strata.Slot)
            if bench.held:
                model.release()
                bench.held.clear()
            assert model.can_take()
            self._taken(bench, slot)
            bench.iterated = slot
            seen += 1
        if seen < count:
            with contextlib.suppress(StopIteration):
                self._call(bench, lambda: next(request))
                raise AssertionError("there was one more entry than listed")
            if bench.held:
                model.release()
                bench.held.clear()

    # --- ends -----------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self._any_running())
    @rule(data=st.data())
    def finish_the_rest(self, data: st.DataObject) -> None:
        """What most requests come to."""
        self._finish(self._running(data), rest=True)

    @precondition(lambda self: self._any_running())
    @rule(data=st.data())
    def finish_as_it_is(self, data: st.DataObject) -> None:
        """With every entry consumed, or too early: then it aborts, and says so."""
        self._finish(self._running(data), rest=False)

    def _finish(self, bench: Bench, *, rest: bool) -> None:
        if bench.cancelled:
            return self._cancelled(bench, lambda request: request.finish())
        with self._struck(bench):
            model, request = bench.model, bench.request
            assert model is not None
            assert request is not None
            if rest:
                while bench.held:
                    self._release(bench)
                while model.acquired < len(model.items):
                    assert self._acquire(bench)
                    self._release(bench)
            self._quiet(bench)
            if bench.fault is not None:
                return
            if bench.held and bench.held[0] is bench.iterated:
                model.release()
                bench.held.pop(0)
            if model.consumed == len(model.items):
                self._call(bench, request.finish)
                self._over(bench, complete=True)
                event("finished")
                return
            model.abort()
            try:
                self._call(bench, request.finish)
            except strata.StrataError as problem:
                assert f"{model.consumed} of {len(model.items)} entries consumed" in str(problem)
            else:
                raise AssertionError("a request ended as if it were complete")
            self._over(bench)

    @precondition(lambda self: self._any_running())
    @rule(data=st.data(), how=st.sampled_from(["abort", "abort", "exception", "leave", "drop"]))
    def abort(self, data: st.DataObject, how: str) -> None:
        bench = self._running(data)
        self._quiet(bench)
        request, model = bench.request, bench.model
        assert request is not None
        assert model is not None
        if bench.fault is not None or bench.cancelled:
            how = "abort"
        if how == "leave" and model.consumed == len(model.items):
            how = "abort"
        model.abort()
        control.thread_role(f"engine{bench.number}")
        if how == "abort":
            request.abort()
        elif how == "drop":
            del request
            return self._drop(bench)
        else:
            with contextlib.suppress(ZeroDivisionError), request:
                if how == "exception":
                    raise ZeroDivisionError
        self._over(bench)
        event(f"ended by {how}")

    def _drop(self, bench: Bench) -> None:
        """The engine loses the request and all slots: strata ends it with a warning. Its counters are the totals'."""
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            bench.held.clear()
            bench.request = bench.iterated = None
            gc.collect()
        assert [each.category for each in seen] == [ResourceWarning]
        assert "idle" in repr(bench.streamer)
        self._over(bench, dropped=True)
        event("ended by drop")

    @precondition(lambda self: self._any_running(lambda each: each.fault is None))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """From any thread: the next call ends the request."""
        bench = self._running(data, lambda each: each.fault is None)
        assert bench.request is not None
        bench.request.cancel()
        bench.cancelled = True

    def _cancelled(self, bench: Bench, call: Callable[[strata.Request], object]) -> None:
        """The next call of a cancelled request, whatever it is, aborts and raises."""
        self._quiet(bench)
        request, model = bench.request, bench.model
        assert request is not None
        assert model is not None
        model.abort()
        control.thread_role(f"engine{bench.number}")
        try:
            call(request)
        except strata.RequestAborted as problem:
            assert "cancelled" in str(problem)
        else:
            raise AssertionError("a cancelled request went on")
        self._over(bench)
        event("ended by cancel")

    # --- looking ----------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self._any_running(lambda each: not each.cancelled))
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        """The issuer comes exactly as far as it may, and everything until there is counted."""
        bench = self._running(data, lambda each: not each.cancelled)
        if bench.fault is None or bench.fault.who == "engine":
            self._settle(bench)

    @precondition(lambda self: self.begun > 1)
    @rule()
    def look(self) -> None:
        """Every byte that was read so far."""
        self._let_go()
        self._compare()

    @precondition(lambda self: any(bench.hold is None for bench in self.benches))
    @rule(data=st.data())
    def hold_compute(self, data: st.DataObject) -> None:
        """The engine's kernels take their time: what was released stays in use."""
        bench = self._choose(data, lambda each: each.hold is None)
        bench.hold = control.hold(bench.compute)

    @invariant()
    def totals_agree(self) -> None:
        for bench in self.benches:
            if bench.request is None:
                counted = bench.streamer.counters.as_dict()
                assert {name: counted[name] for name in _NAMES} == {name: bench.totals[name] for name in _NAMES}

    # --- faults -------------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self._no_fault() and self._any_running(lambda each: not each.cancelled))
    @rule(data=st.data(), fault=FAULTS)
    def arm(self, data: st.DataObject, fault: tuple[tuple[str, str], int, int]) -> None:
        """One of the next calls of somebody's fails."""
        (who, call), nth, status = fault
        bench = self._running(data, lambda each: not each.cancelled)
        model = bench.model
        assert model is not None
        at = nth
        call = self._call_of(bench, call)
        if who != "engine":
            counted = self._settle(bench)
            if who == "worker":
                at += counted["host_reuse_waits"]
            else:
                at += sum(step.function == call for step in model.steps(model.limit))
        self._arm(bench, who, call, nth, status, at)

    def _call_of(self, bench: Bench, call: str) -> str:
        """Where direct groups are submitted in one call each, that one fails."""
        return "hipMemcpyBatchAsync" if call == "hipMemcpyAsync" and bench.grouped and bench.number % 3 else call

    def _arm(self, bench: Bench, who: str, call: str, nth: int, status: int, at: int) -> None:
        injection = control.inject(call, nth, status, thread=f"{who}{bench.number}")
        bench.fault = Fault(who, call, status, injection, at)
        event(f"armed: {who}'s {call}")

    def _failing_step(self, bench: Bench) -> tuple[int, contract.Step] | None:
        """The step of the issuer that fails, if the engine has let it come so far."""
        fault, model = bench.fault, bench.model
        assert fault is not None
        assert model is not None
        seen = 0
        for number, step in enumerate(model.steps(model.limit)):
            seen += step.function == fault.call
            if step.function == fault.call and seen == fault.at:
                return number, step
        return None

    def _due(self, bench: Bench) -> bool:
        """Whether the fault of another thread has struck, or is about to."""
        fault, model = bench.fault, bench.model
        if fault is None or model is None or fault.who == "engine":
            return False
        if fault.who == "issuer":
            return self._failing_step(bench) is not None
        counted, _, _ = model.states(model.limit)[-1]
        return model.host_waits(counted)[1] >= fault.at

    def _engine_strikes(self, bench: Bench, call: str, calls: int) -> int:
        """Which of the engine's next calls of a kind fails, from 1; 0: none. Counts the others down."""
        fault = bench.fault
        if fault is None or fault.who != "engine" or fault.call != call:
            return 0
        if fault.at <= calls:
            return fault.at
        fault.at -= calls
        return 0

    def _engine_fails(self, bench: Bench, action: Callable[[], object], entry: int, before: Callable[[], None]) -> None:
        """The engine's own call fails: the error, and what was counted before it."""
        fault, model = bench.fault, bench.model
        assert fault is not None
        assert model is not None
        self._let_go()
        control.thread_role(f"engine{bench.number}")
        try:
            action()
        except strata.HipError as problem:
            assert (problem.call, problem.status) == (fault.call, fault.status)
            assert (problem.entry, problem.slot) == (entry, entry % model.ring)
        else:
            raise AssertionError(f"{fault.call} failed and nothing was raised")
        assert fault.injection.fired
        before()
        model.abort()
        self._over(bench)
        event(f"struck: engine's {fault.call}")
        raise Struck

    @contextlib.contextmanager
    def _struck(self, bench: Bench) -> Iterator[None]:
        """A rule that a fault may cut short."""
        with contextlib.suppress(Struck):
            yield

    def _call(self, bench: Bench, action: Callable[[], object]) -> object:
        """A call of the engine's. What it makes possible may be what fails: then that ends the request."""
        control.thread_role(f"engine{bench.number}")
        return action()

    def _hear(self, bench: Bench) -> None:
        """Where another thread's call fails, the engine's next one hears of it, whatever it is.

        That thread is given the time to tell. So it does not depend on the threads which calls of an example
        take effect, nor what comes after.
        """
        if not self._due(bench):
            return
        fault, request = bench.fault, bench.request
        assert fault is not None
        assert request is not None
        self._let_go()
        wait_until(lambda: fault.injection.fired, "the call has failed")
        wait_until(lambda: asleep(f"{fault.who}{bench.number}"), "its thread has told of it")
        control.thread_role(f"engine{bench.number}")
        try:
            request.acquire()
        except strata.HipError as problem:
            self._heard(bench, problem)
            raise Struck from None
        raise AssertionError(f"a call has failed and the engine does not hear of it: {fault}")

    def _heard(self, bench: Bench, problem: strata.HipError) -> None:
        """The error is the fault's; the request is over."""
        fault, model = bench.fault, bench.model
        assert fault is not None
        assert model is not None
        assert fault.injection.fired
        assert (problem.call, problem.status) == (fault.call, fault.status)
        if fault.who == "issuer":
            failing = self._failing_step(bench)
            assert failing is not None
            assert problem.entry == failing[1].entry
        else:
            # One that was held up with a job of its own may be as late as it likes.
            first = bench.host_ring + (fault.at - 1 if bench.workers == 1 else 0)
            jobs = range(first, bench.host_ring + fault.at - 1 + bench.workers)
            assert problem.entry in {model.job_entries[job] for job in jobs if job < len(model.job_entries)}
        assert problem.entry is not None
        assert problem.slot == problem.entry % model.ring
        model.abort()
        self._over(bench)
        event(f"struck: {fault.who}'s {fault.call}")

    # --- the engine's calls -------------------------------------------------------------------------------------------

    def _may_take(self, bench: Bench, action: Callable[[], object]) -> bool:
        """Whether the next entry may be taken. If it may not, the call says why, and nothing changes."""
        model, request = bench.model, bench.request
        assert model is not None
        assert request is not None
        if model.acquired == len(model.items):
            kind: type[Exception] = IndexError
        elif not model.can_take():
            kind = strata.StrataError
        else:
            if any(model.jobs[entry] >= bench.host_ring for entry in range(model.group_end(model.acquired))):
                self._let_go()  # a worker waits for a DMA, that for a kernel, and the engine for all of them
            return True
        try:
            self._call(bench, action)
        except kind as problem:
            if kind is strata.StrataError:
                assert f"entry {model.acquired} cannot be published while" in str(problem)
        else:
            raise AssertionError(f"entry {model.acquired} was given out")
        return False

    def _acquire(self, bench: Bench) -> bool:
        model, request = bench.model, bench.request
        assert model is not None
        assert request is not None
        if bench.cancelled:
            self._cancelled(bench, lambda request: request.acquire())
            raise Struck
        if not self._may_take(bench, request.acquire):
            return False
        if self._engine_strikes(bench, "hipStreamWaitEvent", 1):
            self._engine_fails(bench, request.acquire, model.acquired, before=lambda: None)
        slot = self._call(bench, request.acquire)
        assert isinstance(slot, strata.Slot)
        self._taken(bench, slot)
        return True

    def _taken(self, bench: Bench, slot: strata.Slot) -> None:
        model, request = bench.model, bench.request
        assert model is not None
        assert request is not None
        entry = model.acquire()
        assert (slot.entry, slot.slot) == (entry, entry % model.ring)
        assert slot.nbytes == bench.listed[entry].extent
        assert model.group_end(entry) <= request.issued <= model.limit
        bench.lowest = max(bench.lowest, model.group_end(entry))
        bench.held.append(slot)
        if len(self.reads) == ROWS:
            self._let_go()
            self._compare()
        if slot.nbytes:
            control.thread_role("kernel")
            image = self.sources.images[len(self.reads)]
            _hip.memcpy_d2h_async(image.ctypes.data, slot.address, slot.nbytes, bench.compute)
            self.reads.append((bench.listed[entry], bench.compute))

    def _release(self, bench: Bench) -> None:
        model = bench.model
        assert model is not None
        slot = bench.held[0]
        if bench.cancelled:
            self._cancelled(bench, lambda request: slot.release())
            raise Struck
        records = model.releases()
        failing = self._engine_strikes(bench, "hipEventRecord", records)
        if failing:
            def before() -> None:
                for _ in range(failing - 1):
                    model._consume()

            self._engine_fails(bench, slot.release, model.consumed + failing - 1, before)
        self._call(bench, slot.release)
        bench.held.pop(0)
        model.release()
        self._hear(bench)

    # --- judging ----------------------------------------------------------------------------------------------------------

    def _settle(self, bench: Bench) -> Counter[str]:
        """Wait until the threads have done all that they may; then every counter is known."""
        model, request = bench.model, bench.request
        assert model is not None
        assert request is not None
        self._let_go()
        wait_until(lambda: request.issued >= model.limit, f"{model.limit} entries are published")
        assert request.issued == model.limit
        bench.lowest = model.limit
        counted, issued, _ = model.states(model.limit)[-1]
        assert issued == model.limit
        expected = counted + model.engine
        expected["host_reuse_waits"] = model.host_waits(counted)[1]
        wait_until(lambda: request.counters.host_reuse_waits >= expected["host_reuse_waits"], "the workers wait no more")
        found = request.counters.as_dict()
        assert {name: found[name] for name in _NAMES} == {name: expected[name] for name in _NAMES}
        return expected

    def _quiet(self, bench: Bench) -> None:
        """Before an end: kernels go on, and a fault that has not struck by now never will."""
        self._let_go()
        fault, model, request = bench.fault, bench.model, bench.request
        if fault is None:
            return
        assert model is not None
        assert request is not None
        if fault.who != "engine":
            self._settle(bench)
        assert not fault.injection.fired
        control.clear_injections()
        bench.fault = None

    def _over(self, bench: Bench, *, complete: bool = False, dropped: bool = False) -> None:
        """The request is over: its counters are those of one of the points at which its issuer may have stopped."""
        model, request, fault = bench.model, bench.request, bench.fault
        assert model is not None
        if dropped:
            totals = bench.streamer.counters.as_dict()
            found = {name: int(totals[name]) - bench.totals[name] for name in _NAMES}
            issued = None
        else:
            assert request is not None
            values = request.counters.as_dict()
            found = {name: int(values[name]) for name in _NAMES}
            issued = request.issued
            assert (len(request), request.consumed) == (len(model.items), model.consumed)
        states = model.states(model.limit)
        if complete:
            possible = [states[-1]]
        elif fault is not None and fault.who == "issuer" and self._failing_step(bench) is not None:
            failing = self._failing_step(bench)
            assert failing is not None
            possible = [states[failing[0]]]  # there, and nowhere else
        else:
            possible = [state for state in states if state[2] and state[1] >= bench.lowest]
        reasons = []
        for counted, issued_then, _ in possible:
            expected = counted + model.engine
            least, most = model.host_waits(counted)
            expected["fences"] = 0 if complete else model.fence(counted)
            wrong = {
                name: (found[name], expected[name])
                for name in _NAMES
                if found[name] != expected[name] and name != "host_reuse_waits"
            }
            if complete:
                least = most
            if not least <= found["host_reuse_waits"] <= most:
                wrong["host_reuse_waits"] = (found["host_reuse_waits"], least)
            if issued is not None and issued != issued_then:
                wrong["issued"] = (issued, issued_then)
            if not wrong:
                break
            reasons.append(wrong)
        else:
            raise AssertionError(
                f"the issuer may have stopped at {len(possible)} points and these counters fit none; nearest "
                f"(found, expected): {min(reasons, key=len, default=None)}"
            )
        bench.totals.update(found)
        bench.request = bench.model = bench.fault = None
        bench.held.clear()
        bench.iterated = None
        bench.cancelled = False
        if fault is not None:
            control.clear_injections()

    def _compare(self) -> None:
        """Wait for what the engine has queued, and compare every byte that it read."""
        control.thread_role("test")
        # A closed streamer's own stream is gone; closing has waited for what read its slots.
        there = {*self.streams, *(bench.default for bench in self.benches)}
        for stream in {stream for _, stream in self.reads} & there:
            _hip.synchronize_stream(stream)
        for row, (entry, _) in enumerate(self.reads):
            image = self.sources.images[row]
            for pinned, place, n, offset in entry.segments:
                pool = self.sources.pinned if pinned else self.sources.pageable
                assert (image[offset : offset + n] == pool[place : place + n]).all(), f"wrong bytes of {entry}"
        self.reads.clear()

    # --- helpers ------------------------------------------------------------------------------------------------------------

    def _choose(self, data: st.DataObject, which: Callable[[Bench], bool] = lambda each: True) -> Bench:
        fit = [bench for bench in self.benches if which(bench)]
        return fit[0] if len(fit) == 1 else data.draw(st.sampled_from(fit), label="streamer")

    def _no_fault(self) -> bool:
        """One fault at a time: taking one back takes all back."""
        return all(bench.fault is None for bench in self.benches)

    def _any_running(self, which: Callable[[Bench], bool] = lambda each: True) -> bool:
        return any(bench.request is not None and which(bench) for bench in self.benches)

    def _running(self, data: st.DataObject, which: Callable[[Bench], bool] = lambda each: True) -> Bench:
        return self._choose(data, lambda each: each.request is not None and which(each))

    def _let_go(self) -> None:
        """Nothing is held back any more: what comes now may have to wait. (Streamers share streams.)"""
        for bench in self.benches:
            if bench.hold is not None:
                bench.hold.release()
                bench.hold = None

    @contextlib.contextmanager
    def _engine(self, bench: Bench, listed: list[Entry]) -> Iterator[None]:
        """A call that may start workers and make the host ring, some of whose buffers are not to be pinned."""
        if not bench.host_ring_made and any(entry.item.staged for entry in listed):
            for buffer, pinned in enumerate(bench.pinned):
                if not pinned:
                    control.inject("hipHostMalloc", buffer + 1, 2, thread=f"engine{bench.number}")
            bench.host_ring_made = True
        control.thread_role(f"engine{bench.number}")
        with threads_named(f"worker{bench.number}"):
            yield

    def _list(self, bench: Bench, listed: list[Entry]) -> None:
        assert bench.model is not None
        bench.listed.extend(listed)
        bench.model.extend([entry.item for entry in listed])

    def _copies(self, listed: list[Entry]) -> strata.ExpertCopies:
        pools = {True: self.sources.pinned.ctypes.data, False: self.sources.pageable.ctypes.data}
        rows = [segment for entry in listed for segment in entry.segments]
        starts = np.cumsum([0, *(len(entry.segments) for entry in listed)])[:-1]
        return strata.ExpertCopies(
            np.array([pools[pinned] + place for pinned, place, _, _ in rows], np.uint64),
            np.array([n for _, _, n, _ in rows], np.int64),
            np.array([pinned for pinned, _, _, _ in rows], np.bool_),
            offsets=np.array([offset for _, _, _, offset in rows], np.int64),
            entry_starts=np.array(starts, np.int64),
        )
