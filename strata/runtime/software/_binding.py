"""The control functions of ``native/control.h`` as ctypes sees them: layouts and prototypes, no more."""

from __future__ import annotations

import atexit
import ctypes
from functools import lru_cache

from . import library_path

_POINTER = ctypes.c_void_p
_U64 = ctypes.c_uint64
_I64 = ctypes.c_int64
_INT = ctypes.c_int
_TEXT = ctypes.c_char_p
_SIZE = ctypes.c_size_t


class Configuration(ctypes.Structure):
    _fields_ = [
        ("schedule", ctypes.c_char * 16),
        ("seed", _U64),
        ("pinned_limit", _U64),
        ("device_memory", _U64),
        ("devices", ctypes.c_int32),
        ("idle_ms", ctypes.c_int32),
        ("max_pending", _U64),
        ("batch", ctypes.c_char * 16),
        ("batch_reads", ctypes.c_char * 16),
        ("batch_calls", _U64),
        ("registration", ctypes.c_char * 16),
    ]


class Live(ctypes.Structure):
    _fields_ = [
        ("streams", _U64),
        ("events", _U64),
        ("device_allocations", _U64),
        ("device_bytes", _U64),
        ("pinned_allocations", _U64),
        ("pinned_bytes", _U64),
        ("registered_ranges", _U64),
        ("registered_bytes", _U64),
        ("executor_threads", _U64),
        ("pending_operations", _U64),
        ("blocked_submissions", _U64),
    ]


class LoggedCall(ctypes.Structure):
    _fields_ = [
        ("number", _U64),
        ("function", _TEXT),
        ("stream", _POINTER),
        ("event", _POINTER),
        ("address", _POINTER),
        ("bytes", _U64),
        ("entry", _I64),
        ("slot", _I64),
        ("generation", _I64),
        ("thread_number", _U64),
        ("thread", ctypes.c_char * 48),
        ("intercepted", ctypes.c_int32),
    ]


class Range(ctypes.Structure):
    _fields_ = [("address", _POINTER), ("bytes", _SIZE), ("write", ctypes.c_int32)]


class Access(ctypes.Structure):
    _fields_ = [
        ("operation", ctypes.c_char * 24),
        ("stream", ctypes.c_char * 48),
        ("thread", ctypes.c_char * 48),
        ("stream_handle", _POINTER),
        ("address", _POINTER),
        ("bytes", _U64),
        ("entry", _I64),
        ("slot", _I64),
        ("generation", _I64),
        ("serial", _U64),
    ]


class Finding(ctypes.Structure):
    _fields_ = [
        ("earlier", Access),
        ("later", Access),
        ("address", _POINTER),
        ("bytes", _U64),
        ("missing_event", _POINTER),
        ("missing_name", ctypes.c_char * 48),
        ("text", ctypes.c_char * 512),
    ]


_PROTOTYPES: tuple[tuple[str, object, list[object]], ...] = (
    ("problem", _TEXT, []),
    ("get_configuration", _INT, [ctypes.POINTER(Configuration)]),
    ("set_configuration", _INT, [ctypes.POINTER(Configuration)]),
    ("get_live", _INT, [ctypes.POINTER(Live)]),
    ("call_name", _TEXT, [_SIZE]),
    ("calls", _INT, [ctypes.POINTER(_U64), _SIZE]),
    ("reset_calls", _INT, []),
    ("hold", _U64, [_POINTER]),
    ("release", _INT, [_U64]),
    ("set_cost", _INT, [_TEXT, _I64, _I64]),
    ("set_byte_cost", _INT, [ctypes.c_double]),
    ("clear_costs", _INT, []),
    ("spent", _INT, [_TEXT, ctypes.POINTER(_U64), ctypes.POINTER(_U64), ctypes.POINTER(_U64)]),
    ("stream_clock", _I64, [_POINTER]),
    ("delay", _INT, [_POINTER, _I64]),
    ("inject", _U64, [_TEXT, _U64, _INT, _TEXT, _TEXT]),
    ("injection_fired", _INT, [_U64]),
    ("clear_injections", _INT, []),
    ("hanging_calls", _I64, []),
    ("release_hangs", _INT, []),
    ("fail_operation", _INT, [_U64, _INT, _INT]),
    ("lose_device", _INT, [_INT]),
    ("restore_device", _INT, []),
    ("thread_role", _INT, [_TEXT]),
    ("call_log", _INT, [_INT]),
    ("logged_calls", _I64, [ctypes.POINTER(LoggedCall), _SIZE]),
    ("checker", _INT, [_INT]),
    ("host_read", None, [_POINTER, _SIZE]),
    ("host_write", None, [_POINTER, _SIZE]),
    ("handover_release", None, [_POINTER]),
    ("handover_acquire", None, [_POINTER]),
    ("label", None, [_I64, _I64, _I64]),
    ("next_host_func_accesses", None, [ctypes.POINTER(Range), _SIZE]),
    ("name", _INT, [_POINTER, _TEXT]),
    ("findings", _I64, [ctypes.POINTER(Finding), _SIZE]),
    ("finding_count", _I64, []),
    ("clear_findings", _INT, []),
    ("checked_accesses", _I64, []),
    ("stop_host_functions", _INT, [ctypes.c_int32]),
)


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """Open the runtime's library (the copy that is mapped already, if one is) and type its functions."""
    opened = ctypes.CDLL(str(library_path()))
    for name, result, arguments in _PROTOTYPES:
        function = getattr(opened, "strata_sw_" + name)
        function.restype = result
        function.argtypes = arguments
    # A host function in Python must not ask for an interpreter that is gone. One that does not come
    # back keeps nobody: its thread ends with the process.
    atexit.register(opened.strata_sw_stop_host_functions, 1000)
    return opened
