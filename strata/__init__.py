"""strata streams Mixture-of-Experts weights from host RAM into a ring of GPU slots while a prefill computes."""

from __future__ import annotations

from pathlib import Path as _Path

from strata._interpreter import refuse_subinterpreter as _refuse_subinterpreter
from strata._source_tree import prefer_built as _prefer_built

_refuse_subinterpreter()
_prefer_built(__name__, _Path(__file__).resolve().parent)

from strata import runtime, sources
from strata._planner import CopyPlan
from strata.copies import ExpertCopies
from strata.counters import Counters
from strata.engine.request import Request
from strata.engine.slot import Slot
from strata.engine.span import Span
from strata.errors import (
    CheckpointError,
    HipError,
    RequestAborted,
    RuntimeNotFound,
    SettingsError,
    SourceReadError,
    StallError,
    StrataError,
)
from strata.layout import SlotLayout
from strata.pinned import pinned_empty, register
from strata.settings import BatchSettings, recommended_gpu_ring
from strata.stager import HostStager
from strata.streamer import ExpertStreamer

__version__ = "0.2.0"

__all__ = [
    "BatchSettings",
    "CheckpointError",
    "CopyPlan",
    "Counters",
    "ExpertCopies",
    "ExpertStreamer",
    "HipError",
    "HostStager",
    "Request",
    "RequestAborted",
    "RuntimeNotFound",
    "SettingsError",
    "Slot",
    "SlotLayout",
    "SourceReadError",
    "Span",
    "StallError",
    "StrataError",
    "get_include",
    "pinned_empty",
    "recommended_gpu_ring",
    "register",
    "runtime",
    "sources",
]


def get_include() -> str:
    """Return the folder to put on a C++ compiler's include path for Cython code that uses ``strata.capi``.

    Returns
    -------
    str
        The headers that strata's pxd files name lie below it.
    """
    return str(_Path(__file__).resolve().parent / "include")
