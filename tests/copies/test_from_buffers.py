"""`ExpertCopies.from_buffers`: what counts as host memory, where it lies, and who keeps it alive."""

import array
import ctypes
import gc
import mmap
import pickle
import weakref

import numpy as np
import pytest

from strata import _hip, runtime
from strata.copies import ExpertCopies


def content(copies: ExpertCopies, entry: int) -> bytes:
    """The entry's bytes, read where the list says that they lie."""
    begin, end = copies.entry_starts[entry : entry + 2].tolist()
    rows = zip(copies.addresses[begin:end].tolist(), copies.nbytes[begin:end].tolist(), strict=True)
    return b"".join(ctypes.string_at(address, size) for address, size in rows)


@pytest.fixture
def mapped(tmp_path):
    """A read-only map of a small file."""
    path = tmp_path / "checkpoint"
    path.write_bytes(bytes(range(256)) * 32)
    with path.open("rb") as file:
        yield mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


BUFFERS = {
    "ndarray": np.arange(6, dtype=np.float32).reshape(2, 3),
    "slice of an ndarray": np.arange(64, dtype=np.uint8)[5:37],
    "half floats": np.arange(5, dtype=np.float16),
    "dates": np.array(["2020-01-01", "2021-02-03"], "datetime64[D]"),
    "records": np.zeros(3, [("a", "<i4"), ("b", "u1")]),
    "other byte order": np.arange(4, dtype=">i4"),
    "read-only ndarray": np.frombuffer(b"0123456789", np.uint8),
    "bytes": b"some bytes",
    "bytearray": bytearray(b"some more bytes"),
    "memoryview": memoryview(b"viewed bytes")[3:9],
    "memoryview of floats": memoryview(array.array("d", [1.0, 2.0])),
    "memoryview of two dimensions": memoryview(bytes(range(12))).cast("B", (3, 4)),
    "array.array": array.array("i", [1, 2, 3]),
    "ctypes array": (ctypes.c_int * 3)(7, 8, 9),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_an_item_is_any_contiguous_buffer(name):
    source = BUFFERS[name]
    copies = ExpertCopies.from_buffers([source], False)
    expected = source.tobytes() if hasattr(source, "tobytes") else bytes(source)
    assert expected
    assert content(copies, 0) == expected
    assert copies.offsets.tolist() == [0]
    assert copies.staged.tolist() == [1]


def test_a_map_of_a_checkpoint(mapped):
    whole = ExpertCopies.from_buffers([mapped, memoryview(mapped)[100:200]], False)
    assert content(whole, 0) == mapped[:]
    assert content(whole, 1) == mapped[100:200]
    address = np.frombuffer(mapped, np.uint8).ctypes.data
    assert whole.addresses.tolist() == [address, address + 100]


def test_an_item_may_be_segments():
    gate, up, down = np.full(3, 1, np.uint8), bytearray(b"\x02" * 5), b"\x03" * 2
    copies = ExpertCopies.from_buffers([[gate, up, down], down, (), (up,)], [True, False, True, False])
    assert copies.entry_starts.tolist() == [0, 3, 4, 4, 5]
    assert copies.offsets.tolist() == [0, 3, 8, 0, 0]
    assert [content(copies, i) for i in range(4)] == [
        b"\x01" * 3 + b"\x02" * 5 + b"\x03" * 2,
        b"\x03" * 2,
        b"",
        b"\x02" * 5,
    ]
    assert copies.staged.tolist() == [0, 1, 0, 1]


def test_items_may_come_from_anywhere():
    pool = np.arange(32, dtype=np.uint8).reshape(4, 8)
    for items in (pool, iter(list(pool)), (row for row in pool)):
        copies = ExpertCopies.from_buffers(items, True)
        assert [content(copies, i) for i in range(4)] == [row.tobytes() for row in pool]


def test_empty_buffers():
    empty = [b"", bytearray(), np.empty(0), np.empty((3, 0)), memoryview(b"")]
    copies = ExpertCopies.from_buffers([*empty, empty])
    assert len(copies) == 6
    assert copies.entry_bytes().tolist() == [0] * 6
    assert copies.staged.tolist() == [0] * 6


# What is refused.


class OnDevice:
    """As a device array presents itself."""

    __cuda_array_interface__ = {"shape": (4,), "typestr": "|u1", "data": (4096, False), "version": 3}  # noqa: RUF012


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (OnDevice(), r"OnDevice\) is device memory: sources are host memory"),
        (5, "is a int"),
        ("text", "is a str"),
        (None, "is a NoneType"),
        ([[b"nested"]], "is a list"),
        (np.float32(1), "NumPy scalar"),
        (np.array([1, None]), "Python objects"),
        (np.zeros(2, [("a", "O")]), "Python objects"),
    ],
)
def test_items_that_are_no_host_memory(item, message):
    with pytest.raises(
        TypeError, match=r"items\[1\].* " + message if message[0] == "i" else r"items\[1\].*" + message
    ):
        ExpertCopies.from_buffers([b"fine", item], True)


