"""Which threads of the process are strata's, and how a test gets hold of one kind of them.

A native thread inherits the system name of the thread that starts it. So a test names its own thread before strata
starts one, and then knows each by its name: injections and the log of calls go by it.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from strata.runtime.software import control

ISSUER = "issuer"
WORKER = "worker"
ENGINE = "engine"
ROLES = (ENGINE, ISSUER, WORKER)

_PR_SET_NAME = 15
_libc = ctypes.CDLL(None)
_roles: list[str] = []  # of the one thread that tests run on


def _system_name() -> str:
    return Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text().strip()


def _set_system_name(name: str) -> None:
    assert len(name) < 16, name
    assert _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0) == 0


@contextlib.contextmanager
def threads_named(name: str) -> Iterator[None]:
    """Threads that start in here get this system name; the calling thread keeps its own, and its role."""
    before = _system_name()
    _set_system_name(name)
    try:
        yield
    finally:
        _set_system_name(before)


@contextlib.contextmanager
def in_role(role: str) -> Iterator[None]:
    """The calling thread's HIP calls are logged and counted under a role; within, other roles may be taken."""
    _roles.append(role)
    control.thread_role(role)
    try:
        yield
    finally:
        _roles.pop()
        control.thread_role(_roles[-1] if _roles else None)


def alive(*names: str) -> list[str]:
    """System names of the process's threads that have one of these names."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            name = (task / "comm").read_text().strip()
            if name in names:
                found.append(name)
    return sorted(found)


def asleep(*names: str) -> bool:
    """Whether all threads of these names sleep, and go on sleeping while others may run: they have come to rest."""
    for _ in range(3):
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
                if name in names and rest.split()[0] != "S":
                    return False
        time.sleep(0.001)
    return True


def wait_until(condition, what: str, seconds: float = 60) -> None:
    """Give other threads time to come to where they are going. Fails where they do not."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds} s, still not: {what}"
        time.sleep(0)


def all_ended() -> None:
    """Assert that no thread of a streamer is left. (The system forgets a joined thread a moment later.)"""
    wait_until(lambda: not alive(ISSUER, WORKER), "the issuer and the workers have ended")
