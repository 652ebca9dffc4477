"""Control of the software HIP runtime: schedules, limits, latches, costs, faults, the checker.

The functions talk to the copy of the library that lies beside this module, which is the one that
the HIP bindings open for the *software* runtime. They are not HIP calls: they set no last error and
are not counted. All of them are thread-safe, and those that can fail raise :class:`ControlError`,
also in a process forked from one that had used the runtime.

The environment chooses the configuration at load: ``STRATA_SOFTWARE_SCHEDULE``,
``STRATA_SOFTWARE_SEED``, ``STRATA_SOFTWARE_PINNED_LIMIT``, ``STRATA_SOFTWARE_DEVICE_MEMORY``,
``STRATA_SOFTWARE_DEVICES``, ``STRATA_SOFTWARE_IDLE_MS``, ``STRATA_SOFTWARE_MAX_PENDING``,
``STRATA_SOFTWARE_BATCH``, ``STRATA_SOFTWARE_BATCH_READS``, ``STRATA_SOFTWARE_BATCH_CALLS`` and
``STRATA_SOFTWARE_REGISTRATION``, with the values of :func:`configure`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from . import _binding

__all__ = [
    "Access",
    "ControlError",
    "Finding",
    "Hold",
    "Injection",
    "LoggedCall",
    "Schedule",
    "Spent",
    "call_log",
    "calls",
    "checked_accesses",
    "checker",
    "clear_costs",
    "clear_findings",
    "clear_injections",
    "configuration",
    "configure",
    "cost",
    "delay",
    "fail_operation",
    "finding_count",
    "findings",
    "handover_acquire",
    "handover_release",
    "hanging_calls",
    "hold",
    "host_read",
    "host_write",
    "inject",
    "label",
    "live",
    "logged_calls",
    "lose_device",
    "name",
    "next_host_func_accesses",
    "release_hangs",
    "reset_calls",
    "restore_device",
    "spent",
    "stream_clock",
    "thread_role",
]

_UNLIMITED = 2**64 - 1


class ControlError(RuntimeError):
    """A control call was refused; the text names the argument, its value and what is allowed."""


def _problem() -> ControlError:
    return ControlError(_binding.library().strata_sw_problem().decode(errors="replace"))


def _check(result: int) -> int:
    if result < 0:
        raise _problem()
    return result


def _fields(raw: ctypes.Structure) -> dict[str, Any]:
    """Return a structure's fields as Python has them: texts decoded, null pointers 0."""
    values = {}
    for name_, *_ in raw._fields_:
        value = getattr(raw, name_)
        values[name_] = value.decode(errors="replace") if isinstance(value, bytes) else 0 if value is None else value
    return values


def _filled(function: Any, kind: Any) -> list[Any]:
    """Ask a function for the number of its rows, then for the rows: there may be fewer by then."""
    count = _check(function(None, 0))
    raw = (kind * count)()
    rows: list[Any] = raw[: min(count, _check(function(raw, count)))]
    return rows


# ---- configuration ----


def configuration() -> dict[str, int | str]:
    """Return the configuration in force: the keywords of :func:`configure` and their values."""
    now = _binding.Configuration()
    _check(_binding.library().strata_sw_get_configuration(ctypes.byref(now)))
    return _fields(now)


#: When operations run: see `configure`.
Schedule = Literal["eager", "lazy", "copies-first", "compute-first", "random", "timed", "null"]