@pytest.mark.parametrize("items", [5, None, np.float64(2)], ids=lambda items: type(items).__name__)
def test_what_is_no_iterable(items):
    with pytest.raises(TypeError, match=f"items is a {type(items).__name__}: an iterable of buffers is needed"):
        ExpertCopies.from_buffers(items)


def test_memory_that_is_gone():
    mapped = mmap.mmap(-1, 4096)
    mapped.close()
    view = memoryview(bytes(8))
    view.release()
    for item in (mapped, view):
        with pytest.raises(ValueError, match=rf"items\[1\] is a {type(item).__name__} that gives no memory: "):
            ExpertCopies.from_buffers([b"fine", item], True)


@pytest.mark.parametrize(
    "item",
    [
        np.zeros((4, 4))[:, 1:3],
        np.zeros(8)[::2],
        np.zeros(8)[::-1],
        np.zeros((3, 4), order="F"),
        memoryview(bytes(8))[::2],
        memoryview(bytes(8))[::-1],
    ],
)
def test_items_that_are_not_contiguous(item):
    with pytest.raises(ValueError, match=r"items\[1\] has strides .*C-contiguous"):
        ExpertCopies.from_buffers([b"fine", item], True)
    with pytest.raises(ValueError, match=r"items\[0\]\[1\] has strides .*C-contiguous"):
        ExpertCopies.from_buffers([[b"fine", item]], True)


@pytest.mark.parametrize(
    ("pinned", "error"),
    [
        ([True], ValueError),
        ([True] * 3, ValueError),
        ([1, 0], TypeError),
        (np.array([1, 0]), TypeError),
        (1, TypeError),
    ],
)
def test_pinned_is_one_an_item(pinned, error):
    with pytest.raises(error, match="pinned"):
        ExpertCopies.from_buffers([[b"a", b"b", b"c"], b"d"], pinned)


# Owners.


def exporters_of_one_id():
    """Two short-lived exporters, one after the other at one address, of different memory."""
    sources = [bytearray(b"first bytes"), bytearray(b"second bytes")]
    ids = []

    def items():
        exporter = pickle.PickleBuffer(sources[0])
        ids.append(id(exporter))
        yield exporter
        del exporter
        yield np.zeros(7)  # the loop that takes the items lets the first one go here, and makes no view
        tried = [pickle.PickleBuffer(sources[1]) for _ in range(100)]
        exporter = next((each for each in tried if id(each) in ids), tried[0])
        ids.append(id(exporter))
        yield exporter

    return sources, ids, items()


def test_two_exporters_that_get_one_id():
    """The id of an object that is gone says nothing: each exporter is kept with its view."""
    sources, ids, items = exporters_of_one_id()
    copies = ExpertCopies.from_buffers(items, False)
    assert len(set(ids)) == 2  # the first is kept, so nobody gets its id
    assert [content(copies, i) for i in (0, 2)] == [bytes(source) for source in sources]
    for source in sources:
        with pytest.raises(BufferError):
            source.append(0)


def test_short_lived_views_of_many_kinds_keep_their_memory():
    """Whatever is made for one item alone and gone with it: its memory stays until the list goes."""
    makers = {
        "memoryview": memoryview,
        "PickleBuffer": pickle.PickleBuffer,
        "ndarray": lambda source: np.frombuffer(source, np.uint8),
        "ndarray over a view": lambda source: np.frombuffer(memoryview(source), np.uint8),
        "ctypes": lambda source: (ctypes.c_uint8 * len(source)).from_buffer(source),
        "array interface": lambda source: Interfaced(np.frombuffer(source, np.uint8)),
    }
    for name, make in makers.items():
        sources = [bytearray([n]) * 40 for n in range(20)]
        copies = ExpertCopies.from_buffers((make(source) for source in sources), False)
        gc.collect()
        assert [content(copies, i) for i in range(20)] == [bytes(source) for source in sources], name
        for source in sources:
            with pytest.raises(BufferError):
                source.clear()


