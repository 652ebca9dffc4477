"""Statuses, their names, the last error, devices and versions."""

from __future__ import annotations

import ctypes
import threading

import pytest

from strata.runtime.software import control
from tests.software_runtime.hip import (
    HOST_TO_DEVICE,
    INVALID_DEVICE,
    INVALID_HANDLE,
    INVALID_VALUE,
    NO_DEVICE,
    NOT_READY,
    OUT_OF_MEMORY,
    SUCCESS,
)


def test_names_of_all_statuses_are_those_of_the_bindings(hip):
    bindings = pytest.importorskip("rocm.bindings.hip")
    for member in bindings.hipError_t:
        assert hip.error_name(int(member)) == member.name
        text = hip.library.hipGetErrorString(int(member)).decode()
        assert text
        assert (text == "unknown error") == (member.name == "hipErrorUnknown")


@pytest.mark.parametrize("status", [-1, 10, 77, 103, 5000, 2**31 - 1])
def test_unknown_statuses_have_hips_name_for_unknown(hip, status):
    assert hip.error_name(status) == "hipErrorUnknown"


def test_last_error_stays_until_it_is_read(hip, device):
    assert hip.GetLastError() == SUCCESS
    assert hip.EventQuery(0) == INVALID_HANDLE
    hip.do("DeviceSynchronize")  # success clears nothing
    assert hip.PeekAtLastError() == INVALID_HANDLE
    assert hip.Malloc(None, 1) == INVALID_VALUE  # a later failure replaces it
    assert hip.PeekAtLastError() == INVALID_VALUE
    assert hip.GetLastError() == INVALID_VALUE
    assert hip.GetLastError() == SUCCESS


def test_not_ready_is_no_last_error(hip, device):
    """HIP 7: neither stored, nor in the place of an error that was not read yet."""
    stream, event, start, ms = device.stream(), device.event(0), device.event(0), ctypes.c_float()
    hip.do("EventRecord", start, stream)
    with control.hold(stream):
        hip.do("EventRecord", event, stream)
        asked = (hip.StreamQuery, (stream,)), (hip.EventQuery, (event,))
        for query, arguments in (*asked, (hip.EventElapsedTime, (ctypes.byref(ms), start, event))):
            assert query(*arguments) == NOT_READY
            assert hip.GetLastError() == SUCCESS
            assert hip.Malloc(None, 8) == INVALID_VALUE
            assert query(*arguments) == NOT_READY
            assert hip.GetLastError() == INVALID_VALUE
        control.inject("hipEventQuery", 1, NOT_READY)
        assert hip.EventQuery(event) == NOT_READY
        assert hip.GetLastError() == SUCCESS
    hip.do("StreamSynchronize", stream)


def test_a_failed_pin_leaves_that_behind(hip):
    control.configure(pinned_limit=0)
    address = ctypes.c_void_p()
    assert hip.HostMalloc(ctypes.byref(address), 64, 0) == OUT_OF_MEMORY
    assert hip.GetLastError() == OUT_OF_MEMORY


def test_each_thread_has_its_own_last_error(hip):
    assert hip.EventQuery(0) == INVALID_HANDLE
    seen = []
    thread = threading.Thread(target=lambda: seen.append(hip.GetLastError()))
    thread.start()
    thread.join()
    assert seen == [SUCCESS]
    assert hip.GetLastError() == INVALID_HANDLE


def test_versions_and_name(hip):
    version, driver = ctypes.c_int(), ctypes.c_int()
    hip.do("RuntimeGetVersion", ctypes.byref(version))
    hip.do("DriverGetVersion", ctypes.byref(driver))
    assert 7_00_00000 <= version.value < 8_00_00000
    assert driver.value == version.value
    name = ctypes.create_string_buffer(64)
    hip.do("DeviceGetName", name, 64, 0)
    assert name.value == b"strata software device"
    hip.do("DeviceGetName", name, 7, 0)
    assert name.value == b"strata"
    assert hip.DeviceGetName(name, 0, 0) == INVALID_VALUE
    assert hip.DeviceGetName(name, 64, 1) == INVALID_DEVICE


