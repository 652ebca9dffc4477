"""The process always exits, with its own status and without a word, whatever was left running."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.support.scripts import Ended, ended_well, run_script

#: What a process leaves behind when its last line has run.
LEFT_RUNNING = {
    "an idle streamer": """
        streamer = strata.ExpertStreamer(64, gpu_ring=4)
    """,
    "a finished request": """
        streamer = strata.ExpertStreamer(64, gpu_ring=4)
        with streamer.begin(staged) as request:
            request.skip(64)
    """,
    "a request that nobody took from": """
        streamer = strata.ExpertStreamer(64, gpu_ring=4)
        request = streamer.begin(direct)
    """,
    "a request in flight": """
        streamer = strata.ExpertStreamer(64, gpu_ring=4, host_ring=3, workers=3)
        request = streamer.begin(staged)
        slot = request.acquire()
    """,
    "a loop's last slot": """
        streamer = strata.ExpertStreamer(64, gpu_ring=4)
        for slot in streamer.begin(direct):
            view = slot.array()
            break
    """,
    "many streamers": """
        streamers = [strata.ExpertStreamer(64, gpu_ring=4, host_ring=2) for _ in range(20)]
        requests = [streamer.begin(staged) for streamer in streamers]
        slots = [request.acquire() for request in requests[::2]]
    """,
    "a cycle": """
        class Engine:
            def __init__(self):
                self.me = self
                self.streamer = strata.ExpertStreamer(64, gpu_ring=4)
                self.request = self.streamer.begin(staged)
                self.slot = self.request.acquire()
        Engine()
        Engine.kept = Engine()
    """,
    "a closure, a default, a class": """
        def make(streamer=strata.ExpertStreamer(64, gpu_ring=4)):
            request = streamer.begin(direct)
            def take(kept=request.acquire()):
                return request.acquire()
            return take
        class Kept:
            take = staticmethod(make())
            streamer = strata.ExpertStreamer(64, gpu_ring=4)
        Kept.take()
    """,
    "an object that closes it in its own finalizer": """
        class Engine:
            def __init__(self):
                self.streamer = strata.ExpertStreamer(64, gpu_ring=4)
                self.request = self.streamer.begin(staged)
            def __del__(self):
                self.request.abort()
                self.streamer.close()
        engine = Engine()
        engine.me = engine
    """,
    "a streamer in sys.modules": """
        sys.modules["kept"] = strata.ExpertStreamer(64, gpu_ring=4)
        sys.modules["kept"].begin(direct).acquire()
    """,
    "a stager in flight": """
        stager = strata.HostStager(64, host_ring=3, workers=3)
        stager.start(staged)
        stager.wait(0)
    """,
    "memory registered and lists of it": """
        scope = strata.register(pageable)
        scope.__enter__()
        more = [strata.pinned_empty(100, np.uint8) for _ in range(10)]
    """,
    "a thread that has the request": """
        done = threading.Event()
        def engine():
            streamer = strata.ExpertStreamer(64, gpu_ring=4)
            request = streamer.begin(staged)
            request.acquire()
            done.set()
            threading.Event().wait()
        threading.Thread(target=engine, daemon=True).start()
        done.wait()
    """,
    "a thread that waits in acquire": """
        streamer = strata.ExpertStreamer(64, gpu_ring=4)
        control.inject("hipMemcpyAsync", 1, action="hang")
        request = streamer.begin(direct)
        threading.Thread(target=request.acquire, daemon=True).start()
        while not streamer._core.in_use:
            pass
    """,
    "a thread that computes": """
        streamer = strata.ExpertStreamer(64, gpu_ring=4)
        request = streamer.begin(staged)
        def compute():
            while True:
                pass
        threading.Thread(target=compute, daemon=True).start()
        request.acquire()
    """,
}


@pytest.mark.parametrize("what", LEFT_RUNNING)
def test_exit_with(what: str) -> None:
    script = LEFT_RUNNING[what] + "\n        say('end')"
    assert ended_well(run_script(script)) == ["end"]


@pytest.mark.parametrize("what", ["a request in flight", "many streamers", "a stager in flight"])
def test_exit_with_work_that_nobody_forces(what: str) -> None:
    script = LEFT_RUNNING[what] + "\n        say('end')"
    assert ended_well(run_script(script, STRATA_SOFTWARE_SCHEDULE="lazy")) == ["end"]


def test_a_streamer_in_a_modules_global(tmp_path: Path) -> None:
    module = """
        import numpy as np
        import strata
        SOURCE = np.arange(4096, dtype=np.uint8).reshape(64, 64)
        STREAMER = strata.ExpertStreamer(64, gpu_ring=4)
        REQUEST = STREAMER.begin(strata.ExpertCopies.from_buffers(list(SOURCE), False))
        SLOT = REQUEST.acquire()
    """
    (tmp_path / "weights.py").write_text(textwrap.dedent(module))
    script = f"""
        sys.path.insert(0, {str(tmp_path)!r})
        import weights
        say(weights.SLOT.entry)
    """
    assert ended_well(run_script(script)) == ["0"]


IN_THE_LOOP = """
    streamer = strata.ExpertStreamer(64, gpu_ring=4, host_ring=2)
    {manager}
        for slot in request:
            if slot.entry == 7:
                {leave}
