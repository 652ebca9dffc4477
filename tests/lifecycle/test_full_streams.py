"""No call of strata's keeps the GIL from a Python function that is queued on a stream.

Each script comes to a driver call that does not return before such a function has run: never, with the GIL held.
"""

from __future__ import annotations

import textwrap

import pytest

from tests.support.scripts import ended_well, run_script

#: A streamer whose compute stream holds eight operations. `queued` is a function that takes its time, and so that the
#: stream is full behind it; `done` says whether it ran.
FULL = """
from strata import _hip
control.configure(max_pending=8)
ran = threading.Event()

def queued():
    # Until a call waits for room: the stream is full, and whoever waits does not hold the GIL.
    while control.live()["blocked_submissions"] == 0:
        pass
    ran.set()

def fill(stream, memory):
    strata.runtime.launch_host(stream, queued)
    for _ in range(7):
        _hip.memset_async(memory, 0, 16, stream)
"""

STREAMER = """
memory = _hip.malloc(4096)
streamer = strata.ExpertStreamer(64, gpu_ring=8)
"""

CALLS = {
    "acquire": """
        latch = control.hold(streamer.copy_stream)      # a satisfied wait queues nothing
        request = streamer.begin(strata.ExpertCopies.from_buffers([pinned[0]]))
        while request.issued < 1:
            pass
        fill(streamer.compute_stream, memory)
        request.acquire()
        say(ran.is_set())
        latch.release()
        request.abort()
    """,
    "release": """
        request = streamer.begin(direct)
        slot = request.acquire()
        slot.synchronize()
        fill(streamer.compute_stream, memory)
        slot.release()
        say(ran.is_set())
        request.abort()
    """,
    "a release by the loop": """
        request = streamer.begin(direct)
        next(request).synchronize()
        fill(streamer.compute_stream, memory)
        next(request)
        say(ran.is_set())
        request.abort()
    """,
    "skip": """
        request = streamer.begin(direct)
        request.acquire().release()
        fill(streamer.compute_stream, memory)
        request.skip()
        say(ran.is_set())
        request.abort()
    """,
    "acquire_span": """
        latch = control.hold(streamer.copy_stream)
        request = streamer.begin(strata.ExpertCopies.from_buffers([pinned[0]]))
        while request.issued < 1:
            pass
        fill(streamer.compute_stream, memory)
        request.acquire_span(4)
        say(ran.is_set())
        latch.release()
        request.abort()
    """,
    "a span's release": """
        request = streamer.begin(direct)
        span = request.acquire_span(4)
        span.synchronize()
        fill(streamer.compute_stream, memory)
        span.release()
        say(ran.is_set())
        request.abort()
    """,
    "begin on another stream": """
        other = _hip.create_stream()
        with streamer.begin(direct) as request:
            request.skip(64)
        _hip.synchronize_stream(streamer.compute_stream)
        fill(streamer.compute_stream, memory)
        request = streamer.begin(direct, compute_stream=other)
        say(ran.is_set())
        request.abort()
    """,
    "begin with lent slots": """
        lent = _hip.malloc(8 * 64)
        fill(streamer.compute_stream, memory)
        request = streamer.begin(direct, slots=[lent + k * 64 for k in range(8)])
        say(ran.is_set())
        request.abort()
    """,
    "finish": """
        request = streamer.begin(direct)
        request.skip(64)
        strata.runtime.launch_host(streamer.copy_stream, ran.set)
        request.finish()
        say(ran.is_set())
    """,
    "abort with a held slot": """
        request = streamer.begin(direct)
        request.acquire().synchronize()
        fill(streamer.compute_stream, memory)
        request.abort()
        say(ran.is_set())
    """,
    "close with a held slot": """
        request = streamer.begin(direct)
        request.acquire().synchronize()
        fill(streamer.compute_stream, memory)
        streamer.close()
        say(ran.is_set())
    """,
    "the end of a streamer that nobody closes": """
        request = streamer.begin(direct)
        request.acquire().synchronize()
        fill(streamer.compute_stream, memory)
        import warnings
        warnings.simplefilter("ignore")
        del request, streamer
        say(ran.is_set())
    """,
    "a stager's submitted": """
        stager = strata.HostStager(64, host_ring=4)
        stream = _hip.create_stream()
        stager.start(staged)
        stager.wait(0)
        fill(stream, memory)
        stager.submitted(0, stream)
        say(ran.is_set())
        stager.finish()
        stager.close()
    """,
    "a record": """
        event = _hip.create_event()
        fill(streamer.compute_stream, memory)
        _hip.record_event(event, streamer.compute_stream)
        say(ran.is_set())
    """,
    "a wait": """
        event, other = _hip.create_event(), _hip.create_stream()
        latch = control.hold(other)
        _hip.record_event(event, other)
        fill(streamer.compute_stream, memory)
        _hip.wait_event(streamer.compute_stream, event)
        say(ran.is_set())
        latch.release()
    """,
    "another host function": """
        fill(streamer.compute_stream, memory)
        strata.runtime.launch_host(streamer.compute_stream, lambda: None)
        say(ran.is_set())
    """,
}