def test_device_attributes(hip):
    value = ctypes.c_int()
    for attribute, expected in [(16, 0), (2, 1), (67, 0), (68, 0), (69, 0), (85, 1)]:
        hip.do("DeviceGetAttribute", ctypes.byref(value), attribute, 0)
        assert value.value == expected
    assert hip.DeviceGetAttribute(ctypes.byref(value), 9999, 0) == INVALID_VALUE
    assert hip.DeviceGetAttribute(ctypes.byref(value), 16, 3) == INVALID_DEVICE
    assert hip.DeviceGetAttribute(None, 16, 0) == INVALID_VALUE


def test_several_devices_keep_streams_events_and_memory_apart(hip):
    control.configure(devices=3)
    count, current = ctypes.c_int(), ctypes.c_int()
    hip.do("GetDeviceCount", ctypes.byref(count))
    assert count.value == 3
    assert hip.SetDevice(3) == INVALID_DEVICE
    assert hip.SetDevice(-1) == INVALID_DEVICE
    event0 = hip.event()
    hip.do("SetDevice", 2)
    hip.do("GetDevice", ctypes.byref(current))
    assert current.value == 2
    stream2, event2, gpu2 = hip.stream(), hip.event(), hip.malloc(4096)
    hip.do("StreamGetDevice", stream2, ctypes.byref(current))
    assert current.value == 2
    hip.do("StreamGetDevice", 0, ctypes.byref(current))
    assert current.value == 2
    assert hip.EventRecord(event0, stream2) == INVALID_HANDLE
    assert hip.EventRecord(event0, 0) == INVALID_HANDLE  # device 2's null stream
    hip.do("EventRecord", event2, stream2)
    hip.do("SetDevice", 0)
    hip.do("StreamWaitEvent", 0, event2, 0)  # waiting across devices is fine
    hip.do("StreamSynchronize", 0)
    seen = []
    thread = threading.Thread(target=lambda: (hip.GetDevice(ctypes.byref(current)), seen.append(current.value)))
    thread.start()
    thread.join()
    assert seen == [0]
    with pytest.raises(control.ControlError, match="devices=1"):
        control.configure(devices=1)
    hip.do("Free", gpu2)
    for call, handle in [("EventDestroy", event0), ("EventDestroy", event2), ("StreamDestroy", stream2)]:
        hip.do(call, handle)


def test_synchronizing_one_device_leaves_another_alone(hip):
    control.configure(devices=2)
    hip.do("SetDevice", 1)
    stream, event = hip.stream(), hip.event()
    latch = control.hold(stream)
    hip.do("EventRecord", event, stream)
    hip.do("SetDevice", 0)
    hip.do("DeviceSynchronize")  # would hang
    assert hip.EventQuery(event) == NOT_READY
    latch.release()
    hip.do("EventSynchronize", event)
    hip.do("EventDestroy", event)
    hip.do("StreamDestroy", stream)


def test_no_device_at_all(hip):
    control.configure(devices=0)
    count = ctypes.c_int(9)
    assert hip.GetDeviceCount(ctypes.byref(count)) == NO_DEVICE
    assert count.value == 0
    address = ctypes.c_void_p()
    assert hip.Malloc(ctypes.byref(address), 8) == NO_DEVICE
    assert hip.StreamCreateWithFlags(ctypes.byref(address), 0) == NO_DEVICE
    assert hip.Memcpy(8, 8, 8, HOST_TO_DEVICE) == NO_DEVICE
    assert hip.GetLastError() == NO_DEVICE


def test_configuration_names_what_is_not_allowed(hip, device):
    for keywords, text in [
        ({"schedule": "eagerly"}, "schedule='eagerly'"),
        ({"schedule": "x" * 40}, "no such schedule"),
        ({"devices": 5}, "devices=5"),
        ({"seed": -1}, "seed=-1"),
        ({"idle_ms": -1}, "idle_ms=-1"),
    ]:
        with pytest.raises(control.ControlError, match=text):
            control.configure(**keywords)
    stream = device.stream()
    with control.hold(stream), pytest.raises(control.ControlError, match="pending"):
        control.configure(schedule="lazy")
    hip.do("StreamSynchronize", stream)
    assert control.configuration()["schedule"] == "eager"


def test_calls_are_counted_over_all_threads_also_those_that_ended(hip, device):
    stream, event = device.stream(), device.event()
    control.reset_calls()

    def work():
        for _ in range(100):
            hip.do("EventRecord", event, stream)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hip.do("StreamSynchronize", stream)
    counts = control.calls()
    assert counts["hipEventRecord"] == 300
    assert counts["hipStreamSynchronize"] == 1
    assert counts["hipMemcpyAsync"] == 0
