"""No driver, a driver too old, a driver that does not start, no device, a fork: a status and one sentence."""

from __future__ import annotations

import os

import pytest

from strata.runtime import cuda

# Calls every function with harmless arguments and reports each status.
EVERY_CALL = """
from client import HIP_SIGNATURES
statuses = {}
for symbol, arguments in HIP_SIGNATURES.items():
    if symbol.startswith(("hipGetError", "hipGetLast", "hipPeek")):
        continue
    out = ctypes.create_string_buffer(64)
    values = [out if kind is c_void_p else 0 for kind in arguments]
    statuses[symbol] = getattr(hip, symbol)(*values)
    equal(last(), statuses[symbol])
found = [sorted(set(statuses.values())), len(statuses), problem(), hip.strata_cuda_has_batch()]
"""


def test_no_driver_library(run_client, tmp_path):
    missing = str(tmp_path / "libcuda.so.1")
    statuses, count, problem, batch = run_client(EVERY_CALL + "report(found)", driver=missing)
    assert statuses == [35]
    assert count == 33
    assert batch == 0
    assert problem.startswith(f"no CUDA driver: {missing} cannot be opened (")
    assert "No such file" in problem


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this machine has a CUDA driver")
def test_the_usual_library_is_looked_for_unless_told(run_client):
    script = "report([hip.hipGetDeviceCount(byref(c_int())), problem()])"
    status, problem = run_client(script, driver="")
    assert status in (35, 100)
    assert "libcuda.so.1" in problem


def test_what_is_no_library(run_client, tmp_path):
    text = tmp_path / "libcuda.so.1"
    text.write_text("not a library")
    statuses, _, problem, _ = run_client(EVERY_CALL + "report(found)", driver=str(text))
    assert statuses == [35]
    assert str(text) in problem


def test_a_driver_that_lacks_symbols(run_client):
    statuses, _, problem, _ = run_client(EVERY_CALL + "report(found)", variant="lacking")
    assert statuses == [35]
    assert "lacks cuMemHostRegister_v2, cuLaunchHostFunc: a driver for CUDA 10 or newer is needed" in problem
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (3, 35, "cuInit failed with CUDA_ERROR_NOT_INITIALIZED (3): stub: initialization error"),
        (100, 100, "cuInit failed with CUDA_ERROR_NO_DEVICE (100): stub: no device"),
        (802, 35, "cuInit failed with CUDA_ERROR_SYSTEM_NOT_READY (802): stub: system not ready"),
        (4242, 35, "cuInit failed with an unnamed status (4242)"),
    ],
)
def test_a_driver_that_does_not_start(run_client, answer, status, words):
    statuses, _, problem, batch = run_client(EVERY_CALL + "report(found)", STUB_INIT_STATUS=str(answer))
    assert statuses == [status]
    assert problem.endswith(words)
    assert batch == 0


def test_no_device(run_client):
    statuses, _, problem, _ = run_client(EVERY_CALL + "report(found)", STUB_DEVICES="0")
    assert statuses == [100]
    assert problem.endswith("reports no device")


@pytest.mark.parametrize("call", ["cuDeviceGetCount", "cuDeviceGet"])
def test_devices_that_cannot_be_listed(run_client, call):
    script = f"stub.stub_fail(b'{call}', 3)\n" + EVERY_CALL + "report(found)"
    statuses, _, problem, _ = run_client(script)
    assert statuses == [35]
    assert problem.endswith(f"{call} failed with CUDA_ERROR_NOT_INITIALIZED (3): stub: initialization error")


def test_the_count_is_zero_where_there_is_no_device(run_client):
    run_client(
        """
        number = c_int(77)
        equal(hip.hipGetDeviceCount(byref(number)), 100)
        equal(number.value, 0)
        equal(name(100), "hipErrorNoDevice")
    """,
        STUB_DEVICES="0",
    )


def test_no_problem_where_it_works(run_client):
    assert run_client("report(problem())") == ""


FORK = """
import traceback
def in_child(function):
    child = os.fork()
    if child == 0:
        try:
            function()
            sys.stdout.flush()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    equal(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
"""


def test_a_forked_child_is_refused(run_client):
    run_client(
        FORK
        + """
ok(hip.hipSetDevice(0))
stream = new_stream()

def child():
    clear()
"""
        + "".join("    " + line + "\n" for line in EVERY_CALL.splitlines())
        + """
    equal(found[0], [709])
    equal("forked" in found[2], True)
    equal(found[3], 0)
    equal(name(709), "hipErrorContextIsDestroyed")
    equal(name(803), "hipErrorUnknown")
    equal(calls(bookkeeping=True), [])

in_child(child)
ok(hip.hipStreamSynchronize(stream))
equal(problem(), "")
"""
    )


def test_a_fork_while_another_thread_starts_the_driver(run_client):
    run_client(
        FORK
        + """
first = threading.Thread(target=lambda: ok(hip.hipDeviceSynchronize()))
first.start()
stub.stub_wait_until_starting()
in_child(lambda: equal(hip.hipDeviceSynchronize(), 709))
stub.stub_release_start()
first.join()
ok(hip.hipDeviceSynchronize())
""",
        STUB_HOLD_START="1",
    )


def test_a_fork_before_the_first_use_is_fine(run_client):
    run_client(
        FORK
        + """
in_child(lambda: ok(hip.hipDeviceSynchronize()))
ok(hip.hipDeviceSynchronize())
"""
    )


def test_a_fork_after_a_failed_start_tells_the_same_failure(run_client):
    run_client(
        FORK
        + """
equal(hip.hipDeviceSynchronize(), 100)
in_child(lambda: equal(hip.hipDeviceSynchronize(), 100))
""",
        STUB_DEVICES="0",
    )


def test_a_child_that_ends_the_usual_way_exits_cleanly(run_client):
    run_client("""
        ok(hip.hipSetDevice(0))
        child = os.fork()
        if child == 0:
            sys.exit(0)
        equal(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
    """)


def test_the_face_says_the_same(run_client, build_stub):
    assert cuda.library_path().is_absolute()
    assert cuda.library_path().is_file()
    script = """
        import runpy
        face = runpy.run_path(os.environ["FACE"])
        report([face["problem"](), face["has_batch"]()])
    """
    face = os.fspath(cuda.__file__)
    assert run_client(script, FACE=face) == ["", True]
    assert run_client(script, FACE=face, variant="cuda12.4") == ["", False]
    problem, batch = run_client(script, FACE=face, driver="/nowhere/libcuda.so.1")
    assert "/nowhere/libcuda.so.1" in problem
    assert batch is False
