"""How a stager's request ends: interrupted, early, or where the device cannot be waited for."""

from __future__ import annotations

import copy
import pickle

import pytest

import strata
from strata import _hip
from tests.faults.threads import wait_until
from tests.stager.conftest import NBYTES
from tests.support.scripts import PROLOGUE, ended_well, run_script
from tests.support.sources import material

INTERRUPTED = PROLOGUE + """
from strata import _hip
class Interrupted(Exception):
    pass
def interrupt(*_):
    raise Interrupted
signal.signal(signal.SIGALRM, interrupt)
stream, memory = _hip.create_stream(), _hip.malloc(64)
stager = strata.HostStager(64, host_ring=4)

def begin():
    stager.start(staged)
    for job in range(2):
        _hip.memcpy_h2d_async(memory, stager.wait(job), 64, stream)
        stager.submitted(job, stream)

def interrupted(call):
    latch = control.hold(stream)
    begin()
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        call()
        say("not interrupted")
    except Interrupted:
        say("interrupted")
    return latch
"""


@pytest.mark.parametrize("call", ["finish", "abort", "close"])
@pytest.mark.parametrize("then", ["finish", "abort", "close"])
def test_an_end_that_waits_for_the_device_can_be_interrupted(call: str, then: str) -> None:
    """The request is not lost: it takes no more jobs, keeps its sources, and ends with the next end."""
    script = f"""
    latch = interrupted(stager.{call})
    for use in (lambda: stager.wait(2), lambda: stager.submitted(2, stream), lambda: stager.start(staged)):
        try:
            use()
        except strata.StrataError as problem:
            say(problem)
    say(stager.counters.fences, stager.counters.dma_done_records)
    latch.release()
    stager.{then}()
    if {then!r} != "close":
        say("idle" in repr(stager), stager.counters.fences)
        begin()
        stager.finish()
    stager.close()
    say("closed" in repr(stager))
    """
    at_its_end = "this stager's request is at its end: a finish() was interrupted. finish() or abort() it"
    running = "a request of this stager is still running: finish() it first"
    out = ended_well(run_script(script, prologue=INTERRUPTED))
    assert out[:5] == ["interrupted", at_its_end, at_its_end, running, "0 2"]
    assert out[5:] == ([] if then == "close" else ["True 0"]) + ["True"]


def test_a_handler_that_ends_the_request_itself() -> None:
    script = """
    latch = control.hold(stream)
    begin()
    def handler(*_):
        latch.release()
        stager.finish()
        stager.start(direct)
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    stager.finish()
    say("running" in repr(stager))
    stager.finish()
    stager.close()
    """
    assert ended_well(run_script(script, prologue=INTERRUPTED)) == ["True"]


def test_abort_does_not_raise_what_a_worker_has_failed_with(software, make_engine) -> None:
    each = material("s" * 6, NBYTES)
    engine = make_engine(6)
    with strata.HostStager(NBYTES, host_ring=2, workers=1) as stager:
        for end in ("abort", "finish"):
            stager.start(each.copies)
            injection = software.inject("hipEventSynchronize", 1, 719)
            # Job 2 reuses the buffer of job 0; the engine calls no stager once its worker may have failed.
            engine.copy(0, stager.wait(0), NBYTES)
            stager.submitted(0, engine.stream)
            wait_until(lambda injection=injection: injection.fired, "the worker's wait has failed")
            if end == "abort":
                stager.abort()
                stager.abort()
            else:
                with pytest.raises(strata.HipError, match="719"):
                    stager.finish()
            software.clear_injections()
            assert "idle" in repr(stager)


def resources(software) -> dict[str, int]:
    """What is alive but the runtime's own threads."""
    return {name: count for name, count in software.live().items() if name != "executor_threads"}


def fail_every_wait(software) -> None:
    """The last group's event, the stream twice, the device: then a DMA may run for ever."""
    software.inject("hipEventQuery", 1, 719)
    software.inject("hipStreamSynchronize", 1, 719)
    software.inject("hipStreamSynchronize", 2, 719)
    software.inject("hipDeviceSynchronize", 1, 719)


def test_a_stager_whose_device_comes_back_leaves_nothing(software, make_engine) -> None:
    """close() asks once more: only what the device may still read is left to it."""
    each = material("s" * 4, NBYTES)
    engine = make_engine(4)
    before = resources(software)
    stager = strata.HostStager(NBYTES, host_ring=2)
    stager.start(each.copies)
    engine.copy(0, stager.wait(0), NBYTES)
    stager.submitted(0, engine.stream)
    fail_every_wait(software)
    with pytest.raises(strata.HipError, match="hipDeviceSynchronize"):
        stager.finish()
    with pytest.raises(strata.StrataError, match=r"this stager is broken.*hipEventQuery failed with .*719"):
        stager.start(each.copies)
    software.clear_injections()
    stager.close()
    assert resources(software) == before


