"""`pinned_empty` and `register`: what they ask of the runtime, and when they give it back."""

import ctypes
import gc
import logging
import mmap
import os

import numpy as np
import pytest

from strata import _hip, pinned, runtime
from strata.copies import ExpertCopies
from strata.errors import HipError
from strata.pinned import pinned_empty, register


class FakeRuntime:
    """Pinned memory on the heap, every call noted."""

    def __init__(self):
        self.live = {}
        self.registered = {}
        self.failing = set()
        self.chosen = False

    def _maybe_fail(self, call):
        if call in self.failing:
            raise HipError(call, 2, "hipErrorOutOfMemory")

    def ensure(self):
        self.chosen = True
        return "software"

    def pinned_alloc(self, nbytes):
        assert self.chosen
        assert type(nbytes) is int
        assert nbytes > 0
        self._maybe_fail("hipHostMalloc")
        block = ctypes.create_string_buffer(nbytes)
        address = ctypes.addressof(block)
        self.live[address] = block
        return address

    def pinned_free(self, address):
        self._maybe_fail("hipHostFree")
        del self.live[address]

    def host_register(self, address, nbytes):
        assert self.chosen
        assert type(address) is type(nbytes) is int
        self._maybe_fail("hipHostRegister")
        self.registered[address] = nbytes

    def host_unregister(self, address):
        self._maybe_fail("hipHostUnregister")
        del self.registered[address]

    def range_is_pinned(self, address, nbytes):
        ranges = [(start, len(block)) for start, block in self.live.items()] + list(self.registered.items())
        return any(start <= address and address + nbytes <= start + size for start, size in ranges)


@pytest.fixture
def fake(monkeypatch):
    fake = FakeRuntime()
    monkeypatch.setattr(runtime, "ensure", fake.ensure)
    monkeypatch.setattr(pinned, "_registrations", pinned._Registrations())  # what the true runtime has is not this one's
    for name in ("pinned_alloc", "pinned_free", "host_register", "host_unregister", "range_is_pinned"):
        monkeypatch.setattr(_hip, name, getattr(fake, name))
    yield fake
    fake.failing.clear()
    gc.collect()
    assert fake.live == {}
    assert fake.registered == {}


# pinned_empty


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        (5, np.uint8, (5,)),
        ((2, 3), "f4", (2, 3)),
        ([2, 3], np.dtype(">i8"), (2, 3)),
        ((), np.float64, ()),
        (np.int32(4), bool, (4,)),
        ((np.uint8(2), 1), "datetime64[s]", (2, 1)),
        (3, [("a", "i4"), ("b", "u1", (2,))], (3,)),
        (3, np.dtype(("i2", (4,))), (3, 4)),
        (2, "S7", (2,)),
    ],
)
def test_shape_and_type_are_those_of_numpy_empty(fake, shape, dtype, expected):
    array = pinned_empty(shape, dtype)
    like = np.empty(shape, dtype)
    assert array.shape == like.shape == expected
    assert array.dtype == like.dtype
    assert array.flags.c_contiguous
    assert array.flags.writeable
    (block,) = fake.live.values()
    assert len(block) == array.nbytes
    assert array.ctypes.data == ctypes.addressof(block)
    array.view(np.ndarray).reshape(-1).view(np.uint8)[:] = 7
    assert block.raw == b"\x07" * array.nbytes


def test_memory_lives_as_long_as_the_last_view(fake):
    array = pinned_empty((4, 4), np.int32)
    view = array[1:, ::2].T.view(np.uint32)
    copies = ExpertCopies.from_buffers([array[2]])
    assert copies.staged.tolist() == [0]
    del array
    gc.collect()
    assert len(fake.live) == 1
    del view
    gc.collect()
    assert len(fake.live) == 1  # the list of copies keeps it
    del copies
    gc.collect()
    assert fake.live == {}


@pytest.mark.parametrize("shape", [0, (0,), (3, 0), (0, 2**40)])
def test_no_bytes_need_no_memory(fake, shape):
    fake.failing.add("hipHostMalloc")
    array = pinned_empty(shape, np.int32)
    assert array.shape == np.empty(shape, np.int32).shape
    assert array.size == 0


@pytest.mark.parametrize("shape", [-1, (2, -3), (0, -1)])
def test_negative_dimensions(fake, shape):
    with pytest.raises(ValueError, match=r"shape is .*0 or more"):
        pinned_empty(shape, np.uint8)


@pytest.mark.parametrize("shape", [2**63, (2**32, 2**32), (2**62, 2), 2**100])
def test_shapes_beyond_any_address_space(fake, shape):
    with pytest.raises(ValueError, match=r"shape is .*at most"):
        pinned_empty(shape, np.uint8)


@pytest.mark.parametrize("shape", [1.0, "3", None, (2, 1.5), True, np.True_, ((2,), 3)])
def test_shapes_that_are_none(fake, shape):
    with pytest.raises(TypeError, match="shape is"):
        pinned_empty(shape, np.uint8)


