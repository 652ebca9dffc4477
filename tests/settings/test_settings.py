"""Batch settings and environment variables: defaults, clamps, and errors that name variable and value."""

import dataclasses
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import strata
from strata import settings
from strata.errors import SettingsError
from strata.settings import (
    BatchSettings,
    chosen_submission,
    gpu_ring_from_env,
    host_ring_from_env,
    recommended_gpu_ring,
    timing_from_env,
    warn_of_starving,
)
from strata.streamer import _default_workers as default_workers

BATCHES = {
    "STRATA_HIP_COPY_BATCH": "copy_batch",
    "STRATA_HIP_STAGE_BATCH": "stage_batch",
    "STRATA_HIP_STAGE_COPY_BATCH": "stage_copy_batch",
}
GIB = 1 << 30


def test_defaults_are_one():
    assert dataclasses.astuple(BatchSettings()) == (1, 1, 1)


def test_settings_are_values():
    assert BatchSettings(8, 16, 16) == BatchSettings(copy_batch=8, stage_batch=16, stage_copy_batch=16)
    assert hash(BatchSettings(2)) == hash(BatchSettings(2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        BatchSettings().copy_batch = 2


def test_numpy_integers_become_ints():
    assert type(BatchSettings(np.int32(8)).copy_batch) is int


@pytest.mark.parametrize("field", BATCHES.values())
@pytest.mark.parametrize("value", [True, 1.0, "8", None, np.float32(2), np.True_])
def test_what_is_no_integer_is_refused(field, value):
    with pytest.raises(TypeError, match=field):
        BatchSettings(**{field: value})


@pytest.mark.parametrize(
    ("given", "rings", "clamped"),
    [
        ((8, 16, 16), (96, 16), (8, 16, 16)),
        ((1000, 1000, 1000), (96, 16), (32, 16, 16)),
        ((1000, 1000, 1000), (8, 16), (8, 16, 8)),
        ((1000, 1000, 1000), (1, 1), (1, 1, 1)),
        ((33, 300, 300), (400, 256), (32, 256, 256)),
        ((0, -1, -(2**70)), (96, 16), (1, 1, 1)),
        ((2**70, 2**70, 2**70), (500, 300), (32, 300, 300)),
    ],
)
def test_batches_are_clamped_to_what_the_rings_allow(given, rings, clamped):
    assert dataclasses.astuple(BatchSettings(*given).clamped(*rings)) == clamped


@pytest.mark.parametrize(
    ("rings", "name", "error"),
    [
        ((0, 16), "gpu_ring", ValueError),
        ((96, 0), "host_ring", ValueError),
        ((96, -3), "host_ring", ValueError),
        ((96.0, 16), "gpu_ring", TypeError),
        ((96, True), "host_ring", TypeError),
    ],
)
def test_clamping_needs_rings(rings, name, error):
    with pytest.raises(error, match=name):
        BatchSettings().clamped(*rings)


# The batch variables.


@pytest.mark.parametrize("runtime", [None, "rocm"])
def test_batch_variables_count_with_hip_on_windows(runtime):
    environ = {
        "STRATA_HIP_COPY_BATCH": "8",
        "STRATA_HIP_STAGE_BATCH": " 16\t",
        "STRATA_HIP_STAGE_COPY_BATCH": "0",
    }
    assert BatchSettings.from_env(environ, "win32", runtime=runtime) == BatchSettings(8, 16, 0)


@pytest.mark.parametrize(
    ("platform", "runtime"), [("linux", None), ("linux", "rocm"), ("win32", "software"), ("win32", "cuda")]
)
def test_batch_variables_are_ignored_elsewhere_whatever_they_hold(platform, runtime):
    environ = {"STRATA_HIP_COPY_BATCH": "8", "STRATA_HIP_STAGE_BATCH": "many"}
    assert BatchSettings.from_env(environ, platform, runtime=runtime) == BatchSettings()


@pytest.fixture
def fresh_log(monkeypatch, caplog):
    """As in a new process: nothing was said yet."""
    monkeypatch.setattr(settings, "_ignored_logged", False)
    caplog.set_level(logging.INFO, logger="strata")
    return caplog


def test_ignored_variables_are_logged_once(fresh_log):
    BatchSettings.from_env({}, "linux")
    BatchSettings.from_env({"STRATA_HIP_COPY_BATCH": " "}, "linux")
    BatchSettings.from_env({"STRATA_HIP_COPY_BATCH": "8"}, "win32")
    assert fresh_log.records == []
    for _ in range(3):
        BatchSettings.from_env({"STRATA_HIP_STAGE_BATCH": "8"}, "linux")
    (record,) = fresh_log.records
    assert (record.name, record.levelno) == ("strata", logging.INFO)
    assert "STRATA_HIP_STAGE_BATCH" in record.getMessage()
    assert "STRATA_HIP_COPY_BATCH" not in record.getMessage()


def test_the_process_environment_and_platform_are_the_default(monkeypatch):
    monkeypatch.setenv("STRATA_HIP_COPY_BATCH", "5")
    monkeypatch.setattr(sys, "platform", "win32")
    assert BatchSettings.from_env().copy_batch == 5
    monkeypatch.setattr(sys, "platform", "linux")
    assert BatchSettings.from_env().copy_batch == 1


NO_INTEGERS = ["many", "1.0", "8 8", "0x10", "1_000", "--1", "٣", "1e3", "9" * 5000]


@pytest.mark.parametrize("value", NO_INTEGERS)
@pytest.mark.parametrize("variable", BATCHES)
def test_a_bad_batch_variable_is_named(variable, value):
    with pytest.raises(SettingsError) as caught:
        BatchSettings.from_env({variable: value}, "win32")
    message = str(caught.value)
    assert variable in message
    assert repr(value) in message
    assert "1 to" in message


# The other variables.


@pytest.mark.parametrize(
    ("value", "depth"),
    [
        (None, 16),
        ("", 16),
        (" \n", 16),
        ("2", 2),
        ("256", 256),
        ("1", 2),
        ("-5", 2),
        ("257", 256),
        (" +24 ", 24),
    ],
)
def test_host_ring(value, depth):
    assert host_ring_from_env({} if value is None else {"STRATA_STAGER_RING": value}) == depth


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return a function that gives the machine caches of these sizes, as Linux writes them."""

    def has(*sizes):
        for index, size in enumerate(sizes):
            (tmp_path / f"index{index}").mkdir()
            (tmp_path / f"index{index}" / "size").write_text(size)
        monkeypatch.setattr(settings, "_CACHES", tmp_path)

    return has


@pytest.mark.parametrize(
    ("sizes", "slot_bytes", "longest_batch", "workers", "depth"),
    [
        ((), 9_400_000, 1, 1, 16),  # the system does not tell
        (("odd", "", "12", "1X"), 9_400_000, 1, 1, 16),
        (("32K\n", "2048K\n", "107520K\n"), None, 1, 1, 16),
        (("48K", "107520K"), 1_382_400, 1, 8, 16),  # the reference's experts
        (("48K", "107520K"), 9_400_000, 1, 8, 11),
        (("32M",), 9_400_000, 1, 1, 4),
        (("32M",), 9_400_000, 1, 8, 8),  # one a worker
        (("1G",), 9_400_000, 1, 1, 16),
        (("32M",), 9_400_000, 16, 1, 32),  # twice the longest batch
        ((), 1_382_400, 16, 8, 32),
        ((), 1_382_400, 200, 8, 256),
    ],
)
def test_the_default_host_ring_does_not_starve(cache, sizes, slot_bytes, longest_batch, workers, depth):
    cache(*sizes)
    chosen = host_ring_from_env({}, slot_bytes=slot_bytes, longest_batch=longest_batch, workers=workers)
    assert chosen == depth
    named = {"STRATA_STAGER_RING": "3"}
    assert host_ring_from_env(named, slot_bytes=slot_bytes, longest_batch=longest_batch, workers=workers) == 3


@pytest.mark.parametrize(("processors", "workers"), [(1, 1), (2, 1), (4, 3), (16, 12), (64, 12)])
def test_the_default_workers_are_what_the_process_may_use(monkeypatch, processors, workers):
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("this system does not say which processors a process may use")
    monkeypatch.setattr(os, "sched_getaffinity", lambda of: set(range(processors)))
    assert default_workers() == workers


@pytest.mark.parametrize(
    ("slot_bytes", "batches", "host_ring", "submission"),
    [
        (1_382_400, (8, 16, 16), 32, "group"),
        (1_382_400, (8, 16, 16), 31, "single"),  # a group over a small ring starves
        (1_382_400, (7, 7, 7), 32, "single"),
        (1_382_400, (8, 1, 1), 2, "group"),
        (1_382_400, (1, 1, 1), 16, "single"),
        (9_400_000, (8, 16, 16), 64, "single"),
        (4 << 20, (8, 8, 8), 16, "group"),
        ((4 << 20) + 1, (8, 8, 8), 16, "single"),
        (64 << 10, (32, 16, 16), 64, "group"),
        ((64 << 10) - 1, (32, 16, 16), 64, "single"),
    ],
)
def test_submission_is_chosen_by_bytes(slot_bytes, batches, host_ring, submission):
    assert chosen_submission(slot_bytes, BatchSettings(*batches), host_ring) == submission


def test_starving_is_said_once(caplog, monkeypatch):
    monkeypatch.setattr(settings, "_starving_logged", set())
    for _ in range(2):
        warn_of_starving(BatchSettings(8, 16, 16), 16, 4)
        warn_of_starving(BatchSettings(1, 4, 1), 4, 8)
        warn_of_starving(BatchSettings(32, 15, 15), 16, 16)
        warn_of_starving(BatchSettings(), 2, 2)
    assert [(r.name, r.levelname, r.message.split(":")[0]) for r in caplog.records] == [
        ("strata", "WARNING", "a staged batch of 16 over a host ring of 16"),
        ("strata", "WARNING", "a staged batch of 4 over a host ring of 4"),
        ("strata", "WARNING", "8 workers over a host ring of 4"),
    ]


def test_defaults_of_a_streamer_and_a_stager(software, cache, caplog, monkeypatch):
    cache("64M")
    monkeypatch.setattr(settings, "_starving_logged", set())
    monkeypatch.delenv("STRATA_STAGER_RING", raising=False)

    def made(nbytes, **arguments):
        with strata.ExpertStreamer(nbytes, gpu_ring=32, **arguments) as streamer:
            return streamer.host_ring, streamer.submission

    batches = BatchSettings(8, 16, 16)
    assert made(128 << 10) == (16, "single")
    assert made(128 << 10, settings=batches) == (32, "group")
    assert made(128 << 10, settings=batches, host_ring=64) == (64, "group")
    assert made(128 << 10, settings=batches, submission="single") == (32, "single")
    assert made(5 << 20, settings=batches) == (32, "single")
    assert made(9 << 20, workers=2) == (7, "single")
    with strata.HostStager(64, stage_batch=10) as stager:
        assert (stager.host_ring, stager.stage_batch) == (20, 10)
    assert caplog.records == []
    starved = {"settings": batches, "host_ring": 16}
    assert made(128 << 10, **starved) == (16, "single")  # obeyed
    pinned, pageable = strata.pinned_empty((2, 64), np.uint8), np.zeros((2, 64), np.uint8)
    with strata.ExpertStreamer(64, gpu_ring=32, **starved) as streamer:
        with streamer.begin(strata.ExpertCopies.from_buffers(list(pinned))) as request:
            request.skip(2)
        assert caplog.records == []  # what is pinned needs no host ring
        with streamer.begin(strata.ExpertCopies.from_buffers(list(pageable))) as request:
            request.skip(2)
    monkeypatch.setenv("STRATA_STAGER_RING", "4")
    with strata.HostStager(64, workers=5) as stager:
        assert stager.host_ring == 4
    assert [r.message.split(":")[0] for r in caplog.records] == [
        "a staged batch of 16 over a host ring of 16", "5 workers over a host ring of 4"]


@pytest.mark.parametrize(
    ("value", "free_bytes", "depth"),
    [
        (None, GIB, 96),
        ("", GIB, 96),
        ("200", GIB, 200),
        ("3", GIB, 16),
        ("-1", GIB, 16),
        ("100000", GIB, 256),  # a quarter of a GiB holds 256 slots of a MiB
        (None, GIB // 4, 64),  # the default does not take more than a quarter either
        ("384", 17 * 4 << 20, 17),
        ("384", 5 * 4 << 20, 5),  # fewer than 16 fit: so many
        ("384", 0, 1),
        (None, (4 << 20) - 1, 1),
    ],
)
def test_gpu_ring(value, free_bytes, depth):
    environ = {} if value is None else {"STRATA_PREFILL_RING": value}
    assert gpu_ring_from_env(environ, free_bytes=free_bytes, slot_bytes=1 << 20) == depth


@pytest.mark.parametrize(
    ("sizes", "name", "error"),
    [
        ({"free_bytes": -1, "slot_bytes": 1}, "free_bytes", ValueError),
        ({"free_bytes": 1, "slot_bytes": 0}, "slot_bytes", ValueError),
        ({"free_bytes": 1, "slot_bytes": 1.5}, "slot_bytes", TypeError),
    ],
)
def test_gpu_ring_needs_sizes(sizes, name, error):
    with pytest.raises(error, match=name):
        gpu_ring_from_env({}, **sizes)


@pytest.mark.parametrize("value", NO_INTEGERS)
def test_a_bad_ring_variable_is_named(value):
    with pytest.raises(SettingsError, match="2 to 256") as caught:
        host_ring_from_env({"STRATA_STAGER_RING": value})
    assert f"STRATA_STAGER_RING={value!r}" in str(caught.value)
    with pytest.raises(SettingsError, match=r"16 to a quarter .* \(256 slots\)") as caught:
        gpu_ring_from_env({"STRATA_PREFILL_RING": value}, free_bytes=GIB, slot_bytes=1 << 20)
    assert f"STRATA_PREFILL_RING={value!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "on"), [(None, False), ("", False), ("0", False), ("1", True), (" 1 ", True)]
)
def test_timing(value, on):
    assert timing_from_env({} if value is None else {"STRATA_PREFILL_TIMING": value}) is on


@pytest.mark.parametrize("value", ["2", "-1", "yes", "true", "01"])
def test_timing_is_0_or_1(value):
    with pytest.raises(SettingsError, match=f"STRATA_PREFILL_TIMING='{value}': 0 or 1"):
        timing_from_env({"STRATA_PREFILL_TIMING": value})


def test_variables_come_from_the_process_environment(monkeypatch):
    monkeypatch.setenv("STRATA_STAGER_RING", "40")
    monkeypatch.setenv("STRATA_PREFILL_RING", "50")
    monkeypatch.setenv("STRATA_PREFILL_TIMING", "1")
    assert host_ring_from_env() == 40
    assert gpu_ring_from_env(free_bytes=GIB, slot_bytes=1) == 50
    assert timing_from_env() is True


@pytest.mark.parametrize(
    ("share", "depth"), [(0, 96), (0.5, 96), (0.8999, 96), (0.9, 384), (1, 384), (1.0, 384)]
)
def test_recommended_ring(share, depth):
    assert recommended_gpu_ring(share) == depth


@pytest.mark.parametrize("share", [-0.01, 1.01, float("nan"), float("inf"), 90])
def test_recommended_ring_needs_a_share(share):
    with pytest.raises(ValueError, match="pinned_share"):
        recommended_gpu_ring(share)


@pytest.mark.parametrize("share", ["0.5", None, True, 1j, [0.5]], ids=repr)
def test_recommended_ring_needs_a_number(share):
    with pytest.raises(TypeError, match="pinned_share is "):
        recommended_gpu_ring(share)


def test_bad_variables_do_not_break_the_import(tmp_path):
    names = (*BATCHES, "STRATA_STAGER_RING", "STRATA_PREFILL_RING", "STRATA_PREFILL_TIMING")
    package = Path(settings.__file__).parent  # the child takes the package that is tested here
    done = subprocess.run(
        [sys.executable, "-c", "import strata.settings as s; s.BatchSettings(); print(1)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(package.parent), **dict.fromkeys(names, "many")},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


@pytest.mark.parametrize("value", [8, None, b"8"])
def test_values_that_are_no_text(value: object) -> None:
    for platform in ("linux", "win32"):
        with pytest.raises(SettingsError, match=r"STRATA_HIP_COPY_BATCH=.* is no text"):
            BatchSettings.from_env({"STRATA_HIP_COPY_BATCH": value}, platform)  # type: ignore[dict-item]


@pytest.mark.parametrize("environ", [5, [], "abc"])
def test_an_environment_that_is_no_mapping(environ: object) -> None:
    with pytest.raises(TypeError, match=r"environ is .*; a mapping"):
        BatchSettings.from_env(environ, "win32")  # type: ignore[arg-type]
