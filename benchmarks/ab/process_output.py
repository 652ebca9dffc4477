"""What a process of an arm printed: one JSON object, checked field by field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.ab.arms import Arm
from benchmarks.ab.errors import WorkloadError

__all__ = ["ProcessOutput", "Sample", "read_output"]

#: Figures of a sample: whether a workload must have them. A replay, say, has no tokens.
FIGURES = {"pp_tok_s": False, "run_wall_ms": True, "done_prefill_ms": False, "ttft_ms": False, "copy_wait_ms": True}
#: What a peer need not have besides: nobody may know how long it waited.
_PEER_MAY_LACK = ("copy_wait_ms",)


@dataclass(frozen=True)
class Sample:
    """One measured request.

    Attributes
    ----------
    figures : dict of str to float or None
        ``pp_tok_s``, ``run_wall_ms``, ``done_prefill_ms``, ``ttft_ms``, ``copy_wait_ms``.
    stall : dict of str to float
        Seconds by where they went.
    counters : dict of str to int
    """

    figures: dict[str, float | None]
    stall: dict[str, float]
    counters: dict[str, int]


@dataclass(frozen=True)
class ProcessOutput:
    """All that one process says.

    Attributes
    ----------
    settings : tuple of int or None
        The arm's, as they were used: clamped to the rings, it may be. None of a peer.
    model, seed : object
        As printed; they must be equal in all processes.
    workload : dict
        What else the workload says of its input (``run``, ``walk``); equal in all processes, too.
    fingerprint : str
        Of the outputs; equal in all processes, too.
    samples : tuple of Sample
        Measured ones alone.
    runtime : dict
        Anything the workload says of the runtime and the device.
    """

    settings: tuple[int, ...] | None
    model: Any
    seed: Any
    workload: dict[str, Any]
    fingerprint: str
    samples: tuple[Sample, ...]
    runtime: dict[str, Any]


def read_output(text: str, arm: Arm, samples: int) -> ProcessOutput:
    """Read what a process printed on its standard output.

    Raises
    ------
    WorkloadError
        It is no JSON object, a field is missing or wrong, or it is another arm's.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as problem:
        shown = " ".join(text.split())
        raise WorkloadError(f"printed {shown!r:.80}, which is not one JSON object: {problem}") from None
    if not isinstance(data, dict):
        raise WorkloadError(f"printed {data!r:.80}; one JSON object is wanted")
    for field in ("arm", "model", "seed", "fingerprint", "samples"):
        if field not in data:
            raise WorkloadError(f"printed no {field!r}")
    used = arm.check(data["arm"])
    if not isinstance(data["fingerprint"], str) or not data["fingerprint"]:
        raise WorkloadError(f"has the fingerprint {data['fingerprint']!r:.60}; a non-empty text is wanted")
    given = data["samples"]
    if not isinstance(given, list) or len(given) != samples:
        count = f"{len(given)} samples" if isinstance(given, list) else f"samples {given!r:.60}"
        raise WorkloadError(f"printed {count}; {samples} are wanted")
    runtime = data.get("runtime", {})
    if not isinstance(runtime, dict):
        raise WorkloadError(f"has runtime {runtime!r:.60}; an object is wanted")
    return ProcessOutput(
        settings=used,
        model=data["model"],
        seed=data["seed"],
        workload={name: data[name] for name in ("run", "walk") if name in data},
        fingerprint=data["fingerprint"],
        samples=tuple(_sample(one, f"samples[{k}]", arm) for k, one in enumerate(given)),
        runtime=runtime,
    )


def _sample(data: Any, where: str, arm: Arm) -> Sample:
    if not isinstance(data, dict):
        raise WorkloadError(f"has {where} {data!r:.60}; an object is wanted")
    figures: dict[str, float | None] = {}
    may_lack = () if arm.settings is not None else _PEER_MAY_LACK
    for name, needed in FIGURES.items():
        value = data.get(name)
        needed = needed and name not in may_lack
        figures[name] = None if value is None and not needed else _number(value, f"{where}.{name}")
    stall = {name: _number(value, f"{where}.stall.{name}") for name, value in _object(data, "stall", where).items()}
    counters = {}
    for name, value in _object(data, "counters", where).items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise WorkloadError(f"has {where}.counters.{name} {value!r:.60}; an integer is wanted")
        counters[name] = value
    return Sample(figures, stall, counters)


def _object(data: Mapping[str, Any], field: str, where: str) -> dict[str, Any]:
    value = data.get(field)
    if not isinstance(value, dict):
        raise WorkloadError(f"has {where}.{field} {value!r:.60}; an object is wanted")
    return value


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise WorkloadError(f"has {where} {value!r:.60}; a finite number from 0 is wanted")
    return float(value)
