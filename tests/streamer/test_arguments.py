"""Bad input: each error names the argument, its value and what is allowed, and nothing was started."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import strata
from strata import settings
from tests.support.engine import stream_all
from tests.support.scripts import ended_well, run_script
from tests.support.sources import material

NBYTES = 64
RING = 4


@pytest.fixture(autouse=True)
def _nothing_started(software) -> Iterator[None]:
    """Not one copy is queued by what a test of this file is refused."""
    yield
    assert software.live()["pending_operations"] == 0


def build(**arguments: Any) -> strata.ExpertStreamer:
    return strata.ExpertStreamer(arguments.pop("slot_bytes", NBYTES), **{"gpu_ring": RING, **arguments})


class Handle:
    """A stream object of another package."""

    ptr = 12345


#: argument, value, exception, what the message must hold beside the argument's name.
BAD_ARGUMENTS = [
    ("slot_bytes", 0, ValueError, ["0", "from 1"]),
    ("slot_bytes", -1, ValueError, ["-1", "from 1"]),
    ("slot_bytes", 2**70, ValueError, [str(2**70)]),
    ("slot_bytes", "64", TypeError, ["'64'", "integer"]),
    ("slot_bytes", 64.0, TypeError, ["64.0", "integer"]),
    ("slot_bytes", True, TypeError, ["True", "integer"]),
    ("slot_bytes", None, TypeError, ["None", "integer"]),
    ("gpu_ring", 0, ValueError, ["0", "from 1"]),
    ("gpu_ring", -4, ValueError, ["-4", "from 1"]),
    ("gpu_ring", 2**62, ValueError, [str(2**62)]),
    ("gpu_ring", 4.0, TypeError, ["4.0", "integer"]),
    ("gpu_ring", "4", TypeError, ["'4'", "integer"]),
    ("gpu_ring", np.True_, TypeError, ["True", "integer"]),
    ("host_ring", 0, ValueError, ["0", "from 1"]),
    ("host_ring", -1, ValueError, ["-1", "from 1"]),
    ("host_ring", 2**62, ValueError, [str(2**62)]),
    ("host_ring", 1.5, TypeError, ["1.5", "integer"]),
    ("workers", 0, ValueError, ["0", "from 1 to 64"]),
    ("workers", 65, ValueError, ["65", "from 1 to 64"]),
    ("workers", "2", TypeError, ["'2'", "integer"]),
    ("settings", (1, 2, 3), TypeError, ["(1, 2, 3)", "BatchSettings"]),
    ("settings", {"copy_batch": 2}, TypeError, ["copy_batch", "BatchSettings"]),
    ("device", 1, ValueError, ["1", "from 0 to 0"]),
    ("device", -1, ValueError, ["-1", "from 0"]),
    ("device", "cuda:0", TypeError, ["'cuda:0'", "integer"]),
    ("copy_stream", -1, ValueError, ["-1", "handle"]),
    ("copy_stream", 2**64, ValueError, [str(2**64), "handle"]),
    ("copy_stream", 12345, ValueError, [hex(12345), "no stream of the software runtime"]),
    ("copy_stream", "0", TypeError, ["'0'", "handle (int)"]),
    ("copy_stream", Handle(), TypeError, ["handle (int)", ".ptr"]),
    ("compute_stream", 12345, ValueError, [hex(12345), "no stream of the software runtime"]),
    ("compute_stream", True, TypeError, ["True", "handle (int)"]),
    ("compute_stream", b"1", TypeError, ["handle (int)"]),
    ("timing", "no", TypeError, ["'no'", "True or False"]),
    ("timing", 2, TypeError, ["2", "True or False"]),
    ("stall_timeout", 0, ValueError, ["0", "positive"]),
    ("stall_timeout", -1.0, ValueError, ["-1.0", "seconds"]),
    ("stall_timeout", float("nan"), ValueError, ["nan", "seconds"]),
    ("stall_timeout", "1", TypeError, ["'1'", "number"]),
    ("submission", "both", ValueError, ["'both'", "'single', 'group' or 'coalesced'"]),
    ("submission", 1, ValueError, ["1", "'single', 'group' or 'coalesced'"]),
    ("share_dependencies", 1, TypeError, ["1", "True or False"]),
    ("run_ahead", 0, ValueError, ["0", "from 1 to"]),
    ("run_ahead", 1000, ValueError, ["1000", "from 1 to"]),
    ("run_ahead", True, TypeError, ["True", "integer"]),
]


@pytest.mark.parametrize(("name", "value", "kind", "words"), BAD_ARGUMENTS, ids=lambda x: repr(x)[:30])
def test_arguments_of_a_streamer(name: str, value: Any, kind: type[Exception], words: list[str], software) -> None:
    before = software.live()
    with pytest.raises((ValueError, TypeError)) as caught:
        build(**{name: value})
    assert caught.type is kind, caught.value
    for word in (name, *words):
        assert word in str(caught.value)
    assert software.live() == before


def test_positional_only_what_is_documented() -> None:
    with pytest.raises(TypeError):
        strata.ExpertStreamer()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        strata.ExpertStreamer(NBYTES, RING)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"slot_bytes": 2**20, "gpu_ring": 17}, ["gpu_ring is 17", str(2**24)]),
        ({"slot_bytes": 2**24 + 1, "gpu_ring": 1}, ["gpu_ring is 1", str(2**24)]),
        # Each slot takes 256 bytes at least, for alignment.
        ({"slot_bytes": 1, "gpu_ring": 2**16 + 1}, ["gpu_ring", str(2**16 + 1), str(2**24)]),
    ],
)
def test_a_ring_larger_than_the_devices_memory(arguments: dict[str, int], words: list[str], software) -> None:
    software.configure(device_memory=2**24)
    before = software.live()
    software.reset_calls()
    with pytest.raises(ValueError) as caught:
        build(**arguments)
    for word in words:
        assert word in str(caught.value)
    assert software.calls()["hipEventCreateWithFlags"] == 0
    assert software.live() == before


def test_a_ring_that_the_device_has_no_room_for_any_more(software) -> None:
    """Others hold the memory: what was made is given back, and the error says how much was asked for."""
    software.configure(device_memory=2**20)
    with build(slot_bytes=2**16, gpu_ring=12):
        before = software.live()
        with pytest.raises(strata.HipError) as caught:
            build(slot_bytes=2**16, gpu_ring=8)
        assert caught.value.call == "hipMalloc"
        assert caught.value.name == "hipErrorOutOfMemory" or caught.value.status == 2
        assert str(8 * 2**16) in str(caught.value)
        assert software.live() == before


@pytest.mark.parametrize(("slot_bytes", "host_ring"), [(2**30, 2**20), (2**45, 3), (2**44, 4)])
def test_a_host_ring_larger_than_the_hosts_memory(slot_bytes: int, host_ring: int, software) -> None:
    software.configure(device_memory=2**46)
    with pytest.raises(ValueError) as caught:
        build(slot_bytes=slot_bytes, gpu_ring=1, host_ring=host_ring)
    for word in (f"host_ring is {host_ring}", str(host_ring * slot_bytes), "more than"):
        assert word in str(caught.value)


def test_a_host_ring_that_cannot_be_had_fails_the_request_with_the_bytes_asked_for() -> None:
    """Nothing can be pinned, and the process may map no more; what was made for the request is given back."""
    out = ended_well(
        run_script(
            """
            import resource
            nbytes, ring = 2**25, 16
            streamer = strata.ExpertStreamer(nbytes, gpu_ring=1, host_ring=ring)
            control.configure(pinned_limit=control.live()["pinned_bytes"])
            pages = int(open("/proc/self/statm").read().split()[0])
            most = pages * resource.getpagesize() + 5 * nbytes
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            def kept():
                live = control.live()
                return [live[what] for what in ("streams", "events", "device_bytes", "pinned_bytes")]
            before = kept()
            try:
                streamer.begin(staged)
            except MemoryError as error:
                say(error)
            # An extension fails the request that it belongs to; the streamer goes on.
            request = streamer.begin(direct)
            request.skip(32)
            try:
                request.extend(staged)
            except MemoryError as error:
                say(error)
            try:
                request.skip(32)
            except strata.RequestAborted:
                say(len(request), request.consumed)
            with streamer.begin(direct) as request:     # direct entries need no host buffer
                request.skip(64)
            say(before == kept())
            streamer.close()
            """,
            # With its own arena for each thread, the allocator would map far more than it needs.
            MALLOC_ARENA_MAX="1",
        )
    )
    assert len(out) == 4, out
    for line in out[:2]:
        assert str(2**25 * 16) in line
        assert f"16 buffers of {2**25} bytes" in line
    assert out[2:] == ["64 32", "True"]


def slots_of(lend_slots: Callable[..., list[int]]) -> list[int]:
    return lend_slots(RING, NBYTES)


#: What is done to good slots, the exception, words of the message.
BAD_SLOTS = {
    "one twice": (lambda s: [s[0], s[1], s[0], s[3]], ValueError, ["slots[2]", "repeats slots[0]"]),
    "overlap": (lambda s: [s[0], s[0] + NBYTES - 1, s[2]], ValueError, ["slots[1]", "overlaps slots[0]", "64"]),
    "null": (lambda s: [s[0], 0], ValueError, ["slots[1] is 0"]),
    "negative": (lambda s: [s[0], -s[1]], ValueError, ["slots", "device address"]),
    "beyond 64 bits": (lambda s: [s[0], 2**64], ValueError, ["slots", "0 to 2**64 - 1"]),
    "host memory": (lambda s: [s[0], id(s)], ValueError, ["slots[1]", "device memory"]),
    "past the allocation's end": (lambda s: [max(s) + NBYTES], ValueError, ["slots[0]", "device memory"]),
    "none": (lambda s: [], ValueError, ["slots is empty", "at least 1"]),
    "two dimensions": (lambda s: np.array([s, s], np.uint64), ValueError, ["slots has 2 dimensions", "1 is wanted"]),
    "floats": (lambda s: np.array(s, np.float64), TypeError, ["slots", "float64", "integer"]),
    "objects": (lambda s: np.array(s, object), TypeError, ["slots", "object", "integer"]),
    "strings": (lambda s: ["a", "b"], TypeError, ["slots", "'a'", "(int)"]),
    "nones": (lambda s: [None] * 4, TypeError, ["slots", "None", "(int)"]),
    "one float": (lambda s: [s[0], float(s[1])], TypeError, ["slots", "(int)"]),
    "bools": (lambda s: np.array([True, False]), TypeError, ["slots", "bool", "integer"]),
    "no sequence": (lambda s: s[0], TypeError, ["slots", "sequence"]),
}


@pytest.mark.parametrize("slots", [[2**64], [2**70, 1], [-(2**70)]])
def test_the_first_lent_slot_is_asked_for_its_device_only_where_it_is_an_address(slots: list[int]) -> None:
    with pytest.raises(ValueError, match="slots has a value outside 0 to"):
        strata.ExpertStreamer(NBYTES, slots=slots, compute_stream=0)


@pytest.mark.parametrize("case", BAD_SLOTS)
def test_lent_slots_of_a_streamer(case: str, make_stream, lend_slots, software) -> None:
    change, kind, words = BAD_SLOTS[case]
    stream = make_stream()
    slots = change(slots_of(lend_slots))
    before = software.live()
    with pytest.raises((ValueError, TypeError, OverflowError)) as caught:
        strata.ExpertStreamer(NBYTES, slots=slots, compute_stream=stream)
    assert caught.type is kind, caught.value
    for word in words:
        assert word in str(caught.value)
    assert software.live() == before


@pytest.mark.parametrize("case", BAD_SLOTS)
def test_lent_slots_of_a_request(case: str, lend_slots) -> None:
    change, kind, words = BAD_SLOTS[case]
    each = material("dds", NBYTES)
    slots = change(slots_of(lend_slots))
    with build() as streamer:
        owned = streamer.slots
        with pytest.raises((ValueError, TypeError, OverflowError)) as caught:
            streamer.begin(each.copies, slots=slots)
        assert caught.type is kind, caught.value
        for word in words:
            assert word in str(caught.value)
        assert streamer.counters == strata.Counters()
        assert streamer.slots == owned
        stream_all(streamer, each)


def test_lent_slots_want_a_compute_stream_and_a_ring_of_their_number(make_stream, lend_slots) -> None:
    slots = slots_of(lend_slots)
    stream = make_stream()
    with pytest.raises(ValueError, match="compute_stream is None with lent slots"):
        strata.ExpertStreamer(NBYTES, slots=slots)
    with pytest.raises(ValueError, match="gpu_ring is 5 and slots has 4; they must be equal"):
        strata.ExpertStreamer(NBYTES, gpu_ring=5, slots=slots, compute_stream=stream)
    with strata.ExpertStreamer(NBYTES, slots=slots, compute_stream=stream) as streamer:
        assert streamer.gpu_ring == RING
        for wrong in (slots[:3], lend_slots(5, NBYTES)):
            with pytest.raises(ValueError, match=f"slots has {len(wrong)}; the ring has 4"):
                streamer.begin(slots=wrong)


@pytest.mark.parametrize("kind", [list, tuple, np.array, np.int64, np.uintp])
def test_slots_may_be_any_sequence_of_integers_and_are_copied(kind, make_stream, lend_slots) -> None:
    slots = slots_of(lend_slots)
    given = kind(slots) if kind in (list, tuple, np.array) else np.array(slots, kind)
    each = material("dds" * 3, NBYTES)
    with strata.ExpertStreamer(NBYTES, slots=given, compute_stream=make_stream()) as streamer:
        if not isinstance(given, tuple):
            given[:] = given[::-1]  # the caller's own business from now on
            assert streamer.slots == tuple(slots)
            stream_all(streamer, each)
        assert streamer.slots == tuple(slots)
        stream_all(streamer, each)


def test_read_only_and_strided_slots(make_stream, lend_slots) -> None:
    slots = slots_of(lend_slots)
    each = material("dds" * 3, NBYTES)
    frozen = np.array(slots, np.uintp)
    frozen.flags.writeable = False
    spread = np.repeat(np.array(slots, np.uint64), 2)[::2]
    for given in (frozen, spread):
        with strata.ExpertStreamer(NBYTES, slots=given, compute_stream=make_stream()) as streamer:
            assert streamer.slots == tuple(slots)
            stream_all(streamer, each)
    with build() as streamer:
        with streamer.begin(each.copies, slots=frozen) as request:
            request.skip(9)


#: argument of begin, value, exception, words.
BAD_BEGIN = [
    ("copies", [b"abc"], TypeError, ["list", "ExpertCopies"]),
    ("copies", np.zeros(4), TypeError, ["ndarray", "ExpertCopies"]),
    ("long_prefill", 1, TypeError, ["1", "True or False"]),
    ("long_prefill", None, TypeError, ["None", "True or False"]),
    ("long_prefill", "yes", TypeError, ["'yes'", "True or False"]),
    ("compute_stream", 777, ValueError, [hex(777), "no stream"]),
    ("compute_stream", -1, ValueError, ["-1"]),
    ("compute_stream", 1.0, TypeError, ["1.0", "handle (int)"]),
]


@pytest.mark.parametrize(("name", "value", "kind", "words"), BAD_BEGIN, ids=lambda x: repr(x)[:30])
def test_arguments_of_begin(name: str, value: Any, kind: type[Exception], words: list[str]) -> None:
    each = material("dds", NBYTES)
    with build() as streamer:
        with pytest.raises(kind) as caught:
            streamer.begin(**{"copies": each.copies, name: value})
        for word in (name, *words):
            assert word in str(caught.value)
        assert streamer.counters == strata.Counters()
        stream_all(streamer, each)


@pytest.mark.parametrize("kind", ["direct", "staged"])
def test_an_entry_larger_than_a_slot(kind: str, software) -> None:
    rows = [np.zeros(NBYTES, np.uint8), np.zeros(NBYTES + 1, np.uint8), np.zeros(1, np.uint8)]
    copies = strata.ExpertCopies.from_buffers(rows, kind == "direct")
    each = material("dds", NBYTES)
    with build() as streamer:
        software.reset_calls()
        with pytest.raises(ValueError) as caught:
            streamer.begin(copies)
        assert str(caught.value).startswith(f"entry 1 needs {NBYTES + 1} bytes and a slot has {NBYTES} (slot 1)")
        assert {name for name, n in software.calls().items() if n} <= {"hipGetLastError", "hipPeekAtLastError"}
        assert streamer.counters == strata.Counters()
        stream_all(streamer, each)


def test_a_segment_that_ends_beyond_the_slot() -> None:
    row = np.zeros(NBYTES, np.uint8)
    address = row.ctypes.data
    with build() as streamer:
        for offset in (1, NBYTES, 2**40, 2**62):
            copies = strata.ExpertCopies([address], [NBYTES], True, offsets=[offset])
            with pytest.raises(ValueError, match=f"entry 0 needs {offset + NBYTES} bytes"):
                streamer.begin(copies)


def test_an_empty_segment_needs_no_room() -> None:
    copies = strata.ExpertCopies([0, 0], [0, 0], offsets=[NBYTES, 10**9])
    with build() as streamer, streamer.begin(copies) as request:
        for slot in request:
            assert slot.nbytes == 0
    assert request.counters.direct_copies == 2
    assert request.counters.direct_copy_calls == 0


#: value, exception, words: each names the argument.
BAD_TIMEOUTS = [
    ("1", TypeError, ["'1'"]),
    ([], TypeError, ["[]"]),
    (-1, ValueError, ["-1", "at least 0"]),
    (-1e-9, ValueError, ["-1e-09", "at least 0"]),
    (float("nan"), ValueError, ["nan"]),
]


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize(("value", "kind", "words"), BAD_TIMEOUTS, ids=lambda x: repr(x)[:30])
def test_timeouts(value: Any, kind: type[Exception], words: list[str], published: bool, software) -> None:
    """Refused whether or not the call would have to wait."""
    each = material("dd", NBYTES)
    with build() as streamer:
        if not published:
            software.inject("hipMemcpyAsync", 1, action="hang")
        with streamer.begin(each.copies) as request:
            while request.issued < 2 and not software.hanging_calls():
                pass
            with pytest.raises(kind) as caught:
                request.acquire(timeout=value)
            for word in ("timeout", *words):
                assert word in str(caught.value)
            assert request.counters.copied_waits == 0
            software.release_hangs()
            request.skip(2)


BAD_SKIPS = [
    (-1, ValueError, ["-1", "at least 0"]),
    (1.5, TypeError, ["1.5", "integer"]),
    (2.0, TypeError, ["2.0", "integer"]),
    ("1", TypeError, ["'1'", "integer"]),
    (None, TypeError, ["None", "integer"]),
    (True, TypeError, ["True", "integer"]),
]


@pytest.mark.parametrize(("value", "kind", "words"), BAD_SKIPS, ids=lambda x: repr(x)[:30])
def test_numbers_of_skips(value: Any, kind: type[Exception], words: list[str]) -> None:
    each = material("dd", NBYTES)
    with build() as streamer, streamer.begin(each.copies) as request:
        with pytest.raises(kind) as caught:
            request.skip(value)
        for word in ("n is", *words):
            assert word in str(caught.value)
        assert request.counters.skipped == 0
        request.skip(np.int32(2))


def test_a_skip_of_more_than_there_are() -> None:
    each = material("dd", NBYTES)
    with build() as streamer, streamer.begin(each.copies) as request:
        with pytest.raises((IndexError, ValueError)):
            request.skip(2**70)


def test_variables_that_hold_no_integer_fail_the_construction_that_reads_them(monkeypatch, software) -> None:
    before = software.live()
    for name, arguments in (
        ("STRATA_STAGER_RING", {}),
        ("STRATA_PREFILL_RING", {"gpu_ring": None}),
        ("STRATA_PREFILL_TIMING", {}),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, "many")
            with pytest.raises(strata.SettingsError, match=f"{name}='many'"):
                build(**arguments)
            build(host_ring=3, timing=False).close()  # nobody reads what is given in code
    assert software.live() == before


def test_variables_give_the_depths_that_the_engine_does_not_name(monkeypatch) -> None:
    monkeypatch.setenv("STRATA_STAGER_RING", "7")
    monkeypatch.setenv("STRATA_PREFILL_RING", "33")
    with strata.ExpertStreamer(NBYTES) as streamer:
        assert (streamer.gpu_ring, streamer.host_ring) == (33, 7)
    monkeypatch.delenv("STRATA_STAGER_RING")
    monkeypatch.delenv("STRATA_PREFILL_RING")
    with strata.ExpertStreamer(NBYTES) as streamer:
        assert (streamer.gpu_ring, streamer.host_ring) == (96, 16)
    with build(gpu_ring=2, host_ring=1) as streamer:  # in code any depth from 1 is legal
        assert (streamer.gpu_ring, streamer.host_ring) == (2, 1)


@pytest.mark.parametrize(("platform", "name", "wanted"), [
    ("win32", "rocm", (8, 16, 15)), ("linux", "rocm", (1, 1, 1)), ("win32", "software", (1, 1, 1)),
    ("win32", "cuda", (1, 1, 1)), ("linux", "software", (1, 1, 1))])
def test_batch_variables_count_with_hip_on_windows_alone(monkeypatch, platform: str, name: str, wanted: tuple) -> None:
    """The opt-in: nobody's prefill is grouped unasked, and where it is asked for, long prefill is."""
    each = material("ds", NBYTES)
    for variable, value in (("COPY", 8), ("STAGE", 16), ("STAGE_COPY", 15)):
        monkeypatch.setenv(f"STRATA_HIP_{variable}_BATCH", str(value))
    with monkeypatch.context() as patch:
        patch.setattr(settings, "sys", SimpleNamespace(platform=platform))
        patch.setattr(strata.streamer.runtime, "ensure", lambda: name)
        streamer = build(gpu_ring=96, host_ring=16)
        given = build(gpu_ring=96, host_ring=16, settings=strata.BatchSettings(2, 3, 4))
    with streamer, given:
        assert dataclasses.astuple(streamer.settings) == wanted
        assert dataclasses.astuple(given.settings) == (2, 3, 4)  # what is passed in code counts everywhere
        for long_prefill, used in ((True, wanted), (False, (1, 1, 1))):
            with streamer.begin(each.copies, long_prefill=long_prefill) as request:
                assert dataclasses.astuple(request.settings) == used
                request.skip(2)


