"""What a test's subprocess works with: the runtime and the stub driver, through ctypes.

Not a test module. `conftest.run_client` runs a script after ``from client import *`` with
``CLIENT_RUNTIME`` (the runtime's library) and ``STRATA_CUDA_DRIVER`` (the stub) set.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_void_p

__all__ = [
    "MemcpyAttributes",
    "PointerAttributes",
    "byref",
    "c_char_p",
    "c_float",
    "c_int",
    "c_size_t",
    "c_ubyte",
    "c_uint",
    "c_void_p",
    "calls",
    "clear",
    "ctypes",
    "equal",
    "every_driver_call",
    "expect",
    "expect_none",
    "hip",
    "in_thread",
    "last",
    "location",
    "name",
    "new_event",
    "new_stream",
    "ok",
    "os",
    "problem",
    "report",
    "sizes_array",
    "stub",
    "sys",
    "threading",
    "void_array",
]


class PointerAttributes(ctypes.Structure):
    """``hipPointerAttribute_t``."""

    _fields_ = (
        ("type", c_int),
        ("device", c_int),
        ("devicePointer", c_void_p),
        ("hostPointer", c_void_p),
        ("isManaged", c_int),
        ("allocationFlags", c_uint),
    )


class MemcpyAttributes(ctypes.Structure):
    """``hipMemcpyAttributes`` with its two locations spread out."""

    _fields_ = (
        ("order", c_int),
        ("source_type", c_int),
        ("source_id", c_int),
        ("destination_type", c_int),
        ("destination_id", c_int),
        ("flags", c_uint),
    )


HIP_SIGNATURES = {
    "hipGetDeviceCount": [c_void_p],
    "hipGetDevice": [c_void_p],
    "hipSetDevice": [c_int],
    "hipDeviceGetName": [c_void_p, c_int, c_int],
    "hipDeviceGetAttribute": [c_void_p, c_int, c_int],
    "hipDeviceSynchronize": [],
    "hipRuntimeGetVersion": [c_void_p],
    "hipDriverGetVersion": [c_void_p],
    "hipMemGetInfo": [c_void_p, c_void_p],
    "hipGetLastError": [],
    "hipPeekAtLastError": [],
    "hipGetErrorName": [c_int],
    "hipGetErrorString": [c_int],
    "hipMalloc": [c_void_p, c_size_t],
    "hipFree": [c_void_p],
    "hipHostMalloc": [c_void_p, c_size_t, c_uint],
    "hipHostFree": [c_void_p],
    "hipHostRegister": [c_void_p, c_size_t, c_uint],
    "hipHostUnregister": [c_void_p],
    "hipPointerGetAttributes": [c_void_p, c_void_p],
    "hipMemcpy": [c_void_p, c_void_p, c_size_t, c_int],
    "hipMemcpyAsync": [c_void_p, c_void_p, c_size_t, c_int, c_void_p],
    "hipMemcpyBatchAsync": [
        c_void_p,
        c_void_p,
        c_void_p,
        c_size_t,
        c_void_p,
        c_void_p,
        c_size_t,
        c_void_p,
        c_void_p,
    ],
    "hipMemsetAsync": [c_void_p, c_int, c_size_t, c_void_p],
    "hipStreamCreateWithFlags": [c_void_p, c_uint],
    "hipStreamDestroy": [c_void_p],
    "hipStreamSynchronize": [c_void_p],
    "hipStreamQuery": [c_void_p],
    "hipStreamWaitEvent": [c_void_p, c_void_p, c_uint],
    "hipStreamGetDevice": [c_void_p, c_void_p],
    "hipLaunchHostFunc": [c_void_p, c_void_p, c_void_p],
    "hipEventCreateWithFlags": [c_void_p, c_uint],
    "hipEventDestroy": [c_void_p],
    "hipEventRecord": [c_void_p, c_void_p],
    "hipEventQuery": [c_void_p],
    "hipEventSynchronize": [c_void_p],
    "hipEventElapsedTime": [c_void_p, c_void_p, c_void_p],
}

# What the runtime asks the driver on its own account, in almost every call.
BOOKKEEPING = {"cuCtxGetCurrent"}


def _load_runtime() -> ctypes.CDLL:
    library = ctypes.CDLL(os.environ["CLIENT_RUNTIME"])
    for symbol, arguments in HIP_SIGNATURES.items():
        function = getattr(library, symbol)
        function.argtypes = arguments
        function.restype = c_char_p if symbol in ("hipGetErrorName", "hipGetErrorString") else c_int
    library.strata_cuda_problem.restype = c_char_p
    library.strata_cuda_problem.argtypes = []
    return library


def _load_stub() -> ctypes.CDLL | None:
    path = os.environ["STRATA_CUDA_DRIVER"]
    try:
        library = ctypes.CDLL(path) if path else None
    except OSError:
        library = None
    if library is None:  # the tests of a missing driver
        return None
    library.stub_log_line.argtypes = [c_int, c_char_p, c_int]
    library.stub_fail.argtypes = [c_char_p, c_int]
    library.stub_fail_batch_at.argtypes = [c_size_t]
    library.stub_stream_of.restype = c_void_p
    library.stub_add_range.argtypes = [c_void_p, c_size_t, c_uint, c_uint, c_int]
    return library


hip = _load_runtime()
stub = _load_stub()


def ok(status):
    """Check that a call succeeded."""
    if status != 0:
        raise AssertionError(f"status {status} ({name(status)})")


def calls(*, bookkeeping=False):
    """Return the driver's calls since the last `clear`, as ``(name, current context, inputs)``."""
    line = ctypes.create_string_buffer(4096)
    found = []
    for index in range(stub.stub_log_length()):
        stub.stub_log_line(index, line, len(line))
        symbol, context, *inputs = line.value.decode().split()
        if bookkeeping or symbol not in BOOKKEEPING:
            found.append((symbol, int(context), [int(value) for value in inputs]))
    return found


