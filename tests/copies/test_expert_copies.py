"""`ExpertCopies` from arrays: what it derives, what it refuses, what it keeps."""

import copy
import gc
import itertools
import pickle
import re
import sys
import tracemalloc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.copies import ExpertCopies

TOP = 2**63 - 1


def table(copies: ExpertCopies) -> list[list[tuple[int, int, int]]]:
    """Each entry's segments as (address, bytes, offset)."""
    rows = list(zip(copies.addresses.tolist(), copies.nbytes.tolist(), copies.offsets.tolist(), strict=True))
    starts = copies.entry_starts.tolist()
    assert starts[0] == 0
    assert starts[-1] == len(rows)
    return [rows[begin:end] for begin, end in itertools.pairwise(starts)]


# What it holds.


def test_each_segment_is_an_entry_by_default():
    copies = ExpertCopies([4096, 8192, 0], [100, 50, 0], [True, False, False])
    assert len(copies) == 3
    assert table(copies) == [[(4096, 100, 0)], [(8192, 50, 0)], [(0, 0, 0)]]
    assert copies.staged.tolist() == [0, 1, 0]  # nothing of the empty one is pageable
    assert copies.owners == ()


def test_entry_starts_group_segments_back_to_back():
    copies = ExpertCopies([10, 20, 30, 40], [3, 0, 5, 7], True, entry_starts=[0, 0, 3, 4, 4])
    assert table(copies) == [[], [(10, 3, 0), (20, 0, 3), (30, 5, 3)], [(40, 7, 0)], []]
    assert copies.entry_bytes().tolist() == [0, 8, 7, 0]
    assert copies.entry_extents().tolist() == [0, 8, 7, 0]


def test_offsets_place_segments():
    copies = ExpertCopies([1, 2, 3], [4, 4, 4], True, offsets=[64, 0, 16], entry_starts=[0, 2, 3])
    assert table(copies) == [[(1, 4, 64), (2, 4, 0)], [(3, 4, 16)]]
    assert copies.entry_bytes().tolist() == [8, 4]
    assert copies.entry_extents().tolist() == [68, 20]


def test_empty_segments_extend_nothing():
    copies = ExpertCopies([1, 2], [4, 0], True, offsets=[0, 1000], entry_starts=[0, 2])
    assert copies.entry_extents().tolist() == [4]


def test_an_entry_with_a_pageable_segment_is_staged_as_a_whole():
    copies = ExpertCopies(
        [8] * 5, [2, 2, 2, 0, 2], [True, False, True, False, True], entry_starts=[0, 0, 2, 3, 5]
    )
    assert copies.staged.tolist() == [0, 1, 0, 0]
    assert copies.jobs().tolist() == [-1, 0, -1, -1]
    assert copies.pinned_share() == pytest.approx(4 / 8)


def test_jobs_are_consecutive_from_the_first():
    copies = ExpertCopies([8] * 5, [1] * 5, [True, False, False, True, False])
    assert copies.jobs().tolist() == [-1, 0, 1, -1, 2]
    assert copies.jobs(np.int64(70_000)).tolist() == [-1, 70_000, 70_001, -1, 70_002]
    assert copies.jobs().dtype == np.int64


@pytest.mark.parametrize(
    ("first", "error"),
    [(-1, ValueError), (2**63 - 1, ValueError), (1.0, TypeError), (True, TypeError), (np.True_, TypeError)],
)
def test_jobs_need_room(first, error):
    with pytest.raises(error, match="first_job"):
        ExpertCopies([8], [1], False).jobs(first)


def test_no_entries():
    for copies in (
        ExpertCopies([], []),
        ExpertCopies([], [], entry_starts=[0]),
        ExpertCopies.from_buffers([]),
    ):
        assert len(copies) == 0
        assert table(copies) == []
        assert (
            copies.entry_bytes().tolist() == copies.entry_extents().tolist() == copies.jobs().tolist() == []
        )
        assert copies.pinned_share() == 1.0
    assert len(ExpertCopies([], [], entry_starts=[0, 0, 0])) == 2


