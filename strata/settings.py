"""Batch settings, and the environment variables that strata reads.

Nothing is read at import: each function reads its variables when it is called, so a bad value is an error
of the call that needed it. A variable that is unset, or holds only white space, stands for its default.
"""

from __future__ import annotations

import logging
import numbers
import operator
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ._process_lock import ProcessLock
from .errors import SettingsError

__all__ = [
    "BatchSettings",
    "Submission",
    "chosen_submission",
    "gpu_ring_from_env",
    "host_ring_from_env",
    "recommended_gpu_ring",
    "timing_from_env",
    "warn_of_starving",
]

#: How copies are submitted: one by one, a group in one call, or neighbours as one.
Submission = Literal["single", "group", "coalesced"]

#: Most entries that share one ``copied`` record among direct entries, however long the GPU ring is.
MAX_COPY_BATCH = 32

#: Host buffers where nothing asks for more; fewer where so many are larger than the last-level cache.
DEFAULT_HOST_RING = 16
LEAST_DEFAULT_HOST_RING = 4
MIN_HOST_RING = 2
MAX_HOST_RING = 256

DEFAULT_GPU_RING = 96
MIN_GPU_RING = 16
#: A GPU ring that no code asked for takes at most one part in so many of the free device memory.
GPU_RING_MEMORY_SHARE = 4

#: Bytes of an entry from and up to which grouped submission was measured to pay on an H200 (64 KiB and 1.38 MB; at
#: 9.4 MB single copies reach the link), and the shortest batches that it was measured with.
GROUPED_BYTES = (64 * 1024, 4 * 1024 * 1024)
GROUPED_BATCH = 8

#: Depth that pays where nearly everything is pinned, and from which share on.
PINNED_GPU_RING = 384
PINNED_GPU_RING_SHARE = 0.9

#: Field of `BatchSettings` -> (its variable, what the variable may hold).
_BATCH_VARIABLES = {
    "copy_batch": ("STRATA_HIP_COPY_BATCH", f"1 to min(gpu_ring, {MAX_COPY_BATCH})"),
    "stage_batch": ("STRATA_HIP_STAGE_BATCH", "1 to host_ring"),
    "stage_copy_batch": ("STRATA_HIP_STAGE_COPY_BATCH", "1 to min(gpu_ring, host_ring)"),
}

_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}\Z", re.ASCII)

_log = logging.getLogger("strata")
_ignored_lock = ProcessLock()
_ignored_logged = False
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_starving_logged: set[str] = set()


def _integer(name: str, value: object) -> int:
    """`value` as an int; a bool or anything that is no integer raises ``TypeError``."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {value!r}: an integer is needed")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}): an integer is needed") from None


def _at_least(name: str, value: object, least: int) -> int:
    number = _integer(name, value)
    if number < least:
        raise ValueError(f"{name} is {number}: {least} or more is needed")
    return number


def _variable(environ: Mapping[str, str] | None, name: str) -> str | None:
    """The variable's text without white space around it; None where it is unset or blank."""
    if environ is not None and not isinstance(environ, Mapping):
        raise TypeError(f"environ is {environ!r}; a mapping of str to str is wanted")
    text = (os.environ if environ is None else environ).get(name, "")
    if not isinstance(text, str):
        raise SettingsError(f"{name}={text!r} is no text: values of environment variables are str")
    return text.strip() or None


def _integer_variable(environ: Mapping[str, str] | None, name: str, allowed: str) -> int | None:
    text = _variable(environ, name)
    if text is None:
        return None
    if _INTEGER.match(text) is None:
        raise SettingsError(f"{name}={text!r} is no integer: {allowed} is allowed (clamped beyond)")
    return int(text)


