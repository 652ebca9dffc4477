"""The happens-before checker, with strata's own announcements switched on: what a proof runs under.

The checker of the software runtime sees HIP calls. strata's host threads write host buffers and hand work to each
other without HIP; while a check runs, they announce that, too.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING

from strata.runtime.software import control, library_path

if TYPE_CHECKING:
    from strata.streamer import ExpertStreamer

__all__ = ["checked", "name_handles"]

_HOOKS = (
    "strata_sw_host_write",
    "strata_sw_host_read",
    "strata_sw_handover_release",
    "strata_sw_handover_acquire",
    "strata_sw_label",
)


@contextlib.contextmanager
def checked() -> Iterator[None]:
    """Check everything that runs in this context; ask ``control.findings()`` afterwards.

    Enter and leave it while no streamer has a request.

    Raises
    ------
    StrataError
        If this process runs on another runtime.
    """
    from strata import _hip, runtime
    from strata.errors import StrataError

    if runtime.ensure() != "software":
        raise StrataError(f"the checker is the software runtime's; this process runs on {runtime.current()}")
    library = ctypes.CDLL(str(library_path()))
    addresses = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in _HOOKS]
    control.checker(True)
    _hip.set_announcements(*addresses)
    try:
        yield
    finally:
        _hip.set_announcements(0, 0, 0, 0, 0)
        control.checker(False)


def name_handles(streamer: ExpertStreamer) -> None:
    """Have findings call the streamer's streams and events by their names: ``copy``, ``used[3]``, …

    Host buffers' events exist from the first staged entry on; name them again then.
    """
    for name, handle in streamer._core.handles().items():
        control.name(handle, name)