def test_pinned_share():
    assert ExpertCopies([8] * 3, [0, 0, 0], False).pinned_share() == 1.0
    assert ExpertCopies([8] * 3, [1, 2, 3], True).pinned_share() == 1.0
    assert ExpertCopies([8] * 3, [1, 2, 3], False).pinned_share() == 0.0
    assert ExpertCopies([8] * 2, [9, 1], [True, False]).pinned_share() == 0.9
    assert ExpertCopies([8] * 4, [2**62] * 4, [True, True, True, False]).pinned_share() == 0.75


def test_types_of_the_arrays():
    copies = ExpertCopies([8], [1], False)
    kinds = {"addresses": "u8", "nbytes": "i8", "offsets": "i8", "entry_starts": "i8", "staged": "u1"}
    for name, kind in kinds.items():
        array = getattr(copies, name)
        assert array.dtype == np.dtype(kind)
        assert array.flags.c_contiguous
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(AttributeError):
            setattr(copies, name, array)


def test_arguments_are_copied():
    arrays = {
        "addresses": np.array([64, 128], np.uint64),
        "nbytes": np.array([4, 4], np.int64),
        "pinned": np.array([True, True]),
        "offsets": np.array([0, 8], np.int64),
        "entry_starts": np.array([0, 1, 2], np.int64),
    }
    copies = ExpertCopies(**arrays)
    before = table(copies)
    for array in arrays.values():
        assert array.flags.writeable  # the caller's array is left as it is
        array[:] = 1
    assert table(copies) == before
    assert copies.staged.tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [np.uint64, np.int64, np.uint32, np.int16, np.uint8])
def test_any_native_integer_type_will_do(dtype):
    copies = ExpertCopies(
        np.array([64, 96], dtype), np.array([4, 5], dtype), True, entry_starts=np.array([0, 2], dtype)
    )
    assert table(copies) == [[(64, 4, 0), (96, 5, 4)]]


def test_lists_of_any_integers_will_do():
    copies = ExpertCopies((2**64 - 2, np.int8(3)), range(1, 3), [True, np.False_])
    assert table(copies) == [[(2**64 - 2, 1, 0)], [(3, 2, 0)]]
    assert copies.staged.tolist() == [0, 1]


def test_extremes_fit():
    copies = ExpertCopies([1, 2**63], [TOP, TOP], True)
    assert copies.entry_bytes().tolist() == copies.entry_extents().tolist() == [TOP, TOP]
    copies = ExpertCopies([1] * 4, [1, TOP - 1, TOP, TOP], True, entry_starts=[0, 2, 3, 4])
    assert copies.entry_extents().tolist() == [TOP, TOP, TOP]
    assert copies.entry_bytes().tolist() == [TOP, TOP, TOP]
    assert ExpertCopies([1], [0], True, offsets=[TOP]).entry_extents().tolist() == [0]


def test_it_cannot_be_pickled():
    for ask in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"ExpertCopies cannot be pickled or copied: .* in this process alone"):
            ask(ExpertCopies([8], [1], True))


def test_repr_counts():
    text = repr(ExpertCopies([8] * 3, [1000, 200, 0], [True, False, True], entry_starts=[0, 1, 3]))
    assert text == "<ExpertCopies: 2 entries (1 staged), 3 segments, 1,200 bytes>"


def test_bookkeeping_of_an_entry():
    """What an entry of one segment costs, by the allocator's own account."""
    entries = 100_000
    addresses, nbytes = np.full(entries, 4096, np.uint64), np.full(entries, 64, np.int64)
    pinned = np.zeros(entries, np.bool_)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        copies = ExpertCopies(addresses, nbytes, pinned)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(copies) == entries
    assert 33 <= (held - before) / entries < 33.2


# What it refuses.

ARRAYS = ["addresses", "nbytes", "offsets", "entry_starts"]


