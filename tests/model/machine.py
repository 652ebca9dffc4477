"""What an engine may do, in any order."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import event
from hypothesis.stateful import initialize, invariant, precondition, rule

import strata
from strata import _hip
from strata.runtime.software import control
from tests.faults.threads import threads_named
from tests.model import contract
from tests.model.bench import FAULTS, Bench
from tests.model.driver import NAMES, Driver
from tests.model.material import NBYTES, Entry, entries

SCHEDULES = st.sampled_from(("eager", "lazy", "random", "copies-first", "compute-first"))
MOST_STREAMERS = 2
STRIDE = NBYTES + 16


def _steady(bench: Bench) -> bool:
    return bench.fault is None and not bench.cancelled


class Machine(Driver):
    """Opens, closes and uses streamers; `contract` says what has to come of it."""

    # --- streamers --------------------------------------------------------------------------------------------------

    @initialize(schedule=SCHEDULES, seed=st.integers(0, 2**16))
    def configure(self, schedule: str, seed: int) -> None:
        control.configure(schedule=schedule, seed=seed, idle_ms=1)
        event(f"schedule {schedule}")

    @precondition(lambda self: len(self.benches) < MOST_STREAMERS)
    @rule(
        data=st.data(), gpu_ring=st.integers(1, 9), host_ring=st.integers(1, 6), workers=st.integers(1, 3),
        asked=st.tuples(*[st.integers(0, 10)] * 3), lent=st.booleans(), grouped=st.booleans(), share=st.booleans(),
    )
    def open(
        self, data: st.DataObject, gpu_ring: int, host_ring: int, workers: int, asked: tuple[int, int, int],
        lent: bool, grouped: bool, share: bool,
    ) -> None:
        """A streamer, with or without slots of its own; some of its host buffers will not be pinned."""
        buffers = st.lists(st.booleans() | st.just(True), min_size=host_ring, max_size=host_ring)
        pinned = data.draw(buffers, label="pinned")
        memory = _hip.malloc(gpu_ring * STRIDE) if lent else 0
        slots = [memory + k * STRIDE for k in reversed(range(gpu_ring))] if lent else None
        number, self.opened = self.opened, self.opened + 1
        control.thread_role(f"engine{number}")
        with threads_named(f"issuer{number}"):
            streamer = strata.ExpertStreamer(
                NBYTES, gpu_ring=gpu_ring, host_ring=host_ring, workers=workers, settings=strata.BatchSettings(*asked),
                slots=slots, compute_stream=self.streams[0] if lent else None,
                submission="group" if grouped else "single", share_dependencies=share,
            )
        batches = contract.Batches.clamped(*asked, gpu_ring, host_ring)
        taken = streamer.settings
        assert batches == contract.Batches(taken.copy_batch, taken.stage_batch, taken.stage_copy_batch)
        assert streamer.max_held == gpu_ring - max(batches.copy, batches.stage_copy) + 1
        assert not lent or streamer.compute_stream == self.streams[0]
        default = streamer.compute_stream
        self.benches.append(Bench(
            number, streamer, contract.Slots(gpu_ring, share), batches, host_ring, workers, pinned, slots, memory, default,
            default, grouped,
        ))

    @precondition(lambda self: any(bench.requests > 2 for bench in self.benches))
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        """With a request or without; not before it was of some use."""
        self.close_streamer(self._choose(data, lambda each: each.requests > 2))

    @precondition(lambda self: self.begun > 2 and not self.any_running())
    @rule(schedule=SCHEDULES, seed=st.integers(0, 2**16))
    def change_schedule(self, schedule: str, seed: int) -> None:
        """Only where nothing is pending; so it is the one rule that waits for all streams."""
        self.let_go()
        control.thread_role("test")
        for stream in (*self.streams, *(own for bench in self.benches for own in (bench.streamer.copy_stream, bench.default))):
            _hip.synchronize_stream(stream)
        self.compare()
        control.configure(schedule=schedule, seed=seed, idle_ms=1)
        self.begun = 0
        event(f"schedule {schedule}")

    # --- requests ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.any_idle())
    @rule(data=st.data(), listed=entries())
    def begin(self, data: st.DataObject, listed: list[Entry]) -> None:
        """The usual request."""
        self.begin_request(self._idle(data), listed)

    @precondition(lambda self: self.any_idle())
    @rule(
        data=st.data(), listed=st.none() | entries(), long=st.booleans(), stream=st.sampled_from([None, 0, 1]),
        lend=st.booleans(),
    )
    def begin_otherwise(
        self, data: st.DataObject, listed: list[Entry] | None, long: bool, stream: int | None, lend: bool
    ) -> None:
        """A short one, on another stream, with other slots, or without a list."""
        bench = self._idle(data)
        slots = data.draw(st.permutations(bench.lent), label="slots") if lend and bench.lent else None
        self.begin_request(bench, listed, long=long, stream=stream, slots=slots)

    @precondition(lambda self: self.no_fault() and self.any_idle())
    @rule(data=st.data(), listed=entries(), fault=FAULTS)
    def begin_with_a_fault(
        self, data: st.DataObject, listed: list[Entry], fault: tuple[tuple[str, str], int, int]
    ) -> None:
        """One of the first calls of the request fails."""
        bench = self._idle(data)
        (who, call), nth, status = fault
        if who != "worker" or not bench.slots.share:  # which worker waits for which buffer is open with sharing
            self.arm_fault(bench, who, bench.call_of(call), nth, status, nth)
        self.begin_request(bench, listed)

    @precondition(lambda self: self.any_running())
    @rule(data=st.data(), listed=entries())
    def extend(self, data: st.DataObject, listed: list[Entry]) -> None:
        """The list grows while it is streamed."""
        bench = self._running(data)
        _, request = bench.running

        def extend() -> None:
            with self.listing(bench, listed):
                request.extend(self.sources.copies(listed))

        if bench.cancelled:
            made, bench.host_ring_made = bench.host_ring_made, True  # it does not come so far
            self.ends_cancelled(bench, extend)
            bench.host_ring_made = made
            return
        extend()
        self.list(bench, listed)
        with self.may_be_struck():
            self.hear(bench)

    @precondition(lambda self: self.any_running())
    @rule(data=st.data())
    def second_begin(self, data: st.DataObject) -> None:
        """It is refused, and the first goes on."""
        bench = self._running(data)
        with pytest.raises(strata.StrataError, match="still running"):
            self.call(bench, bench.streamer.begin)

    # --- entries ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.any_running())
    @rule(data=st.data(), count=st.integers(1, 5))
    def acquire(self, data: st.DataObject, count: int) -> None:
        """Take slots, and hold them."""
        bench = self._running(data)
        with self.may_be_struck():
            for _ in range(count):
                if not self.take(bench):
                    return

    @precondition(lambda self: self.any_running())
    @rule(data=st.data(), limit=st.integers(1, 9), count=st.integers(1, 3))
    def acquire_spans(self, data: st.DataObject, limit: int, count: int) -> None:
        """Take runs of neighbouring slots, and hold them."""
        bench = self._running(data)
        with self.may_be_struck():
            for _ in range(count):
                if not self.take_span(bench, limit):
                    return

    @precondition(lambda self: self.any_running(_steady))
    @rule(data=st.data())
    def drop_entries(self, data: st.DataObject) -> None:
        """Entries that the threads certainly have not reached, or certainly have: both are passed over."""
        bench = self._running(data, _steady)
        model, request = bench.running
        self.settled(bench)
        for in_time, certain in zip((True, False), model.certain(), strict=True):
            if certain:
                entries = data.draw(st.lists(st.sampled_from(certain), max_size=9), label=f"in time: {in_time}")
                control.thread_role(bench.role())
                request.drop(entries)
                model.drop(entries, in_time=in_time)
        event("dropped entries")

    @precondition(lambda self: self.any_running())
    @rule(data=st.data())
    def flush(self, data: st.DataObject) -> None:
        """Record what is pending."""
        bench = self._running(data)
        model, request = bench.running
        if bench.cancelled:
            return self.ends_cancelled(bench, request.flush)
        with self.may_be_struck():
            if model.released > model.consumed and self.engine_strikes(bench, "hipEventRecord", 1):
                self.engine_fails(bench, request.flush, model.released - 1)
            self.call(bench, request.flush)
            model.flush()
            self.hear(bench)

    @precondition(lambda self: self.any_running())
    @rule(data=st.data(), count=st.integers(1, 9))
    def stream(self, data: st.DataObject, count: int) -> None:
        """What an engine does most: acquire and release in turn."""
        bench = self._running(data)
        with self.may_be_struck():
            for _ in range(count):
                self._release_all(bench)
                if not self.take(bench):
                    return
            self._release_all(bench)

    @precondition(lambda self: self.any_running(lambda each: bool(each.held)))
    @rule(data=st.data(), count=st.integers(1, 4))
    def release(self, data: st.DataObject, count: int) -> None:
        """Give slots back, the oldest first."""
        bench = self._running(data, lambda each: bool(each.held))
        with self.may_be_struck():
            for _ in range(min(count, len(bench.held))):
                self.release_oldest(bench)

    @precondition(lambda self: self.any_running(lambda each: len(each.held) > 1))
    @rule(data=st.data())
    def release_out_of_order(self, data: st.DataObject) -> None:
        """It is refused, and nothing changes."""
        bench = self._running(data, lambda each: len(each.held) > 1)
        if bench.cancelled:
            return self.ends_cancelled(bench, bench.held[1].release)
        with pytest.raises(strata.StrataError, match=r"released in (the )?order"):
            self.call(bench, bench.held[1].release)

    @precondition(lambda self: self.any_running())
    @rule(data=st.data(), count=st.integers(1, 4))
    def skip(self, data: st.DataObject, count: int) -> None:
        """Pass entries unread."""
        bench = self._running(data)
        with self.may_be_struck():
            for _ in range(count):
                if not self.skip_one(bench):
                    return

    @precondition(lambda self: self.any_running(_steady))
    @rule(data=st.data(), count=st.integers(1, 6))
    def iterate(self, data: st.DataObject, count: int) -> None:
        """A loop over the request; one that is left in its middle keeps its last slot."""
        bench = self._running(data, _steady)
        model, request = bench.running
        self._release_all(bench)
        self.let_go()
        for _ in range(count):
            try:
                slot = self.call(bench, lambda: next(request))
            except StopIteration:
                slot = None
            self._looped(bench)
            while model.acquired in model.unwanted:
                self._flush_for_next(model)
                model.skip()
            if model.acquired == len(model.items):
                assert slot is None
                return
            assert isinstance(slot, strata.Slot)
            self._flush_for_next(model)
            self.taken(bench, slot)
            bench.iterated = slot

    @staticmethod
    def _flush_for_next(model: contract.Request) -> None:
        """Nothing is held: so the next entry may be taken, once what is pending is recorded."""
        if model.must_flush(model.acquired):
            model.flush()
        assert model.can_take()

    def _looped(self, bench: Bench) -> None:
        """The loop's turn has released its last slot."""
        model, _ = bench.running
        if bench.held:
            model.release()
            bench.held.clear()

    # --- ends -------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.any_running())
    @rule(data=st.data())
    def finish_the_rest(self, data: st.DataObject) -> None:
        """What most requests come to."""
        bench = self._running(data)
        with self.may_be_struck():
            model, _ = bench.running
            self._release_all(bench)
            while model.acquired < len(model.items):
                assert self.take(bench)
                self._release_all(bench)
            self._finish(bench)

    @precondition(lambda self: self.any_running())
    @rule(data=st.data())
    def finish_as_it_is(self, data: st.DataObject) -> None:
        """With every entry consumed, or too early: then it aborts, and says so."""
        with self.may_be_struck():
            self._finish(self._running(data))

    def _finish(self, bench: Bench) -> None:
        model, request = bench.running
        if bench.cancelled:
            return self.ends_cancelled(bench, request.finish)
        self.quiet(bench)
        if bench.held and bench.held[0] is bench.iterated:
            model.release()
            bench.held.pop(0)
        if model.only_dropped_left:
            model.finish()
            self.call(bench, request.finish)
            self.over(bench, complete=True)
            event("finished")
            return
        model.abort()
        with pytest.raises(strata.StrataError, match=f"{model.released} of {len(model.items)} entries consumed"):
            self.call(bench, request.finish)
        self.over(bench)
        event("ended by finish")

    @precondition(lambda self: self.any_running())
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        """Where it is."""
        self._abort(self._running(data), lambda request: request.abort())

    @precondition(lambda self: self.any_running(_steady))
    @rule(data=st.data())
    def leave_by_an_exception(self, data: st.DataObject) -> None:
        """The engine's own."""

        def leave(request: strata.Request) -> None:
            with contextlib.suppress(ZeroDivisionError), request:
                raise ZeroDivisionError

        self._abort(self._running(data, _steady), leave)

    @precondition(lambda self: self.any_running(_steady))
    @rule(data=st.data())
    def leave_early(self, data: st.DataObject) -> None:
        """Out of the request's context, with entries left."""
        bench = self._running(data, _steady)
        model, _ = bench.running
        if model.only_dropped_left:
            return self._finish(bench)

        def leave(request: strata.Request) -> None:
            with request:
                pass

        self._abort(bench, leave)

    def _abort(self, bench: Bench, how: Callable[[strata.Request], None]) -> None:
        self.quiet(bench)
        model, request = bench.running
        model.abort()
        self.call(bench, lambda: how(request))
        self.over(bench)
        event("ended by abort")

    @precondition(lambda self: self.any_running(_steady))
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """The engine loses the request and all its slots: strata ends it, with a warning."""
        bench = self._running(data, _steady)
        self.quiet(bench)
        assert bench.model is not None
        bench.model.abort()
        control.thread_role(bench.role())
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            bench.held.clear()
            bench.request = bench.iterated = None
            gc.collect()
        assert [each.category for each in seen] == [ResourceWarning]
        assert "idle" in repr(bench.streamer)
        self.over(bench)
        event("ended by drop")

    @precondition(lambda self: self.any_running(_steady))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """From any thread: the next call ends the request."""
        bench = self._running(data, _steady)
        _, request = bench.running
        request.cancel()
        bench.cancelled = True

    # --- faults, kernels, looking -----------------------------------------------------------------------------------

    @precondition(lambda self: self.no_fault() and self.any_running(_steady))
    @rule(data=st.data(), fault=FAULTS)
    def arm(self, data: st.DataObject, fault: tuple[tuple[str, str], int, int]) -> None:
        """One of the next calls of somebody's fails."""
        bench = self._running(data, _steady)
        model, _ = bench.running
        (who, call), nth, status = fault
        if who == "worker" and bench.slots.share:  # which worker waits for which buffer is open then
            return
        call, at = bench.call_of(call), nth
        if who != "engine":
            counted = self.settled(bench)
            if who == "worker":
                at += counted["host_reuse_waits"]
            else:
                at += sum(step.function == call for step in model.steps(model.limit))
        self.arm_fault(bench, who, call, nth, status, at)

    @precondition(lambda self: any(bench.hold is None for bench in self.benches))
    @rule(data=st.data())
    def hold_compute(self, data: st.DataObject) -> None:
        """The engine's kernels take their time: what was released stays in use."""
        bench = self._choose(data, lambda each: each.hold is None)
        bench.hold = control.hold(bench.compute)

    @precondition(lambda self: self.any_running(_steady))
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        """The issuer comes exactly as far as it may, and everything until there is counted."""
        self.settled(self._running(data, _steady))

    @precondition(lambda self: self.begun > 1)
    @rule()
    def look(self) -> None:
        """At every byte that was read so far."""
        self.let_go()
        self.compare()

    @invariant()
    def totals_agree(self) -> None:
        """A streamer's counters are those of its requests together."""
        for bench in self.benches:
            if bench.request is None:
                counted = bench.streamer.counters.as_dict()
                assert {name: counted[name] for name in NAMES} == {name: bench.totals[name] for name in NAMES}

    # --- choosing ---------------------------------------------------------------------------------------------------

    def _choose(self, data: st.DataObject, which: Callable[[Bench], bool]) -> Bench:
        fit = [bench for bench in self.benches if which(bench)]
        return fit[0] if len(fit) == 1 else data.draw(st.sampled_from(fit), label="streamer")

    def _idle(self, data: st.DataObject) -> Bench:
        return self._choose(data, lambda each: each.request is None)

    def _running(self, data: st.DataObject, which: Callable[[Bench], bool] = lambda each: True) -> Bench:
        return self._choose(data, lambda each: each.request is not None and which(each))

    def _release_all(self, bench: Bench) -> None:
        while bench.held:
            self.release_oldest(bench)
