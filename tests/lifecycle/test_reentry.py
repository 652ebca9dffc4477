"""What a signal handler or another thread may end while a call of the engine is on its way through Python code.

Handlers run wherever Python code does: in the making of an exception, in a log's handler, in a property. The tests put
themselves there without signals, so that the moment is always the same one.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import pytest

import strata
from tests.support.engine import stream_all
from tests.support.scripts import ended_well, run_script
from tests.support.sources import material

NBYTES = 96
RING = 4


@contextmanager
def once_an_error_is_made(act: Callable[[], object]) -> Iterator[None]:
    """Call `act` at the first line of the next HipError's construction."""
    acts = [act]

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name == "__init__" and acts:
            if isinstance(frame.f_locals.get("self"), strata.HipError):
                acts.pop()()

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
    assert not acts, "no HipError was made"


class Sly(strata.ExpertCopies):
    """A list of copies that does something of its own when it is looked at."""

    __slots__ = ("act",)

    @property
    def offsets(self) -> Any:  # the core alone reads these: when it checks a list, and when it takes it
        act, self.act = self.act, lambda: None
        act()
        return super().offsets


def sly(copies: strata.ExpertCopies, act: Callable[[], object]) -> Sly:
    made = Sly(copies.addresses, copies.nbytes, copies.staged == 0, offsets=copies.offsets,
               entry_starts=copies.entry_starts)
    made.act = act
    return made


@pytest.mark.parametrize("how", ["abort", "begin", "close"])
def test_extend_of_a_request_that_ends_meanwhile(how: str) -> None:
    """Nothing is appended, to no other request either."""
    each, other = material("d" * 9, NBYTES), material("ds", NBYTES, seed=1)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        request = streamer.begin()
        following = []

        def end() -> None:
            if how == "close":
                streamer.close()
            else:
                request.abort()
            if how == "begin":
                following.append(streamer.begin(other.copies))

        with pytest.raises(strata.RequestAborted, match="this request is over"):
            request.extend(sly(each.copies, end))
        assert len(request) == 0
        for each_following in following:
            assert len(each_following) == len(other)
            each_following.abort()
        if how != "close":
            stream_all(streamer, each)


@pytest.mark.parametrize("how", ["begin", "close"])
def test_begin_beside_another_begin_or_close(how: str) -> None:
    each, other = material("d" * 9, NBYTES), material("ds", NBYTES, seed=1)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        following = []

        def act() -> None:
            if how == "close":
                streamer.close()
            else:
                following.append(streamer.begin(other.copies))

        copies = sly(each.copies, act)
        with pytest.raises(strata.StrataError, match="closed" if how == "close" else "still running|is over"):
            streamer.begin(copies)
        for each_following in following:
            each_following.abort()


@pytest.mark.parametrize("call", ["begin", "extend"])
def test_close_while_a_long_list_is_checked(call: str) -> None:
    """The check runs without the GIL: another thread's close() is refused, or comes before or after it as a whole."""
    each = material("d", NBYTES)
    long = each.copies.take(np.zeros(400_000, np.int64))
    for _ in range(20):
        streamer = strata.ExpertStreamer(NBYTES, gpu_ring=RING)
        problems: list[str] = []
        started = threading.Barrier(2)

        def close(streamer: strata.ExpertStreamer = streamer, problems: list[str] = problems,
                  started: threading.Barrier = started) -> None:
            started.wait()
            try:
                streamer.close()
            except strata.StrataError as refused:
                problems.append(str(refused))

        thread = threading.Thread(target=close)
        thread.start()
        request = streamer.begin() if call == "extend" else None
        started.wait()
        try:
            if request is None:
                request = streamer.begin(long)
            else:
                request.extend(long)
        except strata.StrataError as problem:
            assert "closed" in str(problem)
        thread.join()
        assert all("in use by another thread" in problem for problem in problems)
        streamer.close()


