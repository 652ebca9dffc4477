"""Which HIP runtime stands behind strata's calls: *rocm*, *software* or *cuda*.

hip-python's bindings open one library for good, so the choice is made once in a process, before the first
call: by `use`, else by ``STRATA_HIP_RUNTIME``, else *auto*.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator

from strata._process_lock import ProcessLock
from strata.engine import host_functions  # at once: its exit handler then runs after those of streamers and stagers
from strata.errors import SettingsError, StrataError
from strata.runtime import _libraries
from strata.runtime._libraries import Name

__all__ = ["NAMES", "Name", "current", "describe", "ensure", "launch_host", "library", "use"]

NAMES: tuple[Name, ...] = ("rocm", "software", "cuda", "auto")

logger = logging.getLogger("strata")
_lock = ProcessLock()


def current() -> str | None:
    """Return the runtime of this process: ``rocm``, ``software`` or ``cuda``; ``None`` before the choice."""
    from strata import _hip

    return _hip.loaded_runtime()[0]


def library() -> str | None:
    """Return the path of the library that was opened, or ``None`` before the choice."""
    from strata import _hip

    return _hip.loaded_runtime()[1]


def use(name: Name) -> str:
    """Choose the runtime of this process and open it.

    Parameters
    ----------
    name : {"rocm", "software", "cuda", "auto"}
        *rocm*: AMD's ``libamdhip64``, the copy that the process has mapped already, else from the usual
        places. *software*: the runtime that the package ships. *cuda*: the same calls over the NVIDIA
        driver. *auto*: a real, not integrated device where there is one, else *software*.

    Returns
    -------
    str
        The runtime's name; for *auto* the one that was chosen.

    Raises
    ------
    ValueError
        If the name is none of these.
    RuntimeNotFound
        If the library, a device, or a symbol that strata needs is missing. Another runtime may be chosen then, or the
        same one tried again; only where the bindings have opened the library already, no other one can follow.
    StrataError
        If another runtime was chosen before, or HIP was used through the bindings before; in a child that was forked
        after the first use, or while another thread chose.

    Notes
    -----
    Thread-safe. The same name again is a no-op.
    """
    if not isinstance(name, str) or name not in NAMES:
        raise ValueError(f"name is {name!r}; one of {', '.join(NAMES)} is wanted")
    from strata import _hip

    _hip.refuse_child()
    with _lock:
        loaded, path = _hip.loaded_runtime()
        if loaded is not None:
            if name in (loaded, "auto"):
                return str(loaded)
            raise StrataError(
                f"the runtime of this process is {loaded} ({path}); it cannot become {name}: the bindings open "
                "one library for good. Choose it before anything uses HIP"
            )
        chosen: Name = name
        with _signals_held_back(), _hip.choosing():
            if name == "auto":
                chosen, where = _libraries.choose()
                logger.info("HIP runtime: %s (%s)", chosen, where)
            else:
                where = _libraries.find(name)
            _hip.load(chosen, where)
        return chosen


@contextlib.contextmanager
def _signals_held_back() -> Iterator[None]:
    """Block signals in the calling thread, so that those threads do which a driver starts at its first calls.

    A signal goes to any thread that does not block it: a driver's would take what the program waits for by
    `signal.sigwait`. What says that the thread itself has gone wrong is not blocked.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ensure() -> str:
    """Return the runtime of this process, after choosing it from ``STRATA_HIP_RUNTIME`` where nobody did.

    Raises
    ------
    SettingsError
        If the variable holds another word.
    RuntimeNotFound, StrataError
        As `use`.
    """
    from strata import _hip

    _hip.refuse_child()
    loaded = current()
    if loaded is not None:
        return loaded
    name = os.environ.get("STRATA_HIP_RUNTIME", "").strip() or "auto"
    for known in NAMES:
        if known == name:
            return use(known)
    raise SettingsError(f"STRATA_HIP_RUNTIME is {name!r}; one of {', '.join(NAMES)} is allowed")


def launch_host(stream: int, function: Callable[[], object]) -> None:
    """Queue a Python callable on a stream: it runs once what was queued before it is done.

    Parameters
    ----------
    stream : int
        Raw stream handle.
    function : callable
        Called without arguments, with the GIL, on a thread of the runtime. It must not call HIP, nor wait for
        anything that is queued behind it. What it raises goes to ``sys.unraisablehook``: the stream goes on.

    Raises
    ------
    TypeError
        If `stream` is no integer, or `function` is not callable.
    ValueError
        If `stream` is no handle.
    HipError
        If the runtime refuses the stream.

    Notes
    -----
    The GIL is given up for the call. While such a function is queued or runs, no call of strata's keeps the GIL where
    the driver may make it wait, not even for room in a full stream: a function cannot deadlock against the thread that
    queued it, nor against an engine that streams meanwhile.
    """
    from strata.streamer import _handle

    handle = _handle("stream", stream)
    if handle is None:
        raise TypeError("stream is None; a raw stream handle (int) is wanted")
    if not callable(function):
        raise TypeError(f"function is {function!r}; a callable is wanted")
    ensure()
    host_functions.launch_host(handle, function)


def describe() -> dict[str, object]:
    """Return what a report should say of the runtime.

    Returns
    -------
    dict
        ``runtime``, ``library``, ``device`` (its name), ``runtime_version`` and ``driver_version`` as HIP
        reports them.

    Raises
    ------
    RuntimeNotFound, StrataError
        As `use`.
    """
    from strata import _hip

    name = ensure()
    runtime_version, driver_version = _hip.versions()
    return {
        "runtime": name,
        "library": library(),
        "device": _hip.device_name(_hip.current_device()),
        "runtime_version": runtime_version,
        "driver_version": driver_version,
    }

