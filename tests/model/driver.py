"""The engine's part: it calls a streamer and its model alike, and compares what comes of it."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import event
from hypothesis.stateful import RuleBasedStateMachine

import strata
from strata import _hip
from strata.runtime.software import control
from strata.runtime.software.checking import checked
from tests.faults.threads import alive, asleep, threads_named, wait_until
from tests.model import contract
from tests.model.bench import Bench, Fault
from tests.model.material import NBYTES, ROWS, Entry, Sources

#: Seconds are not counted without timing.
NAMES = [name for name in strata.Counters().as_dict() if not name.endswith("_s")]

#: Must be alive after an example as before it.
KEPT = ("streams", "events", "device_allocations", "pinned_allocations", "pinned_bytes")


class Struck(Exception):
    """An injected fault has ended the request, and all that it left behind was right."""


class Driver(RuleBasedStateMachine):
    """What the rules are made of.

    Steps must not depend on the threads' timing, or an example could not be repeated: `contract` alone decides
    which rules apply, never what strata happens to say.
    """

    sources: Sources

    def __init__(self) -> None:
        super().__init__()
        self.benches: list[Bench] = []
        self.opened = 0
        self.begun = 0
        self.reads: list[tuple[Entry, int]] = []
        self.configuration = control.configuration()
        self.before = control.live()
        self.streams = [_hip.create_stream(), _hip.create_stream()]
        self.stack = contextlib.ExitStack()
        self.stack.enter_context(checked())
        logger = logging.getLogger("strata")
        self.stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)

    def teardown(self) -> None:
        """Close everything; no finding, no wrong byte, no thread and no handle may be left."""
        try:
            for bench in list(self.benches):
                self.close_streamer(bench)
            self.compare()
            assert [str(finding) for finding in control.findings()] == []
            names = [f"{who}{number}" for who in ("issuer", "worker") for number in range(self.opened)]
            wait_until(lambda: not alive(*names), "the threads of all streamers have ended")
        finally:
            self._clear()
        after = control.live()
        assert {key: after[key] for key in KEPT} == {key: self.before[key] for key in KEPT}

    def _clear(self) -> None:
        """Also after a failure."""
        control.clear_injections()
        self.let_go()
        for bench in self.benches:
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

    def close_streamer(self, bench: Bench) -> None:
        """Closing aborts what runs."""
        self.quiet(bench)
        control.thread_role(bench.role())
        running = bench.request is not None
        if bench.model is not None:
            bench.model.abort()
        bench.streamer.close()
        if running:
            self.over(bench)
        assert bench.streamer.closed
        if bench.memory:
            for stream in {bench.compute, *self.streams}:
                _hip.synchronize_stream(stream)
            _hip.free(bench.memory)
            bench.memory = 0
        self.benches.remove(bench)

    # --- which streamer -----------------------------------------------------------------------------------------

    def any_running(self, which: Callable[[Bench], bool] = lambda each: True) -> bool:
        """Whether a streamer has a request and fits."""
        return any(bench.request is not None and which(bench) for bench in self.benches)

    def any_idle(self) -> bool:
        """Whether a streamer has no request."""
        return any(bench.request is None for bench in self.benches)

    def no_fault(self) -> bool:
        """One fault at a time: taking one back takes all back."""
        return all(bench.fault is None for bench in self.benches)

    def let_go(self) -> None:
        """Nothing is held back any more: what comes now may have to wait. (Streamers share streams.)"""
        for bench in self.benches:
            if bench.hold is not None:
                bench.hold.release()
                bench.hold = None

    # --- lists ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def listing(self, bench: Bench, listed: Sequence[Entry]) -> Iterator[None]:
        """A call that may start workers and make the host ring, some of whose buffers are not to be pinned."""
        if not bench.host_ring_made and any(entry.item.staged for entry in listed):
            for buffer, pinned in enumerate(bench.pinned):
                if not pinned:
                    control.inject("hipHostMalloc", buffer + 1, 2, thread=bench.role())
            bench.host_ring_made = True
        control.thread_role(bench.role())
        with threads_named(bench.role("worker")):
            yield

    def list(self, bench: Bench, listed: Sequence[Entry]) -> None:
        """Tell the model."""
        assert bench.model is not None
        bench.listed.extend(listed)
        bench.model.extend([entry.item for entry in listed])

    def begin_request(
        self, bench: Bench, listed: Sequence[Entry] | None, *, long: bool = True, stream: int | None = None,
        slots: Sequence[int] | None = None,
    ) -> None:
        """A request begins at once, whatever the last one has left on the streams."""
        compute = bench.default if stream is None else self.streams[stream]
        lent = bench.lent is not None
        waits = len(bench.slots.begin_waits(lent, compute))
        # The end of a request on a stream of its own was recorded there, at that end.
        recorded = bench.slots.stream not in (None, compute, bench.default) and not bench.slots.passed
        records = waits - recorded
        bench.listed, bench.held, bench.lowest, bench.cancelled = [], [], 0, False
        bench.requests += 1
        self.begun += 1

        def begin() -> strata.Request:
            with self.listing(bench, listed or []):
                return bench.streamer.begin(
                    None if listed is None else self.sources.copies(listed), long_prefill=long, slots=slots,
                    compute_stream=None if stream is None else compute,
                )

        fault = bench.fault
        record = self.engine_strikes(bench, "hipEventRecord", records)
        wait = self.engine_strikes(bench, "hipStreamWaitEvent", waits)
        if fault is not None and (record or wait):
            made, bench.host_ring_made = bench.host_ring_made, True  # it does not come so far
            with pytest.raises(strata.HipError) as caught:
                begin()
            bench.host_ring_made = made
            assert (caught.value.call, caught.value.status) == (fault.call, fault.status)
            assert (caught.value.entry, caught.value.slot) == (None, None)
            bench.fault = None
            bench.slots.passed |= recorded and wait != 1  # and nothing else has changed
            event("struck: the begin fence")
            return
        bench.slots.begin(lent, compute)
        bench.model = contract.Request(
            bench.slots, bench.host_ring, bench.batches if long else contract.Batches(1, 1, 1), bench.pinned, waits,
            bench.grouped,
        )
        bench.compute = compute
        if listed:
            self.list(bench, listed)
        bench.request = begin()
        assert (bench.streamer.compute_stream, bench.request.compute_stream) == (bench.default, compute)
        with self.may_be_struck():
            self.hear(bench)

    # --- entries ----------------------------------------------------------------------------------------------------

    def call(self, bench: Bench, action: Callable[[], object]) -> object:
        """A call of the engine's."""
        control.thread_role(bench.role())
        return action()

    def may_take(self, bench: Bench, action: Callable[[], object]) -> bool:
        """Whether the next entry may be taken. If it may not, the call says why, and nothing changes."""
        model, _ = bench.running
        if model.acquired == len(model.items):
            with pytest.raises(IndexError, match="past the end of the list"):
                self.call(bench, action)
            return False
        self.may_flush(bench, action, model.acquired)
        if not model.can_take():
            with pytest.raises(strata.StrataError, match=f"entry {model.acquired} cannot be published while"):
                self.call(bench, action)
            return False
        if any(model.jobs[entry] >= bench.host_ring for entry in range(model.group_end(model.acquired))):
            self.let_go()  # a worker waits for a DMA, that for a kernel, and the engine for all of them
        return True

    def take(self, bench: Bench) -> bool:
        """Acquire the next entry and have the engine's kernels read it; one that was dropped is refused, and passed."""
        model, request = bench.running
        if bench.cancelled:
            self.ends_cancelled(bench, request.acquire)
            raise Struck
        if model.acquired in model.unwanted:
            with pytest.raises(strata.StrataError, match=f"entry {model.acquired} was dropped"):
                self.call(bench, request.acquire)
            return self.skip_one(bench)
        if not self.may_take(bench, request.acquire):
            return False
        if model.needs_wait(model.acquired) and self.engine_strikes(bench, "hipStreamWaitEvent", 1):
            self.engine_fails(bench, request.acquire, model.acquired)
        slot = self.call(bench, request.acquire)
        assert isinstance(slot, strata.Slot)
        self.taken(bench, slot)
        return True

    def taken(self, bench: Bench, slot: strata.Slot) -> None:
        """The slot is the one that it has to be, and it is published in time and not too early."""
        model, request = bench.running
        entry = model.acquire()
        assert (slot.entry, slot.slot) == (entry, entry % model.ring)
        assert slot.nbytes == bench.listed[entry].extent
        assert model.group_end(entry) <= request.issued <= model.limit
        bench.lowest = max(bench.lowest, model.group_end(entry))
        bench.held.append(slot)
        self.read(bench, slot)

    def may_flush(self, bench: Bench, action: Callable[[], object], last: int) -> None:
        """The next call records what is pending, before it waits for an entry or refuses it."""
        model, _ = bench.running
        if model.must_flush(last):
            if self.engine_strikes(bench, "hipEventRecord", 1):
                self.engine_fails(bench, action, model.released - 1)
            model.flush()
            if self.due(bench):  # what the issuer may do from here on fails: the call would hear of it as it waits
                self.call(bench, bench.running[1].flush)
                self.hear(bench)

    def take_span(self, bench: Bench, limit: int) -> bool:
        """Acquire a span and have the engine's kernels read what is wanted of it."""
        model, request = bench.running
        limit = min(limit, model.ring)

        def acquire() -> strata.Span:
            return request.acquire_span(limit)

        if bench.cancelled:
            self.ends_cancelled(bench, acquire)
            raise Struck
        if model.acquired < len(model.items):
            longest = model.longest_span(limit, bench.streamer.slots, NBYTES)
            self.may_flush(bench, acquire, longest - 1)
        if not self.may_take(bench, acquire):
            return False
        end = model.within_window(longest)
        if any(model.jobs[entry] >= bench.host_ring for entry in range(model.group_end(end - 1))):
            self.let_go()
        if model.is_read(model.acquired, end) and model.needs_wait(end - 1):
            if self.engine_strikes(bench, "hipStreamWaitEvent", 1):
                self.engine_fails(bench, acquire, end - 1)
        begin = model.acquired
        span = self.call(bench, acquire)
        assert isinstance(span, strata.Span)
        model.acquire_span(end)
        assert (span.begin, span.end, span.slot) == (begin, end, begin % model.ring)
        assert span.wanted.tolist() == [entry not in model.unwanted for entry in range(begin, end)]
        assert model.group_end(end - 1) <= request.issued <= model.limit
        bench.lowest = max(bench.lowest, model.group_end(end - 1))
        bench.held.append(span)
        for slot in span:
            assert slot.nbytes == span.nbytes[slot.entry - begin] == bench.listed[slot.entry].extent
            self.read(bench, slot)
        return True

    def read(self, bench: Bench, slot: strata.Slot) -> None:
        """As the engine's kernels do."""
        if len(self.reads) == ROWS:
            self.let_go()
            self.compare()
        if slot.nbytes:
            control.thread_role("kernel")
            _hip.memcpy_d2h_async(self.sources.row(len(self.reads)), slot.address, slot.nbytes, bench.compute)
            self.reads.append((bench.listed[slot.entry], bench.compute))

    def release_oldest(self, bench: Bench) -> None:
        """Give back the slot that was held the longest, and what was skipped behind it."""
        model, _ = bench.running
        slot = bench.held[0]
        if bench.cancelled:
            self.ends_cancelled(bench, slot.release)
            raise Struck
        records = model.records_of_release()
        failing = self.engine_strikes(bench, "hipEventRecord", len(records))
        if failing:
            self.engine_fails(bench, slot.release, records[failing - 1], records=failing - 1)
        self.call(bench, slot.release)
        bench.held.pop(0)
        model.release()
        self.hear(bench)

    def skip_one(self, bench: Bench) -> bool:
        """Pass an entry. Behind held ones its turn comes later."""
        model, request = bench.running
        if bench.cancelled:
            self.ends_cancelled(bench, request.skip)
            raise Struck
        if not self.may_take(bench, request.skip):
            return False
        if not model.taken and model.records_of_skip() and self.engine_strikes(bench, "hipEventRecord", 1):
            self.engine_fails(bench, request.skip, model.acquired, passed=1)
        self.call(bench, request.skip)
        model.skip()
        self.hear(bench)
        return True

    def ends_cancelled(self, bench: Bench, action: Callable[[], object]) -> None:
        """The next call of a cancelled request, whatever it is, aborts and raises."""
        self.quiet(bench)
        model, _ = bench.running
        model.abort()
        with pytest.raises(strata.RequestAborted, match="cancelled"):
            self.call(bench, action)
        self.over(bench)
        event("ended by cancel")

    # --- faults -----------------------------------------------------------------------------------------------------

    def arm_fault(self, bench: Bench, who: str, call: str, nth: int, status: int, at: int) -> None:
        """The n-th call of a kind from now fails."""
        bench.fault = Fault(who, call, status, control.inject(call, nth, status, thread=bench.role(who)), at)
        event(f"armed: {who}'s {call}")

    @contextlib.contextmanager
    def may_be_struck(self) -> Iterator[None]:
        """A rule that a fault, or a cancellation, may cut short."""
        with contextlib.suppress(Struck):
            yield

    def failing_step(self, bench: Bench) -> tuple[int, contract.Step] | None:
        """The step of the issuer that fails, and its number, if the engine has let it come so far."""
        fault, model = bench.fault, bench.model
        assert fault is not None
        assert model is not None
        seen = 0
        for number, step in enumerate(model.steps(model.limit)):
            seen += step.function == fault.call
            if step.function == fault.call and seen == fault.at:
                return number, step
        return None

    def due(self, bench: Bench) -> bool:
        """Whether the fault of another thread has struck, or is about to."""
        fault, model = bench.fault, bench.model
        if fault is None or model is None or fault.who == "engine":
            return False
        if fault.who == "issuer":
            return self.failing_step(bench) is not None
        counted, _, _ = model.states(model.limit)[-1]
        return len(model.host_waits(counted)[1]) >= fault.at

    def engine_strikes(self, bench: Bench, call: str, calls: int) -> int:
        """Which of the engine's next calls of a kind fails, from 1; 0: none. Counts the others down."""
        fault = bench.fault
        if fault is None or fault.who != "engine" or fault.call != call:
            return 0
        if fault.at <= calls:
            return fault.at
        fault.at -= calls
        return 0

    def engine_fails(
        self, bench: Bench, action: Callable[[], object], entry: int, *, records: int | None = None, passed: int = 0
    ) -> None:
        """A call of the engine's own fails, after a release has made some records; that ends the request."""
        fault = bench.fault
        model, _ = bench.running
        assert fault is not None
        self.let_go()
        with pytest.raises(strata.HipError) as caught:
            self.call(bench, action)
        assert fault.injection.fired
        assert (caught.value.call, caught.value.status) == (fault.call, fault.status)
        assert (caught.value.entry, caught.value.slot) == (entry, entry % model.ring)
        if records is not None:
            model.release(records)
        model.acquired += passed
        model.abort()
        self.over(bench)
        event(f"struck: engine's {fault.call}")
        raise Struck

    def hear(self, bench: Bench) -> None:
        """Where another thread's call fails, the engine's next one hears of it, whatever it is.

        That thread is given the time to tell. So it does not depend on the threads which calls of an example
        take effect, nor what comes after.
        """
        if not self.due(bench):
            return
        fault = bench.fault
        model, request = bench.running
        assert fault is not None
        self.let_go()
        wait_until(lambda: fault.injection.fired, "the call has failed")
        wait_until(lambda: asleep(bench.role(fault.who)), "its thread has told of it")
        with pytest.raises(strata.HipError) as caught:
            self.call(bench, request.acquire)
        problem = caught.value
        assert (problem.call, problem.status) == (fault.call, fault.status)
        if fault.who == "issuer":
            failing = self.failing_step(bench)
            assert failing is not None
            assert problem.entry == failing[1].entry
        else:
            # One worker of several that was held up with a job of its own may be as late as it likes.
            first = bench.host_ring + (fault.at - 1 if bench.workers == 1 else 0)
            jobs = range(first, bench.host_ring + fault.at - 1 + bench.workers)
            assert problem.entry in {model.job_entries[job] for job in jobs if job < len(model.job_entries)}
        assert problem.entry is not None
        assert problem.slot == problem.entry % model.ring
        model.abort()
        self.over(bench)
        event(f"struck: {fault.who}'s {fault.call}")
        raise Struck

    # --- judging ------------------------------------------------------------------------------------------------------

    def settled(self, bench: Bench) -> Counter[str]:
        """Wait until the threads have done all that they may: then every counter is known."""
        model, request = bench.running
        self.let_go()
        wait_until(lambda: request.issued >= model.limit, f"{model.limit} entries are published")
        assert request.issued == model.limit
        bench.lowest = model.limit
        counted, issued, _ = model.states(model.limit)[-1]
        assert issued == model.limit
        expected = counted + model.engine
        groups = model.host_waits(counted)[1]
        waits = expected["host_reuse_waits"] = model.own_host_waits(groups)
        shared = expected["host_reuse_waits_shared"] = len(groups) - waits
        wait_until(lambda: request.counters.host_reuse_waits >= waits, f"the workers have waited {waits} times")
        wait_until(lambda: request.counters.host_reuse_waits_shared >= shared, f"and shared {shared} waits")
        found = request.counters.as_dict()
        assert {name: found[name] for name in NAMES} == {name: expected[name] for name in NAMES}
        return expected

    def quiet(self, bench: Bench) -> None:
        """Before an end: kernels go on, and a fault that has not struck by now never will."""
        self.let_go()
        fault = bench.fault
        if fault is None:
            return
        if fault.who != "engine":
            self.settled(bench)
        assert not fault.injection.fired
        control.clear_injections()
        bench.fault = None

    def over(self, bench: Bench, *, complete: bool = False) -> None:
        """The request is over: its counters are those of one of the points at which its issuer may have stopped."""
        model, request, fault = bench.model, bench.request, bench.fault
        assert model is not None
        totals = bench.streamer.counters.as_dict()
        found = {name: int(totals[name]) - bench.totals[name] for name in NAMES}
        issued = None
        if request is not None:  # else it was dropped
            values = request.counters.as_dict()
            assert found == {name: values[name] for name in NAMES}
            assert (len(request), request.released, request.consumed) == (
                len(model.items), model.released, model.consumed)
            issued = request.issued
        states = model.states(model.limit)
        if complete:
            possible = [states[-1]]
        elif fault is not None and fault.who == "issuer" and self.due(bench):
            failing = self.failing_step(bench)
            assert failing is not None
            possible = [states[failing[0]]]  # there, and nowhere else
        else:
            possible = [state for state in states if state[2] and state[1] >= bench.lowest]
        reasons = [self._differences(model, state, found, issued, complete) for state in possible]
        assert not all(reasons), (
            f"the issuer may have stopped at {len(possible)} points, and these counters fit none of them; nearest, "
            f"found and expected: {min(reasons, key=len)}"
        )
        model.over(found["direct_reuse_waits"] + found["staged_reuse_waits"])
        bench.totals.update(found)
        if fault is not None:
            control.clear_injections()
        bench.request = bench.model = bench.fault = bench.iterated = None
        bench.held.clear()
        bench.cancelled = False

    @staticmethod
    def _differences(
        model: contract.Request, state: tuple[Counter[str], int, bool], found: dict[str, int], issued: int | None,
        complete: bool,
    ) -> dict[str, tuple[int, object]]:
        """What would have to be otherwise, had the issuer stopped there."""
        counted, issued_then, _ = state
        expected = counted + model.engine
        expected["fences"] = 0 if complete else model.fence(counted)
        least, most = model.host_waits(counted)
        wrong: dict[str, tuple[int, object]] = {
            name: (found[name], expected[name])
            for name in NAMES
            if not name.startswith("host_reuse_waits") and found[name] != expected[name]
        }
        if complete:
            least = most
        both = found["host_reuse_waits"] + found["host_reuse_waits_shared"]
        own = model.own_host_waits(least), model.own_host_waits(most)
        if not len(least) <= both <= len(most) or not own[0] <= found["host_reuse_waits"] <= own[1]:
            wrong["host_reuse_waits"] = found["host_reuse_waits"], (len(least), len(most), own)
        if issued is not None and issued != issued_then:
            wrong["issued"] = issued, issued_then
        return wrong

    def compare(self) -> None:
        """Wait for what the engine has queued, and compare every byte that it read."""
        control.thread_role("test")
        # A closed streamer's own stream is gone; closing has waited for what read its slots.
        there = {*self.streams, *(bench.default for bench in self.benches)}
        for stream in {stream for _, stream in self.reads} & there:
            _hip.synchronize_stream(stream)
        for row, (entry, _) in enumerate(self.reads):
            assert self.sources.shows(row, entry), f"wrong bytes of {entry}"
        self.reads.clear()