def clear():
    """Forget the driver's calls so far."""
    stub.stub_clear_log()


def equal(actual, expected):
    """Check that two values are equal, and show both where they are not."""
    if actual != expected:
        raise AssertionError(f"{actual!r} is not the expected {expected!r}")


def expect(status, symbol, *inputs, context=0):
    """Check that a call succeeded with exactly one driver call, of this name and with these inputs."""
    ok(status)
    equal(calls(), [(symbol, context, [0 if value is None else value for value in inputs])])
    clear()


def expect_none(status, expected=0):
    """Check a call's status, and that it made no driver call of its own."""
    equal((status, name(status)), (expected, name(expected)))
    equal(calls(), [])


def last():
    """Read and clear the thread's last error."""
    return hip.hipGetLastError()


def name(status):
    """HIP's name of a status."""
    return hip.hipGetErrorName(status).decode()


def problem():
    """The runtime's sentence about what is wrong."""
    return hip.strata_cuda_problem().decode()


def report(value):
    """Hand a value to the test."""
    print(json.dumps(value))


def in_thread(function):
    """Run a function in a new thread; give back its result or raise its error."""
    results = []
    errors = []

    def body():
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def every_driver_call(stream, event):
    """Return, for each driver call, a function that ends in it and gives HIP's status.

    The arguments are only good enough for calls that the stub was told to fail.
    """
    number, size, elapsed, out = c_int(), c_size_t(), c_float(), c_void_p()
    text = ctypes.create_string_buffer(64)
    here = location(text)
    nothing = ctypes.CFUNCTYPE(None, c_void_p)(lambda _: None)
    attributes = MemcpyAttributes(order=1)
    return {
        "cuDriverGetVersion": lambda: hip.hipDriverGetVersion(byref(number)),
        "cuDeviceGetName": lambda: hip.hipDeviceGetName(text, 64, 0),
        "cuDeviceGetAttribute": lambda: hip.hipDeviceGetAttribute(byref(number), 16, 0),
        "cuCtxGetDevice": lambda: hip.hipGetDevice(byref(number)),
        "cuCtxSetCurrent": lambda: hip.hipSetDevice(0),
        "cuCtxSynchronize": lambda: hip.hipDeviceSynchronize(),
        "cuMemGetInfo_v2": lambda: hip.hipMemGetInfo(byref(size), byref(size)),
        "cuMemAlloc_v2": lambda: hip.hipMalloc(byref(out), 8),
        "cuMemFree_v2": lambda: hip.hipFree(here),
        "cuMemHostAlloc": lambda: hip.hipHostMalloc(byref(out), 8, 0),
        "cuMemFreeHost": lambda: hip.hipHostFree(here),
        "cuMemHostRegister_v2": lambda: hip.hipHostRegister(here, 8, 0),
        "cuMemHostUnregister": lambda: hip.hipHostUnregister(here),
        "cuPointerGetAttributes": lambda: hip.hipPointerGetAttributes(byref(PointerAttributes()), here),
        "cuMemcpy": lambda: hip.hipMemcpy(here, here, 8, 4),
        "cuMemcpyHtoD_v2": lambda: hip.hipMemcpy(here, here, 8, 1),
        "cuMemcpyDtoH_v2": lambda: hip.hipMemcpy(here, here, 8, 2),
        "cuMemcpyDtoD_v2": lambda: hip.hipMemcpy(here, here, 8, 3),
        "cuMemcpyAsync": lambda: hip.hipMemcpyAsync(here, here, 8, 4, stream),
        "cuMemcpyHtoDAsync_v2": lambda: hip.hipMemcpyAsync(here, here, 8, 1, stream),
        "cuMemcpyDtoHAsync_v2": lambda: hip.hipMemcpyAsync(here, here, 8, 2, stream),
        "cuMemcpyDtoDAsync_v2": lambda: hip.hipMemcpyAsync(here, here, 8, 3, stream),
        "cuMemcpyBatchAsync_v2": lambda: hip.hipMemcpyBatchAsync(
            void_array([here]),
            void_array([here]),
            sizes_array([8]),
            1,
            byref(attributes),
            sizes_array([0]),
            1,
            None,
            stream,
        ),
        "cuMemsetD8Async": lambda: hip.hipMemsetAsync(here, 0, 8, stream),
        "cuStreamCreate": lambda: hip.hipStreamCreateWithFlags(byref(out), 0),
        "cuStreamDestroy_v2": lambda: hip.hipStreamDestroy(stream),
        "cuStreamSynchronize": lambda: hip.hipStreamSynchronize(stream),
        "cuStreamQuery": lambda: hip.hipStreamQuery(stream),
        "cuStreamWaitEvent": lambda: hip.hipStreamWaitEvent(stream, event, 0),
        "cuStreamGetCtx": lambda: hip.hipStreamGetDevice(stream, byref(number)),
        "cuLaunchHostFunc": lambda: hip.hipLaunchHostFunc(stream, ctypes.cast(nothing, c_void_p), None),
        "cuEventCreate": lambda: hip.hipEventCreateWithFlags(byref(out), 0),
        "cuEventDestroy_v2": lambda: hip.hipEventDestroy(event),
        "cuEventRecord": lambda: hip.hipEventRecord(event, stream),
        "cuEventQuery": lambda: hip.hipEventQuery(event),
        "cuEventElapsedTime": lambda: hip.hipEventElapsedTime(byref(elapsed), event, event),
    }


def new_stream(flags=1):
    """Create a stream; returns its handle."""
    stream = c_void_p()
    ok(hip.hipStreamCreateWithFlags(byref(stream), flags))
    return stream.value


def new_event(flags=0):
    """Create an event; returns its handle."""
    event = c_void_p()
    ok(hip.hipEventCreateWithFlags(byref(event), flags))
    return event.value


def location(buffer):
    """Address of a ctypes object."""
    return ctypes.addressof(buffer)


def void_array(addresses):
    """A ``void*[]``."""
    return (c_void_p * len(addresses))(*addresses)


def sizes_array(values):
    """A ``size_t[]``."""
    return (c_size_t * len(values))(*values)
