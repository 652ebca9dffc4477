"""A driver call that never returns: who waits in it is named, the streamer is given up, the process ends.

In processes of their own, which nothing of this can keep from ending.
"""

from __future__ import annotations

import pytest

from tests.support.scripts import PROLOGUE, ended_well, run_script

pytestmark = pytest.mark.timeout(200, method="thread")

#: `alive` says which of strata's threads are left; `verdict` tells an error.
NAMED = PROLOGUE + """
import pathlib

def alive():
    return sorted(
        name for task in pathlib.Path("/proc/self/task").iterdir()
        if (name := (task / "comm").read_text().strip()) in ("strata-issuer", "strata-worker-0")
    )

def verdict(problem):
    say(type(problem).__name__, "|", problem)

control.thread_role("engine")
from strata.engine import core
core.DRIVER_TIMEOUT_S = 0.3
batches = strata.BatchSettings(2, 2, 2)
streamer = strata.ExpertStreamer(64, gpu_ring=4, host_ring=3, workers=1, settings=batches, stall_timeout=0.3)
with streamer.begin(staged) as request:  # every slot and buffer was used
    request.skip(64)
with streamer.begin(direct) as request:
    request.skip(64)
"""

#: What hangs: call, which of them, on whose thread, with which list; and what the errors must name.
CASES = {
    "the issuer's copy": (
        "hipMemcpyAsync", 3, "strata-issuer", "direct", "the issuer is in hipMemcpyAsync at entry 2, slot 2"),
    "the issuer's staged copy": (
        "hipMemcpyAsync", 3, "strata-issuer", "staged", "the issuer is in hipMemcpyAsync at entry 2, slot 2"),
    "the issuer's reuse wait": (
        "hipStreamWaitEvent", 2, "strata-issuer", "direct", "the issuer is in hipStreamWaitEvent at entry 2, slot 2"),
    "the issuer's record": ("hipEventRecord", 2, "strata-issuer", "direct", "the issuer is in hipEventRecord at entry "),
    "the issuer's record of a buffer": (
        "hipEventRecord", 1, "strata-issuer", "staged", "the issuer is in hipEventRecord at entry 1, slot 1"),
    "a worker's wait for a buffer": (
        "hipEventSynchronize", 1, "strata-worker-0", "staged",
        "worker 0 is in hipEventSynchronize at job 3, for the DMA of buffer 0"),
}

END = """
try:
    streamer.begin(direct)
except strata.StrataError as problem:
    verdict(problem)
try:
    streamer.close()
except strata.StrataError as problem:
    verdict(problem)
streamer.close()  # once is enough
"""


#: One case of each thread is enough for a quick run.
COPY, WORKER = "the issuer's copy", "a worker's wait for a buffer"


@pytest.mark.parametrize(
    ("name", "released"),
    [
        pytest.param(
            name, released, id=f"{name}, {'until later' if released else 'for ever'}",
            marks=[] if (name, released) in ((COPY, False), (WORKER, True)) else pytest.mark.slow,
        )
        for name in CASES for released in (False, True)
    ],
)
def test_a_call_of_a_strata_thread_never_returns(name: str, released: bool) -> None:
    call, nth, thread, copies, named = CASES[name]
    script = f"""
control.inject({call!r}, {nth}, action="hang", thread={thread!r})
request = streamer.begin({copies})
try:
    for slot in request:
        pass
except strata.StrataError as problem:
    verdict(problem)
try:
    request.abort()
except strata.StrataError as problem:
    verdict(problem)
{END}
if {released}:
    say(control.hanging_calls())
    control.release_hangs()
    with strata.ExpertStreamer(64, gpu_ring=4, host_ring=3) as other:
        for copies, first in ((direct, 0), (staged, 64)):
            with other.begin(copies) as request:
                for slot in request:
                    slot.synchronize()
                    assert (slot.array() == first + slot.entry).all()
    say("and again")
say("end")
"""
    out = ended_well(run_script(script, prologue=NAMED))
    stall, abort, begin, close = (line.split(" | ", 1) for line in out[:4])
    assert stall[0] == "StallError"
    assert "was not published and nothing moved for 0.3 s" in stall[1]
    assert named in stall[1]
    assert abort[0] == begin[0] == close[0] == "StrataError"
    assert "a driver call has not returned" in abort[1]
    assert "the streamer is broken" in abort[1]
    assert "this streamer is broken" in begin[1]
    assert "closing a broken streamer" in close[1]
    for text in (abort[1], begin[1], close[1]):
        # The end of the request is what the issuer is about once it comes back to it.
        assert named.partition(" at ")[0] in text
    assert out[4:] == (["1", "and again", "end"] if released else ["end"])


