"""Runs in which nothing is left out have no finding and no wrong byte, under every schedule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import strata
from strata import _hip
from strata.runtime.software import checking, control
from tests.proof.prover.configuration import Configuration
from tests.proof.prover.contract import play
from tests.proof.prover.run import Sources, run
from tests.proof.prover.suite import quick_suite, suite
from tests.proof.prover.trials import clean_run
from tests.support.engine import Reader, read_rest
from tests.support.sources import Material, material

SCHEDULES = ("eager", "lazy", "random", "copies-first", "compute-first")
NBYTES = 512
LARGE = strata.BatchSettings(8, 16, 16)

LISTS = {
    "direct": "dD" * 60,
    "staged": "sS" * 60,
    "mixed": ("d" * 13 + "s" * 21 + "Dz" * 4 + "SZe") * 3,
}


# --- the suite of the proof, with everything under control --------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("configuration", quick_suite(), ids=lambda c: c.kind)
def test_one_configuration_of_each_kind(configuration: Configuration, schedule: str) -> None:
    played = play(configuration)
    outcome = run(configuration, played, Sources(configuration), schedule=schedule)
    assert (outcome.error, [str(f) for f in outcome.findings], outcome.wrong_bytes) == ("", [], 0)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_whole_suite(schedule: str) -> None:
    for configuration in suite():
        outcome = run(configuration, play(configuration), Sources(configuration), schedule=schedule)
        assert (outcome.error, [str(f) for f in outcome.findings], outcome.wrong_bytes) == ("", [], 0), configuration


@pytest.mark.slow
def test_the_whole_suite_makes_the_contracts_calls_and_counts() -> None:
    for configuration in suite():
        clean_run(configuration)


# --- larger requests, with threads as quick as they are ------------------------------------------------------------


@pytest.fixture(params=[*SCHEDULES, "random 2", "random 3"])
def schedule(request: pytest.FixtureRequest, software: object) -> str:
    name, _, seed = request.param.partition(" ")
    control.configure(schedule=name, seed=int(seed or 1))
    return str(name)


@pytest.fixture
def streams(_nothing_left_alive: None) -> Iterator[tuple[int, int]]:
    """Two streams of the engine's."""
    made = (_hip.create_stream(), _hip.create_stream())
    yield made
    for stream in made:
        _hip.destroy_stream(stream)


@pytest.fixture
def lent(_nothing_left_alive: None) -> Iterator[tuple[list[int], list[int]]]:
    """Two sets of slots of the engine's."""
    base = _hip.malloc(24 * NBYTES)
    slots = [base + k * NBYTES for k in range(24)]
    yield slots[::2], slots[1::2]
    _hip.free(base)


class Watched:
    """An engine under the checker; it reads every slot on its compute stream."""

    def __init__(self, streamer: strata.ExpertStreamer) -> None:
        self.streamer = streamer
        self.reader = Reader(4096, NBYTES)

    def stream(self, entries: Material, *, skips: tuple[int, ...] = (), keep: int = 0, **begin: object) -> None:
        """One whole request."""
        with self.streamer.begin(entries.copies, **begin) as request:  # type: ignore[arg-type]
            stream = request.compute_stream
            if keep == 0:
                read_rest(request, self.reader, stream, skips)
                return
            kept: list[strata.Slot] = []
            for _ in range(len(request)):
                slot = request.acquire()
                self.reader.read(slot, stream)
                kept.append(slot)
                if len(kept) > keep:
                    kept.pop(0).release()
            for slot in kept:
                slot.release()

    def abandon(self, entries: Material, after: int, held: int = 0, *, skip: int = 0) -> None:
        """Begin a request and abort it."""
        request = self.streamer.begin(entries.copies)
        request.skip(skip)
        slots = []
        for _ in range(after + held):
            slots.append(request.acquire())
            self.reader.read(slots[-1], request.compute_stream)
            if len(slots) > held:
                slots.pop(0).release()
        request.abort()


