"""Exit, fork and the environment, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PRELUDE = """
import os, sys, threading
from strata.runtime.software import control
from tests.software_runtime.hip import *
hip = Hip()
"""


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(p for p in (*sys.path, str(Path.cwd()), str(ROOT)) if p)
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PRELUDE + textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def expect_clean(result: subprocess.CompletedProcess[str], out: str = "") -> None:
    assert (result.returncode, result.stderr, result.stdout.strip()) == (0, "", out)


PENDING = """
    stream, event = hip.stream(), hip.event()
    source, target = hip.host_malloc(1 << 20), hip.malloc(1 << 20)
    latch = control.hold(stream)
    for _ in range(100):
        hip.do("MemcpyAsync", target, source, 1 << 20, HOST_TO_DEVICE, stream)
    hip.do("EventRecord", event, stream)
"""


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random", "copies-first", "compute-first", "timed"])
def test_exit_with_work_pending_and_nothing_released(schedule):
    expect_clean(run(PENDING + "    latch = None", STRATA_SOFTWARE_SCHEDULE=schedule))


def test_exit_while_copies_run():
    expect_clean(run(PENDING + "    latch.release()"))


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_exit_while_a_thread_waits_for_a_held_stream(schedule):
    script = PENDING + """
    threading.Thread(target=hip.EventSynchronize, args=(event,), daemon=True).start()
    while control.calls()["hipEventSynchronize"] == 0: pass
    """
    expect_clean(run(script, STRATA_SOFTWARE_SCHEDULE=schedule))


def test_exit_with_a_host_function_that_never_returns():
    script = """
    stream, running = hip.stream(), threading.Event()
    @HostFunction
    def stay(_):
        running.set()
        threading.Event().wait()
    hip.do("LaunchHostFunc", stream, stay, None)
    running.wait()
    print("left", flush=True)
    sys.exit(0)
    """
    expect_clean(run(script), "left")


@pytest.mark.parametrize("schedule", ["eager", "random"])
def test_exit_while_host_functions_of_python_run(schedule):
    """Whoever uses the control functions leaves no host function that asks for an interpreter that is gone."""
    script = """
    stream, running = hip.stream(), threading.Event()
    @HostFunction
    def step(_):
        running.set()
    control.live()
    for _ in range(20000):
        hip.do("LaunchHostFunc", stream, step, None)
    running.wait()
    """
    expect_clean(run(script, STRATA_SOFTWARE_SCHEDULE=schedule))


def test_stopped_host_functions_are_done_without_being_called():
    script = """
    stream, event, seen = hip.stream(), hip.event(), []
    @HostFunction
    def step(_):
        seen.append(1)
    hip.do("LaunchHostFunc", stream, step, None)
    hip.do("StreamSynchronize", stream)
    assert hip.library.strata_sw_stop_host_functions(1000) == 0
    hip.do("LaunchHostFunc", stream, step, None)
    hip.do("StreamSynchronize", stream)
    print(seen)
    """
    expect_clean(run(script), "[1]")


def test_stopping_names_a_host_function_that_stays():
    script = """
    from strata.runtime.software import _binding
    stream, running = hip.stream(), threading.Event()
    @HostFunction
    def stay(_):
        running.set()
        threading.Event().wait()
    hip.do("LaunchHostFunc", stream, stay, None)
    running.wait()
    assert _binding.library().strata_sw_stop_host_functions(5) == -1
    print(_binding.library().strata_sw_problem().decode())
    """
    expect_clean(run(script), "a host function is still running after 5 ms")


def test_sys_exit_status_is_kept():
    assert run(PENDING + "    sys.exit(7)").returncode == 7


FORK = """
    def child_of(body):
        pid = os.fork()
        if pid == 0:
            try:
                body()
            except BaseException as error:
                print("child:", repr(error), flush=True)
                os._exit(1)
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.parametrize("schedule", ["eager", "lazy", "null"])
def test_child_of_a_fork_after_use_gets_a_status_and_exits(schedule):
    script = PENDING + FORK + """
    def body():
        from ctypes import byref, c_int, c_void_p
        assert hip.GetDeviceCount(byref(c_int())) == 709
        assert hip.Malloc(byref(c_void_p()), 8) == 709
        assert hip.StreamSynchronize(stream) == 709
        assert hip.EventQuery(event) == 709
        assert hip.Free(target) == 709
        assert hip.GetLastError() == 709
        assert hip.error_name(709) == "hipErrorContextIsDestroyed"
        try:
            control.live()
        except control.ControlError as error:
            assert "forked" in str(error)
        else:
            raise AssertionError("control worked")
    child_of(body)
    latch.release()
    hip.do("EventSynchronize", event)
    print("parent works")
    """
    if schedule == "null":
        script = script.replace("latch = control.hold(stream)", "").replace("latch.release()", "pass")
    expect_clean(run(script, STRATA_SOFTWARE_SCHEDULE=schedule), "parent works")


