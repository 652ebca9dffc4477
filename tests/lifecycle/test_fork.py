"""HIP does not survive a fork: a child is told so by whatever it uses, and ends cleanly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.scripts import PROLOGUE, ended_well, environment, run_script

#: In the parent, before it forks: everything there is, in use.
IN_USE = """
streamer = strata.ExpertStreamer(64, gpu_ring=4, host_ring=2)
request = streamer.begin(staged)
slot = request.acquire()
slot.synchronize()
stager = strata.HostStager(64, host_ring=2)
stager.start(staged)
stager.wait(0)
scope = strata.register(np.zeros(4096, np.uint8))
scope.__enter__()

def child_ended(pid):
    say("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

def go_on():
    # The parent's request was not disturbed.
    wrong = 0
    slot.release()
    for each in request:
        each.synchronize()
        wrong += int((each.array() != pageable[each.entry]).sum())
    request.finish()
    stager.finish()
    say("parent", wrong, request.consumed)
"""

USES = {
    "a new streamer": "strata.ExpertStreamer(64, gpu_ring=4)",
    "a new stager": "strata.HostStager(64)",
    "pinned memory": "strata.pinned_empty(4, np.uint8)",
    "registered memory": "strata.register(np.zeros(64, np.uint8)).__enter__()",
    "a list that asks where memory lies": "strata.ExpertCopies.from_buffers([b'abc'])",
    "what the runtime is": "strata.runtime.describe()",
    "choosing it again": "strata.runtime.use('software')",
    "choosing any": "strata.runtime.use('auto')",
    "which it is": "strata.runtime.ensure()",
    "a host function": "strata.runtime.launch_host(streamer.copy_stream, print)",
    "a streamer's counters": "streamer.counters",
    "a request's counters": "request.counters",
    "what is issued": "request.issued",
    "what is consumed": "request.consumed",
    "what is released": "request.released",
    "a span": "request.acquire_span(2)",
    "flush": "request.flush()",
    "a request's length": "len(request)",
    "a stager's counters": "stager.counters",
    "a stager's buffers": "stager.pinned_buffers",
    "a slot's array": "slot.array()",
    "streams": "streamer.copy_stream",
    "begin": "streamer.begin(direct)",
    "slots": "streamer.slots",
    "acquire": "request.acquire()",
    "acquire with a timeout": "request.acquire(timeout=1)",
    "skip": "request.skip()",
    "extend": "request.extend(direct)",
    "finish": "request.finish()",
    "the loop": "next(request)",
    "release": "slot.release()",
    "synchronize": "slot.synchronize()",
    "a stager's start": "stager.start(staged)",
    "a stager's wait": "stager.wait(1)",
    "a stager's submitted": "stager.submitted(0, 0)",
}


@pytest.mark.parametrize("ending", ["os._exit(7)", "sys.exit(7)"])
def test_a_child_is_told_by_whatever_it_uses_and_ends(ending: str) -> None:
    script = f"""
uses = {USES!r}
pid = os.fork()
if pid == 0:
    for what, use in uses.items():
        try:
            eval(use)
            say("no error from", what)
        except strata.StrataError as error:
            if "before this process was forked" not in str(error):
                say(what, "says", error)
    {ending}
child_ended(pid)
go_on()
"""
    out = ended_well(run_script(script, prologue=PROLOGUE + IN_USE))
    assert out == ["child 7", "parent 0 64"]


#: What a child may do to be rid of what it inherited.
GOOD_RIDDANCE = {
    "nothing": "",
    "close": "request.cancel(); streamer.close(); stager.close(); scope.__exit__(None, None, None)",
    "leave the contexts": """
    try:
        with streamer, request, stager:
            raise KeyError
    except (KeyError, strata.StrataError):
        pass
""",
    "drop": "del request, slot, streamer, stager, scope, pinned, direct, staged; import gc; gc.collect()",
}


@pytest.mark.parametrize("ending", ["os._exit(0)", "sys.exit(0)"])
@pytest.mark.parametrize("what", GOOD_RIDDANCE)
def test_a_child_ends_cleanly_whatever_it_does_with_what_it_inherited(what: str, ending: str) -> None:
    script = f"""
pid = os.fork()
if pid == 0:
    {GOOD_RIDDANCE[what]}
    {ending}
else:
    child_ended(pid)
    go_on()
"""
    out = ended_well(run_script(script, prologue=PROLOGUE + IN_USE))
    assert out == ["child 0", "parent 0 64"]


def test_a_fork_while_another_thread_waits_in_strata() -> None:
    script = """
        streamer = strata.ExpertStreamer(64, gpu_ring=4)
        control.inject("hipMemcpyAsync", 1, action="hang")
        request = streamer.begin(direct)
        def engine():
            for slot in request:
                pass
            request.finish()
        thread = threading.Thread(target=engine)
        thread.start()
        while not (streamer._core.in_use and control.hanging_calls()):
            pass
        pid = os.fork()
        if pid == 0:
            for use in (streamer.begin, lambda: strata.ExpertStreamer(64)):
                try:
                    use()
                except strata.StrataError:
                    say("refused")
            streamer.close()
            sys.exit(0)
        say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        control.release_hangs()
        thread.join()
        say(request.consumed)
    """
    assert ended_well(run_script(script)) == ["refused", "refused", "0", "64"]


BEFORE_FIRST_USE = """
import os, sys
import numpy as np
import strata

def stream():
    rows = np.arange(4096, dtype=np.uint8).reshape(64, 64)
    with strata.ExpertStreamer(64, gpu_ring=4) as streamer:
        with streamer.begin(strata.ExpertCopies.from_buffers(list(rows))) as request:
            wrong = 0
            for slot in request:
                slot.synchronize()
                wrong += int((slot.array() != rows[slot.entry]).sum())
    print(strata.runtime.current(), wrong, request.consumed, flush=True)
"""


def test_a_fork_before_first_use_is_legal_in_both() -> None:
    script = """
        pid = os.fork()
        if pid == 0:
            stream()
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        stream()
    """
    done = run_script(script, prologue=BEFORE_FIRST_USE, STRATA_HIP_RUNTIME="software")
    assert ended_well(done) == ["software 0 64", "0", "software 0 64"]


def test_a_child_of_a_child_is_refused_where_the_child_was_free() -> None:
    script = """
        if os.fork() == 0:
            stream()
            if os.fork() == 0:
                try:
                    stream()
                except strata.StrataError as error:
                    print(str(error)[:16], flush=True)
                sys.exit(0)
            print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    """
    done = run_script(script, prologue=BEFORE_FIRST_USE, STRATA_HIP_RUNTIME="software")
    assert ended_well(done) == ["software 0 64", "strata was used ", "0", "0"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(method: str, tmp_path: Path) -> None:
    """The standard library's pools: *fork* is refused with a hint that names *spawn*, and *spawn* works."""
    program = tmp_path / "program.py"
    program.write_text(
        BEFORE_FIRST_USE
        + f"""
import multiprocessing

def work(_):
    try:
        stream()
        return "streamed"
    except strata.StrataError as error:
        return str(error)

if __name__ == "__main__":
    stream()
    with multiprocessing.get_context({method!r}).Pool(1) as pool:
        print(pool.map(work, [0])[0], flush=True)
        pool.close()
        pool.join()
"""
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", str(program)],
        env=environment(STRATA_HIP_RUNTIME="software"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    out = done.stdout.splitlines()
    if method == "fork":
        assert out[0] == "software 0 64"
        assert "'spawn' method" in out[1]
    else:
        assert out == ["software 0 64", "software 0 64", "streamed"]