def test_what_a_broken_stager_leaves_is_said() -> None:
    script = """
    from strata import _hip
    stream, memory = _hip.create_stream(), _hip.malloc(64)
    stager = strata.HostStager(64, host_ring=4, workers=3)
    stager.start(staged.take(np.arange(3)))
    _hip.memcpy_h2d_async(memory, stager.wait(0), 64, stream)
    stager.submitted(0, stream)
    latch = control.hold(stream)
    _hip.memcpy_h2d_async(memory, stager.wait(1), 64, stream)
    stager.submitted(1, stream)
    for nth in range(1, 9):
        control.inject("hipEventQuery", nth, 719)
        control.inject("hipStreamSynchronize", nth, 719)
        control.inject("hipDeviceSynchronize", nth, 719)
    for end in (stager.finish, stager.close):
        try:
            end()
        except strata.StrataError as problem:
            say(problem)
    stager.close()
    control.clear_injections()
    latch.release()                             # hipHostFree waits for the device
    # Others' pinned memory is freed as before.
    mine = strata.pinned_empty(4096, np.uint8)
    before = control.live()["pinned_bytes"]
    del mine
    say(before - control.live()["pinned_bytes"])
    """
    out = ended_well(run_script(script))
    assert out[0].startswith("hipDeviceSynchronize failed with")
    assert out[1].startswith("closing a broken stager: hipEventQuery failed with hipErrorLaunchFailure (719)")
    assert "256 bytes of host buffers (4 of 64 bytes), their events and 3 worker threads" in out[1]
    assert out[2] == "4096"


# --- the streamer's host ring --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", ["s" * 6, "sd" * 3])
def test_a_shortcut_whose_waits_all_fail_leaves_the_ring_whole(kinds: str, software) -> None:
    """The issuer drains after all: the request has failed, the buffers are used again, and freed at the end."""
    each = material(kinds, NBYTES)
    before = resources(software)
    with strata.ExpertStreamer(NBYTES, gpu_ring=8, host_ring=4) as streamer:
        request = streamer.begin(each.copies)
        for slot in request:
            slot.synchronize()
        software.thread_role("engine")
        for call, nth in (("hipEventSynchronize", 1), ("hipStreamSynchronize", 1), ("hipStreamSynchronize", 2),
                          ("hipDeviceSynchronize", 1)):
            software.inject(call, nth, 719, thread="engine")
        try:
            with pytest.raises(strata.HipError, match=r"hipEventSynchronize failed with .*\(719\)"):
                request.finish()
        finally:
            software.thread_role(None)
            software.clear_injections()
        assert not streamer._core.broken
        for _ in range(2):
            with streamer.begin(each.copies) as request:
                for slot in request:
                    assert each.wrong(slot.entry, slot.array()) == 0
    assert resources(software) == before


# --- settings, copies ----------------------------------------------------------------------------------------------


def test_the_environments_ring_and_batch(monkeypatch) -> None:
    """As a streamer reads them: the ring everywhere, the batch with HIP on Windows alone; code comes first."""
    monkeypatch.setenv("STRATA_STAGER_RING", "40")
    monkeypatch.setenv("STRATA_HIP_STAGE_BATCH", "7")
    with strata.HostStager(NBYTES) as stager:
        assert (stager.host_ring, stager.stage_batch) == (40, 1)
    with strata.HostStager(NBYTES, host_ring=5, stage_batch=9) as stager:
        assert (stager.host_ring, stager.stage_batch) == (5, 5)
    from_env = strata.BatchSettings.from_env
    monkeypatch.setattr(strata.BatchSettings, "from_env", classmethod(
        lambda cls, **of: from_env(platform="win32", runtime={"software": "rocm"}[of["runtime"]])))
    with strata.HostStager(NBYTES) as stager:
        assert (stager.host_ring, stager.stage_batch) == (40, 7)
        each = material("s" * 14, NBYTES)
        for long, records in ((True, 2), (False, 14)):
            stager.start(each.copies, long)
            stream = _hip.create_stream()
            for job in range(14):
                stager.wait(job)
                stager.submitted(job, stream)
            stager.finish()
            _hip.destroy_stream(stream)
            assert stager.counters.dma_done_records == records
    with strata.HostStager(NBYTES, host_ring=3) as stager:
        assert stager.stage_batch == 3
    monkeypatch.setenv("STRATA_STAGER_RING", "many")
    with pytest.raises(strata.SettingsError, match="STRATA_STAGER_RING='many'"):
        strata.HostStager(NBYTES)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_cannot_be_copied_says_so(how) -> None:
    each = material("s" * 2, NBYTES)
    with strata.HostStager(NBYTES) as stager, strata.ExpertStreamer(NBYTES, gpu_ring=2) as streamer:
        request = streamer.begin(each.copies)
        for thing in (stager, stager._core, streamer, streamer._core, request, request.acquire()):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                how(thing)
        request.abort()
