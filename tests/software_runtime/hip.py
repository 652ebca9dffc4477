"""HIP's C functions of the software runtime through ctypes, as thin as can be."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from strata.runtime.software import library_path

HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, DEFAULT = range(5)
NON_BLOCKING = 1
DISABLE_TIMING = 2

SUCCESS = 0
INVALID_VALUE = 1
OUT_OF_MEMORY = 2
INVALID_DIRECTION = 21
NO_DEVICE = 100
INVALID_DEVICE = 101
INVALID_HANDLE = 400
NOT_READY = 600
CONTEXT_IS_DESTROYED = 709
ALREADY_REGISTERED = 712
NOT_REGISTERED = 713
LAUNCH_FAILURE = 719
NOT_SUPPORTED = 801

HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_P, _Z, _I, _U = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint
_FUNCTIONS: dict[str, list[Any]] = {
    "GetDeviceCount": [_P],
    "GetDevice": [_P],
    "SetDevice": [_I],
    "DeviceGetName": [_P, _I, _I],
    "DeviceGetAttribute": [_P, _I, _I],
    "DeviceSynchronize": [],
    "RuntimeGetVersion": [_P],
    "DriverGetVersion": [_P],
    "MemGetInfo": [_P, _P],
    "GetLastError": [],
    "PeekAtLastError": [],
    "Malloc": [_P, _Z],
    "Free": [_P],
    "HostMalloc": [_P, _Z, _U],
    "HostFree": [_P],
    "HostRegister": [_P, _Z, _U],
    "HostUnregister": [_P],
    "PointerGetAttributes": [_P, _P],
    "Memcpy": [_P, _P, _Z, _I],
    "MemcpyAsync": [_P, _P, _Z, _I, _P],
    "MemcpyBatchAsync": [_P, _P, _P, _Z, _P, _P, _Z, _P, _P],
    "MemsetAsync": [_P, _I, _Z, _P],
    "StreamCreateWithFlags": [_P, _U],
    "StreamDestroy": [_P],
    "StreamSynchronize": [_P],
    "StreamQuery": [_P],
    "StreamWaitEvent": [_P, _P, _U],
    "StreamGetDevice": [_P, _P],
    "LaunchHostFunc": [_P, HostFunction, _P],
    "EventCreateWithFlags": [_P, _U],
    "EventDestroy": [_P],
    "EventRecord": [_P, _P],
    "EventQuery": [_P],
    "EventSynchronize": [_P],
    "EventElapsedTime": [_P, _P, _P],
    "Init": [_U],
    "DeviceReset": [],
    "GetDevicePropertiesR0600": [_P, _I],
    "DeviceGetStreamPriorityRange": [_P, _P],
    "MallocAsync": [_P, _Z, _P],
    "FreeAsync": [_P, _P],
    "HostAlloc": [_P, _Z, _U],
    "FreeHost": [_P],
    "HostGetDevicePointer": [_P, _P, _U],
    "HostGetFlags": [_P, _P],
    "PointerGetAttribute": [_P, _I, _P],
    "Memset": [_P, _I, _Z],
    "MemcpyHtoD": [_P, _P, _Z],
    "MemcpyDtoH": [_P, _P, _Z],
    "MemcpyDtoD": [_P, _P, _Z],
    "MemcpyHtoDAsync": [_P, _P, _Z, _P],
    "MemcpyDtoHAsync": [_P, _P, _Z, _P],
    "MemcpyDtoDAsync": [_P, _P, _Z, _P],
    "MemcpyWithStream": [_P, _P, _Z, _I, _P],
    "MemcpyPeer": [_P, _I, _P, _I, _Z],
    "MemcpyPeerAsync": [_P, _I, _P, _I, _Z, _P],
    "StreamCreate": [_P],
    "StreamCreateWithPriority": [_P, _U, _I],
    "StreamGetFlags": [_P, _P],
    "StreamGetPriority": [_P, _P],
    "EventCreate": [_P],
}


class PointerAttributes(ctypes.Structure):
    _fields_ = [
        ("type", _I),
        ("device", _I),
        ("devicePointer", _P),
        ("hostPointer", _P),
        ("isManaged", _I),
        ("allocationFlags", _U),
    ]


class CopyAttributes(ctypes.Structure):
    _fields_ = [
        ("order", _I),
        ("source_type", _I),
        ("source_id", _I),
        ("target_type", _I),
        ("target_id", _I),
        ("flags", _U),
    ]


class HipFailure(AssertionError):
    """A call returned another status than success."""

    def __init__(self, call: str, status: int, name: str) -> None:
        super().__init__(f"{call} returned {name} ({status})")
        self.status = status


class Hip:
    """`hip.Malloc(...)` returns the status as it is; `hip.do("Malloc", ...)` wants success."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(str(library_path()))
        for name, arguments in _FUNCTIONS.items():
            function = getattr(self.library, "hip" + name)
            function.argtypes = arguments
            function.restype = ctypes.c_int
            setattr(self, name, function)
        for name in ("ErrorName", "ErrorString"):
            function = getattr(self.library, "hipGet" + name)
            function.argtypes = [ctypes.c_int]
            function.restype = ctypes.c_char_p

    def __getattr__(self, name: str) -> Callable[..., int]:
        raise AttributeError(name)

    def error_name(self, status: int) -> str:
        return self.library.hipGetErrorName(status).decode()

    def do(self, call: str, *arguments: Any) -> None:
        status = getattr(self, call)(*arguments)
        if status != SUCCESS:
            raise HipFailure("hip" + call, status, self.error_name(status))

    def stream(self, flags: int = NON_BLOCKING) -> int:
        handle = _P()
        self.do("StreamCreateWithFlags", ctypes.byref(handle), flags)
        return handle.value or 0

    def event(self, flags: int = DISABLE_TIMING) -> int:
        handle = _P()
        self.do("EventCreateWithFlags", ctypes.byref(handle), flags)
        return handle.value or 0

    def malloc(self, nbytes: int) -> int:
        address = _P()
        self.do("Malloc", ctypes.byref(address), nbytes)
        return address.value or 0

    def host_malloc(self, nbytes: int, flags: int = 0) -> int:
        address = _P()
        self.do("HostMalloc", ctypes.byref(address), nbytes, flags)
        return address.value or 0


def view(address: int, nbytes: int) -> np.ndarray:
    """A NumPy view of memory, device memory too: here it is the host's."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