def configure(
    *,
    schedule: Schedule | None = None,
    seed: int | None = None,
    pinned_limit: int | None = None,
    device_memory: int | None = None,
    devices: int | None = None,
    idle_ms: int | None = None,
    max_pending: int | None = None,
    batch: Literal["full", "no-attributes", "unsupported"] | None = None,
    batch_reads: Literal["stream", "call"] | None = None,
    batch_calls: int | None = None,
    registration: Literal["refuses", "accepts"] | None = None,
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
        In the schedules on demand, pending operations run by themselves once nothing was submitted
        or run for so many milliseconds, as on a device they would. 0: never.
    max_pending : int, optional
        Operations that a stream holds at most. A call that would queue one more blocks, on the
        calling thread, until one completes, as a driver's does. 0: no limit.
    batch : {"full", "no-attributes", "unsupported"}, optional
        What ``hipMemcpyBatchAsync`` takes. ``no-attributes``: a call with any answers *not
        supported* (801), as ROCm 7.2.1 to 7.2.3 do. ``unsupported``: every call does.
    batch_reads : {"stream", "call"}, optional
        When a batch without attributes reads its pinned sources: in stream order, as single copies
        do, or before the call returns.
    batch_calls : int, optional
        How many batch calls are served; those after them answer *not supported*. Every call of this
        function begins to count anew. ``2**64 - 1``: all.
    registration : {"refuses", "accepts"}, optional
        What ``hipHostRegister`` does with a range that is registered already: it answers *already
        registered*, or takes it, and the first unregistration then ends it.

    Raises
    ------
    ControlError
        A value is not allowed, or operations are pending.
    """
    library = _binding.library()
    wanted = _binding.Configuration()
    _check(library.strata_sw_get_configuration(ctypes.byref(wanted)))
    for name_, word in (
        ("schedule", schedule),
        ("batch", batch),
        ("batch_reads", batch_reads),
        ("registration", registration),
    ):
        if word is not None:
            encoded = word.encode()
            if len(encoded) > 15:
                raise ControlError(f"{name_}={word!r}: no such {name_}")
            setattr(wanted, name_, encoded)
    for name_, value, most in (
        ("seed", seed, _UNLIMITED),
        ("pinned_limit", pinned_limit, _UNLIMITED),
        ("device_memory", device_memory, _UNLIMITED),
        ("devices", devices, 4),
        ("idle_ms", idle_ms, 3_600_000),
        ("max_pending", max_pending, _UNLIMITED),
        ("batch_calls", batch_calls, _UNLIMITED),
    ):
        if value is not None:
            if not 0 <= value <= most:
                raise ControlError(f"{name_}={value}: 0 to {most} is allowed")
            setattr(wanted, name_, value)
    _check(library.strata_sw_set_configuration(ctypes.byref(wanted)))


# ---- what is alive, what was called ----


def live() -> dict[str, int]:
    """Count what is alive.

    Returns
    -------
    dict
        ``streams`` and ``events`` (handles created and not destroyed), ``device_allocations``,
        ``pinned_allocations`` and ``registered_ranges`` with their ``..._bytes``,
        ``executor_threads``, ``pending_operations`` (submitted and not complete) and
        ``blocked_submissions`` (calls that wait for room in a full stream).
    """
    now = _binding.Live()
    _check(_binding.library().strata_sw_get_live(ctypes.byref(now)))
    return _fields(now)


def calls() -> dict[str, int]:
    """Count the calls of each HIP function, by its name, since the last :func:`reset_calls`."""
    library = _binding.library()
    names: list[str] = []
    while (function := library.strata_sw_call_name(len(names))) is not None:
        names.append(function.decode())
    counts = (ctypes.c_uint64 * len(names))()
    _check(library.strata_sw_calls(counts, len(names)))
    return dict(zip(names, counts, strict=True))


def reset_calls() -> None:
    """Set the counts of :func:`calls` to zero."""
    _check(_binding.library().strata_sw_reset_calls())


@dataclass(frozen=True)
class LoggedCall:
    """One HIP call, as :func:`logged_calls` lists it.

    ``number`` counts from 1 in the order in which the calls began; ``stream``, ``event`` and
    ``address`` are as passed (0: none, or the null stream); ``thread`` is the calling thread's role
    or name; ``entry``, ``slot`` and ``generation`` are the thread's labels (-1: none);
    ``intercepted`` says that an injection struck.
    """

    number: int
    function: str
    stream: int
    event: int
    address: int
    bytes: int
    entry: int
    slot: int
    generation: int
    thread: str
    thread_number: int
    intercepted: bool


def call_log(on: bool) -> None:
    """Turn the log of HIP calls on (it begins empty) or off (it keeps what it has)."""
    _check(_binding.library().strata_sw_call_log(int(on)))


def logged_calls() -> list[LoggedCall]:
    """Return the log of calls, in order."""
    return [
        LoggedCall(**_fields(call) | {"intercepted": bool(call.intercepted)})
        for call in _filled(_binding.library().strata_sw_logged_calls, _binding.LoggedCall)
    ]


def thread_role(role: str | None) -> None:
    """Name the calling thread for logs, injections and findings; ``None``: its system name again."""
    _check(_binding.library().strata_sw_thread_role(None if role is None else role.encode()))


# ---- holding a stream ----


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
        _check(_binding.library().strata_sw_release(self._number))

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
    number = _binding.library().strata_sw_hold(stream)
    if number == 0:
        raise _problem()
    return Hold(number)


# ---- costs ----


@dataclass(frozen=True)
class Spent:
    """What one kind of call has cost so far, by the runtime's own accounts, in nanoseconds."""

    host_ns: int
    stream_ns: int
    operations: int


def cost(kind: str, *, host_ns: int = 0, stream_ns: int = 0, per_byte_ns: float | None = None) -> None:
    """Give a kind of call a cost.

    Parameters
    ----------
    kind : str
        ``copy``, ``memset``, ``record``, ``wait``, ``query``, ``sync``, ``host_func`` or ``delay``.
    host_ns : int
        Nanoseconds that each call takes on the calling thread.
    stream_ns : int
        Nanoseconds that each operation takes in its stream. Streams keep absolute clocks, so that
        errors of waiting do not add up.
    per_byte_ns : float, optional
        For ``copy`` alone: nanoseconds of stream time for each byte.

    Raises
    ------
    ControlError
        The kind is unknown or a cost is negative.
    """
    library = _binding.library()
    if per_byte_ns is not None and kind != "copy":
        raise ControlError(f"per_byte_ns={per_byte_ns} with kind={kind!r}: only copies cost by the byte")
    _check(library.strata_sw_set_cost(kind.encode(), host_ns, stream_ns))
    if per_byte_ns is not None:
        _check(library.strata_sw_set_byte_cost(per_byte_ns))


def clear_costs() -> None:
    """Make everything free again, and forget what was spent."""
    _check(_binding.library().strata_sw_clear_costs())


def spent(kind: str) -> Spent:
    """Return what a kind of call has cost since :func:`clear_costs`."""
    host, stream, operations = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
    _check(
        _binding.library().strata_sw_spent(
            kind.encode(), ctypes.byref(host), ctypes.byref(stream), ctypes.byref(operations)
        )
    )
    return Spent(host.value, stream.value, operations.value)


def stream_clock(stream: int) -> int:
    """Return a stream's own clock in nanoseconds; only differences mean anything."""
    return _check(_binding.library().strata_sw_stream_clock(stream))


def delay(stream: int, ns: int) -> None:
    """Queue an operation that takes ``ns`` nanoseconds in a stream and does nothing."""
    _check(_binding.library().strata_sw_delay(stream, ns))


# ---- faults ----


class Injection:
    """A fault that strikes one call."""

    def __init__(self, number: int) -> None:
        self._number = number

    @property
    def fired(self) -> bool:
        """Whether the call has come."""
        return _check(_binding.library().strata_sw_injection_fired(self._number)) == 1


def inject(
    call: str, nth: int = 1, status: int = 0, *, action: Literal["fail", "ignore", "hang"] = "fail",
    thread: str | None = None,
) -> Injection:
    """Let one HIP call go wrong.

    Parameters
    ----------
    call : str
        Name of the HIP function, ``hipEventRecord`` say.
    nth : int
        Which call, from 1, counted from now.
    status : int
        The status that the call returns.
    action : {"fail", "ignore", "hang"}
        ``fail``: no effect but the status. ``ignore``: success, and no effect. ``hang``: the call
        stays until :func:`release_hangs`, then goes on as usual or, with a status, fails.
    thread : str, optional
        Count only calls of threads of this role or name.

    Raises
    ------
    ControlError
        An argument is not allowed.
    """
    number = _binding.library().strata_sw_inject(
        call.encode(), nth, status, action.encode(), None if thread is None else thread.encode()
    )
    if number == 0:
        raise _problem()
    return Injection(number)


def clear_injections() -> None:
    """Forget all injections, and the copy that :func:`fail_operation` armed."""
    _check(_binding.library().strata_sw_clear_injections())


def hanging_calls() -> int:
    """Return how many calls hang at this moment."""
    return _check(_binding.library().strata_sw_hanging_calls())


def release_hangs() -> None:
    """Let the calls that hang now go on."""
    _check(_binding.library().strata_sw_release_hangs())


def fail_operation(nth: int = 1, status: int = 719, *, sticky: bool = True) -> None:
    """Let the ``nth`` copy that runs from now fail: it copies nothing.

    With ``sticky`` the device is lost with it, as after a fault on a real one. Otherwise whoever
    synchronizes with the copy, or with what follows it in its stream, gets the status, until a
    stream or device synchronization has reported it.
    """
    _check(_binding.library().strata_sw_fail_operation(nth, status, int(sticky)))


def lose_device(status: int = 719) -> None:
    """Lose the device: later calls return the status, pending operations end without effect.

    Calls that give something back (free, destroy, unregister) still do, and return the status.
    """
    _check(_binding.library().strata_sw_lose_device(status))


def restore_device() -> None:
    """Make a lost device usable again, drained.

    Raises
    ------
    ControlError
        It is not lost.
    """
    _check(_binding.library().strata_sw_restore_device())


# ---- happens-before checker ----


@dataclass(frozen=True)
class Access:
    """One access to device or pinned memory, as a finding names it.

    ``operation`` is ``H2D write``, ``D2H read``, ``host function read``, ``host write``, ``free``
    and the like; ``stream`` is the stream's name, empty for a host thread's own access; ``serial``
    numbers the accesses in the order of the calls that made them.
    """

    operation: str
    stream: str
    thread: str
    stream_handle: int
    address: int
    bytes: int
    entry: int
    slot: int
    generation: int
    serial: int


@dataclass(frozen=True)
class Finding:
    """Two conflicting accesses that nothing orders.

    ``address`` and ``bytes`` say where they meet; ``missing_event`` and ``missing_name`` name the
    event that was recorded behind the earlier one and that nothing before the later one waited for
    (0 and empty if there is none).
    """

    earlier: Access
    later: Access
    address: int
    bytes: int
    missing_event: int
    missing_name: str
    text: str

    def __str__(self) -> str:
        return self.text


def checker(on: bool) -> None:
    """Turn the happens-before checker on or off.

    On: it begins anew, and what is pending counts as ordered. Off: its findings stay.
    """
    _check(_binding.library().strata_sw_checker(int(on)))


def findings() -> list[Finding]:
    """Return the findings, the first 1000 of them, in the order in which they were made."""
    return [
        Finding(**_fields(raw) | {"earlier": Access(**_fields(raw.earlier)), "later": Access(**_fields(raw.later))})
        for raw in _filled(_binding.library().strata_sw_findings, _binding.Finding)
    ]


def finding_count() -> int:
    """Return how many findings there are, those beyond the first 1000 included."""
    return _check(_binding.library().strata_sw_finding_count())


def clear_findings() -> None:
    """Forget the findings."""
    _check(_binding.library().strata_sw_clear_findings())


def checked_accesses() -> int:
    """Return how many accesses the checker has seen since it was turned on."""
    return _check(_binding.library().strata_sw_checked_accesses())


def host_read(address: int, nbytes: int) -> None:
    """Announce that the calling thread reads memory."""
    _binding.library().strata_sw_host_read(address, nbytes)


def host_write(address: int, nbytes: int) -> None:
    """Announce that the calling thread writes memory."""
    _binding.library().strata_sw_host_write(address, nbytes)


def handover_release(token: int) -> None:
    """Give a token (any address) what the calling thread knows."""
    _binding.library().strata_sw_handover_release(token)


def handover_acquire(token: int) -> None:
    """Take what a token has been given so far."""
    _binding.library().strata_sw_handover_acquire(token)


def label(entry: int = -1, slot: int = -1, generation: int = -1) -> None:
    """Say what the calling thread's next operations and accesses are about; -1: nothing."""
    _binding.library().strata_sw_label(entry, slot, generation)


def next_host_func_accesses(ranges: Iterable[tuple[int, int, bool]]) -> None:
    """Announce what the function of this thread's next ``hipLaunchHostFunc`` accesses.

    Parameters
    ----------
    ranges : iterable of (address, nbytes, write)
        ``write`` false: it reads.
    """
    listed = list(ranges)
    raw = (_binding.Range * len(listed))(*[_binding.Range(a, n, int(w)) for a, n, w in listed])
    _binding.library().strata_sw_next_host_func_accesses(raw, len(listed))


def name(handle: int, text: str) -> None:
    """Name a stream or an event in findings; 0: the null stream."""
    _check(_binding.library().strata_sw_name(handle, text.encode()))
