"""One interpreter of a process has strata: another is told so, each time, and disturbs nothing."""

from __future__ import annotations

import sys

import pytest

from tests.support.scripts import ended_well, run_script


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the private module has another name there")
def test_an_import_in_a_subinterpreter_fails_alike_each_time_and_the_first_interpreter_goes_on() -> None:
    out = ended_well(run_script("""
        import _xxsubinterpreters
        other = _xxsubinterpreters.create()
        for _ in range(2):
            try:
                _xxsubinterpreters.run_string(other, "import warnings; warnings.simplefilter('ignore'); import strata")
            except _xxsubinterpreters.RunFailedError as problem:
                say(problem)
        import importlib
        assert importlib.import_module("strata") is strata
        with strata.ExpertStreamer(64, gpu_ring=4) as streamer, streamer.begin(staged) as request:
            request.skip(64)
        say(request.counters.staged_copies)
        sys.stdout.flush()
        os._exit(0)         # NumPy's part in an interpreter that is destroyed is not what is tested
    """))
    assert len(out) == 3
    assert "can only be loaded into one interpreter per process" in out[0]
    assert out[1:] == [out[0], "64"]
