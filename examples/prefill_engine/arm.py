"""One arm of a measurement: warm-ups, then samples, in this process."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import strata
from examples.prefill_engine.checkpoint import open_checkpoint
from examples.prefill_engine.config import config_from
from examples.prefill_engine.engine import Engine, prompt
from examples.prefill_engine.errors import InputError
from examples.prefill_engine.result import PrefillResult

__all__ = ["OutputsDiffer", "arm_name", "bench_arm", "sample"]

#: Names in the stall split, and the counters that they come from.
_STALL = {"copy_wait": "wait_publication_s", "window": "wait_window_s", "staged_source": "wait_source_s",
          "host_buffer_reuse": "wait_host_reuse_s", "host_memcpy": "host_memcpy_s", "submission": "submission_s",
          "dependency_calls": "dependency_calls_s", "requests_wall": "wall_s"}


class OutputsDiffer(RuntimeError):
    """Identical requests of one process gave different results: nothing measured here means anything."""


def bench_arm(settings: tuple[int, int, int], warmups: int = 2, samples: int = 3, *, walk: str = "auto",
              streamer: str = "strata", shape: str = "default", checkpoint: Path | None = None,
              say: Callable[[str], None] = lambda text: None, **sizes: Any) -> dict[str, Any]:
    """Measure one setting.

    Parameters
    ----------
    settings : (copy_batch, stage_batch, stage_copy_batch)
    warmups, samples : int
        Requests that are not reported, 0 or more, and that are, 1 or more.
    walk : {"all", "routed", "auto"}
    streamer : {"strata", "torch-ring"}
        Another than *strata* has no use for `settings`.
    shape, **sizes
        As `examples.prefill_engine.config.config_from`.
    checkpoint : Path, optional
        Default: in the user's cache.
    say : callable, optional
        Called with a line of progress.

    Returns
    -------
    dict
        ``arm`` (see `arm_name`), ``model``, ``run``, ``walk``, ``seed``, ``runtime``, ``fingerprint`` (hex, of all that
        a request computes), ``samples`` (see `sample`).

    Raises
    ------
    InputError
        Naming the size, its value and what is allowed.
    OutputsDiffer
        If two requests, warm-ups included, gave different results.
    HipError, StrataError
        As strata has it.
    """
    if warmups < 0 or samples < 1:
        raise InputError(f"warmups is {warmups} and samples {samples}: 0 or more and 1 or more are wanted")
    model, run = config_from(shape, **sizes)
    opened = open_checkpoint(model, checkpoint, say=say)
    prints: set[str] = set()
    measured = []
    say("loading the experts")
    with Engine(opened, run, strata.BatchSettings(*settings), streamer=streamer) as engine:
        ids = prompt(model, run.tokens)
        for number in range(warmups + samples):
            gc.collect()
            say(f"request {number + 1} of {warmups + samples}, {warmups} of them to warm up")
            outcome = engine.prefill(ids, walk)
            prints.add(outcome.fingerprint())
            if number >= warmups:
                measured.append(sample(outcome))
        clamped = engine.settings
    if len(prints) != 1:
        raise OutputsDiffer(f"{warmups + samples} identical requests gave {len(prints)} different results")
    return {
        "arm": arm_name(streamer, clamped), "model": model.as_dict(),
        "run": run.as_dict(), "walk": walk, "seed": model.seed, "runtime": strata.runtime.describe(),
        "fingerprint": prints.pop(), "samples": measured,
    }


def arm_name(streamer: str, settings: strata.BatchSettings) -> list[int] | str:
    """What a report calls an arm: its settings; with another streamer than *strata*, which has none, its name."""
    if streamer != "strata":
        return streamer
    return [settings.copy_batch, settings.stage_batch, settings.stage_copy_batch]


def sample(outcome: PrefillResult) -> dict[str, Any]:
    """What a report says of one request.

    Returns
    -------
    dict
        ``pp_tok_s`` (filling the borrowed slots again included), ``run_wall_ms``, ``done_prefill_ms``, ``ttft_ms``,
        ``copy_wait_ms``, ``stall`` (name: seconds), ``counters`` and ``refill_counters`` (name: count).
    """
    counters = outcome.counters.as_dict()
    return {
        "pp_tok_s": outcome.tokens_per_second, "run_wall_ms": outcome.run_wall_s * 1e3,
        "done_prefill_ms": outcome.prefill_s * 1e3, "ttft_ms": outcome.ttft_s * 1e3,
        "copy_wait_ms": outcome.counters.wait_publication_s * 1e3,
        "stall": {name: counters[field] for name, field in _STALL.items()},
        "counters": {name: value for name, value in counters.items() if not name.endswith("_s")},
        "refill_counters": {name: value for name, value in outcome.refill_counters.as_dict().items()
                            if not name.endswith("_s")},
    }
