"""The host stager: the host ring by itself, for an engine that issues its own copies."""

from __future__ import annotations

import atexit
import sys
import weakref
from dataclasses import replace
from typing import Any, NoReturn

from strata import _hip, runtime
from strata.copies import ExpertCopies
from strata.counters import Counters
from strata.engine.core import check_timeout
from strata.engine.stager import StagerCore
from strata.errors import StrataError
from strata.settings import BatchSettings, host_ring_from_env, warn_of_starving
from strata.streamer import (
    _EXIT_TIMEOUT_S,
    _MAX_RING,
    _MAX_WORKERS,
    _count,
    _default_workers,
    _flag,
    _handle,
    _host_bytes,
)

__all__ = ["HostStager"]

_FROM_ENVIRONMENT: Any = object()
_open: weakref.WeakSet[HostStager] = weakref.WeakSet()


class HostStager:
    """Fills a ring of pinned host buffers from pageable memory, ahead of the engine's copies.

    Staged entries are numbered 0, 1, 2, … in list order: that number is the entry's *job*. Job `j` lies in
    buffer ``j % host_ring``. A buffer is filled again only once the DMA that read it is done.

    Parameters
    ----------
    buffer_bytes : int
        Bytes of a buffer: at least the largest entry's.
    host_ring : int, optional
        Number of buffers. Default: ``STRATA_STAGER_RING``, else 16 or what the last-level cache holds, and at least
        twice `stage_batch`. Allocated at the first staged entry.
    workers : int, optional
        Threads that fill them, 1 to 64. Default: three quarters of the processors that
        this process may use, 1 to 12, and no more than buffers.
    stage_batch : int, optional
        Jobs that share one ``dma_done`` record; clamped to 1 … `host_ring`. Default: ``STRATA_HIP_STAGE_BATCH``, which
        is honoured with HIP on Windows alone (see `BatchSettings.from_env`), else 1.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, its value and what is allowed.
    SettingsError
        If an environment variable that is read holds no integer.
    RuntimeNotFound
        If no HIP runtime can be opened.
    StrataError
        If this is the child of a fork; so does every method.
    HipError
        If the device cannot be asked.
    MemoryError
        If the system gives no more memory or threads.

    Notes
    -----
    A context manager, used by one thread. What waits (`wait`, `finish`, `abort`, `close`) can be interrupted by
    Ctrl-C: the request is not lost then, and ends with the next `finish`, `abort` or `close`.

    Examples
    --------
    >>> with HostStager(nbytes) as stager:                        # doctest: +SKIP
    ...     stager.start(copies)
    ...     for job in range(jobs):
    ...         copy_async(device, stager.wait(job), nbytes, stream)
    ...         stager.submitted(job, stream)
    ...     stager.finish()
    """

    def __init__(
        self, buffer_bytes: int, *, host_ring: int | None = None, workers: int | None = None,
        stage_batch: int = _FROM_ENVIRONMENT,
    ) -> None:
        buffer_bytes = _count("buffer_bytes", buffer_bytes, 1, 2**46)
        if host_ring is not None:
            host_ring = _count("host_ring", host_ring, 1, _MAX_RING)
            _host_bytes(host_ring, buffer_bytes)
        if workers is not None:
            workers = _count("workers", workers, 1, _MAX_WORKERS)
        batches = None if stage_batch is _FROM_ENVIRONMENT else BatchSettings(stage_batch=stage_batch)
        name = runtime.ensure()
        if batches is None:
            batches = BatchSettings.from_env(runtime=name)
        if host_ring is None:
            host_ring = host_ring_from_env(
                slot_bytes=buffer_bytes, longest_batch=batches.stage_batch, workers=workers or 1)
        if workers is None:
            workers = min(_default_workers(), host_ring)
        batches = replace(batches.clamped(host_ring, host_ring), stage_copy_batch=1)
        warn_of_starving(batches, host_ring, workers)
        self._core = StagerCore(buffer_bytes, host_ring, workers, batches.stage_batch,
                                _hip.current_device())
        _open.add(self)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of a buffer."""
        return self._core.buffer_bytes

    @property
    def host_ring(self) -> int:
        """Number of buffers."""
        return self._core.host_ring

    @property
    def stage_batch(self) -> int:
        """Jobs that share a ``dma_done`` record, clamped."""
        return self._core.stage_batch

    @property
    def jobs(self) -> int:
        """Staged entries of the running request."""
        return self._core.jobs

    @property
    def pinned_buffers(self) -> tuple[bool, ...]:
        """Which buffers are pinned; empty before the first staged entry."""
        return self._core.pinned_buffers()

    @property
    def counters(self) -> Counters:
        """A snapshot of the latest request's counters: the host ring's."""
        return self._core.counters()

    def start(self, copies: ExpertCopies, long_prefill: bool = True) -> None:
        """Begin a request: the workers fill buffers with the list's staged entries, in order.

        Parameters
        ----------
        copies : ExpertCopies
            Its direct entries have no job and are the engine's to copy.
        long_prefill : bool, optional
            False: one ``dma_done`` record a job, whatever `stage_batch` is.

        Raises
        ------
        StrataError
            If a request is still running, or the stager is closed or broken.
        TypeError, ValueError
            Naming the argument; if a staged entry does not fit a buffer, or torch has moved a storage of the list.
            Nothing is started.
        HipError
            If an event of the ring's cannot be made.
        MemoryError
            If no buffer can be allocated, with the bytes asked for.
        """
        if not isinstance(copies, ExpertCopies):
            raise TypeError(f"copies is {type(copies).__name__}; a strata.ExpertCopies is wanted")
        copies._check_in_place()
        if len(copies):
            extents = copies.entry_extents()
            large = ((extents > self.buffer_bytes) & (copies.staged != 0)).nonzero()[0]
            if large.size:
                raise ValueError(f"entry {int(large[0])} needs {int(extents[large[0]])} bytes and a buffer has "
                                 f"{self.buffer_bytes}: make buffer_bytes larger")
        self._core.start(copies, self.stage_batch if _flag("long_prefill", long_prefill) else 1)

    def wait(self, job: int, timeout: float | None = None) -> int:
        """Wait until a job's bytes lie in its buffer.

        Returns
        -------
        int
            Address of the buffer, which stays as it is until the job was submitted and its DMA is done.

        Raises
        ------
        ValueError
            If there is no such job, or it was submitted before.
        StrataError
            If the job's buffer is in use until the caller submits an older job.
        TimeoutError
            After `timeout` seconds.
        HipError
            If a worker failed.
        """
        if timeout is not None:
            timeout = check_timeout("timeout", timeout)
        return self._core.wait(_count("job", job, 0, 2**62), timeout)

    def submitted(self, job: int, stream: int) -> None:
        """Say that the job's copy is queued on the stream; its buffer is reused once that copy is done.

        Raises
        ------
        ValueError
            If the job is not the next one, or the stream is another than this request's.
        HipError
            If ``dma_done`` could not be recorded.
        """
        handle = _handle("stream", stream)
        if handle is None:
            raise TypeError("stream is None; a raw stream handle (int) is wanted")
        self._core.submitted(_count("job", job, 0, 2**62), handle)

    def finish(self) -> None:
        """End the request: jobs that were not submitted are dropped; every submitted copy is waited for.

        A no-op where nothing runs.

        Raises
        ------
        HipError
            If a worker failed, or a DMA cannot be waited for; the buffers are never reused then.
        OSError
            If a worker could not read a file.
        StrataError
            If a driver call has not returned, or another thread waits in a call of this stager's.
        """
        self._core.finish()

    def abort(self) -> None:
        """End the request early: workers leave what they are at; every submitted copy is waited for.

        A no-op where nothing runs.

        Raises
        ------
        HipError, StrataError
            As `finish`, but not what a worker has failed with: the request is given up.
        """
        self._core.abort()

    def close(self) -> None:
        """Abort what runs, end the threads, free the buffers. Idempotent.

        Raises
        ------
        StrataError
            If a driver call has not returned, or a DMA cannot be waited for: what it may still touch is left allocated,
            and the message says how much. If another thread waits in a call of this stager's: nothing is closed then.
        """
        self._core.close()
        _open.discard(self)

    def __enter__(self) -> HostStager:
        if self._core.closed:
            raise StrataError("this stager is closed")
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a HostStager cannot be copied or pickled: it owns threads and pinned memory of this process")

    def __repr__(self) -> str:
        state = "closed" if self._core.closed else "running" if self._core.running else "idle"
        return f"<strata.HostStager: {self.host_ring} buffers of {self.buffer_bytes} bytes, {state}>"


@atexit.register
def _close_all() -> None:
    if _hip.is_forked():
        return
    for stager in list(_open):
        try:
            stager._core.close(_EXIT_TIMEOUT_S)
        except Exception as problem:
            print(f"strata: at exit: {problem}", file=sys.stderr)
