"""Native threads: each blocks every signal from its start, and has a name."""

from __future__ import annotations

import signal
import textwrap

import pytest

from strata.engine import threads
from tests.support.scripts import ended_well, run_script

#: What the C library keeps for itself or cannot be blocked.
NEVER = {signal.SIGKILL, signal.SIGSTOP, *range(32, signal.SIGRTMIN)}

LOOK = """
def look(task, what):
    try:
        return open(f"/proc/self/task/{task}/{what}").read()
    except (FileNotFoundError, ProcessLookupError):     # an idle stream's thread may end at any time
        return None

def mask(status):
    bits = int(next(line for line in status.splitlines() if line.startswith("SigBlk")).split()[1], 16)
    return {n for n in range(1, 65) if bits >> (n - 1) & 1}

every = set(range(1, 65)) - """ + repr({int(n) for n in NEVER}) + """
before = set(os.listdir("/proc/self/task"))
"""

#: Everything that starts a native thread: a script, and the names that it brings.
STARTS = {
    "a streamer": ("streamer = strata.ExpertStreamer(64, gpu_ring=4)", ["strata-issuer"]),
    "a staged request": (
        """
        streamer = strata.ExpertStreamer(64, gpu_ring=4, workers=3)
        with streamer.begin(staged) as request:
            request.skip(64)
        """,
        ["strata-issuer", "strata-worker-0", "strata-worker-1", "strata-worker-2"],
    ),
    "a stager": ("stager = strata.HostStager(64, workers=2)", ["strata-worker-0", "strata-worker-1"]),
    "twelve workers": (
        "stager = strata.HostStager(64, workers=12)",
        [*(f"strata-worker-{k}" for k in range(10)), "strata-worke-10", "strata-worke-11"],
    ),
    "a stream that works": (
        """
        from strata import _hip
        stream, memory = _hip.create_stream(), _hip.malloc(4096)
        _hip.memset_async(memory, 0, 4096, stream)
        _hip.synchronize_stream(stream)
        """,
        None,
    ),
    "a host function": (
        """
        from strata import _hip
        ran = threading.Event()
        stream = _hip.create_stream()
        seen = []
        def function():
            seen.append(mask(look(threading.get_native_id(), "status")))
            ran.set()
        strata.runtime.launch_host(stream, function)
        _hip.synchronize_stream(stream)
        ran.wait()
        assert seen == [every], seen
        """,
        None,
    ),
    "a lazy schedule": (
        """
        control.configure(schedule="lazy", idle_ms=1)
        from strata import _hip
        stream, memory = _hip.create_stream(), _hip.malloc(4096)
        _hip.memset_async(memory, 0, 4096, stream)
        _hip.synchronize_stream(stream)
        """,
        None,
    ),
}


@pytest.mark.parametrize("what", STARTS)
def test_every_native_thread_blocks_every_signal_and_has_a_name(what: str) -> None:
    script, names = STARTS[what]
    out = ended_well(run_script(LOOK + textwrap.dedent(script) + """
for task in sorted(set(os.listdir("/proc/self/task")) - before):
    name, status = look(task, "comm"), look(task, "status")
    if name and status:
        say(name.strip(), sorted(every - mask(status)))
"""))
    assert out or what == "a stream that works"
    assert all(line.startswith("strata-") and line.endswith(" []") for line in out), out
    if names is not None:
        own = sorted(line.split()[0] for line in out if not line.startswith("strata-sw-"))
        assert own == sorted(names)


#: One of strata's threads must not be who takes it; each ends or disturbs a process whose threads take it.
WAITED_FOR = ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGALRM", "SIGCHLD", "SIGRTMIN"]


@pytest.mark.parametrize("name", WAITED_FOR)
def test_a_signal_that_the_program_waits_for_is_the_programs(name: str) -> None:
    """Blocked by the main thread once strata's threads run: sigwait gets it, and no handler, and not the default."""
    out = ended_well(run_script(f"""
        streamer = strata.ExpertStreamer(64, gpu_ring=4, workers=2)
        with streamer.begin(staged) as request:
            request.skip(64)
        handled = []
        if signal.{name} != signal.SIGCHLD:
            signal.signal(signal.{name}, lambda *_: handled.append(1))
        signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.{name}}})
        for _ in range(50):
            os.kill(os.getpid(), signal.{name})
            got = signal.sigtimedwait({{signal.{name}}}, 20)
            assert got is not None and got.si_signo == signal.{name}, got
        say("waited for", handled)
        streamer.close()
    """, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1"))
    assert out == ["waited for []"]


def test_the_starting_thread_keeps_its_own_mask() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        import strata

        with strata.HostStager(64, workers=2):
            pass
        threads.refuse_after(1)
        with pytest.raises(MemoryError, match="threads"):
            strata.HostStager(64, workers=2)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == {*before, signal.SIGUSR2}
    finally:
        threads.refuse_after(None)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_what_the_opened_library_starts_blocks_signals_too() -> None:
    """A driver starts threads of its own at its first calls; they inherit the mask of the thread that calls."""
    out = ended_well(run_script("""
        import ctypes
        real, masks = ctypes.CDLL, []
        class Watched(real):
            def __init__(self, *arguments, **more):
                masks.append(set(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
                super().__init__(*arguments, **more)
        ctypes.CDLL = Watched
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        print(strata.runtime.use("software"))
        ctypes.CDLL = real
        faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP}
        print(bool(masks), all(signal.valid_signals() - faults - {9, 19} <= mask for mask in masks))
        print(signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before)
    """, prologue="import signal, strata\n"))
    assert out == ["software", "True True", "True"]


def test_names_have_fifteen_characters_at_most() -> None:
    with pytest.raises(ValueError, match="at most 15 bytes"):
        threads.rename("sixteen letters!")
