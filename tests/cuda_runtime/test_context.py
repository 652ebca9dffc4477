"""Which context a call runs in: the thread's current one, else the primary context of its device."""

from __future__ import annotations


def test_loading_the_library_calls_no_driver(run_client):
    assert run_client("report(calls(bookkeeping=True))") == []


def test_first_call_takes_the_primary_context_of_device_0(run_client):
    assert run_client("""
        number = c_int()
        ok(hip.hipGetDeviceCount(byref(number)))
        clear()
        new_stream()
        report(calls())
    """) == [
        ["cuDevicePrimaryCtxRetain", -1, [10]],
        ["cuCtxSetCurrent", -1, [0]],
        ["cuStreamCreate", 0, [1]],
    ]


def test_every_new_thread_gets_a_context_and_the_primary_is_retained_once(run_client):
    assert run_client("""
        stream = new_stream()
        clear()
        for _ in range(2):
            in_thread(lambda: ok(hip.hipStreamSynchronize(stream)))
        ok(hip.hipStreamSynchronize(stream))
        report([call[:2] for call in calls()])
    """) == [
        ["cuCtxSetCurrent", -1],
        ["cuStreamSynchronize", 0],
        ["cuCtxSetCurrent", -1],
        ["cuStreamSynchronize", 0],
        ["cuStreamSynchronize", 0],
    ]


def test_set_device_is_per_thread_and_makes_the_primary_context_current(run_client):
    run_client("""
        device = c_int(-1)

        def current():
            ok(hip.hipGetDevice(byref(device)))
            return device.value

        equal(current(), 0)
        equal(stub.stub_current(), -1)
        ok(hip.hipSetDevice(1))
        equal(stub.stub_current(), 1)
        equal(current(), 1)
        equal(in_thread(current), 0)
        clear()
        new_stream()
        equal(calls(), [("cuStreamCreate", 1, [1])])
    """)


def test_a_context_that_another_library_made_current_is_used(run_client):
    run_client("""
        device = c_int(-1)
        ok(hip.hipGetDeviceCount(byref(device)))
        stub.stub_make_primary_current(1)
        ok(hip.hipGetDevice(byref(device)))
        equal(device.value, 1)
        clear()
        new_stream()
        equal(calls(), [("cuStreamCreate", 1, [1])])
        equal(stub.stub_current(), 1)
    """)


def test_a_context_changed_behind_set_device_is_told_and_used(run_client):
    # As with torch: the engine's thread changes its device through another library.
    run_client("""
        device = c_int(-1)
        ok(hip.hipSetDevice(0))
        stub.stub_make_primary_current(1)
        ok(hip.hipGetDevice(byref(device)))
        equal(device.value, 1)
        ok(hip.hipSetDevice(0))
        ok(hip.hipSetDevice(device.value))
        equal(stub.stub_current(), 1)
    """)


def test_a_context_that_is_no_primary_one_is_left_current(run_client):
    run_client("""
        device = c_int(-1)
        ok(hip.hipGetDeviceCount(byref(device)))
        stub.stub_make_other_current(1)
        ok(hip.hipGetDevice(byref(device)))
        equal(device.value, 1)
        clear()
        ok(hip.hipDeviceSynchronize())
        equal(calls(), [("cuCtxSynchronize", 1001, [0])])
    """)


def test_a_context_taken_away_is_set_again(run_client):
    run_client("""
        ok(hip.hipSetDevice(1))
        stub.stub_make_primary_current(-1)
        device = c_int(-1)
        ok(hip.hipGetDevice(byref(device)))
        equal(device.value, 1)
        ok(hip.hipDeviceSynchronize())
        equal(stub.stub_current(), 1)
    """)


def test_stream_device_leaves_the_current_context_alone(run_client):
    run_client("""
        ok(hip.hipSetDevice(0))
        foreign = stub.stub_stream_of(1)
        own = new_stream()
        device = c_int(-1)
        for stream, expected in ((foreign, 1), (own, 0), (None, 0)):
            ok(hip.hipStreamGetDevice(stream, byref(device)))
            equal(device.value, expected)
            equal(stub.stub_current(), 0)
        ok(hip.hipSetDevice(1))
        ok(hip.hipStreamGetDevice(None, byref(device)))
        equal(device.value, 1)
        equal(hip.hipStreamGetDevice(own, None), 1)
    """)