def test_fork_before_first_use_is_legal():
    script = FORK + """
    def body():
        stream, gpu = hip.stream(), hip.malloc(64)
        hip.do("MemsetAsync", gpu, 3, 64, stream)
        hip.do("StreamSynchronize", stream)
        assert (view(gpu, 64) == 3).all()
    child_of(body)
    body()
    """
    expect_clean(run(script))


def test_environment_chooses_the_configuration():
    script = "    print(control.configuration())"
    result = run(
        script,
        STRATA_SOFTWARE_SCHEDULE="random",
        STRATA_SOFTWARE_SEED="17",
        STRATA_SOFTWARE_PINNED_LIMIT="1000",
        STRATA_SOFTWARE_DEVICE_MEMORY="5000",
        STRATA_SOFTWARE_DEVICES="2",
        STRATA_SOFTWARE_IDLE_MS="30",
        STRATA_SOFTWARE_MAX_PENDING="1024",
        STRATA_SOFTWARE_BATCH="no-attributes",
        STRATA_SOFTWARE_BATCH_READS="call",
        STRATA_SOFTWARE_BATCH_CALLS="7",
        STRATA_SOFTWARE_REGISTRATION="accepts",
    )
    expected = {
        "schedule": "random",
        "seed": 17,
        "pinned_limit": 1000,
        "device_memory": 5000,
        "devices": 2,
        "idle_ms": 30,
        "max_pending": 1024,
        "batch": "no-attributes",
        "batch_reads": "call",
        "batch_calls": 7,
        "registration": "accepts",
    }
    expect_clean(result, str(expected))


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("STRATA_SOFTWARE_SCHEDULE", "hasty"),
        ("STRATA_SOFTWARE_SEED", "1.5"),
        ("STRATA_SOFTWARE_DEVICES", "9"),
        ("STRATA_SOFTWARE_PINNED_LIMIT", "-1"),
        ("STRATA_SOFTWARE_DEVICE_MEMORY", "16GiB"),
        ("STRATA_SOFTWARE_MAX_PENDING", "many"),
        ("STRATA_SOFTWARE_BATCH", "absent"),
        ("STRATA_SOFTWARE_BATCH_READS", "any"),
        ("STRATA_SOFTWARE_BATCH_CALLS", "-1"),
        ("STRATA_SOFTWARE_REGISTRATION", "maybe"),
    ],
)
def test_wrong_environment_is_said_and_every_call_refused(variable, value):
    script = """
    from ctypes import byref, c_int
    print(hip.GetDeviceCount(byref(c_int())), hip.error_name(9))
    control.configure()
    print(hip.GetDeviceCount(byref(c_int())))
    """
    result = run(script, **{variable: value})
    assert result.returncode == 0
    assert f"{variable}={value}" in result.stderr
    assert result.stdout.split() == ["9", "hipErrorInvalidConfiguration", "0"]


def test_environment_is_read_at_load():
    script = """
    os.environ["STRATA_SOFTWARE_SCHEDULE"] = "lazy"
    print(control.configuration()["schedule"])
    """
    expect_clean(run(script), "eager")