@pytest.mark.parametrize("dtype", [object, [("a", "i4"), ("b", "O")], None])
def test_types_that_cannot_be_pinned(fake, dtype):
    with pytest.raises(TypeError, match="dtype is"):
        pinned_empty(3, dtype)


def test_more_dimensions_than_numpy_has_leave_nothing_behind(fake):
    with pytest.raises(ValueError, match="dimension"):
        pinned_empty((1,) * 100, np.uint8)
    gc.collect()
    assert fake.live == {}


def test_a_failed_allocation_is_raised(fake):
    fake.failing.add("hipHostMalloc")
    with pytest.raises(HipError, match="hipHostMalloc failed with hipErrorOutOfMemory"):
        pinned_empty(3, np.uint8)


def test_a_failed_free_is_logged_not_raised(fake, caplog):
    array = pinned_empty(3, np.uint8)
    fake.failing.add("hipHostFree")
    with caplog.at_level(logging.WARNING, logger="strata"):
        del array
        gc.collect()
    (record,) = caplog.records
    assert "3 bytes of pinned memory" in record.getMessage()
    assert "hipHostFree failed" in record.getMessage()
    fake.live.clear()


def test_a_child_process_leaves_the_parents_memory_alone(fake):
    array = pinned_empty(3, np.uint8)
    block = array
    while isinstance(block, np.ndarray):
        block = block.base
    block._getpid = lambda: os.getpid() + 1  # as after a fork
    del array, block
    gc.collect()
    assert len(fake.live) == 1
    fake.live.clear()


# register


def test_a_child_process_unpins_nothing(fake, monkeypatch):
    with register(np.zeros(3)):
        parent = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    assert len(fake.registered) == 1
    fake.registered.clear()


def test_an_array_is_pinned_for_the_block(fake):
    array = np.arange(12, dtype=np.int16)
    with register(array) as pinned:
        assert pinned is array
        assert fake.registered == {array.ctypes.data: 24}
        assert ExpertCopies.from_buffers([array[3:]]).staged.tolist() == [0]
    assert fake.registered == {}
    assert ExpertCopies.from_buffers([array[3:]]).staged.tolist() == [1]


def test_nothing_is_pinned_before_the_block(fake):
    registration = register(np.zeros(3))
    assert fake.registered == {}
    for _ in range(2):
        with registration:
            assert len(fake.registered) == 1


def test_an_error_in_the_block_unpins_and_goes_on(fake):
    with pytest.raises(KeyError, match="mine"), register(np.zeros(3)):
        raise KeyError("mine")
    assert fake.registered == {}


def test_the_array_lives_while_it_is_pinned(fake):
    registration = register(np.zeros(3))
    with registration:
        gc.collect()
        (address,) = fake.registered
        assert registration._array.ctypes.data == address


@pytest.mark.parametrize("part", [slice(None), slice(2, 5)])
def test_the_memory_stays_while_it_is_pinned(fake, part):
    array = np.zeros(1000, np.uint8)
    with register(array[part]):
        with pytest.raises(ValueError, match="cannot resize"):
            array.resize(2000, refcheck=False)
    array.resize(2000, refcheck=False)
    mapped = mmap.mmap(-1, 4096)
    with register(np.ndarray((9,), np.uint8, mapped)):  # which does not export the map itself
        with pytest.raises(BufferError):
            mapped.close()
    mapped.close()


def test_entering_twice(fake):
    registration = register(np.zeros(3))
    with registration:
        with pytest.raises(RuntimeError, match="already"), registration:
            pass
        assert len(fake.registered) == 1


@pytest.mark.parametrize("array", [np.empty(0), np.empty((3, 0), np.int8)])
def test_nothing_to_pin(fake, array):
    fake.failing |= {"hipHostRegister", "hipHostUnregister"}
    with register(array) as pinned:
        assert pinned is array


def test_read_only_arrays_can_be_pinned(fake):
    array = np.frombuffer(b"0123", np.uint8)
    with register(array):
        assert fake.registered == {array.ctypes.data: 4}


def test_a_failed_registration_is_raised_and_forgotten(fake):
    registration = register(np.zeros(3))
    fake.failing.add("hipHostRegister")
    with pytest.raises(HipError, match="hipHostRegister"), registration:
        pytest.fail("the block must not run")
    fake.failing.clear()
    with registration:
        assert len(fake.registered) == 1


def test_a_failed_release_is_raised(fake):
    fake.failing.add("hipHostUnregister")
    with pytest.raises(HipError, match="hipHostUnregister"), register(np.zeros(3)):
        pass
    fake.registered.clear()


@pytest.mark.parametrize("array", [b"bytes", bytearray(3), memoryview(b"123"), [1, 2], 5, None])
def test_what_is_no_array(fake, array):
    with pytest.raises(TypeError, match="array is a"):
        register(array)


def test_arrays_of_objects(fake):
    with pytest.raises(TypeError, match="dtype object"):
        register(np.array([None]))


@pytest.mark.parametrize("array", [np.zeros(8)[::2], np.zeros((3, 4), order="F"), np.zeros((4, 4))[:, :2]])
def test_arrays_that_are_not_contiguous(fake, array):
    with pytest.raises(ValueError, match="array has strides"):
        register(array)
