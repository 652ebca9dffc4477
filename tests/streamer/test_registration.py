"""strata's own account of what it registered, over libraries that accept and that refuse a second registration."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import strata
from strata import _hip

N = 8192


@pytest.fixture(params=["refuses", "accepts"])
def library(request, software):
    software.configure(registration=request.param)
    before = software.live()["registered_ranges"]
    yield software
    assert software.live()["registered_ranges"] == before
    software.configure(registration="refuses")


def test_the_same_range_nests(library) -> None:
    array = np.zeros(N, np.uint8)
    address = array.ctypes.data
    with strata.register(array):
        with strata.register(array):
            assert _hip.range_is_pinned(address, N)
        assert _hip.range_is_pinned(address, N)
        with strata.register(array.view(np.float32)):
            assert _hip.range_is_pinned(address, N)
        assert _hip.range_is_pinned(address, N)
    assert not _hip.range_is_pinned(address, N)


@pytest.mark.parametrize(("first", "second"), [
    ((0, N), (0, N // 2)), ((0, N), (N // 2, N)), ((0, N), (16, 32)), ((16, 32), (0, N)), ((0, N // 2), (0, N)),
    ((N // 4, N), (0, N // 2)),
])  # fmt: skip
def test_an_overlapping_range_is_refused_by_name(library, first, second) -> None:
    array = np.zeros(N, np.uint8)
    one, other = array[slice(*first)], array[slice(*second)]
    with strata.register(one):
        with pytest.raises(ValueError, match=f"array lies at {other.ctypes.data:#x} .* overlaps {one.ctypes.data:#x}"):
            strata.register(other).__enter__()
        assert _hip.range_is_pinned(one.ctypes.data, one.nbytes)
    with strata.register(other):
        pass


def test_neighbours_do_not_overlap(library) -> None:
    array = np.zeros(N, np.uint8)
    with strata.register(array[: N // 2]), strata.register(array[N // 2 :]):
        assert _hip.range_is_pinned(array.ctypes.data, N)


def test_one_that_is_dropped_takes_its_range_along(library) -> None:
    array = np.zeros(N, np.uint8)
    address = array.ctypes.data

    def fails() -> None:
        strata.register(array).__enter__()
        raise KeyError("by hand")

    with pytest.raises(KeyError):
        fails()
    gc.collect()
    assert not _hip.range_is_pinned(address, N)
    with strata.register(array):
        by_hand = strata.register(array)
        by_hand.__enter__()
        del by_hand
        gc.collect()
        assert _hip.range_is_pinned(address, N)  # the outer block lasts


def test_a_library_that_refuses_leaves_no_account(library) -> None:
    array = np.zeros(N, np.uint8)
    library.configure(pinned_limit=0)
    with pytest.raises(strata.HipError):
        strata.register(array).__enter__()
    library.configure(pinned_limit=2**64 - 1)
    with strata.register(array):
        pass
