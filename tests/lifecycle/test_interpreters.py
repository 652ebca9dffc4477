"""The main interpreter of a process has strata: another is told so, each time, and disturbs nothing."""

from __future__ import annotations

import sys

import pytest

from tests.support.scripts import ended_well, run_script

IN_ANOTHER = """
import _xxsubinterpreters as interpreters
other = interpreters.create()

def import_there():
    try:
        interpreters.run_string(other, "import strata")
    except interpreters.RunFailedError as problem:
        print(problem, flush=True)
"""

USE = """
import numpy as np
import strata
strata.runtime.use("software")
staged = strata.ExpertCopies.from_buffers(list(np.zeros((64, 64), np.uint8)))
with strata.ExpertStreamer(64, gpu_ring=4) as streamer, streamer.begin(staged) as request:
    request.skip(64)
print(request.counters.staged_copies, flush=True)
"""


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the private module has another name there")
@pytest.mark.parametrize("order", ["there first", "here first"])
def test_an_import_in_a_subinterpreter_fails_alike_each_time_and_the_main_one_works(order: str) -> None:
    steps = ["import_there()", USE] if order == "there first" else [USE, "import_there()"]
    out = ended_well(run_script(IN_ANOTHER + "\n".join([*steps, "import_there()"]), prologue=""))
    refusals = [line for line in out if line != "64"]
    assert len(out) == 3
    assert len(refusals) == 2
    assert refusals[0] == refusals[1]
    assert "strata works in a process's main interpreter alone, and this is a subinterpreter" in refusals[0]
