"""A device that is lost in the middle: everybody stops, the error is raised, closing comes to an end.

In processes of their own: what a lost device may still touch is left behind on purpose.
"""

from __future__ import annotations

import pytest

from tests.support.scripts import PROLOGUE, ended_well, run_script

pytestmark = pytest.mark.timeout(200, method="thread")

SETUP = PROLOGUE + """
def status_of(call):
    try:
        call()
    except strata.HipError as problem:
        return f"HipError {problem.status} {problem.name}"
    except strata.StrataError as problem:
        return type(problem).__name__
    return "nothing"

def whole(streamer, copies):
    with streamer.begin(copies) as request:
        for slot in request:
            slot.synchronize()
            assert (slot.array() == slot.entry + (64 if copies is staged else 0)).all(), slot.entry

batches = strata.BatchSettings(2, 2, 2)

def make():
    return strata.ExpertStreamer(64, gpu_ring=6, host_ring=3, workers=2, settings=batches)

streamer = make()
whole(streamer, direct)
whole(streamer, staged)
"""

#: When the device goes.
MOMENTS = {
    "between two requests": """
control.lose_device({status})
said = status_of(lambda: whole(streamer, {copies}))
""",
    "between two entries": """
request = streamer.begin({copies})
for _ in range(3):
    request.acquire().release()
control.lose_device({status})
said = status_of(lambda: [request.acquire().release() for _ in range(61)])
""",
    "with slots held and copies queued": """
latch = control.hold(streamer.compute_stream)
request = streamer.begin({copies})
for _ in range(4):
    request.acquire().release()
held = request.acquire()
control.lose_device({status})
said = status_of(lambda: [held.release(), *(request.acquire().release() for _ in range(59))])
""",
    "while the engine waits": """
# The copies wait for a kernel; so do the workers, and with them the engine. (Direct: it waits for a slot's bytes.)
latch = control.hold(streamer.compute_stream)
request = streamer.begin({copies})
def engine():
    while True:
        slot = request.acquire()
        if {copies} is direct and slot.entry == 6:
            slot.synchronize()
        slot.release()
def lose():
    while request.consumed < 6:
        pass
    control.lose_device({status})
thread = threading.Thread(target=lose)
thread.start()
said = status_of(engine)
thread.join()
""",
    "before the end": """
request = streamer.begin({copies})
request.skip(64)
control.lose_device({status})
said = status_of(request.finish)
""",
}


@pytest.mark.parametrize(
    ("moment", "copies", "status"),
    [
        pytest.param(
            moment, copies, status,
            marks=[] if (copies, status) == (("direct", "staged")[at % 2], 719) else pytest.mark.slow,
        )
        for at, moment in enumerate(MOMENTS)
        for copies in ("direct", "staged")
        for status in (719, 3)
    ],
)
def test_the_device_is_lost(moment: str, copies: str, status: int) -> None:
    script = MOMENTS[moment].format(copies=copies, status=status) + f"""
say(said)
say([status_of(lambda: whole(streamer, {copies})) != "nothing" for turn in range(2)])
status_of(streamer.close)
say(streamer.closed, status_of(lambda: streamer.begin(direct)))
control.restore_device()
with make() as other:
    whole(other, direct)
    whole(other, staged)
say("and again")
"""
    out = ended_well(run_script(script, prologue=SETUP))
    name = {3: "hipErrorNotInitialized", 719: "hipErrorLaunchFailure"}[status]
    assert out == [f"HipError {status} {name}", "[True, True]", "True StrataError", "and again"]


@pytest.mark.parametrize("how", ["", pytest.param("sys.exit(3)", marks=pytest.mark.slow)])
def test_the_process_ends_without_its_device(how: str) -> None:
    script = """
request = streamer.begin(staged)
for _ in range(9):
    request.acquire().release()
control.lose_device()
""" + how
    outcome = run_script(script, prologue=SETUP)
    assert outcome.status == (3 if how else 0)
    assert "Traceback" not in outcome.err