@dataclass(frozen=True)
class BatchSettings:
    """How many entries share one dependency. Immutable; may be shared between threads.

    Parameters
    ----------
    copy_batch : int, default 1
        Most direct entries that share one ``copied`` record and one reuse wait.
    stage_batch : int, default 1
        Most jobs (staged entries) that share one ``dma_done`` record.
    stage_copy_batch : int, default 1
        Most staged entries that share one ``copied`` record and one reuse wait.

    Raises
    ------
    TypeError
        A value is no integer (a bool is none).

    Notes
    -----
    Any integer is taken: how far a batch may go depends on the rings, so `clamped` brings it into its range
    once they are known. What is passed in code counts on every platform.
    """

    copy_batch: int = 1
    stage_batch: int = 1
    stage_copy_batch: int = 1

    def __post_init__(self) -> None:
        for name in _BATCH_VARIABLES:
            object.__setattr__(self, name, _integer(name, getattr(self, name)))

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        platform: str | None = None,
        *,
        runtime: str | None = None,
    ) -> BatchSettings:
        """Read ``STRATA_HIP_COPY_BATCH``, ``STRATA_HIP_STAGE_BATCH`` and ``STRATA_HIP_STAGE_COPY_BATCH``.

        They are honoured with HIP on Windows alone, where a dependency is expensive. Elsewhere they are
        ignored, whatever they hold, and logger ``strata`` says so once a process (at INFO) if one is set.

        Parameters
        ----------
        environ : mapping of str to str, optional
            Where to look; ``os.environ`` by default.
        platform : str, optional
            As ``sys.platform``, which is the default.
        runtime : str, optional
            Name of the process's runtime. ``"rocm"`` and None (not known) count as HIP.

        Returns
        -------
        BatchSettings
            Not clamped; 1 for each variable that is unset or ignored.

        Raises
        ------
        SettingsError
            A variable that is honoured holds no integer.
        """
        if platform is None:
            platform = sys.platform
        if platform != "win32" or runtime not in (None, "rocm"):
            _say_ignored(environ, platform, runtime)
            return cls()
        values = {}
        for field, (variable, allowed) in _BATCH_VARIABLES.items():
            value = _integer_variable(environ, variable, allowed)
            if value is not None:
                values[field] = value
        return cls(**values)

    def clamped(self, gpu_ring: int, host_ring: int, *, merged: bool = False) -> BatchSettings:
        """These settings, each batch brought into the range that the rings allow.

        Parameters
        ----------
        gpu_ring : int
            Slots of the GPU ring, 1 or more.
        host_ring : int
            Buffers of the host ring, 1 or more.
        merged : bool, optional
            Whether neighbours become one copy (``submission="coalesced"``): then a direct group may be as long as the
            ring.

        Returns
        -------
        BatchSettings
            ``copy_batch`` in 1 … min(gpu_ring, 32), or 1 … gpu_ring if `merged`; ``stage_batch`` in
            1 … host_ring; ``stage_copy_batch`` in 1 … min(gpu_ring, host_ring).

        Raises
        ------
        TypeError, ValueError
            A ring is no integer, or below 1.
        """
        gpu_ring = _at_least("gpu_ring", gpu_ring, 1)
        host_ring = _at_least("host_ring", host_ring, 1)
        return BatchSettings(
            copy_batch=max(1, min(self.copy_batch, gpu_ring, gpu_ring if merged else MAX_COPY_BATCH)),
            stage_batch=max(1, min(self.stage_batch, host_ring)),
            stage_copy_batch=max(1, min(self.stage_copy_batch, gpu_ring, host_ring)),
        )


def _say_ignored(environ: Mapping[str, str] | None, platform: str, runtime: str | None) -> None:
    """Log, once a process, that batch variables which are set have no effect here."""
    global _ignored_logged
    names = [variable for variable, _ in _BATCH_VARIABLES.values() if _variable(environ, variable)]
    if not names:
        return
    with _ignored_lock:
        if _ignored_logged:
            return
        _ignored_logged = True
    _log.info(
        "%s ignored: honoured with HIP on Windows alone, this is platform %s, runtime %s; "
        "BatchSettings passed in code count everywhere",
        ", ".join(names),
        platform,
        runtime or "not chosen yet",
    )