class Interfaced:
    """An exporter by the array interface, which has no buffer."""

    def __init__(self, array):
        self.array = array

    @property
    def __array_interface__(self):
        return self.array.__array_interface__


def test_an_exporter_whose_views_differ():
    """Each view of such an exporter lies elsewhere: each is kept, and each is what the list refers to."""
    views = [bytearray(b"one of them"), bytearray(b"another one")]
    copies = ExpertCopies.from_buffers([memoryview(view) for view in views], False)
    assert [content(copies, i) for i in range(2)] == [bytes(view) for view in views]


# Regions.


def test_each_exporter_is_a_region(tmp_path):
    path = tmp_path / "checkpoint"
    path.write_bytes(bytes(8192))
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    pool = np.arange(64, dtype=np.uint8)
    other = bytearray(16)
    items = [
        [pool[:8], pool[8:16].view(np.uint16)],
        [memoryview(mapped)[:100], np.frombuffer(mapped, np.uint8)[100:]],
        [other, memoryview(other)[3:], b""],
        pool[16:],
        mapped,
    ]
    copies = ExpertCopies.from_buffers(items, False)
    pool_id, mapped_id, other_id = (int(copies.regions[k]) for k in (0, 2, 4))
    assert len({pool_id, mapped_id, other_id}) == 3
    assert copies.regions.tolist() == [pool_id, pool_id, mapped_id, mapped_id, other_id, other_id, -1, pool_id, mapped_id]
    assert min(pool_id, mapped_id, other_id) >= 2**31  # apart from all that a caller may give


def test_regions_of_separate_lists_never_meet():
    lists = [ExpertCopies.from_buffers([bytearray(8), bytearray(8)], False) for _ in range(3)]
    joined = ExpertCopies.concatenate([*lists, ExpertCopies([8], [1], False, regions=[0])])
    assert len(set(joined.regions.tolist())) == 7


# Field names.


class Block(ctypes.Structure):
    _fields_ = (("Offset", ctypes.c_float), ("O", ctypes.c_uint8 * 16))


class Nested(ctypes.Structure):
    _fields_ = (("OO", Block * 2), ("Order", ctypes.c_int))


class Holder(ctypes.Structure):
    _fields_ = (("p", ctypes.py_object),)


class NestedHolder(ctypes.Structure):
    _fields_ = (("Offset", ctypes.c_int), ("inner", Holder * 2))


@pytest.mark.parametrize(
    "source",
    [
        memoryview(np.arange(20, dtype=np.uint8).view([("Offset", "<f4"), ("qs", "u1", 16)])),
        memoryview(np.arange(20, dtype=np.uint8).view([("q", [("O", "<f4"), ("LO", "u1", 16)])])),
        (Block * 3)(),
        (Nested * 2)(),
        Block(),
        (Block * 0)(),
    ],
    ids=lambda source: type(source).__name__,
)
def test_field_names_are_no_types(source):
    copies = ExpertCopies.from_buffers([source], False)
    assert content(copies, 0) == bytes(memoryview(source).cast("B") if memoryview(source).nbytes else b"")


@pytest.mark.parametrize("source", [Holder(), (Holder * 4)(), NestedHolder(), (ctypes.py_object * 2)()])
def test_python_objects_in_structures_are_refused(source):
    with pytest.raises(TypeError, match=r"items\[0\] holds Python objects: bytes are needed"):
        ExpertCopies.from_buffers([source], False)


def test_a_bytearray_cannot_be_resized_meanwhile():
    source = bytearray(b"1234")
    copies = ExpertCopies.from_buffers([source, [source, source]], False)
    assert len(copies.owners) == 1
    with pytest.raises(BufferError):
        source.append(0)
    del copies
    source.append(0)


@pytest.mark.parametrize("size", [0, 1, 10**6])
@pytest.mark.parametrize("make", [
    lambda a: ExpertCopies.from_buffers([a], False),
    lambda a: ExpertCopies.from_buffers([a[1:3]], False),
    lambda a: ExpertCopies.from_buffers([a[:, None]], False).take([0]),
    lambda a: ExpertCopies.concatenate([ExpertCopies.from_buffers([a], False), ExpertCopies.from_buffers([b"x"], False)]),
    lambda a: ExpertCopies.from_stacked(a, pinned=False),
])
def test_an_array_cannot_be_resized_meanwhile_not_even_unchecked(make, size):
    array = np.arange(1000, dtype=np.uint8)
    copies = make(array)
    with pytest.raises(ValueError, match="cannot resize"):
        array.resize(size, refcheck=False)
    del copies
    array.resize(size, refcheck=False)


