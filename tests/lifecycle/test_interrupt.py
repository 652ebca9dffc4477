"""Ctrl-C gets through to an engine that waits in strata; a second one waits for the tear-down."""

from __future__ import annotations

import signal
import time

import pytest

from tests.support.scripts import ended_well, run_script, start_script

#: What the main thread waits in, and what has to be let go afterwards. Each waits for ever without Ctrl-C.
WAITS = {
    "acquire": (
        """
        control.inject("hipMemcpyAsync", 3, action="hang")
        request = streamer.begin(direct)
        request.skip(2)
        wait = request.acquire
        """,
        "control.release_hangs()",
    ),
    "acquire with a long timeout": (
        """
        control.inject("hipMemcpyAsync", 3, action="hang")
        request = streamer.begin(direct)
        request.skip(2)
        wait = lambda: request.acquire(timeout=1e6)
        """,
        "control.release_hangs()",
    ),
    "skip": (
        """
        control.inject("hipMemcpyAsync", 3, action="hang")
        request = streamer.begin(direct)
        wait = lambda: request.skip(64)
        """,
        "control.release_hangs()",
    ),
    "the loop": (
        """
        control.inject("hipMemcpyAsync", 3, action="hang")
        request = streamer.begin(direct)
        wait = lambda: [slot.entry for slot in request]
        """,
        "control.release_hangs()",
    ),
    "synchronize": (
        """
        latch = control.hold(streamer.copy_stream)
        request = streamer.begin(direct)
        slot = request.acquire()
        wait = slot.synchronize
        """,
        "latch.release()",
    ),
    "finish": (
        """
        latch = control.hold(streamer.copy_stream)
        request = streamer.begin(direct)
        request.skip(64)
        wait = request.finish
        """,
        "latch.release()",
    ),
    "the end of a context": (
        """
        latch = control.hold(streamer.copy_stream)
        request = streamer.begin(direct)
        request.skip(64)
        wait = lambda: request.__enter__().__exit__(None, None, None)
        """,
        "latch.release()",
    ),
    "a stager's wait": (
        """
        from strata import _hip
        stream, device = _hip.create_stream(), _hip.malloc(64)
        latch = control.hold(stream)
        import logging
        logging.getLogger("strata").setLevel("ERROR")     # a ring of one starves, and says so
        stager = strata.HostStager(64, host_ring=1)
        stager.start(staged)
        _hip.memcpy_h2d_async(device, stager.wait(0), 64, stream)
        stager.submitted(0, stream)
        wait = lambda: stager.wait(1)
        """,
        "latch.release()",
    ),
}

INTERRUPTED = """
        import time
        streamer = strata.ExpertStreamer(64, gpu_ring=4)
{before}
        sent = []
        def interrupt():
            started.wait()
            while not (streamer._core.in_use or "stager" in globals()):
                pass
            # The wait has begun, or will in a moment. (Were it later, the test would only prove less.)
            time.sleep(0.05)
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
        started = threading.Event()
        threading.Thread(target=interrupt).start()
        try:
            started.set()
            wait()
            say("it came")
        except KeyboardInterrupt:
            say("interrupted", time.monotonic() - sent[0] < 1)
        {after}
        if "stager" in globals():
            stager.close()
        else:
            request.abort()
            say(request.counters.used_records, request.consumed)
        with streamer.begin(staged) as request:
            wrong = 0
            for slot in request:
                slot.synchronize()
                wrong += int((slot.array() != pageable[slot.entry]).sum())
        say("next", wrong, request.consumed)
"""


@pytest.mark.parametrize("what", WAITS)
def test_ctrl_c_gets_through(what: str) -> None:
    before, after = WAITS[what]
    out = ended_well(run_script(INTERRUPTED.format(before=before, after=after)))
    assert out[0] == "interrupted True"
    assert out[-1] == "next 0 64"


#: What comes after a `finish` that Ctrl-C has ended, and what that says.
AFTERWARDS = {
    "finish": ("latch.release(); request.finish(); say(request)", "finished>"),
    "abort": ("latch.release(); request.abort(); say(request)", "it was aborted>"),
    "begin": (
        "threading.Timer(0.1, latch.release).start(); streamer.begin().finish(); say(request)",
        "its finish() was interrupted>",
    ),
    "close": ("threading.Timer(0.1, latch.release).start(); streamer.close(); say(request)", "its streamer was closed>"),
    "drop": (
        "latch.release(); warnings.simplefilter('error'); caught = None; del request, caught; "
        "say(streamer.begin().finish())",
        "None",
    ),
    "acquire": ("tell(request.acquire); latch.release()", "IndexError entry 64 is past the end of the list (64 entries)"),
    "extend": (
        "tell(lambda: request.extend(direct)); latch.release()",
        "StrataError this request is at its end: a finish() was interrupted. finish() it again, or abort() it",
    ),
    "cancel": (
        "request.cancel(); threading.Timer(0.1, latch.release).start(); tell(request.finish)",
        "RequestAborted the request was cancelled at entry 64",
    ),
}


