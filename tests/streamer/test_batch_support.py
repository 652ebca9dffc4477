"""Grouped submission over libraries that serve batches in part, not at all, or not for long."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import strata
from tests.support.engine import stream_all
from tests.support.libraries import library_without
from tests.support.sources import material

REPOSITORY = Path(strata.__file__).resolve().parents[1]

SCRIPT = """
import logging, sys, pathlib
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
import strata
from strata.runtime import software
if len(sys.argv) > 1:
    software.library_path = lambda: pathlib.Path(sys.argv[1])
from tests.support.engine import stream_all
from tests.support.sources import material
strata.runtime.use("software")
from strata import _hip
from strata.runtime.software import control
assert _hip.last_error() == 0
each = material("d" * 24, 80)
control.reset_calls()
settings = strata.BatchSettings(4, 2, 2)
with strata.ExpertStreamer(80, gpu_ring=12, host_ring=4, settings=settings, submission="group") as streamer:
    stream_all(streamer, each)
    counters = streamer.counters
    calls = control.calls()
    print("COUNTS", streamer.submission, calls.get("hipMemcpyBatchAsync"), calls["hipMemcpyAsync"],
          counters.refused_batches, counters.direct_copy_calls)
with strata.ExpertStreamer(80, gpu_ring=12, host_ring=4, settings=settings, submission="coalesced") as streamer:
    stream_all(streamer, each)
    print("COALESCED", streamer.counters.batch_calls, streamer.counters.direct_copy_calls)
"""


def run(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), *arguments], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("environment", "submission", "said"),
    [
        ({}, "group", None),
        ({"STRATA_SOFTWARE_SCHEDULE": "lazy"}, "group", None),
        ({"STRATA_SOFTWARE_BATCH": "no-attributes"}, "group", "INFO"),
        ({"STRATA_SOFTWARE_BATCH": "no-attributes", "STRATA_SOFTWARE_SCHEDULE": "lazy"}, "group", "INFO"),
        ({"STRATA_SOFTWARE_BATCH": "no-attributes", "STRATA_SOFTWARE_BATCH_READS": "call"}, "single", "WARNING"),
        ({"STRATA_SOFTWARE_BATCH": "unsupported"}, "single", "WARNING"),
        ({"STRATA_SOFTWARE_BATCH_CALLS": "0"}, "single", "WARNING"),
    ],
)
def test_the_probe_makes_the_call_that_requests_make(environment, submission, said) -> None:
    out = run(**environment)
    batches = 6 if submission == "group" else 0
    copies = 0 if submission == "group" else 24
    counts, coalesced = out.rstrip().splitlines()[-2:]
    assert counts.startswith(f"COUNTS {submission} {batches} "), out
    assert counts.endswith(" 0 24"), (copies, out)
    assert coalesced == f"COALESCED {batches} 24", out
    lines = [line for line in out.splitlines() if "hipMemcpyBatchAsync" in line]
    assert len(lines) == (0 if said is None else 1), out
    if said is not None:
        assert lines[0].startswith(said)


def test_a_library_without_batches(tmp_path: Path) -> None:
    out = run(str(library_without("hipMemcpyBatchAsync", tmp_path)))
    assert "COUNTS single 0 " in out
    assert "COALESCED 0 24" in out
    assert "the library has no hipMemcpyBatchAsync" in out


@pytest.mark.parametrize("served", [0, 1, 3])
def test_a_batch_that_is_refused_in_the_middle_of_a_request(served: int, software, caplog) -> None:
    each = material("d" * 24, 80)
    settings = strata.BatchSettings(4, 2, 2)
    with strata.ExpertStreamer(80, gpu_ring=12, host_ring=4, settings=settings, submission="group") as streamer:
        assert streamer.submission == "group"
        software.configure(batch_calls=served)
        try:
            with caplog.at_level("WARNING", "strata"):
                stream_all(streamer, each)
                first = streamer.counters
                stream_all(streamer, each)
        finally:
            software.configure(batch_calls=2**64 - 1)
        assert (first.refused_batches, first.direct_copies, first.direct_copy_calls) == (6 - served, 24, 24)
        assert streamer.counters.refused_batches == 6 - served + 6
        said = [record.getMessage() for record in caplog.records if "hipMemcpyBatchAsync" in record.getMessage()]
        assert len(said) == 1
        assert f"for {6 - served} groups" in said[0]
        stream_all(streamer, each)
        assert streamer.counters.refused_batches == 6 - served + 6