@pytest.mark.parametrize(
    "over",
    [
        lambda source: source,
        memoryview,
        lambda source: np.frombuffer(source, np.uint8)[7:90],
        lambda source: np.ndarray((9,), np.uint8, source),  # such an array does not export it itself
    ],
    ids=["map", "memoryview", "frombuffer", "ndarray"],
)
def test_a_map_cannot_be_closed_meanwhile(mapped, over):
    copies = ExpertCopies.from_buffers([over(mapped)], False)
    gc.collect()
    with pytest.raises(BufferError):
        mapped.close()
    del copies
    gc.collect()
    mapped.close()


def test_a_memory_map_that_was_closed_is_refused(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(bytes(4096))
    weights = np.memmap(path, np.uint8, "r")
    weights._mmap.close()
    with pytest.raises(ValueError, match=r"items\[0\] lies in a mmap"):
        ExpertCopies.from_buffers([weights], False)


def test_a_released_view_stays_valid():
    source = bytearray(b"1234")
    view = memoryview(source)
    copies = ExpertCopies.from_buffers([view], False)
    view.release()
    assert content(copies, 0) == b"1234"
    with pytest.raises(BufferError):
        source.append(0)


def test_many_slices_of_one_array_keep_it_once():
    pool = np.arange(4096, dtype=np.uint8)
    copies = ExpertCopies.from_buffers([pool[i * 4 : i * 4 + 4] for i in range(1024)], False)
    assert len(copies.owners) == 2  # and what keeps it from being resized
    assert copies.owners[0] is pool


def test_owners_live_as_long_as_any_list_of_them():
    class Pool(np.ndarray):
        """An array that can be referenced weakly."""

    pool = np.ndarray.__new__(Pool, (64,), np.uint8)
    alive = weakref.ref(pool)
    copies = ExpertCopies.from_buffers([pool[:32], pool[32:]], False)
    del pool
    taken = copies.take([1])
    del copies
    joined = ExpertCopies.concatenate([taken, ExpertCopies.from_buffers([b"x"], False)])
    del taken
    gc.collect()
    assert alive() is not None
    del joined
    gc.collect()
    assert alive() is None


# Asking the runtime.


@pytest.fixture
def asked(monkeypatch):
    """Ranges that the runtime was asked about; it calls those at even addresses pinned."""
    ranges = []
    chosen = []

    def ensure():
        chosen.append("software")
        return "software"

    def range_is_pinned(address, nbytes):
        assert chosen
        assert type(address) is type(nbytes) is int
        ranges.append((address, nbytes))
        return address % 2 == 0

    monkeypatch.setattr(runtime, "ensure", ensure)
    monkeypatch.setattr(_hip, "range_is_pinned", range_is_pinned)
    return ranges


def test_the_runtime_is_asked_once_a_segment_with_bytes(asked):
    copies = ExpertCopies([4, 5, 7, 9, 8], [1, 2, 0, 0, 3], entry_starts=[0, 2, 3, 5])
    assert asked == [(4, 1), (5, 2), (8, 3)]
    assert copies.staged.tolist() == [1, 0, 0]
    copies.take([0])
    ExpertCopies.concatenate([copies])
    assert len(asked) == 3


def test_the_runtime_is_not_asked_what_the_caller_knows(asked):
    ExpertCopies([4, 5], [1, 2], True)
    ExpertCopies([4, 5], [1, 2], np.array([True, False]))
    ExpertCopies.from_buffers([b"ab"], False)
    ExpertCopies([0, 5], [0, 0])
    ExpertCopies([], [])
    assert asked == []


def test_the_runtime_is_asked_about_buffers(asked):
    pool = np.zeros(64, np.uint8)
    first = -pool.ctypes.data % 2
    copies = ExpertCopies.from_buffers([pool[first : first + 8], pool[first + 1 : first + 8]])
    assert copies.staged.tolist() == [0, 1]
    assert [size for _, size in asked] == [8, 7]


def test_bad_arguments_are_found_before_the_runtime_is_asked(asked):
    with pytest.raises(ValueError, match="overlap"):
        ExpertCopies([4, 4], [4, 4], offsets=[0, 0], entry_starts=[0, 2])
    with pytest.raises(ValueError, match="addresses"):
        ExpertCopies([4, 0], [4, 4])
    assert asked == []
