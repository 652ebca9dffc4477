"""The driver's statuses in HIP's words, and the per-thread last error."""

from __future__ import annotations

from rocm.bindings import hip as bindings

# Numbers under which the driver reports another failure than HIP.
DIFFERENT_MEANING = {911, 912, 916}


def test_names_are_those_of_the_installed_bindings(run_client):
    names = run_client("report([name(status) for status in range(0, 1100)])")
    known = {int(error): error.name for error in bindings.hipError_t}
    expected = [
        known.get(status, "hipErrorUnknown") if status not in DIFFERENT_MEANING else "hipErrorUnknown"
        for status in range(0, 1100)
    ]
    assert names == expected


def test_texts_are_there_for_every_name(run_client):
    texts = run_client("report({s: hip.hipGetErrorString(s).decode() for s in range(0, 1100)})")
    known = {int(error) for error in bindings.hipError_t} - DIFFERENT_MEANING - {999}
    assert {int(status) for status, text in texts.items() if text != "unknown error"} == known


def test_a_status_of_any_driver_call_comes_back(run_client):
    statuses = [1, 2, 3, 4, 100, 101, 201, 400, 401, 500, 600, 700, 702, 709, 712, 713, 719, 801, 999]
    assert (
        run_client(f"""
        ok(hip.hipSetDevice(0))
        stream = new_stream()
        found = []
        for status in {statuses}:
            stub.stub_fail(b"cuStreamSynchronize", status)
            found.append(hip.hipStreamSynchronize(stream))
            equal(last(), 0 if status == 600 else status)  # "not ready" is none
        report(found)
    """)
        == statuses
    )


def test_every_function_passes_its_failure_on(run_client):
    run_client("""
        ok(hip.hipSetDevice(0))
        cases = every_driver_call(new_stream(), new_event())
        for call, function in cases.items():
            stub.stub_fail(call.encode(), 716)
            equal((call, function()), (call, 716))
            equal((call, hip.hipPeekAtLastError()), (call, 716))
            equal((call, last()), (call, 716))
            stub.stub_fail(call.encode(), 0)
    """)


def test_an_unknown_status_keeps_number_and_driver_name(run_client):
    assert run_client("""
        ok(hip.hipSetDevice(0))
        found = []
        for status in (803, 911, 916, 4242):
            stub.stub_fail(b"cuCtxSynchronize", status)
            status = hip.hipDeviceSynchronize()
            found.append([status, name(status), hip.hipGetErrorString(status).decode()])
            equal(last(), 0 if status == 600 else status)  # "not ready" is none
        report(found)
    """) == [
        [803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "stub: driver mismatch"],
        [911, "CUDA_ERROR_EXTERNAL_DEVICE", "stub: external device"],
        [916, "CUDA_ERROR_KEY_ROTATION", "stub: key rotation"],
        [4242, "hipErrorUnknown", "unknown error"],
    ]


def test_the_same_failure_under_another_number_gets_hips(run_client):
    run_client("""
        ok(hip.hipSetDevice(0))
        stub.stub_fail(b"cuCtxSynchronize", 912)
        equal(name(hip.hipDeviceSynchronize()), "hipErrorInvalidClusterSize")
        equal(last(), 1054)
    """)


def test_the_last_error_stays_until_it_is_read(run_client):
    run_client("""
        ok(hip.hipSetDevice(0))
        stream = new_stream()
        equal(hip.hipSetDevice(9), 101)
        ok(hip.hipDeviceSynchronize())
        equal(hip.hipPeekAtLastError(), 101)
        equal(in_thread(hip.hipPeekAtLastError), 0)
        stub.stub_fail(b"cuStreamQuery", 600)
        equal(hip.hipStreamQuery(stream), 600)
        equal(last(), 101)
        stub.stub_fail(b"cuStreamQuery", 600)
        equal(hip.hipStreamQuery(stream), 600)
        equal(last(), 0)
        in_thread(lambda: equal(hip.hipSetDevice(9), 101))
        equal(last(), 0)
    """)


def test_a_sticky_failure_of_the_driver_stays(run_client):
    run_client("""
        ok(hip.hipSetDevice(0))
        stub.stub_fail(b"cuCtxSynchronize", 700)
        for _ in range(3):
            equal(hip.hipDeviceSynchronize(), 700)
            equal(last(), 700)
            equal(last(), 0)
    """)
