"""Every HIP function makes the driver call that it stands for, with the same arguments."""

from __future__ import annotations


def test_devices(run_client):
    run_client("""
        number = c_int(-1)
        ok(hip.hipGetDeviceCount(byref(number)))
        equal(number.value, 2)
        clear()
        text = ctypes.create_string_buffer(64)
        expect(hip.hipDeviceGetName(text, 64, 1), "cuDeviceGetName", 64, 11, context=-1)
        equal(text.value, b"stub device 1")
        for hip_attribute, attribute in ((16, 18), (2, 40), (67, 33), (68, 34), (69, 50), (85, 41)):
            status = hip.hipDeviceGetAttribute(byref(number), hip_attribute, 1)
            expect(status, "cuDeviceGetAttribute", attribute, 11, context=-1)
            equal(number.value, 11000 + attribute)
        expect(hip.hipRuntimeGetVersion(byref(number)), "cuDriverGetVersion", 0, context=-1)
        equal(number.value, 13000)
        number.value = 0
        expect(hip.hipDriverGetVersion(byref(number)), "cuDriverGetVersion", 0, context=-1)
        equal(number.value, 13000)
    """)


def test_device_calls_in_a_context(run_client):
    run_client("""
        ok(hip.hipSetDevice(0))
        clear()
        expect(hip.hipDeviceSynchronize(), "cuCtxSynchronize", 0)
        free, total = c_size_t(), c_size_t()
        expect(hip.hipMemGetInfo(byref(free), byref(total)), "cuMemGetInfo_v2", 0)
        equal((free.value, total.value), (3 << 20, 7 << 20))
        expect(hip.hipMemGetInfo(None, byref(total)), "cuMemGetInfo_v2", 0)
    """)


def test_device_memory(run_client):
    run_client("""
        ok(hip.hipSetDevice(0))
        clear()
        memory = c_void_p(1)
        expect(hip.hipMalloc(byref(memory), 4096), "cuMemAlloc_v2", 4096)
        device = memory.value
        expect(hip.hipMemsetAsync(device, 0x1A7, 100, None), "cuMemsetD8Async", device, 0xA7, 100, 0)
        equal(ctypes.string_at(device, 100), b"\\xa7" * 100)
        expect(hip.hipFree(device), "cuMemFree_v2", device)
        expect_none(hip.hipMalloc(byref(memory), 0))
        equal(memory.value, None)
        expect_none(hip.hipFree(None))
    """)


def test_host_memory(run_client):
    run_client("""
        ok(hip.hipSetDevice(0))
        clear()
        memory = c_void_p(1)
        for flags, driver_flags in ((0, 0), (1, 1), (2, 2), (4, 4), (7, 7), (0x40000001, 1), (0x80000001, 1)):
            status = hip.hipHostMalloc(byref(memory), 512, flags)
            expect(status, "cuMemHostAlloc", 512, driver_flags)
            expect(hip.hipHostFree(memory.value), "cuMemFreeHost", memory.value)
        for flags in (8, 0x20000000, 0xC0000000):
            expect_none(hip.hipHostMalloc(byref(memory), 512, flags), 1)
            equal(memory.value, None)
        expect_none(hip.hipHostMalloc(byref(memory), 0, 1))
        equal(memory.value, None)
        expect_none(hip.hipHostFree(None))

        own = ctypes.create_string_buffer(8192)
        for flags in (0, 1, 0xF):
            status = hip.hipHostRegister(location(own), 8192, flags)
            expect(status, "cuMemHostRegister_v2", location(own), 8192, flags)
            expect(hip.hipHostUnregister(location(own)), "cuMemHostUnregister", location(own))
        expect_none(hip.hipHostRegister(location(own), 8192, 0x10), 1)
        expect_none(hip.hipHostRegister(None, 8192, 0), 1)
        expect_none(hip.hipHostRegister(location(own), 0, 0), 1)
        expect_none(hip.hipHostUnregister(None), 1)
    """)


def test_registering_twice_and_unregistering_nothing(run_client):
    run_client("""
        own = ctypes.create_string_buffer(8192)
        equal(hip.hipHostUnregister(location(own)), 713)
        ok(hip.hipHostRegister(location(own), 8192, 1))
        equal(hip.hipHostRegister(location(own), 8192, 1), 712)
        equal(name(last()), "hipErrorHostMemoryAlreadyRegistered")
        ok(hip.hipHostUnregister(location(own)))
        equal(hip.hipHostUnregister(location(own)), 713)
    """)