def with_argument(name, value):
    arguments = {
        "addresses": [8, 16],
        "nbytes": [1, 1],
        "pinned": True,
        "offsets": [0, 0],
        "entry_starts": [0, 1, 2],
    }
    arguments[name] = value
    return ExpertCopies(**arguments)


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (np.array([0.0, 1.0]), TypeError),
        (np.array([0, 1], object), TypeError),
        (np.array([False, True]), TypeError),
        (np.array(["0", "1"]), TypeError),
        (np.array([0, 1], np.dtype(np.int64).newbyteorder()), TypeError),
        ([0, 1.0], TypeError),
        ([False, True], TypeError),
        ([0, None], TypeError),
        ([[0, 1]], TypeError),
        ("01", TypeError),
        (iter([0, 1]), TypeError),
        (np.array([[0, 1]]), ValueError),
        (np.array(0), ValueError),
        (0, ValueError),
        (np.arange(4)[::2], ValueError),
        (np.arange(2)[::-1], ValueError),
    ],
)
def test_arrays_of_another_kind(name, value, error):
    with pytest.raises(error, match=rf"^{name} "):
        with_argument(name, value)


@pytest.mark.parametrize("name", ["nbytes", "offsets", "pinned"])
def test_arrays_of_another_length(name):
    for length in (0, 1, 3):
        with pytest.raises(ValueError, match=rf"{name} has {length} elements: 2 are needed"):
            with_argument(name, [True] * length if name == "pinned" else [0] * length)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (1, TypeError),
        ("yes", TypeError),
        ([1, 0], TypeError),
        (np.array([1, 0]), TypeError),
        (np.array([[True, False]]), ValueError),
        (np.array(True), ValueError),
        (np.array([True] * 4)[::2], ValueError),
    ],
)
def test_pinned_of_another_kind(value, error):
    with pytest.raises(error, match=r"^pinned "):
        with_argument("pinned", value)


@pytest.mark.parametrize("kind", [list, lambda rows: np.array(rows, np.int64)])
@pytest.mark.parametrize("name", ["addresses", "nbytes", "offsets"])
def test_negative_values(name, kind):
    arguments = {"addresses": [8, 8, 8], "nbytes": [1, 1, 1], "offsets": [0, 1, 2]}
    arguments[name][2] = -5
    arguments = {key: kind(rows) for key, rows in arguments.items()}
    with pytest.raises(
        ValueError,
        match=rf"^{name} is -5 at entry 1, segment 1: 0 to {2**64 - 1 if name == 'addresses' else TOP} is",
    ):
        ExpertCopies(**arguments, pinned=True, entry_starts=[0, 1, 3])


def test_values_beyond_their_type():
    with pytest.raises(ValueError, match=f"addresses is {2**64} at entry 1, segment 0"):
        ExpertCopies([8, 2**64], [1, 1], True)
    for rows in ([1, 2**63], np.array([1, 2**63], np.uint64)):
        with pytest.raises(ValueError, match=f"nbytes is {2**63} at entry 1, segment 0"):
            ExpertCopies([8, 8], rows, True)
        with pytest.raises(ValueError, match=f"offsets is {2**63} at entry 1, segment 0"):
            ExpertCopies([8, 8], [0, 0], True, offsets=rows)


def test_null_address_with_bytes():
    with pytest.raises(ValueError, match="addresses is 0 at entry 1, segment 1, with nbytes 7"):
        ExpertCopies([1, 2, 0], [7, 7, 7], True, entry_starts=[0, 1, 3])


def test_sources_that_wrap_the_address_space():
    ExpertCopies([2**64 - 8], [7], True)
    with pytest.raises(
        ValueError, match="addresses is 0xfffffffffffffff8 at entry 1, segment 0, with nbytes 8"
    ):
        ExpertCopies([8, 2**64 - 8], [8, 8], True)


def test_places_beyond_an_int64():
    with pytest.raises(ValueError, match=f"offsets is {TOP - 6} at entry 1, segment 0, with nbytes 7"):
        ExpertCopies([8, 8], [7, 7], True, offsets=[TOP - 7, TOP - 6])
    # Sums that wrap once, and round again, are seen at the first segment that is too far.
    for count in (2, 3, 4, 5, 6):
        with pytest.raises(ValueError, match=f"nbytes is {TOP} at entry 1, segment 2"):
            ExpertCopies([1] * (count + 2), [5, 0, 1] + [TOP] * (count - 1), True, entry_starts=[0, 1, count + 2])


