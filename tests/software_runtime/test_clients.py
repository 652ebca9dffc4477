"""Calls that strata does not make and that clients of HIP expect of a runtime."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest
from rocm.bindings import hip as bindings

from strata.runtime.software import control, library_path
from tests.software_runtime.hip import (
    CONTEXT_IS_DESTROYED,
    DEVICE_TO_DEVICE,
    HOST_TO_DEVICE,
    INVALID_DEVICE,
    INVALID_HANDLE,
    INVALID_VALUE,
    OUT_OF_MEMORY,
    SUCCESS,
    view,
)

N = 4096


def test_initialisation_takes_no_flags(hip):
    hip.do("Init", 0)
    assert hip.Init(1) == INVALID_VALUE


def test_streams_with_flags_and_priorities(hip):
    least, greatest = ctypes.c_int(), ctypes.c_int()
    hip.do("DeviceGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
    assert (least.value, greatest.value) == (1, -1)
    flags, priority, handle = ctypes.c_uint(9), ctypes.c_int(9), ctypes.c_void_p()
    for call, arguments, expected in [
        ("StreamCreate", (), (0, 0)),
        ("StreamCreateWithFlags", (1,), (1, 0)),
        ("StreamCreateWithPriority", (1, -1), (1, -1)),
        ("StreamCreateWithPriority", (0, 50), (0, 1)),  # clamped
        ("StreamCreateWithPriority", (0, -50), (0, -1)),
    ]:
        hip.do(call, ctypes.byref(handle), *arguments)
        hip.do("StreamGetFlags", handle, ctypes.byref(flags))
        hip.do("StreamGetPriority", handle, ctypes.byref(priority))
        assert (flags.value, priority.value) == expected, call
        hip.do("StreamDestroy", handle)
    assert hip.StreamGetFlags(handle, ctypes.byref(flags)) == CONTEXT_IS_DESTROYED
    assert hip.StreamGetPriority(0x1230, ctypes.byref(priority)) == INVALID_HANDLE
    assert hip.StreamGetFlags(0, None) == INVALID_VALUE
    assert hip.StreamCreate(None) == INVALID_VALUE
    assert hip.StreamCreateWithPriority(ctypes.byref(handle), 2, 0) == INVALID_VALUE


def test_a_plain_event_is_timed(hip, device):
    handle, ms = ctypes.c_void_p(), ctypes.c_float(-1)
    hip.do("EventCreate", ctypes.byref(handle))
    hip.do("EventRecord", handle, device.stream())
    hip.do("EventSynchronize", handle)
    hip.do("EventElapsedTime", ctypes.byref(ms), handle, handle)
    assert ms.value == 0
    hip.do("EventDestroy", handle)


def test_memset_waits_for_pinned_memory_only(hip, device, schedule):
    gpu, pinned = device.malloc(N), device.host_malloc(N)
    view(gpu, N)[:] = 0
    hip.do("Memset", pinned, 7, N)
    assert (view(pinned, N) == 7).all()
    with control.hold(0):
        hip.do("Memset", gpu, 0x107, N)
        assert (view(gpu, N) == 0).all()
    hip.do("DeviceSynchronize")
    assert (view(gpu, N) == 7).all()
    hip.do("Memset", 0, 1, 0)
    assert hip.Memset(0, 1, 8) == INVALID_VALUE


def test_typed_copies(hip, device, schedule):
    stream, first, second = device.stream(), device.malloc(N), device.malloc(N)
    pattern, back = np.arange(N, dtype=np.uint64).astype(np.uint8), np.zeros(N, np.uint8)
    hip.do("MemcpyHtoD", first, pattern.ctypes.data, N)
    hip.do("MemcpyDtoD", second, first, N)
    hip.do("MemcpyDtoH", back.ctypes.data, second, N)
    assert (back == pattern).all()
    pattern += 1
    hip.do("MemcpyHtoDAsync", first, pattern.ctypes.data, N, stream)
    hip.do("MemcpyDtoDAsync", second, first, N, stream)
    hip.do("MemcpyDtoHAsync", back.ctypes.data, second, N, stream)
    assert (back == pattern).all()  # pageable
    for call in ("MemcpyHtoD", "MemcpyDtoH", "MemcpyDtoD"):
        assert getattr(hip, call)(back.ctypes.data, pattern.ctypes.data, N) == INVALID_VALUE
        assert getattr(hip, call + "Async")(back.ctypes.data, pattern.ctypes.data, N, stream) == INVALID_VALUE


def test_copy_with_stream_has_waited(hip, device, schedule):
    stream, gpu, other, pinned = device.stream(), device.malloc(N), device.malloc(N), device.host_malloc(N)
    view(pinned, N)[:] = 3
    hip.do("MemcpyWithStream", gpu, pinned, N, HOST_TO_DEVICE, stream)
    assert (view(gpu, N) == 3).all()
    hip.do("MemcpyWithStream", other, gpu, N, DEVICE_TO_DEVICE, stream)
    assert (view(other, N) == 3).all()


def test_peer_copies(hip, device, schedule):
    control.configure(devices=2)
    stream, here = device.stream(), device.malloc(N)
    hip.do("SetDevice", 1)
    there = hip.malloc(N)
    hip.do("SetDevice", 0)
    view(here, N)[:] = 8
    hip.do("MemcpyPeer", there, 1, here, 0, N)
    hip.do("DeviceSynchronize")
    view(here, N)[:] = 0
    hip.do("MemcpyPeerAsync", here, 0, there, 1, N, stream)
    hip.do("StreamSynchronize", stream)
    assert (view(here, N) == 8).all()
    assert hip.MemcpyPeer(there, 2, here, 0, N) == INVALID_DEVICE
    assert hip.MemcpyPeerAsync(there, 1, here, -1, N, stream) == INVALID_DEVICE
    hip.do("Free", there)


def test_host_memory_under_its_other_names(hip):
    address, device_address, flags = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint()
    hip.do("HostAlloc", ctypes.byref(address), N, 3)
    hip.do("HostGetDevicePointer", ctypes.byref(device_address), address.value + 8, 0)
    hip.do("HostGetFlags", ctypes.byref(flags), address)
    assert (device_address.value, flags.value) == (address.value + 8, 3)
    assert hip.HostGetDevicePointer(ctypes.byref(device_address), address, 1) == INVALID_VALUE
    hip.do("FreeHost", address)
    assert hip.FreeHost(address) == INVALID_VALUE
    hip.do("FreeHost", None)
    assert hip.HostGetFlags(ctypes.byref(flags), address) == INVALID_VALUE
    assert hip.HostGetDevicePointer(ctypes.byref(device_address), address, 0) == INVALID_VALUE
    assert hip.HostAlloc(ctypes.byref(address), N, 0x40000000) == INVALID_VALUE  # hipHostMalloc's


def test_pointer_attributes_one_by_one(hip, device):
    gpu, pinned, host = device.malloc(N), device.host_malloc(N), np.zeros(8, np.uint8)
    names = bindings.hipPointer_attribute

    def ask(name: str, address: int) -> int:
        value = ctypes.c_uint64(0)
        hip.do("PointerGetAttribute", ctypes.byref(value), int(names["HIP_POINTER_ATTRIBUTE_" + name]), address)
        return value.value

    assert [ask("MEMORY_TYPE", address) for address in (gpu, pinned)] == [2, 1]
    assert ask("DEVICE_POINTER", pinned + 5) == pinned + 5
    assert ask("HOST_POINTER", pinned + 5) == pinned + 5
    assert ask("RANGE_START_ADDR", gpu + 100) == gpu
    assert ask("RANGE_SIZE", gpu + 100) == N
    assert (ask("DEVICE_ORDINAL", gpu), ask("IS_MANAGED", gpu), ask("MAPPED", pinned)) == (0, 0, 1)
    value = ctypes.c_uint64()
    assert hip.PointerGetAttribute(ctypes.byref(value), 4, gpu) == INVALID_VALUE  # no host pointer
    assert hip.PointerGetAttribute(ctypes.byref(value), 2, host.ctypes.data) == INVALID_VALUE
    assert hip.PointerGetAttribute(ctypes.byref(value), 5, gpu) == INVALID_VALUE
    assert hip.PointerGetAttribute(None, 2, gpu) == INVALID_VALUE


def test_memory_in_stream_order_goes_when_the_stream_comes_to_it(hip, device, schedule):
    stream, pinned, address = device.stream(), device.host_malloc(N), ctypes.c_void_p()
    before = control.live()["device_allocations"]
    hip.do("MallocAsync", ctypes.byref(address), N, stream)
    with control.hold(stream):
        hip.do("MemcpyAsync", address, pinned, N, HOST_TO_DEVICE, stream)
        hip.do("FreeAsync", address, stream)  # waits for nothing
        assert hip.FreeAsync(address, stream) == INVALID_VALUE
        assert hip.Free(address) == INVALID_VALUE
        assert control.live()["device_allocations"] == before + 1
    hip.do("StreamSynchronize", stream)
    assert control.live()["device_allocations"] == before
    assert hip.FreeAsync(address, stream) == INVALID_VALUE
    assert hip.FreeAsync(None, stream) == INVALID_VALUE
    assert hip.MallocAsync(ctypes.byref(address), 2**62, stream) == OUT_OF_MEMORY
    assert hip.MallocAsync(ctypes.byref(address), 8, 0x1230) == INVALID_HANDLE


def test_the_checker_knows_a_free_in_stream_order(hip, device):
    stream, other, pinned, address = device.stream(), device.stream(), device.host_malloc(N), ctypes.c_void_p()
    control.checker(True)
    hip.do("MallocAsync", ctypes.byref(address), N, stream)
    hip.do("MemcpyAsync", address, pinned, N, HOST_TO_DEVICE, other)
    while control.live()["pending_operations"]:  # over by luck, in an order that nothing gives
        pass
    hip.do("FreeAsync", address, stream)
    hip.do("DeviceSynchronize")
    assert [(f.earlier.operation, f.later.operation) for f in control.findings()] == [("H2D write", "free")]


def test_a_reset_leaves_nothing_of_the_device_and_all_of_the_other(hip):
    control.configure(devices=2)
    before = control.live()
    hip.do("SetDevice", 1)
    other = hip.malloc(N), hip.stream(), hip.event()
    hip.do("SetDevice", 0)
    gpu, pinned, stream, event = hip.malloc(N), hip.host_malloc(N), hip.stream(), hip.event()
    hip.do("MemcpyAsync", gpu, pinned, N, HOST_TO_DEVICE, stream)
    hip.do("DeviceReset")
    assert hip.StreamQuery(stream) == CONTEXT_IS_DESTROYED
    assert hip.EventQuery(event) == CONTEXT_IS_DESTROYED
    assert hip.Free(gpu) == hip.HostFree(pinned) == INVALID_VALUE
    assert hip.StreamQuery(other[1]) == hip.EventQuery(other[2]) == SUCCESS
    hip.do("Free", other[0])
    hip.do("StreamDestroy", other[1])
    hip.do("EventDestroy", other[2])
    after = control.live()
    for key in ("streams", "events", "device_bytes", "pinned_bytes"):
        assert after[key] == before[key], key


EXAMPLE = """
from hip import hip
import array

