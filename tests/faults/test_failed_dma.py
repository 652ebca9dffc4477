"""A DMA that fails while it runs: whoever waits for it hears of it, and the streamer goes on if the device does.

In processes of their own: a streamer that gives the device up leaves memory behind on purpose.
"""

from __future__ import annotations

import pytest

from tests.support.scripts import Ended, ended_well, run_script

pytestmark = pytest.mark.timeout(120, method="thread")

#: Prints what a request raised, or how many wrong bytes its slots showed.
SCRIPT = """
def request(streamer, copies, first):
    try:
        with streamer.begin(copies) as request:
            bad = 0
            for slot in request:
                slot.synchronize()
                bad += int((slot.array() != first + slot.entry).sum())
        return bad
    except strata.HipError as problem:
        return problem.status

batches = strata.BatchSettings(2, 2, 2)
settings = dict(gpu_ring=6, host_ring=4, workers=2, settings=batches)
copies, first = (direct, 0) if KIND == "direct" else (staged, 64)
"""


def script(kind: str, body: str, **environment: str | None) -> Ended:
    return run_script(f"KIND = {kind!r}\n" + SCRIPT + body, **environment)


@pytest.mark.parametrize("nth", [pytest.param(1, marks=pytest.mark.slow), 7, pytest.param(64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["direct", "staged"])
def test_one_failed_dma_ends_the_request_alone(kind: str, nth: int) -> None:
    """The failure is reported by the next synchronization, the device lives: the next request is byte-exact."""
    out = ended_well(script(kind, f"""
with strata.ExpertStreamer(64, **settings) as streamer:
    say(request(streamer, copies, first))
    control.fail_operation({nth}, 719, sticky=False)
    say(request(streamer, copies, first))
    for turn in range(3):
        say(request(streamer, copies, first))
say(control.live()["events"], control.live()["device_allocations"])
"""))
    assert out == ["0", "719", "0", "0", "0", "0 0"]


@pytest.mark.parametrize("schedule", ["eager", pytest.param("lazy", marks=pytest.mark.slow)])
@pytest.mark.parametrize("nth", [pytest.param(1, marks=pytest.mark.slow), 7, pytest.param(64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["direct", "staged"])
def test_a_failed_dma_that_takes_the_device_along(kind: str, nth: int, schedule: str) -> None:
    """Every call fails from then on: errors, no waiting, and a process that ends."""
    out = ended_well(script(kind, f"""
streamer = strata.ExpertStreamer(64, **settings)
say(request(streamer, copies, first))
control.fail_operation({nth}, 719, sticky=True)
say(request(streamer, copies, first))
for turn in range(2):
    try:
        say("began", streamer.begin(copies))
    except strata.StrataError as problem:
        say("refused")
try:
    streamer.close()
except strata.StrataError as problem:
    pass
try:
    streamer.begin(copies)
except strata.StrataError as problem:
    say(problem)
control.restore_device()
with strata.ExpertStreamer(64, **settings) as streamer:
    say(request(streamer, copies, first))
""", STRATA_SOFTWARE_SCHEDULE=schedule))
    assert out == ["0", "719", "refused", "refused", "this streamer is closed", "0"]


@pytest.mark.parametrize("kind", ["direct", "staged"])
def test_the_first_cause_stands_where_the_end_fails_too(kind: str) -> None:
    """Every call that can wait for the copies fails once before one succeeds."""
    out = ended_well(script(kind, """
with strata.ExpertStreamer(64, **settings) as streamer:
    say(request(streamer, copies, first))
    cause = control.inject("hipMemcpyAsync", 5, 719)
    running = streamer.begin(copies)
    while not cause.fired:
        pass
    for call in ("hipEventSynchronize", "hipStreamSynchronize"):
        control.inject(call, 1, 700)
    try:
        running.skip(64)
    except strata.HipError as problem:
        say(problem.call, problem.status, problem.entry)
    control.clear_injections()
    say(request(streamer, copies, first))
"""))
    assert out == ["0", "hipMemcpyAsync 719 4", "0"]


@pytest.mark.parametrize("failures", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", ["direct", pytest.param("staged", marks=pytest.mark.slow)])
def test_the_ways_to_wait_for_the_copy_stream(kind: str, failures: int) -> None:
    """Its own synchronization, tried twice, then the device's. Where none of them works it is given up."""
    out = ended_well(script(kind, f"""
streamer = strata.ExpertStreamer(64, **settings)
say(request(streamer, copies, first))
running = streamer.begin(copies)
running.acquire()
ways = [("hipStreamSynchronize", 1), ("hipStreamSynchronize", 2), ("hipDeviceSynchronize", 1)]
injections = [control.inject(call, nth, 719) for call, nth in ways[:{failures}]]
running.abort()
say([injection.fired for injection in injections] == [True] * {failures})
control.clear_injections()
try:
    say(request(streamer, copies, first))
except strata.StrataError as problem:
    say(problem)
try:
    streamer.close()
except strata.StrataError as problem:
    say(problem)
say("end")
"""))
    assert out[:2] == ["0", "True"]
    if failures < 3:
        assert out[2:] == ["0", "end"]
    else:
        assert "this streamer is broken" in out[2]
        assert "closing a broken streamer" in out[3]
        assert out[4] == "end"