@pytest.mark.parametrize(
    ("offsets", "nbytes", "message"),
    [
        ([0, 3], [4, 4], "offsets is 3 at entry 1, segment 1, but segment 0 takes 0 to 3"),
        ([0, 0], [4, 4], "offsets is 0 at entry 1, segment 1, but segment 0 takes 0 to 3"),
        ([3, 0], [4, 4], "offsets is 3 at entry 1, segment 0, but segment 1 takes 0 to 3"),
        ([0, 2, 8], [9, 0, 1], "offsets is 8 at entry 1, segment 2, but segment 0 takes 0 to 8"),
        ([8, 0, 4], [1, 4, 5], "offsets is 8 at entry 1, segment 0, but segment 2 takes 4 to 8"),
    ],
)
def test_overlaps_within_a_slot(offsets, nbytes, message):
    with pytest.raises(ValueError, match=message):
        ExpertCopies([1] * (len(offsets) + 1), [4, *nbytes], True, offsets=[0, *offsets], entry_starts=[0, 1, len(offsets) + 1])


def test_no_overlap():
    ExpertCopies([1] * 4, [4, 4, 4, 4], True, offsets=[0, 0, 0, 0])  # in slots of their own
    ExpertCopies([1] * 3, [4, 4, 4], True, offsets=[8, 0, 4], entry_starts=[0, 3])
    ExpertCopies([1] * 3, [4, 0, 0], True, offsets=[0, 2, 0], entry_starts=[0, 3])


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([], r"entry_starts is empty: entries \+ 1 values are needed, from 0 to the 2 segments"),
        ([1, 2], r"entry_starts\[0\] is 1: 0 is needed"),
        ([0, 2, 1, 2], r"entry_starts\[2\] is 1, below the 2 before it: it may never decrease"),
        ([0, 3], r"entry_starts is 3 at \[1\]: 0 to 2 is allowed"),
        ([0, -1, 2], r"entry_starts is -1 at \[1\]: 0 to 2 is allowed"),
        (np.array([0, 3]), r"entry_starts is 3 at \[1\]: 0 to 2 is allowed"),
        ([0, 1], r"entry_starts\[-1\] is 1: 2 is needed, the number of segments"),
        ([0], r"entry_starts\[-1\] is 0: 2 is needed, the number of segments"),
        (range(2), r"entry_starts\[-1\] is 1: 2 is needed, the number of segments"),
    ],
)
def test_bad_entry_starts(starts, message):
    with pytest.raises(ValueError, match=message):
        ExpertCopies([8, 8], [1, 1], True, entry_starts=starts)


def test_the_attribute_is_the_argument():
    """A list made again from its own arrays is the same list: both are in CSR form."""
    copies = ExpertCopies([4, 8, 16, 24], [1, 2, 3, 4], True, entry_starts=[0, 0, 2, 2, 4, 4])
    again = ExpertCopies(copies.addresses, copies.nbytes, True, offsets=copies.offsets, entry_starts=copies.entry_starts)
    assert len(copies) == len(again) == 5
    assert table(again) == table(copies) == [[], [(4, 1, 0), (8, 2, 1)], [], [(16, 3, 0), (24, 4, 3)], []]


# Owners, regions, sizes.


def test_owners_are_kept():
    class Mapping:
        pass

    owners = [Mapping(), Mapping()]
    copies = ExpertCopies([8, 16], [4, 4], True, owners=iter(owners))
    assert copies.owners == tuple(owners)
    alive = [weakref.ref(owner) for owner in owners]
    del owners
    kept = ExpertCopies.concatenate([copies.take([1]), ExpertCopies([8], [1], True, owners=[copies])])
    del copies
    gc.collect()
    assert all(owner() is not None for owner in alive)
    assert len(kept.owners) == 3
    del kept
    gc.collect()
    assert not any(owner() for owner in alive)


def test_owners_are_an_iterable():
    with pytest.raises(TypeError, match="owners is a int: an iterable of objects is needed"):
        ExpertCopies([8], [1], True, owners=5)