def no_findings() -> None:
    assert [str(finding) for finding in control.findings()] == []
    assert control.checked_accesses() > 100


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("settings", [strata.BatchSettings(), LARGE], ids=["1/1/1", "8/16/16"])
@pytest.mark.parametrize("letters", LISTS)
def test_requests_one_after_the_other(
    schedule: str, letters: str, settings: strata.BatchSettings, workers: int
) -> None:
    first, second = (material(LISTS[letters], NBYTES, seed) for seed in (1, 2))
    short = material(LISTS[letters][:5], NBYTES, 3)
    with strata.ExpertStreamer(NBYTES, gpu_ring=17, host_ring=5, workers=workers, settings=settings) as streamer:
        watched = Watched(streamer)
        with checking.checked():
            checking.name_handles(streamer)
            for entries in (first, short, second, short, first):
                watched.stream(entries)
                assert watched.reader.wrong(entries) == 0
    no_findings()


@pytest.mark.parametrize("settings", [strata.BatchSettings(), LARGE], ids=["1/1/1", "8/16/16"])
def test_back_to_back_without_any_synchronization(schedule: str, settings: strata.BatchSettings) -> None:
    entries = material(LISTS["mixed"], NBYTES, 4)
    short = entries.take(0, 7)
    with checking.checked(), strata.ExpertStreamer(
        NBYTES, gpu_ring=32, host_ring=6, workers=2, settings=settings
    ) as streamer:
        watched = Watched(streamer)
        for _ in range(2):
            watched.stream(entries)
            with streamer.begin(short) as request:
                read_rest(request, watched.reader, request.compute_stream)
            watched.stream(entries, skips=tuple(range(3, len(entries), 5)))
            watched.stream(entries, keep=streamer.max_held - 1)
            watched.stream(entries, long_prefill=False)
        assert watched.reader.wrong(entries) == 0
    no_findings()


@pytest.mark.parametrize("letters", LISTS)
@pytest.mark.parametrize("pinned", [0, 2])
def test_pageable_buffers(
    schedule: str, letters: str, pinned: int, caplog: pytest.LogCaptureFixture
) -> None:
    entries = material(LISTS[letters], NBYTES, 5)
    reader = Reader(4096, NBYTES)  # before no more can be pinned
    control.configure(pinned_limit=control.live()["pinned_bytes"] + pinned * NBYTES)
    with checking.checked(), strata.ExpertStreamer(
        NBYTES, gpu_ring=9, host_ring=5, workers=2, settings=LARGE
    ) as streamer:
        for _ in range(2):
            with streamer.begin(entries.copies) as request:
                read_rest(request, reader, request.compute_stream)
            if letters != "direct":
                assert request.counters.pageable_buffers == 5 - pinned
        assert reader.wrong(entries) == 0
    no_findings()


@pytest.mark.parametrize("settings", [strata.BatchSettings(), LARGE], ids=["1/1/1", "8/16/16"])
@pytest.mark.parametrize("letters", LISTS)
def test_aborted_and_begun_at_once(schedule: str, letters: str, settings: strata.BatchSettings) -> None:
    aborted, wanted = (material(LISTS[letters], NBYTES, seed) for seed in (6, 7))
    with checking.checked(), strata.ExpertStreamer(
        NBYTES, gpu_ring=24, host_ring=6, workers=2, settings=settings
    ) as streamer:
        watched = Watched(streamer)
        for after, held, skip in ((0, 0, 0), (1, 0, 0), (0, 3, 2), (30, 2, 0), (5, streamer.max_held - 1, 1)):
            watched.abandon(aborted, after, held, skip=skip)
            again = Watched(streamer)
            again.stream(wanted)
            assert again.reader.wrong(wanted) == 0
            assert watched.reader.wrong(aborted) == 0
    no_findings()