def test_pointer_attributes(run_client):
    run_client("""
        ok(hip.hipSetDevice(0))
        device, host = c_void_p(), c_void_p()
        ok(hip.hipMalloc(byref(device), 64))
        ok(hip.hipHostMalloc(byref(host), 64, 1))
        stranger = ctypes.create_string_buffer(64)
        managed = ctypes.create_string_buffer(64)
        stub.stub_add_range(location(managed), 64, 2, 1, 1)

        def attributes(address):
            # Filled with rubbish first, so that a field that is not written shows.
            found = PointerAttributes()
            ctypes.memset(byref(found), 0xEE, ctypes.sizeof(found))
            clear()
            expect(hip.hipPointerGetAttributes(byref(found), address), "cuPointerGetAttributes", 5, address)
            return [getattr(found, field) for field, _ in PointerAttributes._fields_]

        inside = host.value + 63
        equal(attributes(inside), [1, 0, inside, inside, 0, 0])
        equal(attributes(host.value + 64)[0], 0)
        equal(attributes(device.value), [2, 0, device.value, None, 0, 0])
        equal(attributes(location(managed)), [3, 1, location(managed), location(managed), 1, 0])
        equal(attributes(location(stranger)), [0, -1, None, None, 0, 0])
        equal(last(), 0)
        expect_none(hip.hipPointerGetAttributes(None, host.value), 1)
        expect_none(hip.hipPointerGetAttributes(byref(PointerAttributes()), None), 1)
    """)


def test_copies_by_kind(run_client):
    run_client("""
        ok(hip.hipSetDevice(0))
        stream = new_stream()
        source = ctypes.create_string_buffer(bytes(range(64)), 64)
        target = ctypes.create_string_buffer(64)
        dst, src = location(target), location(source)
        clear()
        kinds = {0: "", 1: "HtoD", 2: "DtoH", 3: "DtoD", 4: "", 1024: "DtoD"}
        for kind, direction in kinds.items():
            suffix = "_v2" if direction else ""
            for queue in (stream, None, 1, 2):
                ctypes.memset(dst, 0, 64)
                status = hip.hipMemcpyAsync(dst, src, 63, kind, queue)
                expect(status, f"cuMemcpy{direction}Async{suffix}", dst, src, 63, queue)
                equal(target.raw, bytes(range(63)) + b"\\0")
            ctypes.memset(dst, 0, 64)
            expect(hip.hipMemcpy(dst, src, 63, kind), f"cuMemcpy{direction}{suffix}", dst, src, 63)
            equal(target.raw, bytes(range(63)) + b"\\0")
    """)


def test_copies_that_reach_no_driver(run_client):
    run_client("""
        ok(hip.hipSetDevice(0))
        some = ctypes.create_string_buffer(64)
        here = location(some)
        clear()
        for kind in (0, 1, 2, 3, 4):
            expect_none(hip.hipMemcpyAsync(here, here, 0, kind, None))
            expect_none(hip.hipMemcpyAsync(None, None, 0, kind, None))
            expect_none(hip.hipMemcpy(here, here, 0, kind))
            expect_none(hip.hipMemcpyAsync(None, here, 8, kind, None), 1)
            expect_none(hip.hipMemcpyAsync(here, None, 8, kind, None), 1)
            expect_none(hip.hipMemcpy(None, here, 8, kind), 1)
            expect_none(hip.hipMemcpy(here, None, 8, kind), 1)
        for kind in (-1, 5, 1023):
            expect_none(hip.hipMemcpyAsync(here, here, 8, kind, None), 21)
            expect_none(hip.hipMemcpy(here, here, 8, kind), 21)
        expect_none(hip.hipMemsetAsync(None, 0, 0, None))
        expect_none(hip.hipMemsetAsync(None, 0, 8, None), 1)
    """)


def test_streams(run_client):
    run_client("""
        ok(hip.hipSetDevice(0))
        clear()
        stream = c_void_p()
        expect(hip.hipStreamCreateWithFlags(byref(stream), 0), "cuStreamCreate", 0)
        expect(hip.hipStreamCreateWithFlags(byref(stream), 1), "cuStreamCreate", 1)
        for queue in (stream.value, None):
            expect(hip.hipStreamSynchronize(queue), "cuStreamSynchronize", queue)
            expect(hip.hipStreamQuery(queue), "cuStreamQuery", queue)
        event = new_event()
        clear()
        expect(hip.hipStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent", stream.value, event, 0)
        expect(hip.hipStreamWaitEvent(None, event, 1), "cuStreamWaitEvent", 0, event, 1)
        expect(hip.hipStreamDestroy(stream), "cuStreamDestroy_v2", stream.value)
        expect_none(hip.hipStreamWaitEvent(stream, None, 0), 400)
        expect_none(hip.hipStreamDestroy(None), 400)
        for implicit in (1, 2):  # hipStreamLegacy, hipStreamPerThread: the driver's own numbers for them
            expect_none(hip.hipStreamDestroy(implicit), 400)
            number = c_int(7)
            ok(hip.hipStreamGetDevice(implicit, byref(number)))
            equal(number.value, 0)
            clear()
        expect_none(hip.hipStreamCreateWithFlags(None, 0), 1)
    """)