@pytest.mark.parametrize(
    ("call", "copies"),
    [
        ("hipStreamSynchronize", "direct"),
        pytest.param("hipStreamSynchronize", "staged", marks=pytest.mark.slow),
        ("hipEventSynchronize", "staged"),
    ],
)
def test_the_end_of_a_request_never_comes(call: str, copies: str) -> None:
    """`finish` has no entry to name: it names who waits in which call."""
    script = f"""
# The copy stream is not drained yet as far as the engine's thread can see: the issuer has to wait for it.
control.inject("hipStreamQuery", 1, 600)
control.inject({call!r}, 1, action="hang", thread="strata-issuer")
request = streamer.begin({copies})
request.skip(64)
try:
    request.finish()
except strata.StrataError as problem:
    verdict(problem)
{END}
say(request.consumed)
say("end")
"""
    out = ended_well(run_script(script, prologue=NAMED))
    finish, begin, close = (line.split(" | ", 1) for line in out[:3])
    assert finish[0] == begin[0] == close[0] == "StrataError"
    assert f"a driver call has not returned: the issuer ends the request, in {call}" in finish[1]
    assert "this streamer is broken" in begin[1]
    assert "closing a broken streamer" in close[1]
    assert f"the issuer ends the request, in {call}" in close[1]
    assert out[3:] == ["64", "end"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "how"),
    [
        (name, how)
        for name in CASES
        for how in ("", "streamer.close()", "del request, streamer", "sys.exit(3)", "raise Trouble")
        if how == "" or name in (COPY, WORKER)
    ],
)
def test_the_process_ends_whatever_hangs(name: str, how: str) -> None:
    """Without a stall_timeout, too: closing gives the thread up after a while."""
    call, nth, thread, copies, _ = CASES[name]
    script = f"""
from strata.engine import core
core.DRIVER_TIMEOUT_S = 0.3
control.inject({call!r}, {nth}, action="hang", thread={thread!r})
request = streamer.begin({copies})
while not control.hanging_calls():
    pass
class Trouble(Exception):
    pass

say("hangs")
try:
    {how or "pass"}
except strata.StrataError as problem:
    verdict(problem)
"""
    outcome = run_script(script, prologue=NAMED)
    assert outcome.status == {"sys.exit(3)": 3, "raise Trouble": 1}.get(how, 0), outcome
    assert outcome.out[0] == "hangs"
    if how == "streamer.close()":
        assert outcome.out[1].startswith("StrataError | closing a broken streamer")
        assert outcome.err == ""
    elif how != "del request, streamer":  # there, the log tells what became of the request
        told = [line for line in outcome.err.splitlines() if line.startswith("strata: at exit: ")]
        assert len(told) == 1, outcome.err
        assert "closing a broken streamer" in told[0]
        assert ("Trouble" in outcome.err) == (how == "raise Trouble")


#: A stager whose only worker is in a call that does not return, with two of eight jobs submitted.
STAGER = PROLOGUE + """
from strata import _hip
from strata.engine import core
core.DRIVER_TIMEOUT_S = 0.3
memory, stream = _hip.malloc(64), _hip.create_stream()
stager = strata.HostStager(64, host_ring=2, workers=1)
control.thread_role("engine")
control.inject("hipEventSynchronize", 1, action="hang", thread="strata-worker-0")
stager.start(staged)
for job in range(2):
    _hip.memcpy_h2d_async(memory, stager.wait(job), 64, stream)
    stager.submitted(job, stream)
while not control.hanging_calls():
    pass
say("hangs")
"""


@pytest.mark.parametrize(
    "how", ["finish", *(pytest.param(each, marks=pytest.mark.slow) for each in ("close", "exit"))]
)
def test_a_worker_of_a_stager_never_returns(how: str) -> None:
    script = {
        "finish": """
for call in (stager.finish, lambda: stager.start(staged), stager.close):
    try:
        call()
    except strata.StrataError as problem:
        say(type(problem).__name__, "|", problem)
stager.close()
say("end")
""",
        "close": """
try:
    stager.close()
except strata.StrataError as problem:
    say(type(problem).__name__, "|", problem)
say("end")
""",
        "exit": "",
    }[how]
    outcome = run_script(script, prologue=STAGER)
    assert outcome.status == 0, outcome
    assert outcome.out[0] == "hangs"
    named = "worker 0 is in hipEventSynchronize at job 2, for the DMA of buffer 0"
    if how == "exit":
        assert outcome.err.startswith("strata: at exit: closing a broken stager")
        assert named in outcome.err
        assert outcome.err.count("\n") == 1
        return
    assert outcome.err == ""
    said = outcome.out[1:]
    assert all(line.startswith("StrataError | ") for line in said[:-1])
    assert len(said) == {"finish": 4, "close": 2}[how]
    assert said[-1] == "end"
    assert named in said[0]
    if how == "finish":
        assert "this stager is broken" in said[0]
        assert "this stager is broken" in said[1]
    assert "closing a broken stager" in said[-2]