def check(answer):
    status, result = answer[0], answer[1:]
    assert status == hip.hipError_t.hipSuccess, status
    return result[0] if len(result) == 1 else result

check(hip.hipInit(0))
properties = check(hip.hipGetDeviceProperties(0))
numbers = array.array("i", range(1, 101))
size = numbers.itemsize * len(numbers)
memory = check(hip.hipMalloc(size))
stream = check(hip.hipStreamCreate())
kinds = hip.hipMemcpyKind
check(hip.hipMemcpyAsync(memory, numbers, size, kinds.hipMemcpyHostToDevice, stream))
back = array.array("i", [7] * len(numbers))
check(hip.hipMemcpyAsync(back, memory, size, kinds.hipMemcpyDeviceToHost, stream))
check(hip.hipStreamSynchronize(stream))
assert back == numbers, back
check(hip.hipMemsetAsync(memory, 0, size, stream))
check(hip.hipMemcpyAsync(back, memory, size, kinds.hipMemcpyDeviceToHost, stream))
check(hip.hipStreamSynchronize(stream))
check(hip.hipStreamDestroy(stream))
check(hip.hipFree(memory))
check(hip.hipDeviceReset())
assert set(back) == {0}, back
print(properties.name, properties.totalGlobalMem, properties.pciDeviceID, properties.warpSize)
"""


def test_hip_pythons_python_layer_runs_its_streams():
    """What hip-python's stream example does, by its Python layer, with this library for libamdhip64."""
    script = f"from rocm.bindings.util import paths\npaths.get_library_path = lambda *_: {os.fsencode(library_path())!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", script + EXAMPLE], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n")[0] == f"strata software device {16 << 30} 0 64"


@pytest.mark.parametrize("call", ["MemcpyHtoD", "Memset", "MemcpyWithStream", "MemcpyDtoDAsync", "MemcpyPeer"])
def test_null_mode_accepts_them_without_effect(hip, call):
    control.configure(schedule="null")
    arguments = {"Memset": (8, 8, 8), "MemcpyHtoD": (8, 8, 8)}.get(call, (8, 8, 8, 1, 0)[: 5 if "Peer" in call else 4])
    if call == "MemcpyWithStream":
        arguments = (8, 8, 8, 1, 0)
    assert getattr(hip, call)(*arguments) == SUCCESS
