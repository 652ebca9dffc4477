"""Streamers come and go: threads, file descriptors and memory are back to what they were."""

from __future__ import annotations

import pytest

from tests.support.scripts import PROLOGUE, ended_well, run_script

#: NumPy may have threads of its own; those of strata come after it.
COUNTED = "import os, numpy\nfew = len(os.listdir('/proc/self/task'))\n" + PROLOGUE

MEASURE = """
    import time
    def threads():
        return len(os.listdir("/proc/self/task"))
    def descriptors():
        return len(os.listdir("/proc/self/fd"))
    def resident():
        return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    def settled(count, wanted):
        # A joined thread leaves the process's list a moment after its join.
        until = time.monotonic() + 20
        while count() > wanted and time.monotonic() < until:
            pass
        return count()
    def serve(streamer, copies):
        with streamer.begin(copies) as request:
            request.acquire().release()
            request.skip(63)
    def one(k):
        with strata.ExpertStreamer(64, gpu_ring=4, host_ring=2, workers=3) as streamer:
            serve(streamer, direct if k % 2 else staged)
    def stage(k):
        with strata.HostStager(64, host_ring=2, workers=3) as stager:
            stager.start(staged)
            stager.wait(k % 2)
    import logging
    logging.getLogger("strata").setLevel(logging.ERROR)     # buffers that cannot be pinned are meant here
    for k in range(3):
        one(k)
        stage(k)
    def kept():
        # (Threads are counted by the system.)
        passing = ("executor_threads", "pending_operations")
        return {what: n for what, n in control.live().items() if what not in passing}
    base = settled(threads, few), descriptors(), kept()
"""


def test_a_hundred_streamers_one_after_the_other() -> None:
    script = MEASURE + """
    memory = resident()
    for k in range(100):
        one(k)
        stage(k)
    say(base[0] - few, settled(threads, few) - few, descriptors() - base[1])
    live = kept()
    say({k: v for k, v in live.items() if v != base[2][k]})
    say(resident() - memory < 4 << 20)
    """
    out = ended_well(run_script(script, prologue=COUNTED))
    assert out == ["0 0 0", "{}", "True"]


@pytest.mark.parametrize("how", ["close", "drop"])
def test_a_hundred_streamers_at_once(how: str) -> None:
    script = MEASURE + f"""
    import random
    streamers = [strata.ExpertStreamer(64, gpu_ring=4, host_ring=2, workers=2) for _ in range(100)]
    for k, streamer in enumerate(streamers):
        serve(streamer, direct if k % 2 else staged)
    random.Random(5).shuffle(streamers)
    while streamers:
        streamer = streamers.pop()
        if {how!r} == "close":
            streamer.close()
        del streamer
    say(settled(threads, few) - few, descriptors() - base[1])
    live = kept()
    say({{k: v for k, v in live.items() if v != base[2][k]}})
    """
    assert ended_well(run_script(script, prologue=COUNTED)) == ["0 0", "{}"]


def test_a_thousand_requests_of_one_streamer() -> None:
    script = MEASURE + """
    with strata.ExpertStreamer(64, gpu_ring=4, host_ring=2, workers=3) as streamer:
        for k in range(50):
            serve(streamer, direct if k % 3 else staged)
        memory, count = resident(), threads()
        for k in range(1000):
            if k % 7 == 0:
                with streamer.begin(staged) as request:
                    request.acquire()
            else:
                serve(streamer, direct if k % 3 else staged)
        say(threads() - count, descriptors() - base[1], resident() - memory < 2 << 20)
    """
    assert ended_well(run_script(script, prologue=COUNTED)) == ["0 0 True"]


def test_set_up_that_fails_leaves_nothing() -> None:
    """Each call of the construction fails in turn."""
    script = MEASURE + """
    tried = 0
    for call in ("hipStreamCreateWithFlags", "hipEventCreateWithFlags", "hipMalloc", "hipHostMalloc", "hipMemGetInfo",
                 "hipGetDevice", "hipGetDeviceCount"):
        for nth in range(1, 14):
            hit = control.inject(call, nth, status=2)
            try:
                with strata.ExpertStreamer(64, gpu_ring=4, host_ring=2) as streamer:
                    serve(streamer, staged)
            except (strata.HipError, MemoryError) as error:
                tried += 1
            fired = hit.fired
            control.clear_injections()
            if not fired:
                break
    live = kept()
    say({k: v for k, v in live.items() if v != base[2][k]})
    say(settled(threads, few) - few, descriptors() - base[1], tried > 10)
    """
    out = ended_well(run_script(script, prologue=COUNTED))
    assert out == ["{}", "0 0 True"]
