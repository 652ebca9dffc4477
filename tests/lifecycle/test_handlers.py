"""Signal handlers run while a call waits. What they end is over for that call, too: an error, nothing that was freed."""

from __future__ import annotations

import sys

import pytest

import strata
from strata import _hip
from tests.support.scripts import run_script

#: A handler that does what `act` says, while the main thread waits for something that comes half a second later.
WAITING = """
kind, act = {kind!r}, {act!r}
def handler(*_):
    if act == "close": (stager if kind == "stager" else streamer).close()
    elif kind == "stager": stager.finish()
    else:
        request.abort()
        if act == "begin": kept.append(streamer.begin(direct.take([5, 6])))
    say("handled")
kept = []
signal.signal(signal.SIGALRM, handler)
streamer = strata.ExpertStreamer(64, gpu_ring=4)
latch = control.hold(streamer.copy_stream)
if kind == "stager":
    stager = strata.HostStager(64, host_ring=2)
    stager.start(staged)
    for job in range(2):
        stager.wait(job)
        stager.submitted(job, streamer.copy_stream)
    wait = lambda: stager.wait(2)
elif kind == "synchronize":
    request = streamer.begin(direct)
    wait = request.acquire().synchronize
else:
    injection = control.inject("hipEventRecord", 1, action="hang")      # of publication
    request = streamer.begin(direct)
    wait = request.acquire
threading.Timer(0.6, lambda: (control.release_hangs(), latch.release())).start()
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    wait()
    say("went on")
except strata.StrataError as problem:
    say(type(problem).__name__, "|", problem)
for other in kept:
    with other as slots:
        for slot in slots:
            slot.synchronize()
            say(slot.entry, slot.array()[0] == pinned[5 + slot.entry, 0])
"""


@pytest.mark.parametrize(
    ("kind", "act", "said"),
    [
        ("acquire", "close", "RequestAborted | this request is over: its streamer was closed"),
        ("acquire", "abort", "RequestAborted | this request is over: it was aborted"),
        ("acquire", "begin", "RequestAborted | this request is over: it was aborted"),
        ("synchronize", "close", "RequestAborted | this request is over: its streamer was closed"),
        ("synchronize", "abort", "RequestAborted | this request is over: it was aborted"),
        ("synchronize", "begin", "RequestAborted | this request is over: it was aborted"),
        ("stager", "close", "StrataError | this stager is closed"),
        ("stager", "finish", "StrataError | no request of this stager runs: start() one first"),
    ],
)
def test_a_handler_that_ends_what_is_waited_for(kind: str, act: str, said: str) -> None:
    outcome = run_script(WAITING.format(kind=kind, act=act))
    assert (outcome.status, outcome.err) == (0, ""), outcome
    more = ["0 True", "1 True"] if act == "begin" else []  # the new request lost no entry to the old one
    assert outcome.out == ["handled", said, *more]


NEVER = """
import time
streamer = strata.ExpertStreamer(64, gpu_ring=4)
latch = control.hold(streamer.{stream})     # a kernel that does not end
"""


@pytest.mark.parametrize("stream", ["compute_stream", "copy_stream"])
def test_closing_beside_a_kernel_that_never_ends_is_bounded(stream: str) -> None:
    """What is freed waits for the device; the device does not come."""
    outcome = run_script(NEVER.format(stream=stream) + """
from strata.engine import core
core.DRIVER_TIMEOUT_S = 0.3
try:
    streamer.close()
except strata.StrataError as problem:
    say(problem)
streamer.close()
say("end")
""")
    assert (outcome.status, outcome.err) == (0, ""), outcome
    assert outcome.out[0].startswith("closing a broken streamer: the issuer ends the request, in hip")
    assert outcome.out[1:] == ["end"]


@pytest.mark.slow
def test_the_process_ends_beside_a_kernel_that_never_ends() -> None:
    outcome = run_script(NEVER.format(stream="compute_stream"))
    assert outcome.status == 0
    assert outcome.err.startswith("strata: at exit: closing a broken streamer: the issuer ends the request, in hip")
    assert outcome.err.count("\n") == 1


def test_a_stall_timeout_shorter_than_the_kernels_breaks_nothing() -> None:
    """Ending a request waits for kernels: that is no stall of the engine's."""
    outcome = run_script("""
import time
with strata.ExpertStreamer(64, gpu_ring=4, stall_timeout=0.05) as streamer:
    for end in ("finish", "abort"):
        request = streamer.begin(direct.take(range(8 if end == "finish" else 6)))
        for k in range(8 if end == "finish" else 4):
            slot = request.acquire()
            if k == 0: strata.runtime.launch_host(streamer.compute_stream, lambda: time.sleep(0.4))
            slot.release()
        getattr(request, end)()
        with streamer.begin(direct) as request:
            request.skip(64)
        say(end)
say(control.live()["streams"])
""")
    assert (outcome.status, outcome.err, outcome.out) == (0, "", ["finish", "abort", "0"]), outcome


@pytest.mark.parametrize("raised", [ZeroDivisionError("of the kernel's stand-in"), SystemExit(3), KeyboardInterrupt()])
def test_what_a_host_function_raises_is_told_with_its_traceback(raised: BaseException, monkeypatch, capsys) -> None:
    """By Python's own hook, as what a finalizer raises is; the stream goes on."""
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)  # not pytest's, which takes anything
    ran = []

    def stand_in() -> None:
        raise raised

    stream = _hip.create_stream()
    try:
        strata.runtime.launch_host(stream, stand_in)
        strata.runtime.launch_host(stream, lambda: ran.append(True))
        _hip.synchronize_stream(stream)
    finally:
        _hip.destroy_stream(stream)
    told = capsys.readouterr().err
    assert ran == [True]
    assert "stand_in" in told
    assert f"\n{type(raised).__name__}" in told
    assert "hook" not in told