def test_stream_device_pops_even_where_the_driver_fails(run_client):
    run_client("""
        ok(hip.hipSetDevice(0))
        foreign = stub.stub_stream_of(1)
        device = c_int(-1)
        for call in (b"cuStreamGetCtx", b"cuCtxPushCurrent_v2", b"cuCtxGetDevice"):
            stub.stub_fail(call, 709)
            equal(hip.hipStreamGetDevice(foreign, byref(device)), 709)
            stub.stub_fail(call, 0)
            equal(stub.stub_current(), 0)
    """)


def test_failures_around_the_context_are_reported(run_client):
    run_client("""
        number = c_int()
        ok(hip.hipGetDeviceCount(byref(number)))
        for call, status in ((b"cuCtxGetCurrent", 4), (b"cuDevicePrimaryCtxRetain", 2),
                             (b"cuCtxSetCurrent", 201)):
            stub.stub_fail(call, status)
            equal(hip.hipDeviceSynchronize(), status)
            equal(last(), status)
            stub.stub_fail(call, 0)
        stub.stub_fail(b"cuCtxSetCurrent", 709)
        equal(hip.hipSetDevice(1), 709)
        stub.stub_fail(b"cuCtxSetCurrent", 0)
        ok(hip.hipDeviceSynchronize())
        equal(stub.stub_current(), 0)
    """)


def test_many_threads_may_come_first_together(run_client):
    run_client("""
        together = threading.Barrier(16)
        statuses = []

        def come():
            together.wait()
            statuses.append((hip.hipDeviceSynchronize(), stub.stub_current()))

        threads = [threading.Thread(target=come) for _ in range(16)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        equal(statuses, [(0, 0)] * 16)
        equal([call[0] for call in calls()].count("cuInit"), 1)
    """)


def test_who_comes_while_the_driver_starts_waits_for_it(run_client):
    run_client(
        """
        statuses = []
        synchronize = lambda: statuses.append(hip.hipDeviceSynchronize())
        first = threading.Thread(target=synchronize)
        first.start()
        stub.stub_wait_until_starting()
        others = [threading.Thread(target=synchronize) for _ in range(4)]
        [thread.start() for thread in others]
        equal(statuses, [])
        stub.stub_release_start()
        [thread.join() for thread in [first, *others]]
        equal(statuses, [0] * 5)
        equal([call[0] for call in calls()].count("cuInit"), 1)
    """,
        STUB_HOLD_START="1",
    )


def test_more_devices_than_are_cached(run_client):
    run_client(
        """
        ok(hip.hipSetDevice(70))
        device = c_int()
        ok(hip.hipGetDevice(byref(device)))
        equal(device.value, 70)
        ok(hip.hipDeviceSynchronize())
        equal(calls()[-1], ("cuCtxSynchronize", 70, [0]))
    """,
        STUB_DEVICES="72",
    )


def test_every_call_that_needs_a_context_gets_one(run_client):
    # The calls are told to fail, so that nothing happens beyond the record of them.
    run_client("""
        ok(hip.hipSetDevice(0))
        without = {"cuDriverGetVersion", "cuDeviceGetName", "cuDeviceGetAttribute", "cuCtxGetDevice",
                   "cuCtxSetCurrent"}
        cases = every_driver_call(new_stream(), new_event())
        for call, function in cases.items():
            if call in without:
                continue
            stub.stub_make_primary_current(-1)
            clear()
            stub.stub_fail(call.encode(), 716)
            equal((call, function()), (call, 716))
            stub.stub_fail(call.encode(), 0)
            equal([made[:2] for made in calls() if made[0] != "copy"],
                  [("cuCtxSetCurrent", -1), (call, 0)])
    """)