def host_ring_from_env(
    environ: Mapping[str, str] | None = None,
    *,
    slot_bytes: int | None = None,
    longest_batch: int = 1,
    workers: int = 1,
) -> int:
    """The host ring's depth where the engine names none: ``STRATA_STAGER_RING``, else one that does not starve.

    Parameters
    ----------
    environ : mapping of str to str, optional
        Where to look; ``os.environ`` by default.
    slot_bytes : int, optional
        Size of a buffer, bytes, 1 or more. Default: not known.
    longest_batch : int, optional
        The longer of ``stage_batch`` and ``stage_copy_batch``, before they are clamped.
    workers : int, optional
        Threads that fill the buffers.

    Returns
    -------
    int
        Buffers: the variable's value, clamped to 2 … 256. Where it is unset, 16, or as many as the last-level cache
        holds where that is less (what a worker has written is read by the copy next: larger rings were slower); in
        any case 4, one a worker, and twice the longest batch, so that one is filled while another is copied; 256 at
        most.

    Raises
    ------
    SettingsError
        The variable holds no integer.
    """
    allowed = f"{MIN_HOST_RING} to {MAX_HOST_RING}"
    depth = _integer_variable(environ, "STRATA_STAGER_RING", allowed)
    if depth is None:
        depth = DEFAULT_HOST_RING
        cache = _last_level_cache_bytes()
        if slot_bytes is not None and cache is not None:
            depth = min(depth, cache // _at_least("slot_bytes", slot_bytes, 1))
        depth = max(depth, LEAST_DEFAULT_HOST_RING, workers, 2 * longest_batch)
    return max(MIN_HOST_RING, min(depth, MAX_HOST_RING))


def _last_level_cache_bytes() -> int | None:
    """Bytes of the largest cache that a processor can reach; None where the system does not tell (it is Linux's to)."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    found = []
    for file in _CACHES.glob("index*/size"):
        try:
            text = file.read_text(encoding="ascii").strip()
            found.append(int(text[:-1]) * units[text[-1]])
        except (OSError, ValueError, KeyError, IndexError):
            continue
    return max(found, default=None)


def chosen_submission(slot_bytes: int, settings: BatchSettings, host_ring: int) -> Submission:
    """How copies are submitted where nobody says: by what was measured to pay.

    Parameters
    ----------
    slot_bytes : int
        Size of the largest entry, bytes.
    settings : BatchSettings
        Clamped.
    host_ring : int
        Host buffers.

    Returns
    -------
    {"single", "group"}
        *group* for entries of 64 KiB to 4 MiB with batches of 8 or more, where the host ring holds two staged ones.
    """
    least, most = GROUPED_BYTES
    pays = least <= slot_bytes <= most and max(settings.copy_batch, settings.stage_copy_batch) >= GROUPED_BATCH
    return "group" if pays and host_ring >= 2 * settings.stage_copy_batch else "single"


def warn_of_starving(settings: BatchSettings, host_ring: int, workers: int) -> None:
    """Log (at WARNING), once for each text, that workers wait where they should fill the next buffers.

    Parameters
    ----------
    settings : BatchSettings
        Clamped.
    host_ring, workers : int
        Buffers, and the threads that fill them.
    """
    longest = max(settings.stage_batch, settings.stage_copy_batch)
    texts = []
    if longest >= host_ring:
        texts.append(f"a staged batch of {longest} over a host ring of {host_ring}: no buffer is filled while the "
                     f"batch is copied, which halves the speed; a host_ring of {2 * longest} or more does not starve")
    if workers > host_ring:
        texts.append(f"{workers} workers over a host ring of {host_ring}: they wait for buffers; a host_ring of "
                     f"{2 * workers} or fewer workers do not starve")
    for text in texts:
        with _ignored_lock:
            if text in _starving_logged:
                continue
            _starving_logged.add(text)
        _log.warning("%s", text)


def gpu_ring_from_env(environ: Mapping[str, str] | None = None, *, free_bytes: int, slot_bytes: int) -> int:
    """The GPU ring's depth where the engine names none and lends no slots: ``STRATA_PREFILL_RING``.

    Parameters
    ----------
    environ : mapping of str to str, optional
        Where to look; ``os.environ`` by default.
    free_bytes : int
        Free device memory, bytes, 0 or more.
    slot_bytes : int
        Size of a slot, bytes, 1 or more.

    Returns
    -------
    int
        Slots: the variable's value, or 96 where it is unset, clamped to 16 … a quarter of `free_bytes`. The
        upper limit is the stronger one: where a quarter holds fewer than 16 slots, so many are taken as it
        holds, and one where it holds none.

    Raises
    ------
    SettingsError
        The variable holds no integer.
    TypeError, ValueError
        `free_bytes` or `slot_bytes` is no integer, or too small.
    """
    free_bytes = _at_least("free_bytes", free_bytes, 0)
    slot_bytes = _at_least("slot_bytes", slot_bytes, 1)
    most = max(1, free_bytes // GPU_RING_MEMORY_SHARE // slot_bytes)
    allowed = f"{MIN_GPU_RING} to a quarter of the free device memory ({most} slots)"
    value = _integer_variable(environ, "STRATA_PREFILL_RING", allowed)
    return min(max(MIN_GPU_RING, DEFAULT_GPU_RING if value is None else value), most)


def timing_from_env(environ: Mapping[str, str] | None = None) -> bool:
    """Whether ``STRATA_PREFILL_TIMING`` turns the timed categories on.

    Parameters
    ----------
    environ : mapping of str to str, optional
        Where to look; ``os.environ`` by default.

    Returns
    -------
    bool
        True for ``1``; False for ``0`` and where the variable is unset.

    Raises
    ------
    SettingsError
        The variable holds anything else.
    """
    text = _variable(environ, "STRATA_PREFILL_TIMING")
    if text not in (None, "0", "1"):
        raise SettingsError(f"STRATA_PREFILL_TIMING={text!r}: 0 or 1 is allowed")
    return text == "1"


def recommended_gpu_ring(pinned_share: float) -> int:
    """A good depth for the GPU ring, by how much of the streamed bytes is pinned.

    Parameters
    ----------
    pinned_share : float
        Bytes in pinned memory over all bytes, 0 to 1 (`ExpertCopies.pinned_share` says it of a list).

    Returns
    -------
    int
        384 slots from a share of 0.9 up, else 96.

    Raises
    ------
    TypeError
        `pinned_share` is no number.
    ValueError
        `pinned_share` lies outside 0 … 1.
    """
    if isinstance(pinned_share, (bool, np.bool_)) or not isinstance(pinned_share, numbers.Real):
        raise TypeError(f"pinned_share is {pinned_share!r} ({type(pinned_share).__name__}): 0 to 1 is allowed")
    if not 0.0 <= pinned_share <= 1.0:
        raise ValueError(f"pinned_share is {pinned_share!r}: 0 to 1 is allowed")
    return PINNED_GPU_RING if pinned_share >= PINNED_GPU_RING_SHARE else DEFAULT_GPU_RING