"""
IN_CONTEXT = "with streamer.begin(staged) as request:"
WITHOUT = "request = streamer.begin(staged)\n    if True:"


@pytest.mark.parametrize("manager", [IN_CONTEXT, WITHOUT], ids=["context", "no context"])
@pytest.mark.parametrize(
    ("leave", "status"),
    [("sys.exit(3)", 3), ("sys.exit()", 0), ("os._exit(4)", 4)],
)
def test_leaving_the_process_from_the_loop(leave: str, status: int, manager: str) -> None:
    ended_well(run_script(IN_THE_LOOP.format(leave=leave, manager=manager)), status)


@pytest.mark.parametrize("manager", [IN_CONTEXT, WITHOUT], ids=["context", "no context"])
def test_an_exception_in_the_loop_is_all_that_is_said(manager: str) -> None:
    done = run_script(IN_THE_LOOP.format(leave="raise RuntimeError('the engine is out of ideas')", manager=manager))
    assert done.status == 1
    lines = done.err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "RuntimeError: the engine is out of ideas"
    assert done.err.count("Traceback") == 1
    assert "strata" not in done.err.replace("strata/", "")  # nothing but the traceback's own lines


def test_a_failure_in_the_loop_is_all_that_is_said() -> None:
    script = """
        streamer = strata.ExpertStreamer(64, gpu_ring=4)
        control.inject("hipMemcpyAsync", 6, status=700)
        with streamer.begin(direct) as request:
            for slot in request:
                pass
    """
    done = run_script(script)
    assert done.status == 1
    assert done.err.count("Traceback") == 1
    last = done.err.splitlines()[-1]
    assert "hipMemcpyAsync failed with hipErrorIllegalAddress (700) at entry 5, slot 1" in last


def test_an_unraisable_end_of_a_thread() -> None:
    """The engine's thread dies in the loop; the process's own end is not its business."""
    script = """
        streamer = strata.ExpertStreamer(64, gpu_ring=4)
        def engine():
            with streamer.begin(staged) as request:
                for slot in request:
                    if slot.entry == 9:
                        sys.exit(1)
        thread = threading.Thread(target=engine)
        thread.start()
        thread.join()
        with streamer.begin(direct) as request:
            request.skip(64)
        say(streamer.counters.skipped)
    """
    assert ended_well(run_script(script)) == ["64"]


def one_line_about_it(done: Ended) -> None:
    assert done.status == 0, done
    assert done.out == ["end"]
    lines = done.err.splitlines()
    assert len(lines) == 1, done.err
    assert lines[0].startswith("strata: at exit: ")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["direct", "staged"])
def test_a_device_that_never_comes_back_does_not_keep_the_process(kind: str) -> None:
    """A kernel that never ends: strata gives up after some seconds, says so in one line, and leaks."""
    script = f"""
        streamer = strata.ExpertStreamer(64, gpu_ring=4, host_ring=2)
        kernel = control.hold(streamer.compute_stream)
        request = streamer.begin({kind})
        for _ in range(5):
            request.acquire().release()
        slot = request.acquire()
        say("end")
    """
    one_line_about_it(run_script(script))


@pytest.mark.slow
def test_a_driver_call_that_never_returns_does_not_keep_the_process() -> None:
    script = """
        streamer = strata.ExpertStreamer(64, gpu_ring=4)
        control.inject("hipMemcpyAsync", 3, action="hang")
        request = streamer.begin(direct)
        request.acquire()
        while not control.hanging_calls():
            pass
        say("end")
    """
    one_line_about_it(run_script(script))


@pytest.mark.slow
def test_a_stagers_dma_that_never_ends_does_not_keep_the_process() -> None:
    script = """
        from strata import _hip
        stager = strata.HostStager(64, host_ring=2)
        stream, device = _hip.create_stream(), _hip.malloc(64)
        stager.start(staged)
        control.hold(stream)
        _hip.memcpy_h2d_async(device, stager.wait(0), 64, stream)
        stager.submitted(0, stream)
        say("end")
    """
    one_line_about_it(run_script(script))
