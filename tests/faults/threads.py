"""Which threads of the process are strata's, and how a test gets hold of one kind of them.

Injections and the log of calls go by a thread's system name. strata gives each a name of its own; a test that wants one
name for all workers, or tells streamers apart, has strata name them otherwise.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from strata.engine import threads
from strata.runtime.software import control

ISSUER = "issuer"
WORKER = "worker"
ENGINE = "engine"
ROLES = (ENGINE, ISSUER, WORKER)

_roles: list[str] = []  # of the one thread that tests run on


@contextlib.contextmanager
def threads_named(name: str) -> Iterator[None]:
    """Threads of strata's that start in here get this system name."""
    threads.rename(name)
    try:
        yield
    finally:
        threads.rename(None)


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