def test_slot_bytes_is_the_largest_extent():
    assert ExpertCopies([8] * 3, [4, 4, 9], True, offsets=[64, 0, 0], entry_starts=[0, 2, 3]).slot_bytes == 68
    assert ExpertCopies([8], [0], True, offsets=[100]).slot_bytes == 0
    assert ExpertCopies([], []).slot_bytes == 0
    assert type(ExpertCopies([8], [3], True).slot_bytes) is int


def test_regions_follow_their_segments():
    """Region numbers are what they were told, entry by entry, whatever is taken and joined; -1 is not known."""
    copies = ExpertCopies([8, 16, 24], [4, 4, 4], True, entry_starts=[0, 2, 3], regions=[5, 2**31 - 1, -1])
    assert copies.regions.tolist() == [5, 2**31 - 1, -1]
    assert copies.regions.dtype == np.int64
    assert not copies.regions.flags.writeable
    assert copies.take([1, 0]).regions.tolist() == [-1, 5, 2**31 - 1]
    plain = ExpertCopies([8], [4], True)
    assert plain.regions is None
    assert plain.take([0]).regions is None
    assert ExpertCopies.concatenate([plain, copies, plain]).regions.tolist() == [-1, 5, 2**31 - 1, -1, -1]
    assert ExpertCopies.concatenate([plain, plain]).regions is None


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ([0], ValueError, "regions has 1 elements: 2 are needed"),
        ([0, -2], ValueError, f"regions is -2 at entry 1, segment 0: -1 to {2**31 - 1} is allowed"),
        (np.array([2**31, 0]), ValueError, f"regions is {2**31} at entry 0, segment 0: -1 to"),
        ([0, 1.5], TypeError, "regions holds a float"),
        (np.array([0.0, 1.0]), TypeError, "regions has dtype float64"),
    ],
)
def test_bad_regions(value, error, message):
    with pytest.raises(error, match=re.escape(message)):
        ExpertCopies([8, 16], [1, 1], True, regions=value)


# take, concatenate.


def some(pinned=(True, False, True, False, True, True)) -> ExpertCopies:
    """Entries of 2, 0, 1, 3 segments."""
    return ExpertCopies(range(1, 7), range(10, 70, 10), list(pinned), entry_starts=[0, 2, 2, 3, 6])


@pytest.mark.parametrize(
    "indices", [[3, 0, 0, 1, 2], [], [1, 1], [2], (0, 3), range(4), np.array([3, 2], np.uint8)]
)
def test_take(indices):
    copies = some()
    rows, staged = table(copies), copies.staged.tolist()
    taken = copies.take(indices)
    assert table(taken) == [rows[i] for i in indices]
    assert taken.staged.tolist() == [staged[i] for i in indices]
    assert taken.owners is copies.owners
    assert not taken.nbytes.flags.writeable


def test_take_of_single_segments_and_strided_indices():
    copies = ExpertCopies(range(1, 11), range(10), [True, False] * 5)
    taken = copies.take(np.arange(10)[::-3])
    assert table(taken) == [table(copies)[i] for i in (9, 6, 3, 0)]
    assert taken.staged.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("indices", [[4], [-1], [0, 2**70], np.array([0, -1]), np.array([2**63], np.uint64)])
def test_take_of_no_entry(indices):
    with pytest.raises(IndexError, match=r"indices holds .*: 0 to 3 is allowed"):
        some().take(indices)
    with pytest.raises(IndexError, match="no entries"):
        ExpertCopies([], []).take(indices)


@pytest.mark.parametrize("indices", [[0.0], np.array([True] * 4), np.array([[0]]), 0, None, [True]])
def test_take_needs_integers(indices):
    with pytest.raises((TypeError, ValueError), match="indices"):
        some().take(indices)


def test_concatenate():
    parts = [some(), ExpertCopies([], []), ExpertCopies([7], [5], False), some()]
    joined = ExpertCopies.concatenate(parts)
    assert table(joined) == [entry for part in parts for entry in table(part)]
    assert joined.staged.tolist() == [flag for part in parts for flag in part.staged.tolist()]
    assert len(ExpertCopies.concatenate([])) == 0
    assert len(ExpertCopies.concatenate(iter([some()]))) == 4