@pytest.mark.parametrize("schedule", ["eager", pytest.param("random", marks=pytest.mark.slow)])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_waits_for_room_lets_python_functions_run(call: str, schedule: str) -> None:
    script = FULL + f"control.configure(schedule={schedule!r}, seed=1)\n" + STREAMER
    assert ended_well(run_script(script + textwrap.dedent(CALLS[call]))) == ["True"]


#: Calls that queue nothing: a driver may hold them under a lock that a waiting call has.
LOCKED = {
    "the memory query": ("hipMemGetInfo", "_hip.memory_info()"),
    "how much memory a streamer may have": ("hipMemGetInfo", "strata.ExpertStreamer(64)"),
    "the count of devices": ("hipGetDeviceCount", "_hip.device_count()"),
    "a streamer's count of devices": ("hipGetDeviceCount", "strata.ExpertStreamer(64, gpu_ring=4)"),
    "the current device": ("hipGetDevice", "_hip.current_device()"),
    "a device's choice": ("hipSetDevice", "_hip.use_device(0)"),
    "a device's name": ("hipDeviceGetName", "strata.runtime.describe()"),
    "the versions": ("hipRuntimeGetVersion", "_hip.versions()"),
    "lent slots' attributes": (
        "hipPointerGetAttributes",
        "strata.ExpertStreamer(64, slots=[memory + 64 * k for k in range(8)], compute_stream=stream)"),
    "a source's attributes": ("hipPointerGetAttributes", "strata.ExpertCopies.from_buffers([bytearray(64)])"),
    "a lent stream's device": ("hipStreamGetDevice", "strata.ExpertStreamer(64, gpu_ring=4, compute_stream=stream)"),
    "a new stream": ("hipStreamCreateWithFlags", "_hip.create_stream()"),
    "a new event": ("hipEventCreateWithFlags", "_hip.create_event()"),
    "an event's end": ("hipEventDestroy", "_hip.destroy_event(event)"),
    "an event's query": ("hipEventQuery", "_hip.query_event(event)"),
    "a slot's query": ("hipEventQuery", "held.synchronize()"),
    "pinned memory": ("hipHostMalloc", "strata.pinned_empty(64, np.uint8)"),
    "pinned memory's end": ("hipHostFree", "globals().pop('spare')"),
    "registering": ("hipHostRegister", "strata.register(np.zeros(8192, np.uint8)).__enter__()"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", LOCKED)
def test_a_call_that_waits_for_a_lock_lets_python_functions_run(what: str) -> None:
    call, use = LOCKED[what]
    out = ended_well(run_script(f"""
        from strata import _hip
        stream, memory = _hip.create_stream(), _hip.malloc(4096)
        event = _hip.create_event()
        spare = strata.pinned_empty(64, np.uint8)
        _hip.synchronize_stream(stream)
        streamer = strata.ExpertStreamer(64, gpu_ring=8)
        request = streamer.begin(direct)
        held = request.acquire()
        while request.issued < 8:
            pass
        latch = control.hold(stream)
        ran = threading.Event()

        def queued():
            while control.hanging_calls() == 0:
                pass
            ran.set()
            control.release_hangs()

        strata.runtime.launch_host(stream, queued)
        control.inject({call!r}, 1, action="hang")
        latch.release()
        {use}
        say(ran.is_set())
        request.abort()
    """))
    assert out == ["True"]


def test_the_count_of_pending_functions_comes_back_to_none() -> None:
    """Else every later call would give the GIL up: after a function that raises, and one that is refused."""
    out = ended_well(run_script("""
        from strata import _hip
        stream = _hip.create_stream()
        sys.unraisablehook = lambda problem: None
        def wrong():
            raise ValueError
        for _ in range(3):
            strata.runtime.launch_host(stream, wrong)
        _hip.synchronize_stream(stream)
        control.inject("hipLaunchHostFunc", 1, 2)
        try:
            strata.runtime.launch_host(stream, wrong)
        except strata.HipError:
            say("refused")
        say(_hip.pending_host_functions())
    """))
    assert out == ["refused", "0"]
