"""Device memory, pinned memory, registered ranges: limits, attributes, accounts."""

from __future__ import annotations

import ctypes
import mmap
import threading

import numpy as np
import pytest

from strata.runtime.software import control
from tests.software_runtime.hip import (
    ALREADY_REGISTERED,
    INVALID_VALUE,
    NOT_REGISTERED,
    OUT_OF_MEMORY,
    SUCCESS,
    PointerAttributes,
    view,
)

MIB = 1 << 20
UNREGISTERED, HOST, DEVICE = 0, 1, 2


def attributes(hip, address: int) -> PointerAttributes:
    found = PointerAttributes()
    hip.do("PointerGetAttributes", ctypes.byref(found), address)
    return found


def memory_info(hip) -> tuple[int, int]:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    hip.do("MemGetInfo", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def test_device_memory_is_accounted_and_limited(hip, device):
    control.configure(device_memory=64 * MIB)
    free, total = memory_info(hip)
    assert total == 64 * MIB
    assert free == total - control.live()["device_bytes"]
    first = device.malloc(40 * MIB)
    assert memory_info(hip)[0] == free - 40 * MIB
    address = ctypes.c_void_p(5)
    assert hip.Malloc(ctypes.byref(address), free - 40 * MIB + 1) == OUT_OF_MEMORY
    assert address.value is None
    hip.do("Free", first)
    assert memory_info(hip)[0] == free


def test_default_device_has_16_gib_and_its_memory_is_lazy(hip, device):
    assert memory_info(hip)[1] == 16 << 30
    gpu = device.malloc(12 << 30)  # more than a small machine would like to touch
    view(gpu + (12 << 30) - 8, 8)[:] = 1


def test_limits_far_beyond_memory_are_refused(hip):
    address = ctypes.c_void_p()
    assert hip.Malloc(ctypes.byref(address), 2**63) == OUT_OF_MEMORY
    assert hip.Malloc(ctypes.byref(address), 2**64 - 1) == OUT_OF_MEMORY
    control.configure(device_memory=2**64 - 1)
    assert hip.Malloc(ctypes.byref(address), 2**62) == OUT_OF_MEMORY
    assert hip.HostMalloc(ctypes.byref(address), 2**64 - 1, 0) == OUT_OF_MEMORY


def test_zero_bytes_give_a_null_pointer_and_null_may_be_freed(hip):
    address = ctypes.c_void_p(5)
    hip.do("Malloc", ctypes.byref(address), 0)
    assert address.value is None
    hip.do("HostMalloc", ctypes.byref(address), 0, 0)
    assert address.value is None
    hip.do("Free", None)
    hip.do("HostFree", None)
    assert hip.Malloc(None, 8) == INVALID_VALUE


def test_only_the_base_of_the_right_kind_is_freed(hip, device):
    gpu, pinned = device.malloc(MIB), device.host_malloc(MIB)
    host = np.zeros(64, np.uint8)
    for address in (gpu + 1, pinned, host.ctypes.data):
        assert hip.Free(address) == INVALID_VALUE
    for address in (pinned + 256, gpu, host.ctypes.data):
        assert hip.HostFree(address) == INVALID_VALUE


def test_pinned_limit_counts_allocations_and_registrations(hip, device):
    control.configure(pinned_limit=control.live()["pinned_bytes"] + 4 * MIB)
    pinned = device.host_malloc(3 * MIB)
    array = np.zeros(2 * MIB, np.uint8)
    assert hip.HostRegister(array.ctypes.data, 2 * MIB, 0) == OUT_OF_MEMORY
    assert hip.HostRegister(array.ctypes.data, MIB, 0) == SUCCESS
    address = ctypes.c_void_p()
    assert hip.HostMalloc(ctypes.byref(address), 1, 0) == OUT_OF_MEMORY
    hip.do("HostUnregister", array.ctypes.data)
    hip.do("HostFree", pinned)
    assert hip.HostMalloc(ctypes.byref(address), 4 * MIB, 0) == SUCCESS
    hip.do("HostFree", address)


def test_registration_of_what_is_pinned_or_no_host_memory(hip, device):
    array = np.zeros(4096, np.uint8)
    base = array.ctypes.data
    hip.do("HostRegister", base + 1024, 1024, 0)
    for address, nbytes in [(base + 1024, 1024), (base + 1500, 8), (base, 1025), (base, 4096), (base + 2047, 8)]:
        assert hip.HostRegister(address, nbytes, 0) == ALREADY_REGISTERED
    hip.do("HostRegister", base, 1024, 0)
    hip.do("HostRegister", base + 2048, 1024, 0)
    assert control.live()["registered_ranges"] >= 3
    assert hip.HostUnregister(base + 1025) == NOT_REGISTERED
    for start in (0, 1024, 2048):
        hip.do("HostUnregister", base + start)
    assert hip.HostUnregister(base) == NOT_REGISTERED
    assert hip.HostRegister(device.host_malloc(4096), 8, 0) == ALREADY_REGISTERED
    assert hip.HostRegister(device.malloc(4096), 8, 0) == INVALID_VALUE
    assert hip.HostRegister(base, 0, 0) == INVALID_VALUE
    assert hip.HostRegister(None, 8, 0) == INVALID_VALUE
    assert hip.HostRegister(base, 8, 0x4000) == INVALID_VALUE
    assert hip.HostRegister(base, 2**64 - 1, 0) == INVALID_VALUE


def test_pointer_attributes_of_each_kind(hip, device):
    gpu, pinned = device.malloc(MIB), hip.host_malloc(MIB, 1)
    array = np.zeros(4096, np.uint8)
    found = attributes(hip, gpu + 100)
    assert (found.type, found.device, found.devicePointer, found.hostPointer) == (DEVICE, 0, gpu + 100, None)
    found = attributes(hip, pinned + 100)
    assert (found.type, found.devicePointer, found.hostPointer) == (HOST, pinned + 100, pinned + 100)
    assert found.allocationFlags == 1
    assert found.isManaged == 0
    found = attributes(hip, array.ctypes.data)
    assert (found.type, found.device) == (UNREGISTERED, -2)
    hip.do("HostRegister", array.ctypes.data, 4096, 0)
    assert attributes(hip, array.ctypes.data + 4095).type == HOST
    assert attributes(hip, array.ctypes.data + 4096).type == UNREGISTERED
    hip.do("HostUnregister", array.ctypes.data)
    assert attributes(hip, array.ctypes.data).type == UNREGISTERED
    hip.do("HostFree", pinned)
    assert hip.PointerGetAttributes(ctypes.byref(found), None) == INVALID_VALUE
    assert hip.PointerGetAttributes(None, gpu) == INVALID_VALUE
    assert hip.GetLastError() == INVALID_VALUE
    attributes(hip, array.ctypes.data)  # asking about plain memory is no error
    assert hip.PeekAtLastError() == SUCCESS


def test_host_malloc_flags(hip):
    address = ctypes.c_void_p()
    for flags in (0, 1, 2, 4, 0x20000000, 0x40000000, 0x80000000):
        hip.do("HostMalloc", ctypes.byref(address), 64, flags)
        hip.do("HostFree", address)
    assert hip.HostMalloc(ctypes.byref(address), 64, 8) == INVALID_VALUE
    assert hip.HostMalloc(ctypes.byref(address), 64, 0xC0000000) == INVALID_VALUE  # coherent and not


def test_registration_flags_that_contradict_each_other(hip):
    array = np.zeros(4096, np.uint8)
    for flags in (0, 1, 2, 3, 8, 0x80000000):
        hip.do("HostRegister", array.ctypes.data, 4096, flags)
        hip.do("HostUnregister", array.ctypes.data)
    assert hip.HostRegister(array.ctypes.data, 4096, 0x80000008) == INVALID_VALUE  # coarse-grained, uncached


def test_registration_of_memory_that_is_not_there(hip):
    size = 64 * mmap.PAGESIZE
    mapped = mmap.mmap(-1, size)
    base = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    hip.do("HostRegister", base, size, 0)
    hip.do("HostUnregister", base)
    libc = ctypes.CDLL(None)
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    hole = base + 40 * mmap.PAGESIZE
    assert libc.munmap(hole, mmap.PAGESIZE) == 0
    assert hip.HostRegister(hole, 16, 0) == INVALID_VALUE
    assert hip.HostRegister(base, size, 0) == INVALID_VALUE  # a page in its midst is missing
    assert hip.HostRegister(base, 40 * mmap.PAGESIZE + 1, 0) == INVALID_VALUE
    hip.do("HostRegister", base, 40 * mmap.PAGESIZE, 0)
    hip.do("HostUnregister", base)
    assert control.live()["registered_ranges"] == 0


@pytest.mark.parametrize("kind", ["Free", "HostFree"])
def test_freeing_waits_for_the_streams_of_other_devices(hip, device, kind):
    control.configure(devices=2)
    gpu, pinned = hip.malloc(4096), hip.host_malloc(4096)
    hip.do("SetDevice", 1)
    there = hip.stream()
    hip.do("SetDevice", 0)
    latch = control.hold(there)
    hip.do("MemcpyAsync", gpu, pinned, 4096, 1, there)
    order = []

    def give_back():
        hip.do(kind, gpu if kind == "Free" else pinned)
        order.append("given back")

    before = control.calls()["hip" + kind]
    thread = threading.Thread(target=give_back)
    thread.start()
    while control.calls()["hip" + kind] == before:
        pass
    order.append("release")
    latch.release()
    thread.join(30)
    assert order == ["release", "given back"]
    hip.do("HostFree", pinned) if kind == "Free" else hip.do("Free", gpu)
    hip.do("StreamDestroy", there)


@pytest.mark.parametrize("kind", ["Free", "HostFree", "HostUnregister"])
def test_giving_memory_back_waits_for_the_device(hip, device, schedule, kind):
    stream = device.stream()
    gpu, source = device.malloc(4096), device.host_malloc(4096)
    array = np.zeros(4096, np.uint8)
    if kind == "HostUnregister":
        hip.do("HostRegister", array.ctypes.data, 4096, 0)
    address = {"Free": gpu, "HostFree": source, "HostUnregister": array.ctypes.data}[kind]
    latch = control.hold(stream)
    hip.do("MemcpyAsync", gpu, source, 4096, 1, stream)
    order = []

    def give_back():
        hip.do(kind, address)
        order.append("given back")

    thread = threading.Thread(target=give_back)
    thread.start()
    while control.calls()["hip" + kind] == 0:
        pass
    order.append("release")
    latch.release()
    thread.join(30)
    assert order == ["release", "given back"]


def test_copies_between_ranges_that_come_and_go_in_another_thread(hip, device):
    """Threads remember ranges; what another thread frees and allocates must not mislead them."""
    stream, pinned = device.stream(), device.host_malloc(4096)
    stop = threading.Event()

    def churn():
        while not stop.is_set():
            hip.do("Free", hip.malloc(4096))

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(300):
            gpu = hip.malloc(4096)
            assert hip.MemcpyAsync(gpu, pinned, 4096, 1, stream) == SUCCESS
            assert hip.MemcpyAsync(gpu, pinned, 4097, 1, stream) == INVALID_VALUE
            hip.do("Free", gpu)
            assert hip.MemcpyAsync(pinned, gpu, 4097, 2, stream) == INVALID_VALUE
    finally:
        stop.set()
        thread.join()
