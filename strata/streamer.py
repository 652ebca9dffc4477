"""The streamer: rings, streams, events and threads for many requests, one at a time."""

from __future__ import annotations

import atexit
import logging
import operator
import os
import sys
import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from strata import _hip, runtime
from strata.copies import ExpertCopies
from strata.counters import Counters
from strata.engine.begin import begin_request
from strata.engine.core import SUBMISSIONS, StreamerCore, check_timeout
from strata.engine.request import Request
from strata.errors import StrataError
from strata.settings import (
    BatchSettings,
    Submission,
    chosen_submission,
    gpu_ring_from_env,
    host_ring_from_env,
    timing_from_env,
    warn_of_starving,
)

__all__ = ["ExpertStreamer"]

logger = logging.getLogger("strata")

_MAX_WORKERS = 64
_MAX_RING = 2**20
_SLOT_ALIGNMENT = 256
_ABSURD_BYTES = 2**46
_EXIT_TIMEOUT_S = 5.0
_SINGLE = BatchSettings()
_open: weakref.WeakSet[ExpertStreamer] = weakref.WeakSet()


class ExpertStreamer:
    """Streams experts from host RAM into a ring of GPU slots.

    Parameters
    ----------
    slot_bytes : int
        Bytes of a slot, and of a host buffer: at least the largest entry's.
    gpu_ring : int, optional
        Slots. Default: the number of lent slots, else ``STRATA_PREFILL_RING``, else 96.
    host_ring : int, optional
        Host buffers for staged entries. Default: ``STRATA_STAGER_RING``, else 16 or what the last-level cache
        holds, and at least twice the longest staged batch (see `strata.settings.host_ring_from_env`). Allocated at
        the first staged entry.
    workers : int, optional
        Threads that fill host buffers, 1 to 64. Default: three quarters of the processors that
        this process may use, 1 to 12, and no more than buffers.
    settings : BatchSettings, optional
        How many entries share a dependency. Default: the environment's (see `BatchSettings.from_env`),
        else one each. Clamped to the rings.
    slots : sequence of int, optional
        Lent slots: distinct device addresses of `slot_bytes` each, which must outlive the streamer. Default:
        strata allocates its own.
    copy_stream, compute_stream : int or stream, optional
        Lent streams, which must outlive the streamer: raw handles (0 is the null stream), or objects with
        ``__cuda_stream__`` or, as torch's, ``cuda_stream``. Default: strata makes its
        own, non-blocking. With lent slots the compute stream must be given: it is what the copies have to
        wait for.
    device : int, optional
        Default: the device of what is lent, else the calling thread's current one.
    timing : bool, optional
        Whether seconds are counted, too. Default: ``STRATA_PREFILL_TIMING``.
    stall_timeout : float, optional
        Seconds without any progress after which a wait of the engine raises `StallError`. Default: never.
    submission : {"single", "group", "coalesced"}, optional
        How copies are submitted; bytes, places and order are the same. *single*: one call a segment of a direct entry,
        one a staged entry. *group*: one ``hipMemcpyBatchAsync`` a copy group where the runtime has it, for staged
        entries once all jobs of the group are ready; those overlap with their gathering only where `host_ring` is at
        least twice ``stage_copy_batch``. *coalesced*: neighbouring segments of a direct group become one copy where
        source and destination both follow on, within one source region (see `ExpertCopies.regions`) and one allocation
        of slots (strata's own; lent ones are taken as one each); what is left of the group, such as gate_up and down of
        two regions, is one batch call where the runtime has it; ``copy_batch`` may then be as long as the ring.
        Default: what `strata.settings.chosen_submission` says where the runtime has the batch call, else *single*.
    share_dependencies : bool, optional
        Leave out waits and records that stream order makes redundant: one wait and one ``used`` record for the entries
        of a copy group, no reuse wait for a use that was waited for before, one host wait an ownership group.
        Default: False.
    run_ahead : int, optional
        Entries beyond the last one consumed that may be submitted, 1 to the ring's depth (default), so that
        `Request.drop` is in time for the rest. Batches are no longer than this.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, its value and what is allowed.
    SettingsError
        If an environment variable that is read holds no integer.
    RuntimeNotFound
        If no HIP runtime can be opened.
    HipError, MemoryError
        If the device or the host has no room; nothing stays allocated.

    Notes
    -----
    A context manager. One thread, the engine's, uses a streamer and its requests.
    """

    def __init__(
        self,
        slot_bytes: int,
        *,
        gpu_ring: int | None = None,
        host_ring: int | None = None,
        workers: int | None = None,
        settings: BatchSettings | None = None,
        slots: Sequence[int] | npt.NDArray[Any] | None = None,
        copy_stream: Any = None,
        compute_stream: Any = None,
        device: int | None = None,
        timing: bool | None = None,
        stall_timeout: float | None = None,
        submission: Submission | None = None,
        share_dependencies: bool = False,
        run_ahead: int | None = None,
    ) -> None:
        slot_bytes = _count("slot_bytes", slot_bytes, 1, 2**62)
        if gpu_ring is not None:
            gpu_ring = _count("gpu_ring", gpu_ring, 1, _MAX_RING)
        if host_ring is not None:
            host_ring = _count("host_ring", host_ring, 1, _MAX_RING)
            _host_bytes(host_ring, slot_bytes)
        if workers is not None:
            workers = _count("workers", workers, 1, _MAX_WORKERS)
        if settings is not None and not isinstance(settings, BatchSettings):
            raise TypeError(f"settings is {settings!r}; a strata.BatchSettings is wanted")
        if stall_timeout is not None:
            stall_timeout = check_timeout("stall_timeout", stall_timeout)
            if stall_timeout == 0:
                raise ValueError("stall_timeout is 0; a positive number of seconds is wanted")
        if timing is not None:
            timing = _flag("timing", timing)
        if submission is not None and (not isinstance(submission, str) or submission not in SUBMISSIONS):
            raise ValueError(f"submission is {submission!r}; 'single', 'group' or 'coalesced' is allowed")
        share_dependencies = _flag("share_dependencies", share_dependencies)
        self._streams = (copy_stream, compute_stream)  # kept alive
        copy_stream = _handle("copy_stream", copy_stream)
        compute_stream = _handle("compute_stream", compute_stream)
        if slots is not None and compute_stream is None:
            raise ValueError("compute_stream is None with lent slots: the copies must wait for the kernels that "
                             "read the slots, so the stream that they run on is wanted")
        if slots is not None and not isinstance(slots, np.ndarray):
            try:
                slots = list(slots)
            except TypeError:
                raise TypeError(f"slots is {slots!r}; a sequence of device addresses (int) is wanted") from None
        name = runtime.ensure()
        _hip.last_error()  # refuses a forked child before anything is asked of HIP
        self._device = _device(device, slots, copy_stream, compute_stream)
        if slots is not None:
            slots = _lent("slots", slots, slot_bytes, self._device)
            if gpu_ring is None:
                gpu_ring = len(slots)
            elif gpu_ring != len(slots):
                raise ValueError(f"gpu_ring is {gpu_ring} and slots has {len(slots)}; they must be equal")
        self._given = settings
        self._from_env = BatchSettings.from_env(runtime=name) if settings is None else None
        chosen = settings if settings is not None else self._from_env
        assert chosen is not None
        if host_ring is None:
            host_ring = host_ring_from_env(
                slot_bytes=slot_bytes, longest_batch=max(chosen.stage_batch, chosen.stage_copy_batch),
                workers=workers or 1)
        if workers is None:
            workers = min(_default_workers(), host_ring)
        if gpu_ring is None:
            free, _ = _on_device(self._device, _hip.memory_info)
            gpu_ring = gpu_ring_from_env(free_bytes=free, slot_bytes=slot_bytes)
        if slots is None:
            free, total = _on_device(self._device, _hip.memory_info)
            needed = gpu_ring * -(-slot_bytes // _SLOT_ALIGNMENT) * _SLOT_ALIGNMENT
            if needed > total:
                raise ValueError(f"gpu_ring is {gpu_ring}: {needed} bytes for slots of {slot_bytes} bytes are more "
                                 f"than the device's {total} ({free} free)")
        if timing is None:
            timing = timing_from_env()
        self._run_ahead = gpu_ring if run_ahead is None else _count("run_ahead", run_ahead, 1, gpu_ring)
        self._asked = chosen.clamped(gpu_ring, host_ring, merged=submission == "coalesced")
        self._settings = _bounded(self._asked, self._run_ahead)
        served, problem = _hip.has_batch_copy()
        if submission is None:
            submission = chosen_submission(slot_bytes, self._settings, host_ring) if served else "single"
        if submission == "group" and not served:
            logger.warning("submission='group' is not to be had from the %s runtime: %s; copies are submitted one by "
                           "one", name, problem)
            submission = "single"
        elif submission == "group" and problem:
            logger.info("submission='group' on the %s runtime: %s", name, problem)
        self._lent = slots
        self._core = StreamerCore(slot_bytes, gpu_ring, host_ring, workers, self._device,
                                  copy_stream, compute_stream, slots is None, bool(timing), stall_timeout,
                                  SUBMISSIONS[submission], share_dependencies)
        self._core.before_staging = partial(warn_of_starving, self._settings, host_ring, workers)
        self._submission: Submission = submission
        self._share_dependencies = share_dependencies
        _open.add(self)

    @classmethod
    def for_copies(cls, copies: ExpertCopies | Iterable[ExpertCopies], **arguments: Any) -> ExpertStreamer:
        """Make a streamer whose slots hold every entry of a list.

        Parameters
        ----------
        copies : ExpertCopies, or iterable of ExpertCopies
            What will be streamed; only sizes are looked at.
        **arguments
            As for the class, without `slot_bytes`.

        Returns
        -------
        ExpertStreamer

        Raises
        ------
        TypeError
            `copies` is neither; an argument is unknown.
        ValueError
            There are no entries with bytes: how large the slots should be is not known.
        """
        if not isinstance(copies, (ExpertCopies, Iterable)):
            raise TypeError(f"copies is a {type(copies).__name__}; a strata.ExpertCopies, or several, are wanted")
        lists = [copies] if isinstance(copies, ExpertCopies) else list(copies)
        for each in lists:
            if not isinstance(each, ExpertCopies):
                raise TypeError(f"copies holds a {type(each).__name__}; a strata.ExpertCopies is wanted")
        slot_bytes = max((each.slot_bytes for each in lists), default=0)
        if slot_bytes == 0:
            raise ValueError("copies has no entry with bytes; slot_bytes must then be given to strata.ExpertStreamer")
        return cls(slot_bytes, **arguments)

    # --- what it is ---------------------------------------------------------------------------------------------

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot."""
        return self._core.slot_bytes

    @property
    def gpu_ring(self) -> int:
        """Number of slots."""
        return self._core.gpu_ring

    @property
    def host_ring(self) -> int:
        """Number of host buffers."""
        return self._core.host_ring

    @property
    def settings(self) -> BatchSettings:
        """The batches of a long prefill, clamped to the rings."""
        return self._settings

    @property
    def submission(self) -> Submission:
        """``"single"``, ``"group"`` or ``"coalesced"``: how copies are submitted after all."""
        return self._submission

    @property
    def share_dependencies(self) -> bool:
        """Whether entries share waits and records that stream order makes redundant."""
        return self._share_dependencies

    @property
    def run_ahead(self) -> int:
        """Entries beyond the last one consumed that may be submitted, where a request does not say otherwise."""
        return self._run_ahead

    @property
    def slots(self) -> tuple[int, ...]:
        """Device addresses of the slots, in ring order, of the latest request."""
        if self._lent is not None and not self._core.running:
            return tuple(int(a) for a in self._lent)
        return self._core.slot_addresses()

    @property
    def copy_stream(self) -> int:
        """Handle of the stream that the copies go on."""
        return self._core.copy_stream

    @property
    def compute_stream(self) -> int:
        """Handle of the streamer's own or lent stream for the engine's kernels; it never changes.

        A request that was lent another one runs on that: see `Request.compute_stream`.
        """
        return self._core.compute_stream

    @property
    def device(self) -> int:
        """The device that everything belongs to."""
        return self._device

    @property
    def max_held(self) -> int:
        """Slots that can always be held at once, whatever the list: the ring less the longest group, plus 1.

        Where `run_ahead` is less than the ring, it is what counts.
        """
        return self._run_ahead - max(self._settings.copy_batch, self._settings.stage_copy_batch) + 1

    @property
    def counters(self) -> Counters:
        """Counters of all requests so far, the running one included."""
        return self._core.counters()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._core.closed

    # --- what it does ---------------------------------------------------------------------------------------------

    def begin(
        self,
        copies: ExpertCopies | None = None,
        *,
        long_prefill: bool = True,
        slots: Sequence[int] | npt.NDArray[Any] | None = None,
        compute_stream: Any = None,
        run_ahead: int | None = None,
    ) -> Request:
        """Begin a request: one pass over one list of entries.

        Parameters
        ----------
        copies : ExpertCopies, optional
            The list, or its beginning; `Request.extend` appends to it.
        long_prefill : bool, optional
            False for a short prefill or decode: one dependency an entry, whatever is set.
        slots : sequence of int, optional
            Lent slots for this request, as many as the ring has. Default: those of the streamer.
        compute_stream : int or stream, optional
            Stream of this request's kernels, which must live until the request has ended; strata does not touch it
            after that. Default: the streamer's.
        run_ahead : int, optional
            Entries beyond the last one consumed that may be submitted, 1 to the ring's depth. Default: the
            streamer's.

        Returns
        -------
        Request

        Raises
        ------
        StrataError
            If a request is still running, or the streamer is closed, broken, or in use by another thread, or this is
            the child of a fork. Where the last request's `finish` was interrupted, it is ended first, and what it
            failed with is raised.
        TypeError, ValueError
            Naming the argument; nothing was started.
        HipError
            If the begin fence fails; where a lent stream is gone, it says which. Nothing was started.
        MemoryError
            If `copies` has staged entries and there is no host memory for the ring, with the bytes asked for.
        RequestAborted
            If what Python ran in between (a signal handler, a finalizer) ended the request.
        """
        if copies is not None and not isinstance(copies, ExpertCopies):
            raise TypeError(f"copies is {type(copies).__name__}; a strata.ExpertCopies is wanted")
        long_prefill = _flag("long_prefill", long_prefill)
        stream_object = compute_stream
        compute_stream = _handle("compute_stream", compute_stream)
        core = self._core
        stream = core.compute_stream if compute_stream is None else compute_stream
        if compute_stream is not None and compute_stream != core.compute_stream:
            _device(self._device, None, None, compute_stream)
        if slots is not None:
            lent: npt.NDArray[np.uintp] | None = _lent("slots", slots, self.slot_bytes, self._device)
            assert lent is not None
            if len(lent) != self.gpu_ring:
                raise ValueError(f"slots has {len(lent)}; the ring has {self.gpu_ring}")
        else:
            lent = self._lent
        ahead = self._run_ahead if run_ahead is None else _count("run_ahead", run_ahead, 1, self.gpu_ring)
        settings = _bounded(self._asked, ahead) if long_prefill else _SINGLE
        request = begin_request(core, settings, copies, lent, stream, settings, ahead)
        self._request_stream = stream_object  # kept alive while the request may use it
        return request

    def close(self) -> None:
        """Abort what runs, wait until the last kernel that reads an owned slot is done, free everything.

        Idempotent.

        Raises
        ------
        StrataError
            If a driver call has not returned, or the device cannot be waited for: what it may still touch is left
            allocated, and the message says how much. If another thread waits in a call of this streamer's: nothing is
            closed then. If the calling thread could not be given its device back: the streamer is closed.
        HipError
            As the last, where the streamer never ran.

        Notes
        -----
        An array that `Slot.array` gave keeps the slots' memory until it is gone.
        """
        self._core.close()
        _open.discard(self)

    def __enter__(self) -> ExpertStreamer:
        if self._core.closed:
            raise StrataError("this streamer is closed")
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an ExpertStreamer cannot be copied or pickled: it owns threads, events and device memory of "
                        "this process")

    def __repr__(self) -> str:
        state = "closed" if self._core.closed else "request running" if self._core.running else "idle"
        return (f"<strata.ExpertStreamer: {self.gpu_ring} slots of {self.slot_bytes} bytes, host ring "
                f"{self.host_ring}, {self._settings}, {state}>")


def _count(name: str, value: object, least: int, most: int) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} is {value!r}; an integer from {least} is wanted")
    if not least <= int(value) <= most:
        raise ValueError(f"{name} is {value}; it must be from {least} to {most}")
    return int(value)


def _bounded(settings: BatchSettings, run_ahead: int) -> BatchSettings:
    """Return the batches with no group longer than what may be submitted at all."""
    return BatchSettings(min(settings.copy_batch, run_ahead), settings.stage_batch,
                         min(settings.stage_copy_batch, run_ahead))


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {value!r}; True or False is wanted")
    return bool(value)


def _host_bytes(host_ring: int, buffer_bytes: int) -> None:
    """Refuse a host ring that no host has memory for. Whether this one has is asked when the buffers are made."""
    needed = host_ring * buffer_bytes
    if needed >= _ABSURD_BYTES:
        raise ValueError(f"host_ring is {host_ring}: {needed} bytes for buffers of {buffer_bytes} bytes are more than "
                         f"any host has (less than {_ABSURD_BYTES} is allowed)")


def _handle(name: str, value: object) -> int | None:
    """Return a stream's raw handle: an int, an object with ``__cuda_stream__``, or torch's ``cuda_stream``."""
    if value is None:
        return None
    if hasattr(value, "__cuda_stream__"):
        made = value.__cuda_stream__
        version, value = made() if callable(made) else made
        if version != 0:
            raise TypeError(f"{name} speaks version {version} of __cuda_stream__; 0 is known")
    elif hasattr(value, "cuda_stream"):
        value = value.cuda_stream
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        hint = "; pass its .ptr" if hasattr(value, "ptr") else ""
        raise TypeError(f"{name} is {value!r}; a raw stream handle (int) or an object with __cuda_stream__ is wanted"
                        f"{hint}")
    if not 0 <= int(value) < 2**64:
        raise ValueError(f"{name} is {value}; a raw stream handle lies from 0 to 2**64 - 1")
    return int(value)


def _lent(name: str, slots: object, slot_bytes: int, device: int) -> npt.NDArray[np.uintp]:
    """Check lent slots: device addresses, distinct and apart by a slot's bytes at least."""
    if not isinstance(slots, np.ndarray):
        try:
            values = [operator.index(address) for address in slots]  # type: ignore[attr-defined]
        except TypeError:
            raise TypeError(f"{name} is {slots!r}; a sequence of device addresses (int) is wanted") from None
        if any(not 0 <= address < 2**64 for address in values):
            raise ValueError(f"{name} has a value outside 0 to 2**64 - 1; device addresses are wanted")
        slots = np.array(values, dtype=np.uint64)
    given = slots
    if given.ndim != 1:
        raise ValueError(f"{name} has {given.ndim} dimensions; 1 is wanted")
    if given.shape[0] == 0:
        raise ValueError(f"{name} is empty; at least 1 slot is wanted")
    if given.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {given.dtype}; integer device addresses are wanted")
    if given.dtype.kind == "i" and int(given.min()) < 0:
        raise ValueError(f"{name} has {int(given.min())}; a device address is positive")
    addresses = np.array(given, dtype=np.uintp)  # a copy: later edits of the caller's do not matter
    order = np.argsort(addresses, kind="stable")
    if int(addresses[order[0]]) == 0:
        raise ValueError(f"{name}[{int(order[0])}] is 0; a device address is wanted")
    gaps = np.diff(addresses[order])
    close = np.flatnonzero(gaps < slot_bytes)
    if close.size:
        first, second = sorted((int(order[close[0]]), int(order[close[0] + 1])))
        how = "repeats" if int(gaps[close[0]]) == 0 else "overlaps"
        raise ValueError(f"{name}[{second}] ({int(addresses[second]):#x}) {how} {name}[{first}] "
                         f"({int(addresses[first]):#x}): slots of {slot_bytes} bytes must lie apart")
    for k, address in enumerate(addresses.tolist()):
        for end in (address, address + slot_bytes - 1):
            kind, where = _hip.memory_type(end)
            if kind not in (2, 3):
                raise ValueError(f"{name}[{k}] is {address:#x}, whose {slot_bytes} bytes are not all device memory "
                                 f"of the {runtime.current()} runtime")
            if where != device:
                raise ValueError(f"{name}[{k}] lies on device {where}; the streamer's is {device}")
    return addresses


def _device(device: int | None, slots: object, copy_stream: int | None, compute_stream: int | None) -> int:
    """Return the device that everything belongs to; what is lent must agree."""
    if device is not None:
        count = _hip.device_count()
        device = _count("device", device, 0, count - 1)
    chosen = device
    source = "device"
    for name, stream in (("copy_stream", copy_stream), ("compute_stream", compute_stream)):
        if not stream:
            continue  # the null stream is every device's
        where = _hip.stream_device(stream, name)
        if chosen is None:
            chosen, source = where, name
        elif chosen != where:
            raise ValueError(f"{name} belongs to device {where}, and {source} says {chosen}")
    if chosen is None and slots is not None:
        first = slots[0] if np.ndim(slots) == 1 and len(slots) else None  # type: ignore[arg-type, index]
        if isinstance(first, (int, np.integer)) and 0 < int(first) < 2**64:
            kind, where = _hip.memory_type(int(first))
            if kind in (2, 3):
                chosen = where
    return _hip.current_device() if chosen is None else chosen


def _on_device(device: int, ask: Any) -> Any:
    """Ask something of a device and leave the thread's current one as it was."""
    before = _hip.current_device()
    if before == device:
        return ask()
    _hip.use_device(device)
    try:
        return ask()
    finally:
        _hip.use_device(before)


def _default_workers() -> int:
    # On an H200 with 16 processors 12 workers read experts of 9.4 MB from files faster than 8 (docs/evidence.md).
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(12, usable * 3 // 4))


@atexit.register
def _close_all() -> None:
    """End the threads before the interpreter goes: the process always exits."""
    if _hip.is_forked():
        return
    for streamer in list(_open):
        core = streamer._core
        try:
            if core.in_use:
                # Another thread waits in there, and will not be back: it dies with the process.
                core.cancel()
                continue
            core.close(_EXIT_TIMEOUT_S)
        except Exception as problem:
            print(f"strata: at exit: {problem}", file=sys.stderr)