def test_slots_for_lists_hold_the_largest_entry_of_any() -> None:
    small, large = material("ds", NBYTES), material("d", 4 * NBYTES)
    for lists in ([small.copies, large.copies], [large.copies, small.copies], iter([large.copies, small.copies])):
        with strata.ExpertStreamer.for_copies(lists, gpu_ring=RING) as streamer:
            assert streamer.slot_bytes == large.copies.slot_bytes > small.copies.slot_bytes


def test_a_small_device_gives_a_small_ring(software) -> None:
    software.configure(device_memory=2**20)
    with strata.ExpertStreamer(2**15) as streamer:
        assert streamer.gpu_ring == 8  # a quarter of 32


def test_lent_slots_may_come_from_a_generator(software) -> None:
    with strata.ExpertStreamer(64, gpu_ring=5) as lender:
        kernels = lender.compute_stream
        with strata.ExpertStreamer(64, slots=(slot for slot in lender.slots), compute_stream=kernels) as streamer:
            assert list(streamer.slots) == list(lender.slots)
        for slots in (5, np.uint64(5)):
            with pytest.raises(TypeError, match=r"slots is .*5.*; a sequence of device addresses"):
                strata.ExpertStreamer(64, slots=slots, compute_stream=kernels)  # type: ignore[arg-type]


