"""A process that is stopped, frozen or suspended for a while is no stall, and uses up no timeout.

A child is stopped by SIGSTOP for longer than every limit that it has set; it may run for less than that. What the limits
count goes by what the child waited, so what the machine does beside it cannot make these fail.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import strata
from tests.support.scripts import ended_well, run_script, start_script

LIMIT = 1.0
STOPPED = 2.5

#: Each waits for what a thread lets go once the child was stopped and runs on; `LIMIT` is the limit.
WAITS = {
    "the stall timeout of synchronize": """
        streamer = strata.ExpertStreamer(64, gpu_ring=4, stall_timeout=LIMIT)
        latch = control.hold(streamer.copy_stream)
        request = streamer.begin(direct)
        slot = request.acquire()
        go = latch.release
        waiting(slot.synchronize)
        request.abort()
    """,
    "the stall timeout of acquire": """
        streamer = strata.ExpertStreamer(64, gpu_ring=4, stall_timeout=LIMIT)
        control.inject("hipMemcpyAsync", 2, action="hang")
        request = streamer.begin(direct)
        request.skip()
        go = control.release_hangs
        waiting(request.acquire)
        request.abort()
    """,
    "the timeout of acquire": """
        streamer = strata.ExpertStreamer(64, gpu_ring=4)
        control.inject("hipMemcpyAsync", 2, action="hang")
        request = streamer.begin(direct)
        request.skip()
        go = control.release_hangs
        waiting(lambda: request.acquire(timeout=LIMIT))
        request.abort()
    """,
    "the timeout of a stager's wait": """
        from strata import _hip
        stream = _hip.create_stream()
        import logging
        logging.getLogger("strata").setLevel("ERROR")     # a ring of one starves, and says so
        stager = strata.HostStager(64, host_ring=1)
        latch = control.hold(stream)
        _hip.memset_async(_hip.malloc(64), 0, 64, stream)
        stager.start(staged)
        stager.wait(0)
        stager.submitted(0, stream)
        go = latch.release
        waiting(lambda: stager.wait(1, timeout=LIMIT))
        stager.finish()
    """,
    "the driver's time at an abort": """
        from strata.engine import core
        core.DRIVER_TIMEOUT_S = LIMIT
        streamer = strata.ExpertStreamer(64, gpu_ring=4)
        control.inject("hipMemcpyAsync", 2, action="hang")
        request = streamer.begin(direct)
        request.skip()
        while not control.hanging_calls():
            pass
        go = control.release_hangs
        waiting(request.abort)
    """,
    "the driver's time at a close": """
        from strata.engine import core
        core.DRIVER_TIMEOUT_S = LIMIT
        streamer = strata.ExpertStreamer(64, gpu_ring=4)
        request = streamer.begin(direct)
        request.skip(64)
        latch = control.hold(streamer.copy_stream)
        go = latch.release
        waiting(streamer.close)
    """,
    "the driver's time at a stager's finish": """
        from strata import _hip
        from strata.engine import core
        core.DRIVER_TIMEOUT_S = LIMIT
        stream = _hip.create_stream()
        stager = strata.HostStager(64, host_ring=2, workers=1)
        latch = control.hold(stream)
        stager.start(staged)
        for job in range(2):
            stager.wait(job)
            stager.submitted(job, stream)
        go = latch.release
        waiting(stager.finish)
    """,
}

TOOLS = f"""
LIMIT = {LIMIT}
import time

def waiting(wait):
    def let_go():
        say("waits")                    # now the test stops this process; it goes on from here later
        # Time of its own, as a kernel takes it, well below the limit.
        for _ in range(10):
            time.sleep(0.01)
        while stopped_for() < {STOPPED} / 2:
            time.sleep(0.01)
        go()
    before = time.monotonic()
    last = [before, 0.0]
    def stopped_for():
        # The longest gap between two looks at the clock.
        now = time.monotonic()
        last[1] = max(last[1], now - last[0])
        last[0] = now
        return last[1]
    thread = threading.Thread(target=let_go)
    thread.start()
    wait()
    thread.join()
    say("went on", time.monotonic() - before > {STOPPED})
"""


@pytest.mark.parametrize("what", [
    what if what.startswith("the stall") else pytest.param(what, marks=pytest.mark.slow) for what in WAITS])
def test_a_process_that_was_stopped_goes_on(what: str) -> None:
    process = start_script(TOOLS + textwrap.dedent(WAITS[what]))
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "waits\n", process.communicate()
        process.send_signal(signal.SIGSTOP)
        assert os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT) is not None
        time.sleep(STOPPED)  # what is tested: nothing of the child's goes on meanwhile
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (0, "went on True\n", "")


@pytest.mark.parametrize("what", ["the stall timeout of synchronize", "the timeout of acquire"])
def test_a_process_that_is_not_stopped_hits_its_limit(what: str) -> None:
    """The limits are still there: nobody lets go."""
    out = ended_well(run_script(TOOLS + """
def waiting(wait):
    begun = time.monotonic()
    try:
        wait()
    except (strata.StallError, TimeoutError) as problem:
        took = time.monotonic() - begun
        say(type(problem).__name__, took > 0.9 * LIMIT, took)
    go()
""" + textwrap.dedent(WAITS[what])))
    assert out[0].split()[0] in ("StallError", "TimeoutError")
    assert out[0].split()[1] == "True"


def test_waits_go_by_a_clock_that_never_jumps() -> None:
    """The modules that wait import the C library's wait on a named clock, and none on the wall clock."""
    nm = shutil.which("nm")
    if nm is None or not sys.platform.startswith("linux"):
        pytest.skip("no nm here")
    waits = set()
    package = Path(strata.__file__).parent
    for module in package.rglob("*.so"):
        names = subprocess.run([nm, "-D", "--undefined-only", str(module)], capture_output=True, text=True, check=True)
        waits |= set(re.findall(r"pthread_cond_\w*wait\w*|sem_timedwait|pthread_mutex_timedlock", names.stdout))
    assert "pthread_cond_clockwait" in waits
    assert waits <= {"pthread_cond_clockwait", "pthread_cond_wait"}


def test_no_python_of_the_package_reads_the_wall_clock_for_a_limit() -> None:
    package = Path(strata.__file__).parent
    folders = [package, package.parent / "benchmarks"]
    found = [f"{path}: {line.strip()}" for folder in folders for path in folder.rglob("*.py*") if path.suffix in (".py", ".pyx")
             for line in path.read_text(encoding="utf-8").splitlines() if "time.time(" in line or "datetime.now" in line]
    assert found == []
