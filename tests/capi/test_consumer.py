"""An engine in Cython is built against the installed package, outside its source tree, and used."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import strata

OK, END, BUSY, HELD, STOPPED, ORDER, FAILED, NO_MEMORY, INVALID = 0, 1, 2, 3, 4, 5, 6, 7, 10

SETUP = """
from setuptools import Extension, setup
from Cython.Build import cythonize
setup(ext_modules=cythonize([Extension("consumer", ["consumer.pyx"])], quiet=True))
"""


@pytest.fixture(scope="module")
def consumer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("consumer")
    shutil.copy(Path(__file__).with_name("consumer.pyx"), folder)
    (folder / "setup.py").write_text(SETUP)
    # As a user's build finds it: through the folder that the package is installed in.
    environ = {**os.environ, "PYTHONPATH": str(Path(strata.__file__).parent.parent), "CFLAGS": "-O0"}
    built = subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=folder, env=environ,
                           capture_output=True, text=True, timeout=280)
    assert built.returncode == 0, built.stdout + built.stderr
    path = next(folder.glob("consumer*.so"), None) or next(folder.glob("consumer*.pyd"))
    spec = importlib.util.spec_from_file_location("consumer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sources(consumer):
    rng = np.random.default_rng(5)
    pinned = strata.pinned_empty((40, 512), np.uint8)
    pinned[:] = rng.integers(0, 256, pinned.shape, dtype=np.uint8)
    pageable = rng.integers(0, 256, (20, 512), dtype=np.uint8)
    return [*pinned, *pageable]


def test_consumes_a_request_without_the_gil(consumer, sources):
    copies = strata.ExpertCopies.from_buffers(sources)
    with strata.ExpertStreamer(512, gpu_ring=8, host_ring=4, settings=strata.BatchSettings(4, 2, 4)) as streamer:
        request = streamer.begin(copies)
        assert consumer.consume(request) == (60, END)
        assert consumer.progress(request) == (60, 60, 60)
        request.finish()
        assert request.counters.used_records == 60
        with pytest.raises(strata.StrataError, match="finished"):
            consumer.poll(request, 0)


@pytest.mark.parametrize("share", [False, True])
def test_spans_drops_and_flushes(consumer, sources, share):
    copies = strata.ExpertCopies.from_buffers(sources)
    with strata.ExpertStreamer(
        512, gpu_ring=8, host_ring=4, settings=strata.BatchSettings(4, 2, 4), share_dependencies=share, run_ahead=4
    ) as streamer:
        request = streamer.begin(copies)
        assert consumer.poll(request, -1)[0] == OK
        assert consumer.drop(request, 0, 1) == INVALID
        assert consumer.drop(request, 50, 11) == INVALID
        assert consumer.drop(request, 30, 20) == OK
        assert consumer.release(request, 0) == OK
        assert consumer.flush(request) == (OK, 1, 1)
        with pytest.raises(ValueError, match="limit is 9"):
            request.acquire_span(9)
        wanted, ends, status = consumer.consume_spans(request, 3)
        assert (wanted, status) == ([e for e in range(1, 60) if not 30 <= e < 50], END)
        assert ends == sorted(ends)
        assert ends[-1] == 60
        assert consumer.consume_spans(request, 0) == ([], [], END)
        request.finish()
        assert request.counters.dropped + request.counters.dropped_late == 20


def test_statuses(consumer, sources):
    copies = strata.ExpertCopies.from_buffers(sources[:12])
    with strata.ExpertStreamer(512, gpu_ring=4, settings=strata.BatchSettings(2, 1, 1)) as streamer:
        request = streamer.begin(copies)
        for entry in range(4):
            status, slot = consumer.poll(request, -1)
            assert status == OK
            assert slot == (entry, entry % 4, streamer.slots[entry % 4], 512)
        assert consumer.poll(request, -1) == (HELD, None)
        assert consumer.release(request, 1) == ORDER
        assert [consumer.release(request, e) for e in range(4)] == [OK] * 4
        assert consumer.release(request, 3) == ORDER
        assert consumer.skip(request, 9) == END     # nothing is passed
        assert consumer.skip(request, 8) == OK
        assert consumer.skip(request, -1) == INVALID
        assert consumer.poll(request, 0) == (END, None)
        assert consumer.cancel(request) == OK
        assert consumer.poll(request, -1) == (STOPPED, None)
        with pytest.raises(strata.RequestAborted):
            request.acquire()


def test_extends_with_copied_arrays(consumer, sources):
    with strata.ExpertStreamer(1024, gpu_ring=4, host_ring=2) as streamer:
        request = streamer.begin()
        for layer in range(3):
            blocks = sources[layer * 4: layer * 4 + 4] + sources[50 + layer: 51 + layer]
            addresses = np.array([b.ctypes.data for b in blocks], dtype=np.uint64)
            starts = np.array([0, 1, 2, 4, 5], dtype=np.int64)     # the third entry has two segments
            offsets = np.array([0, 0, 0, 512, 0], dtype=np.int64)
            staged = np.array([0, 0, 0, 1], dtype=np.uint8)
            assert consumer.extend(request, addresses, np.full(5, 512), offsets, starts, staged) == OK
            del addresses, offsets, staged                          # copied: strata needs them no more
            expected = [[0], [1], [2, 3], [4]]
            for blocks_of_entry in expected:
                slot = request.acquire()
                slot.synchronize()
                assert bytes(slot.array()) == b"".join(bytes(blocks[b]) for b in blocks_of_entry)
                slot.release()
        bad = np.array([0, 1], dtype=np.int64)
        one = np.array([sources[0].ctypes.data], dtype=np.uint64)
        assert consumer.extend(request, one, np.array([1025]), np.array([0]), bad, np.zeros(1, np.uint8)) == INVALID
        assert consumer.extend(request, one * 0, np.array([8]), np.array([0]), bad, np.zeros(1, np.uint8)) == INVALID
        two = np.array([0, 2], dtype=np.int64)
        both = np.repeat(one, 2)
        for places, status in (([0, 7], INVALID), ([8, 4], INVALID), ([8, 0], OK)):
            assert consumer.extend(request, both, np.full(2, 8), np.array(places), two, np.zeros(1, np.uint8)) == status
        for starts in ([1, 2], [-1, 1], [0, 2, 1]):      # CSR: from 0, never decreasing
            starts = np.array(starts)
            flags = np.zeros(len(starts) - 1, np.uint8)
            assert consumer.extend(request, both, np.full(2, 8), np.array([8, 0]), starts, flags) == INVALID
        for missing in ("addresses", "nbytes", "offsets"):
            assert consumer.extend_without(request, missing) == INVALID
        # An empty segment overlaps nothing, wherever it lies.
        assert consumer.extend(request, both, np.array([8, 0]), np.array([0, 4]), two, np.zeros(1, np.uint8)) == OK
        beyond = np.array([2**64 - 4], dtype=np.uint64)
        assert consumer.extend(request, beyond, np.array([8]), np.array([0]), bad, np.zeros(1, np.uint8)) == INVALID
        request.acquire().release()
        request.acquire().release()
        request.finish()


def test_plans(consumer):
    jobs = np.r_[np.full(10, -1), np.arange(7)].astype(np.int64)
    ends = np.zeros_like(jobs)
    plan = strata.CopyPlan(jobs, gpu_ring=8, host_ring=4, settings=strata.BatchSettings(4, 2, 3))
    assert consumer.plan(jobs, ends, 8, 4, 4, 2, 3) == (OK, OK, 2, OK, BUSY)
    assert np.array_equal(ends, plan.ends)
    assert consumer.plan(jobs, ends, 0, 4, 4, 2, 3)[0] == INVALID


def test_an_extend_that_fails_stops_the_request_and_tells_why(consumer, sources, software, monkeypatch):
    from strata import _control_groups

    assert consumer.abi() == 1
    address = np.array([sources[-1].ctypes.data], np.uint64)
    entry = (address, np.array([512]), np.array([0]), np.array([0, 1]), np.ones(1, np.uint8))
    with strata.ExpertStreamer(512, gpu_ring=4, host_ring=4) as streamer:
        request = streamer.begin()
        assert consumer.cause(request) == END
        software.inject("hipEventCreateWithFlags", 1, 719)
        assert consumer.extend(request, *entry) == FAILED
        software.clear_injections()
        assert consumer.cause(request) == (0, -1, "hipEventCreateWithFlags", 719, "hipErrorLaunchFailure", -1, -1, 0)
        assert consumer.extend(request, *entry) == STOPPED
        assert consumer.poll(request, 0) == (STOPPED, None)
        with pytest.raises(strata.HipError, match=r"hipEventCreateWithFlags failed with .*\(719\)"):
            request.finish()
        assert len(request) == 0
        request = streamer.begin()              # the next one is whole
        assert consumer.cause(request) == END
        assert consumer.extend(request, *entry) == OK
        assert consumer.poll(request, -1)[0] == OK
        request.abort()
    monkeypatch.setattr(_control_groups, "memory_left", lambda: (1024, "a limit"))
    with strata.ExpertStreamer(512, gpu_ring=4, host_ring=4) as streamer:
        request = streamer.begin()
        assert consumer.extend(request, *entry) == NO_MEMORY
        assert consumer.cause(request) == (0, -1, "malloc", 2, "hipErrorOutOfMemory", -1, -1, 2048)
        with pytest.raises(MemoryError, match="2048 bytes were asked for"):
            request.acquire()
        assert not streamer._core.running


def test_the_cause_of_another_threads_failure(consumer, sources, software):
    copies = strata.ExpertCopies.from_buffers(sources[:12])
    with strata.ExpertStreamer(512, gpu_ring=4) as streamer:
        software.inject("hipMemcpyAsync", 3, 719)
        request = streamer.begin(copies)
        taken, status = consumer.consume(request)      # the issuer may be the faster one
        assert (taken <= 2, status) == (True, STOPPED)
        assert consumer.cause(request) == (1, -1, "hipMemcpyAsync", 719, "hipErrorLaunchFailure", 2, 2, 0)
        with pytest.raises(strata.HipError, match="entry 2, slot 2: in the issuer's thread"):
            request.acquire()
        request = streamer.begin(copies)
        request.cancel()
        assert consumer.consume(request) == (0, STOPPED)
        assert consumer.cause(request) == END
        request.abort()


def test_settings_that_starve_are_said_to_an_engine_in_cython(consumer, caplog, monkeypatch):
    """When it gets the request's handle: what it appends later may be staged."""
    monkeypatch.setattr(strata.settings, "_starving_logged", set())
    with strata.ExpertStreamer(512, gpu_ring=8, host_ring=2, settings=strata.BatchSettings(1, 2, 2)) as streamer:
        request = streamer.begin()
        assert caplog.records == []
        consumer.progress(request)
        consumer.progress(request)
        request.abort()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_refuses_what_is_no_request(consumer):
    with pytest.raises(TypeError, match=r"strata\.Request"):
        consumer.poll(object(), 0)


def test_the_include_folder_has_the_headers():
    folder = Path(strata.get_include())
    assert (folder / "strata" / "threads.hpp").exists()
    assert (folder / "hip" / "hip_runtime.h").exists()