def test_requests_and_slots_are_made_by_streamers_and_are_not_copied(software) -> None:
    pinned = strata.pinned_empty((4, 64), np.uint8)
    with strata.ExpertStreamer(64, gpu_ring=4) as streamer:
        with streamer.begin(strata.ExpertCopies.from_buffers(list(pinned))) as request:
            slot = request.acquire()
            for each in (request, slot):
                for take in (copy.copy, copy.deepcopy, pickle.dumps):
                    with pytest.raises(TypeError, match="cannot be copied or pickled"):
                        take(each)
            slot.release()
            request.skip(3)
    unmade = strata.Request.__new__(strata.Request)
    for call in (unmade.acquire, unmade.skip, unmade.abort, unmade.finish, unmade.cancel, unmade.__len__):
        with pytest.raises((strata.StrataError, AttributeError)):
            call()
    assert "no streamer" in repr(unmade)
    del unmade


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: strata.runtime.launch_host(-1, print), ValueError, ["stream is -1"]),
        (lambda: strata.runtime.launch_host(2**64, print), ValueError, [f"stream is {2**64}"]),
        (lambda: strata.runtime.launch_host("0", print), TypeError, ["stream is '0'"]),
        (lambda: strata.runtime.launch_host(None, print), TypeError, ["stream is None"]),
        (lambda: strata.runtime.launch_host(0, 3), TypeError, ["function is 3"]),
        (lambda: strata.Counters().matches([]), TypeError, ["expected is []"]),
        (lambda: strata.Counters().matches(None), TypeError, ["expected is None"]),
        (lambda: strata.pinned_empty(3, "nonsense"), TypeError, ["dtype is 'nonsense'"]),
        (lambda: strata.pinned_empty(3, [("a", "f4", "b", 3)]), TypeError, ["dtype is"]),
        (lambda: strata.pinned_empty(3, object), TypeError, ["dtype is object"]),
        (lambda: strata.runtime.use(np.arange(3)), ValueError, ["name is array"]),
        (lambda: strata.runtime.use(None), ValueError, ["name is None"]),
        (lambda: strata.runtime.use(["software"]), ValueError, ["name is ['software']"]),
    ],
)
def test_arguments_elsewhere_are_named(call, kind: type[Exception], words: list[str]) -> None:
    with pytest.raises(kind) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("seconds", [10**400, 2**63, 1e300, float("inf")])
def test_very_long_timeouts_never_end(seconds: float) -> None:
    """A number that no clock counts to is no error, wherever seconds are taken."""
    each = material("dss", 64)
    with strata.ExpertStreamer(64, gpu_ring=2, stall_timeout=seconds) as streamer:
        with streamer.begin(each.copies) as request:
            for _ in range(3):
                request.acquire(timeout=seconds).release()
    with strata.HostStager(64, host_ring=2) as stager:
        stager.start(each.copies)
        stager.wait(0, timeout=seconds)
        stager.abort()