@pytest.mark.parametrize("how", AFTERWARDS)
def test_a_finish_that_was_interrupted_can_be_taken_up_again(how: str) -> None:
    """Nothing is let go before the copies are done, and the streamer is as good as new afterwards."""
    do, says = AFTERWARDS[how]
    out = ended_well(
        run_script(
            f"""
            import gc, warnings, weakref
            def tell(call):
                try:
                    say("no error", call())
                except Exception as error:
                    say(type(error).__name__, error)
            streamer = strata.ExpertStreamer(64, gpu_ring=4)
            latch = control.hold(streamer.copy_stream)
            copies = direct.take(range(64))
            alive = weakref.ref(copies)
            request = streamer.begin(copies)
            del copies
            request.skip(64)
            def interrupt():
                while not streamer._core.in_use:
                    pass
                os.kill(os.getpid(), signal.SIGINT)
            threading.Thread(target=interrupt).start()
            try:
                request.finish()
            except KeyboardInterrupt as error:
                say("interrupted", repr(request).split(", ")[-1])
            gc.collect()
            say(alive() is not None)
            {do}
            if "request" in globals():
                request.abort()
                say(request.consumed, request.counters.skipped)
            gc.collect()
            say(alive() is None)
            with streamer if not streamer.closed else strata.ExpertStreamer(64, gpu_ring=4) as streamer:
                with streamer.begin(staged) as request:
                    wrong = 0
                    for slot in request:
                        slot.synchronize()
                        wrong += int((slot.array() != pageable[slot.entry]).sum())
            say("next", wrong, request.consumed)
            live = control.live()
            say([live[what] for what in ("streams", "events", "device_bytes")])
            """
        )
    )
    assert out[:2] == ["interrupted running>", "True"]
    assert out[2].endswith(says)
    assert out[3:] == [*(["64 64"] if how != "drop" else []), "True", "next 0 64", "[0, 0, 0]"]


def test_ctrl_c_from_outside_ends_the_process_as_it_should() -> None:
    """The usual script: nobody catches it, the context managers tear down, the status is that of SIGINT."""
    script = """
        with strata.ExpertStreamer(64, gpu_ring=4) as streamer, streamer.begin(direct) as request:
            request.acquire().release()
            say("ready")
            while True:
                try:
                    request.acquire(timeout=0.01).release()
                except (TimeoutError, IndexError):
                    pass
    """
    process = start_script(script)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 30
    assert process.returncode == -signal.SIGINT
    assert out == ""
    assert err.splitlines()[-1] == "KeyboardInterrupt"
    assert err.count("Traceback") == 1


def test_a_second_ctrl_c_waits_for_the_tear_down() -> None:
    """It comes while the abort waits for a copy that is held up in the driver; the abort is not cut short."""
    script = """
        class Leaving:
            def __enter__(self):
                return self
            def __exit__(self, *exception):
                leaving.set()

        leaving = threading.Event()
        streamer = strata.ExpertStreamer(64, gpu_ring=4)
        control.inject("hipMemcpyAsync", 3, action="hang")

        def interrupt():
            while not (control.hanging_calls() and streamer._core.in_use):
                pass
            os.kill(os.getpid(), signal.SIGINT)
            leaving.wait()
            while not streamer._core.in_use:    # in the abort now
                pass
            os.kill(os.getpid(), signal.SIGINT)
            say("second")
            control.release_hangs()

        thread = threading.Thread(target=interrupt)
        try:
            try:
                with streamer.begin(direct) as request, Leaving():
                    request.skip(2)
                    thread.start()
                    request.acquire()
            except KeyboardInterrupt:
                thread.join()
        except KeyboardInterrupt:
            say("interrupted again")    # not lost, only later
            thread.join()
        # The tear-down was whole: the request is over, and the next one may begin at once.
        say(request.counters.used_records, request.consumed)
        try:
            request.acquire()
        except strata.RequestAborted:
            say("over")
        with streamer.begin(staged) as request:
            wrong = 0
            for slot in request:
                slot.synchronize()
                wrong += int((slot.array() != pageable[slot.entry]).sum())
        say("next", wrong, request.consumed)
        streamer.close()
        live = control.live()
        say([live[what] for what in ("streams", "events", "device_bytes")])
    """
    out = ended_well(run_script(script))
    assert sorted(out[:2]) == ["interrupted again", "second"]
    assert out[2:] == ["2 2", "over", "next 0 64", "[0, 0, 0]"]


def test_a_handler_of_the_engines_own_runs_while_acquire_waits() -> None:
    """Signals other than Ctrl-C are seen as well, and the wait goes on where the handler returns."""
    script = """
        streamer = strata.ExpertStreamer(64, gpu_ring=4)
        control.inject("hipMemcpyAsync", 1, action="hang")
        def handler(number, frame):
            say("handled")
            control.release_hangs()
        signal.signal(signal.SIGUSR1, handler)
        def poke():
            while not (control.hanging_calls() and streamer._core.in_use):
                pass
            os.kill(os.getpid(), signal.SIGUSR1)
        threading.Thread(target=poke).start()
        with streamer.begin(direct) as request:
            say(request.acquire().entry)
            request.abort()
    """
    assert ended_well(run_script(script)) == ["handled", "0"]