def test_host_functions(run_client):
    run_client("""
        ok(hip.hipSetDevice(0))
        stream = new_stream()
        clear()
        seen = []
        function = ctypes.CFUNCTYPE(None, c_void_p)(seen.append)
        address = ctypes.cast(function, c_void_p).value
        expect(hip.hipLaunchHostFunc(stream, address, 1234), "cuLaunchHostFunc", stream, address, 1234)
        equal(seen, [1234])
        expect_none(hip.hipLaunchHostFunc(stream, None, 1234), 1)
    """)


def test_events(run_client):
    run_client("""
        ok(hip.hipSetDevice(0))
        stream = new_stream()
        clear()
        event, other = c_void_p(), c_void_p()
        for flags in (0, 1, 2, 3):
            expect(hip.hipEventCreateWithFlags(byref(event), flags), "cuEventCreate", flags & ~1)
        ok(hip.hipEventCreateWithFlags(byref(other), 0))
        clear()
        expect(hip.hipEventRecord(event, stream), "cuEventRecord", event.value, stream)
        expect(hip.hipEventRecord(other, None), "cuEventRecord", other.value, 0)
        expect(hip.hipEventQuery(event), "cuEventQuery", event.value)
        expect(hip.hipEventSynchronize(event), "cuEventQuery", event.value)
        elapsed = c_float()
        status = hip.hipEventElapsedTime(byref(elapsed), event, other)
        expect(status, "cuEventElapsedTime", event.value, other.value)
        equal(elapsed.value, 1.5)
        expect(hip.hipEventDestroy(event), "cuEventDestroy_v2", event.value)
        for status in (
            hip.hipEventRecord(None, stream),
            hip.hipEventQuery(None),
            hip.hipEventSynchronize(None),
            hip.hipEventDestroy(None),
            hip.hipEventElapsedTime(byref(elapsed), None, other),
            hip.hipEventElapsedTime(byref(elapsed), other, None),
        ):
            expect_none(status, 400)
        expect_none(hip.hipEventCreateWithFlags(None, 0), 1)
        expect_none(hip.hipEventElapsedTime(None, other, other), 1)
    """)


def test_bad_arguments_of_device_calls(run_client):
    run_client("""
        ok(hip.hipSetDevice(0))
        number = c_int()
        text = ctypes.create_string_buffer(8)
        clear()
        for device in (-1, 2):
            expect_none(hip.hipSetDevice(device), 101)
            expect_none(hip.hipDeviceGetName(text, 8, device), 101)
            expect_none(hip.hipDeviceGetAttribute(byref(number), 16, device), 101)
        expect_none(hip.hipDeviceGetAttribute(byref(number), 0, 0), 1)
        expect_none(hip.hipDeviceGetAttribute(byref(number), 18, 0), 1)
        expect_none(hip.hipDeviceGetAttribute(None, 16, 0), 1)
        expect_none(hip.hipDeviceGetName(None, 8, 0), 1)
        expect_none(hip.hipDeviceGetName(text, 0, 0), 1)
        for function in (hip.hipGetDeviceCount, hip.hipGetDevice, hip.hipDriverGetVersion,
                         hip.hipRuntimeGetVersion):
            expect_none(function(None), 1)
        expect_none(hip.hipMemGetInfo(None, None), 1)
        expect_none(hip.hipMalloc(None, 8), 1)
        expect_none(hip.hipHostMalloc(None, 8, 0), 1)
    """)


def test_synchronizing_with_an_event_waits_until_the_driver_says_that_it_is_done(run_client):
    """The wait is the runtime's own, in steps: it ends with the first answer that is not "not ready"."""
    run_client("""
        import threading
        event = c_void_p()
        ok(hip.hipEventCreateWithFlags(byref(event), 3))
        for answer in (0, 719):
            stub.stub_fail(b"cuEventQuery", 600)
            clear()
            statuses = []
            waiting = threading.Thread(target=lambda: statuses.append(hip.hipEventSynchronize(event)))
            waiting.start()
            while len(calls()) < 20:
                pass
            equal(statuses, [])
            stub.stub_fail(b"cuEventQuery", answer)
            waiting.join()
            equal(statuses, [answer])
    """)
