"""The built-in workload: one arm of a replay of the reference request, as one JSON object.

``python -m benchmarks.ab.replay_arm --settings C,S,SC --warmups W --samples N``. Nothing is computed, so there are no
tokens and no first one: the figures are the wall and the copy wait of streaming alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from typing import Any

from strata import runtime
from strata.counters import Counters
from strata.errors import RuntimeNotFound, StrataError
from strata.settings import BatchSettings
from strata.streamer import ExpertStreamer
from strata.tools.cli.arguments import byte_count, positive, settings
from strata.tools.command import BAD_INPUT, FAILED, OK, complain, put, run_command
from strata.tools.replay import Case, InputError, load_case
from strata.tools.replay.passes import check_pass, timed_pass, warm_up
from strata.tools.replay.pools import Sources

__all__ = ["main", "replay_arm"]

_NAME = "python -m benchmarks.ab.replay_arm"
_HASHED = 256  # entries, evenly over the list


def replay_arm(case: Case, batch: BatchSettings, warmups: int, samples: int, pool_bytes: int) -> dict[str, Any]:
    """Check a case's bytes once, then time it.

    Parameters
    ----------
    case : Case
    batch : BatchSettings
    warmups, samples : int
        Requests before those that are measured, and those.
    pool_bytes : int
        Bytes of the pinned and of the pageable pool of sources.

    Returns
    -------
    dict
        What `benchmarks.ab` wants of a process.

    Raises
    ------
    InputError
        A pool cannot hold an entry.
    StrataError
        From streaming, or where a byte arrived wrong: there is no output to compare then.
    """
    sources = Sources(case, pool_bytes)
    with ExpertStreamer(case.expert_bytes, gpu_ring=case.gpu_ring, host_ring=case.host_ring, settings=batch,
                        submission="single", timing=True) as streamer:
        used = streamer.settings
        warm_up(streamer, sources.copies)
        checked = check_pass(streamer, sources, lambda done: None)
        if checked.wrong:
            raise StrataError(f"{checked.wrong} bytes are wrong, the first at entry and offset {checked.first_wrong}")
        for _ in range(warmups):
            timed_pass(streamer, sources.copies)
        measured = [timed_pass(streamer, sources.copies) for _ in range(samples)]
    return {
        "arm": [used.copy_batch, used.stage_batch, used.stage_copy_batch],
        "model": {"case": case.name, "direct": case.direct, "staged": case.staged, "expert_bytes": case.expert_bytes,
                  "gpu_ring": case.gpu_ring, "host_ring": case.host_ring, "pools": sources.pool_bytes},
        "seed": None,
        "fingerprint": _fingerprint(sources, len(case), checked.nbytes),
        "samples": [_sample(seconds, counters) for seconds, counters in measured],
        "runtime": runtime.describe(),
    }


def _fingerprint(sources: Sources, entries: int, checked: int) -> str:
    """Hash what arrived: it was compared with its sources byte by byte, so some of these say it."""
    digest = hashlib.sha256(f"{entries} entries, {checked} bytes".encode())
    for entry in range(0, entries, max(1, entries // _HASHED)):
        digest.update(sources.source(entry).data)
    return digest.hexdigest()


def _sample(seconds: float, counters: Counters) -> dict[str, Any]:
    values = counters.as_dict()
    return {
        "pp_tok_s": None,
        "run_wall_ms": seconds * 1e3,
        "ttft_ms": None,
        "copy_wait_ms": counters.wait_publication_s * 1e3,
        "stall": {name[:-2]: value for name, value in values.items() if name.endswith("_s")},
        "counters": {name: value for name, value in values.items() if not name.endswith("_s")},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run one arm and print its JSON object; 0, or 1 after a failure, or 2 for bad input."""
    parser = argparse.ArgumentParser(prog=_NAME, description=__doc__.splitlines()[0])
    parser.add_argument("--settings", metavar="C,S,SC", type=settings, required=True)
    parser.add_argument("--warmups", metavar="N", type=int, default=2)
    parser.add_argument("--samples", metavar="N", type=positive, default=3)
    parser.add_argument("--case", metavar="FILE", help="default: the reference request")
    parser.add_argument("--pool", metavar="BYTES", type=byte_count, default=2**28, help="default: 256MiB each")
    parser.add_argument("--runtime", choices=runtime.NAMES, help="default: STRATA_HIP_RUNTIME, else auto")
    return run_command(_NAME, lambda: _run(parser.parse_args(argv)))


def _run(arguments: argparse.Namespace) -> int:
    try:
        case = load_case(arguments.case)
        if arguments.runtime is None:
            runtime.ensure()
        else:
            runtime.use(arguments.runtime)
        arm = replay_arm(case, arguments.settings, arguments.warmups, arguments.samples, arguments.pool)
    except (InputError, RuntimeNotFound) as problem:
        return complain(_NAME, None, problem, BAD_INPUT)
    except (StrataError, MemoryError) as problem:
        return complain(_NAME, None, problem, FAILED)
    put(json.dumps(arm))
    return OK


if __name__ == "__main__":
    sys.exit(main())