@pytest.mark.parametrize("how", ["close", "begin"])
def test_a_failure_is_told_whole_whatever_a_handler_does(how: str, software) -> None:
    each = material("d" * 9, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        software.inject("hipMemcpyAsync", 3, status=719)
        request = streamer.begin(each.copies)
        following = []

        def act() -> None:
            if how == "close":
                streamer.close()
            else:
                following.append(streamer.begin(each.copies))

        words = r"hipMemcpyAsync failed with hipErrorLaunchFailure \(719\).*entry 2.*in the issuer's thread\)?$"
        with once_an_error_is_made(act), pytest.raises(strata.HipError, match=words):
            for _ in request:
                pass
        for each_following in following:
            each_following.abort()


def test_a_failed_set_up_is_told_whole_whatever_a_handler_does(software) -> None:
    each = material("s" * 9, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        request = streamer.begin()
        software.inject("hipEventCreateWithFlags", 1, status=2)
        with once_an_error_is_made(streamer.close), pytest.raises(strata.HipError, match="hipEventCreateWithFlags"):
            request.extend(each.copies)
        assert streamer.closed


@pytest.mark.parametrize("how", ["abort", "begin", "close", "interrupt"])
def test_leaving_a_context_early_is_over_before_it_is_told(how: str) -> None:
    """The log's handlers run once the request has ended."""
    each = material("d" * 9, NBYTES)
    logger = logging.getLogger("strata")
    level = logger.level
    following = []
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        request = streamer.begin(each.copies)
        request.skip(3)

        class Handler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if how == "interrupt":
                    raise KeyboardInterrupt
                if how == "close":
                    streamer.close()
                else:
                    request.abort()
                if how == "begin":
                    following.append(streamer.begin(each.copies))

        handler = Handler()
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            with request:
                pass
        except KeyboardInterrupt:
            assert how == "interrupt"
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
        assert repr(request).endswith("its context was left early>")
        assert request.counters.skipped == streamer.counters.skipped == 3
        for each_following in following:
            each_following.skip(9)
            each_following.finish()
            assert streamer.counters.skipped == 12
        if how in ("abort", "interrupt"):
            stream_all(streamer, each)


class SlyNumber(int):
    """An integer that does something of its own when it is compared."""

    act: Callable[[], object]

    def __lt__(self, other: int) -> bool:
        self.act()
        return int(self) < other


class SlySeconds(float):
    """A number of seconds that does something of its own when it is compared."""

    act: Callable[[], object]

    def __ge__(self, other: float) -> bool:
        self.act()
        return float(self) >= other


def test_arguments_that_close_the_streamer() -> None:
    each = material("d" * 9, NBYTES)
    for number, call in ((SlyNumber(1), "skip"), (SlySeconds(1), "acquire")):
        with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
            request = streamer.begin(each.copies)
            number.act = streamer.close
            if call == "skip":
                request.skip(number)  # taken as the number that it is
                request.abort()
            else:
                with pytest.raises(strata.RequestAborted, match="its streamer was closed"):
                    request.acquire(number)


def test_the_last_of_an_old_request_closes_the_streamer() -> None:
    each = material("d" * 9, NBYTES)
    kept = {}
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        kept["request"] = streamer.begin(each.copies)
        kept["request"].abort()
        weakref.finalize(kept["request"], streamer.close)
        with pytest.raises(strata.StrataError, match="closed"):
            streamer.begin(sly(each.copies, kept.clear))


@pytest.mark.parametrize("how", ["begin", "close"])
def test_the_cause_outlives_what_letting_go_of_the_sources_does(how: str, software) -> None:
    each, other = material("d" * 9, NBYTES), material("ds", NBYTES, seed=1)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        following = []
        copies = each.take(0, 9)
        weakref.finalize(copies, lambda: following.append(
            streamer.begin(other.copies) if how == "begin" else streamer.close()))
        software.inject("hipMemcpyAsync", 3, status=719)
        request = streamer.begin(copies)
        del copies
        with pytest.raises(strata.HipError, match=r"hipMemcpyAsync failed with hipErrorLaunchFailure \(719\)"):
            for _ in request:
                pass
        assert len(following) == 1
        if how == "begin":
            following[0].abort()


def test_close_ends_a_request_that_letting_go_of_the_sources_began() -> None:
    each, other = material("d" * 9, NBYTES), material("d" * 3, NBYTES, seed=1)
    streamer = strata.ExpertStreamer(NBYTES, gpu_ring=RING)
    following = []

    def begin() -> None:
        following.append(streamer.begin(other.copies))
        following[0].skip(3)

    copies = each.take(0, 9)
    weakref.finalize(copies, begin)
    request = streamer.begin(copies)
    request.skip(2)
    del copies
    streamer.close()
    for ended in (request, *following):
        assert repr(ended).endswith("its streamer was closed>")
    assert streamer.counters.skipped == 5


def test_an_error_that_is_interrupted_ends_the_request_all_the_same(software) -> None:
    each = material("s" * 9, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        request = streamer.begin()
        software.inject("hipEventCreateWithFlags", 1, status=2)

        def interrupt() -> None:
            raise KeyboardInterrupt

        with once_an_error_is_made(interrupt), pytest.raises(KeyboardInterrupt):
            request.extend(each.copies)
        assert repr(request).endswith("it failed>")
        stream_all(streamer, each)


def test_a_stager_that_is_closed_as_its_sources_are_let_go() -> None:
    each = material("s" * 3, NBYTES)
    stager = strata.HostStager(NBYTES, host_ring=4)
    copies = each.take(0, 3)
    weakref.finalize(copies, stager.close)
    stager.start(copies)
    del copies
    stager.finish()
    with pytest.raises(strata.StrataError, match="this stager is closed"):
        stager.start(each.copies)


def test_a_stager_that_is_closed_while_a_stream_is_looked_at(software) -> None:
    each = material("s" * 3, NBYTES)
    with strata.ExpertStreamer(NBYTES, gpu_ring=RING) as streamer:
        stager = strata.HostStager(NBYTES, host_ring=4)
        stager.start(each.copies)
        stager.wait(0)
        software.inject("hipStreamGetDevice", 1, action="hang")

        def close() -> None:
            while not software.hanging_calls():
                pass
            stager.close()
            software.release_hangs()

        thread = threading.Thread(target=close)
        thread.start()
        with pytest.raises(strata.StrataError, match="this stager is closed"):
            stager.submitted(0, streamer.copy_stream)
        thread.join()


# --- an interrupted finish(), and what comes after it ---------------------------------------------------------------


INTERRUPTED = """
from strata.engine import core
class Interrupted(Exception):
    pass
def interrupt(*_):
    raise Interrupted
signal.signal(signal.SIGALRM, interrupt)
def interrupted_after(seconds):
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        request.finish()
    except Interrupted:
        say("interrupted")
streamer = strata.ExpertStreamer(64, gpu_ring=4)
latch = control.hold(streamer.copy_stream)
request = streamer.begin(direct)
request.skip(64)
"""


@pytest.mark.parametrize("then", ["request.abort()", "request.finish()", "streamer.close()", "streamer.begin()"])
def test_an_interrupted_finish_takes_no_patience_from_what_comes_after_it(then: str) -> None:
    out = ended_well(run_script(INTERRUPTED + f"""
core.DRIVER_TIMEOUT_S = 0.4
with strata.ExpertStreamer(64, gpu_ring=4) as streamer:
    held = control.hold(streamer.copy_stream)
    latch.release()
    request.finish()
    first = request                 # it keeps the other streamer, whose end would wait for the stream that is held
    request = streamer.begin(direct)
    request.skip(64)
    interrupted_after(0.3)
    threading.Timer(0.25, held.release).start()
    {then}
    say("well")
"""))
    assert out == ["interrupted", "well"]


@pytest.mark.parametrize("then", ["request.finish()", "streamer.begin()"])
def test_what_failed_after_an_interrupted_finish_is_raised(then: str) -> None:
    out = ended_well(run_script(INTERRUPTED + f"""
control.inject("hipStreamSynchronize", 1, 719)
interrupted_after(0.1)
latch.release()
try:
    {then}
    say("no error")
except strata.HipError as error:
    say(error)
streamer.begin(direct).abort()
"""))
    assert out[0] == "interrupted"
    assert out[1].startswith("hipStreamSynchronize failed with hipErrorLaunchFailure (719)")