@pytest.mark.parametrize("parts", [5, None, some()], ids=lambda parts: type(parts).__name__)
def test_concatenate_needs_an_iterable(parts):
    with pytest.raises(TypeError, match=f"parts is a {type(parts).__name__}: an iterable of ExpertCopies is needed"):
        ExpertCopies.concatenate(parts)


def test_concatenate_keeps_each_owner_once():
    first, second = bytearray(8), bytearray(8)
    copies = ExpertCopies.from_buffers([first, second], False)
    other = ExpertCopies.from_buffers([bytearray(8)], False)
    joined = ExpertCopies.concatenate([copies.take([0]), other, copies.take([1, 1])])
    assert [id(owner) for owner in joined.owners] == [id(owner) for owner in copies.owners + other.owners]


@pytest.mark.parametrize("part", [None, [1], "copies"])
def test_concatenate_needs_lists_of_copies(part):
    with pytest.raises(TypeError, match=r"parts\[1\]"):
        ExpertCopies.concatenate([some(), part])


# Against a slow model.

segment = st.tuples(st.integers(1, 50), st.integers(0, 4), st.booleans())
entry_list = st.lists(st.lists(segment, max_size=4), max_size=8)


@settings(deadline=None)
@given(entry_list, st.data())
def test_derived_values_are_those_of_a_slow_model(entries, data):
    flat = [row for entry in entries for row in entry]
    places = [data.draw(st.permutations(range(len(entry)))) for entry in entries]
    offsets = [5 * place for entry in places for place in entry]  # apart, in any order
    starts = [sum(map(len, entries[:i])) for i in range(len(entries) + 1)]
    columns = [[row[i] for row in flat] for i in range(3)]
    copies = ExpertCopies(*columns, offsets=offsets, entry_starts=starts)
    packed = ExpertCopies(*columns, entry_starts=starts)

    position = iter(offsets)
    expected = [[(address, size, next(position)) for address, size, _ in entry] for entry in entries]
    assert table(copies) == expected
    sizes = [sum(size for _, size, _ in entry) for entry in entries]
    staged = [any(size and not pinned for _, size, pinned in entry) for entry in entries]
    assert (
        copies.entry_bytes().tolist()
        == packed.entry_bytes().tolist()
        == packed.entry_extents().tolist()
        == sizes
    )
    assert copies.entry_extents().tolist() == [
        max([offset + size for _, size, offset in entry if size], default=0) for entry in expected
    ]
    assert copies.staged.tolist() == packed.staged.tolist() == staged
    assert copies.jobs(3).tolist() == [3 + sum(staged[:i]) if flag else -1 for i, flag in enumerate(staged)]
    direct = sum(size for size, flag in zip(sizes, staged, strict=True) if not flag)
    assert copies.pinned_share() == (direct / sum(sizes) if sum(sizes) else 1.0)
    if entries:
        indices = data.draw(st.lists(st.integers(0, len(entries) - 1), max_size=6))
        assert table(copies.take(indices)) == [expected[i] for i in indices]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), min_size=1, max_size=5))
def test_overlaps_are_those_of_a_slow_model(places):
    taken: list[int] = [byte for offset, size in places for byte in range(offset, offset + size)]
    arguments = ([1] * len(places), [size for _, size in places], True)
    offsets = [offset for offset, _ in places]
    if len(taken) == len(set(taken)):
        ExpertCopies(*arguments, offsets=offsets, entry_starts=[0, len(places)])
    else:
        with pytest.raises(ValueError, match="overlap"):
            ExpertCopies(*arguments, offsets=offsets, entry_starts=[0, len(places)])


def test_no_reference_to_the_arguments_is_kept():
    addresses = np.array([8], np.uint64)
    before = sys.getrefcount(addresses)
    copies = ExpertCopies(addresses, [1], True)
    assert sys.getrefcount(addresses) == before
    assert len(copies) == 1