@pytest.mark.parametrize("letters", LISTS)
def test_lent_slots_and_other_streams(
    schedule: str, letters: str, streams: tuple[int, int], lent: tuple[list[int], list[int]]
) -> None:
    entries = material(LISTS[letters], NBYTES, 8)
    one, other = streams
    slots, other_slots = lent
    scrap = strata.pinned_empty((2, NBYTES), "uint8")

    def kernels(stream: int) -> None:
        # The engine's own: it uses its slots between requests as it likes.
        for address in (*slots, *other_slots):
            _hip.memcpy_d2h_async(scrap[int(stream == other)].ctypes.data, address, NBYTES, stream)

    with checking.checked():
        with strata.ExpertStreamer(
            NBYTES, slots=slots, compute_stream=one, host_ring=6, workers=2, settings=LARGE
        ) as streamer:
            watched = Watched(streamer)
            kernels(one)
            watched.stream(entries)
            kernels(one)
            watched.stream(entries, slots=other_slots)
            watched.stream(entries, compute_stream=other)
            kernels(other)
            watched.stream(entries, compute_stream=other, slots=other_slots)
            watched.stream(entries)
        assert watched.reader.wrong(entries) == 0
        with strata.ExpertStreamer(
            NBYTES, gpu_ring=12, compute_stream=one, host_ring=6, workers=2, settings=LARGE
        ) as streamer:
            watched = Watched(streamer)
            for stream in (one, other, other, one):
                watched.stream(entries, compute_stream=stream)
                with streamer.begin(entries.take(0, 3), compute_stream=stream) as request:
                    read_rest(request, watched.reader, stream)
        assert watched.reader.wrong(entries) == 0
        _hip.synchronize_stream(one)
        _hip.synchronize_stream(other)
    no_findings()


@pytest.mark.parametrize("submission", ["single", "group"])
def test_extensions(schedule: str, submission: str) -> None:
    entries = material(LISTS["mixed"], NBYTES, 9)
    with checking.checked(), strata.ExpertStreamer(
        NBYTES, gpu_ring=16, host_ring=5, workers=2, settings=LARGE, submission=submission
    ) as streamer:
        reader = Reader(4096, NBYTES)
        for step in (1, 7, 40):
            with streamer.begin() as request:
                for begin in range(0, len(entries), step):
                    request.extend(entries.take(begin, min(begin + step, len(entries))))
                    if begin % 3:
                        read_rest(request, reader, request.compute_stream)
                read_rest(request, reader, request.compute_stream)
            assert reader.wrong(entries) == 0
    no_findings()


@pytest.mark.parametrize("stage_batch", [1, 3, 6])
def test_a_stager_alone(schedule: str, stage_batch: int, streams: tuple[int, int]) -> None:
    entries = material("s" * 40, NBYTES, 10)
    copy, other = streams
    device = _hip.malloc(NBYTES * len(entries))
    reader = strata.pinned_empty((len(entries), NBYTES), "uint8")
    try:
        with checking.checked():
            with strata.HostStager(NBYTES, host_ring=6, workers=2, stage_batch=stage_batch) as stager:
                for count, stream in ((40, copy), (1, copy), (17, other), (0, copy), (40, copy)):
                    stager.start(entries.copies)
                    for job in range(count):
                        row = device + job * NBYTES
                        _hip.memcpy_h2d_async(row, stager.wait(job), entries.extent(job), stream)
                        _hip.memcpy_d2h_async(reader[job].ctypes.data, row, entries.extent(job), stream)
                        stager.submitted(job, stream)
                    stager.finish()
                    _hip.synchronize_stream(stream)
                    assert sum(entries.wrong(job, reader[job]) for job in range(count)) == 0
        no_findings()
    finally:
        _hip.free(device)


def test_host_readers(schedule: str) -> None:
    entries = material(LISTS["mixed"], NBYTES, 11)
    with checking.checked(), strata.ExpertStreamer(
        NBYTES, gpu_ring=16, host_ring=5, workers=2, settings=LARGE
    ) as streamer:
        for _ in range(2):
            with streamer.begin(entries.copies) as request:
                for slot in request:
                    slot.synchronize()
                    control.host_read(slot.address, slot.nbytes)
                    assert entries.wrong(slot.entry, slot.array()) == 0
    no_findings()
