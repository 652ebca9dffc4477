"""Control of the software HIP runtime: its schedule, its limits, what it holds and what it was asked.

The functions talk to the copy of the library that lies beside this module, which is the one that
the HIP bindings open for the *software* runtime. They are not HIP calls: they set no last error and
are not counted. All of them are thread-safe, and all raise :class:`ControlError` in a process forked
from one that had used the runtime.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

from . import library_path

__all__ = [
    "ControlError",
    "Hold",
    "calls",
    "configuration",
    "configure",
    "hold",
    "live",
    "reset_calls",
]

_UNLIMITED = 2**64 - 1


class ControlError(RuntimeError):
    """A control call was refused; the text names the argument, its value and what is allowed."""


class _Configuration(ctypes.Structure):
    _fields_ = [
        ("schedule", ctypes.c_char * 16),
        ("seed", ctypes.c_uint64),
        ("pinned_limit", ctypes.c_uint64),
        ("device_memory", ctypes.c_uint64),
        ("devices", ctypes.c_int32),
        ("idle_ms", ctypes.c_int32),
    ]


class _Live(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "streams",
            "events",
            "device_allocations",
            "device_bytes",
            "pinned_allocations",
            "pinned_bytes",
            "registered_ranges",
            "registered_bytes",
            "executor_threads",
            "pending_operations",
        )
    ]


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(library_path()))
    pointer, u64 = ctypes.c_void_p, ctypes.c_uint64
    for name, result, arguments in (
        ("problem", ctypes.c_char_p, []),
        ("get_configuration", ctypes.c_int, [ctypes.POINTER(_Configuration)]),
        ("set_configuration", ctypes.c_int, [ctypes.POINTER(_Configuration)]),
        ("get_live", ctypes.c_int, [ctypes.POINTER(_Live)]),
        ("call_name", ctypes.c_char_p, [ctypes.c_size_t]),
        ("calls", ctypes.c_int, [ctypes.POINTER(u64), ctypes.c_size_t]),
        ("reset_calls", ctypes.c_int, []),
        ("hold", u64, [pointer]),
        ("release", ctypes.c_int, [u64]),
    ):
        function = getattr(library, "strata_sw_" + name)
        function.restype = result
        function.argtypes = arguments
    return library


def _problem() -> ControlError:
    return ControlError(_library().strata_sw_problem().decode(errors="replace"))


def _check(result: int) -> None:
    if result != 0:
        raise _problem()


def configuration() -> dict[str, int | str]:
    """Return the configuration in force: the keywords of :func:`configure` and their values."""
    now = _Configuration()
    _check(_library().strata_sw_get_configuration(ctypes.byref(now)))
    return {
        "schedule": now.schedule.decode(),
        "seed": now.seed,
        "pinned_limit": now.pinned_limit,
        "device_memory": now.device_memory,
        "devices": now.devices,
        "idle_ms": now.idle_ms,
    }


def configure(
    *,
    schedule: str | None = None,
    seed: int | None = None,
    pinned_limit: int | None = None,
    device_memory: int | None = None,
    devices: int | None = None,
    idle_ms: int | None = None,
) -> None:
    """Change the configuration; what is not named stays.

    Parameters
    ----------
    schedule : str, optional
        ``eager`` (one thread a stream, operations run as soon as they may), ``lazy`` (an operation
        runs only when something forces it), ``copies-first`` (host-to-device copies as soon, all
        else as late as possible), ``compute-first`` (the reverse), ``random`` (seeded), ``timed``
        (eager, but copies move no bytes and only take their cost) or ``null`` (calls are accepted
        and nothing happens).
    seed : int, optional
        Seed of the random schedule, which starts its numbers anew at every call of this function.
    pinned_limit : int, optional
        Bytes that ``hipHostMalloc`` and ``hipHostRegister`` give out together.
    device_memory : int, optional
        Bytes of each device.
    devices : int, optional
        Number of devices, 0 to 4.
    idle_ms : int, optional
        In the schedules on demand, pending operations run by themselves once no call was made for
        so many milliseconds, as on a device they would. 0: never.

    Raises
    ------
    ControlError
        A value is not allowed, or operations are pending.
    """
    wanted = _Configuration()
    _check(_library().strata_sw_get_configuration(ctypes.byref(wanted)))
    if schedule is not None:
        encoded = schedule.encode()
        if len(encoded) > 15:
            raise ControlError(f"schedule={schedule!r}: no such schedule")
        wanted.schedule = encoded
    for name, value, most in (
        ("seed", seed, _UNLIMITED),
        ("pinned_limit", pinned_limit, _UNLIMITED),
        ("device_memory", device_memory, _UNLIMITED),
        ("devices", devices, 4),
        ("idle_ms", idle_ms, 3_600_000),
    ):
        if value is None:
            continue
        if not 0 <= value <= most:
            raise ControlError(f"{name}={value}: 0 to {most} is allowed")
        setattr(wanted, name, value)
    _check(_library().strata_sw_set_configuration(ctypes.byref(wanted)))


def live() -> dict[str, int]:
    """Count what is alive.

    Returns
    -------
    dict
        ``streams`` and ``events`` (handles created and not destroyed), ``device_allocations``,
        ``pinned_allocations`` and ``registered_ranges`` with their ``..._bytes``,
        ``executor_threads``, and ``pending_operations`` (submitted and not complete).
    """
    now = _Live()
    _check(_library().strata_sw_get_live(ctypes.byref(now)))
    return {name: int(getattr(now, name)) for name, _ in _Live._fields_}


def calls() -> dict[str, int]:
    """Count the calls of each HIP function, by its name, since the last :func:`reset_calls`."""
    library = _library()
    names: list[str] = []
    while (name := library.strata_sw_call_name(len(names))) is not None:
        names.append(name.decode())
    counts = (ctypes.c_uint64 * len(names))()
    _check(library.strata_sw_calls(counts, len(names)))
    return dict(zip(names, counts, strict=True))


def reset_calls() -> None:
    """Set the counts of :func:`calls` to zero."""
    _check(_library().strata_sw_reset_calls())


class Hold:
    """A latch on a stream: what was queued after it waits. A context manager that releases it."""

    def __init__(self, number: int) -> None:
        self._number = number

    def release(self) -> None:
        """Let the stream go on.

        Raises
        ------
        ControlError
            It was released before.
        """
        _check(_library().strata_sw_release(self._number))

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


def hold(stream: int) -> Hold:
    """Queue a latch on a stream (raw handle; 0 is the null stream of the thread's current device).

    Raises
    ------
    ControlError
        The handle is no live stream of this runtime.
    """
    number = _library().strata_sw_hold(stream)
    if number == 0:
        raise _problem()
    return Hold(number)
