"""`ExpertCopies.from_stacked`, `from_buffers` by a layout, and streamers made for a list."""

import ctypes
import gc
import itertools
import mmap
import weakref

import numpy as np
import pytest

import strata
from strata import ExpertCopies, SlotLayout, _hip, runtime

GATE_UP, DOWN, BIAS = ("gate_up", "float32", (6, 4)), ("down", "float32", (4, 3)), ("bias", "int16", (5,))
LAYOUT = SlotLayout([GATE_UP, BIAS, DOWN])


def fused(experts=7):
    rng = np.random.default_rng(3)
    return (
        rng.random((experts, 6, 4), np.float32),
        rng.integers(-99, 99, (experts, 5), dtype=np.int16),
        rng.random((experts, 4, 3), np.float32),
    )


def image(copies: ExpertCopies, entry: int) -> bytes:
    """The slot as it would look."""
    begin, end = copies.entry_starts[entry : entry + 2].tolist()
    slot = bytearray(copies.slot_bytes)
    for k in range(begin, end):
        size, offset = int(copies.nbytes[k]), int(copies.offsets[k])
        slot[offset : offset + size] = ctypes.string_at(int(copies.addresses[k]), size)
    return bytes(slot)


def test_an_expert_is_a_row_of_each():
    arrays = fused()
    copies = ExpertCopies.from_stacked(*arrays, layout=LAYOUT, pinned=False)
    assert len(copies) == 7
    assert copies.slot_bytes == LAYOUT.nbytes
    assert copies.staged.tolist() == [1] * 7
    for entry in range(7):
        views = LAYOUT.views(np.frombuffer(image(copies, entry), np.uint8))
        for name, array in zip(LAYOUT, arrays, strict=True):
            np.testing.assert_array_equal(views[name], array[entry])


def test_without_a_layout_rows_lie_back_to_back():
    arrays = fused()
    copies = ExpertCopies.from_stacked(*arrays, pinned=True)
    same = ExpertCopies.from_buffers(list(zip(*arrays, strict=True)), True)
    for name in ("addresses", "nbytes", "offsets", "entry_starts", "staged"):
        np.testing.assert_array_equal(getattr(copies, name), getattr(same, name))
    assert len(set(copies.regions.tolist())) == 3


@pytest.mark.parametrize("make", [
    lambda a: a[::2], lambda a: a[::-1], lambda a: a[2:5], lambda a: a[:, 1:3], lambda a: np.broadcast_to(a[0], a.shape),
    lambda a: a[:, 0, :], lambda a: a[:, 0, 0], lambda a: memoryview(a), lambda a: a[::2, 2:],
    lambda a: (ctypes.c_float * 4 * 6 * 7).from_buffer(a), lambda a: a[:0], lambda a: a[:, :0],
], ids=itertools.count())  # fmt: skip
def test_rows_may_lie_anywhere(make):
    stack = make(np.arange(7 * 6 * 4, dtype=np.float32).reshape(7, 6, 4))
    copies = ExpertCopies.from_stacked(stack, pinned=False)
    expected = np.asarray(stack)
    assert len(copies) == len(expected)
    assert [image(copies, i) for i in range(len(copies))] == [row.tobytes() for row in expected]


def test_owners_are_kept():
    class Pool(np.ndarray):
        pass

    gate, bias, down = (array.view(Pool) for array in fused())
    alive = [weakref.ref(array) for array in (gate, bias, down)]
    copies = ExpertCopies.from_stacked(gate, bias, down, layout=LAYOUT, pinned=False)
    expected = gate[3].tobytes()
    del gate, bias, down
    gc.collect()
    assert image(copies, 3)[: len(expected)] == expected
    assert len(copies.owners) == 4  # and what keeps them from being resized
    del copies
    gc.collect()
    assert not any(ref() for ref in alive)
    mapped = mmap.mmap(-1, 4096)
    copies = ExpertCopies.from_stacked(np.frombuffer(mapped, np.uint8).reshape(16, 256), pinned=False)
    with pytest.raises(BufferError):
        mapped.close()
    del copies


@pytest.mark.parametrize(("change", "error", "message"), [
    (lambda g, b, d: (g, b), ValueError, r"arrays has 2: the layout has 3 \(gate_up, bias, down\)"),
    (lambda g, b, d: (g, b[:6], d), ValueError, r"arrays\[1\] has 6 experts: arrays\[0\] has 7"),
    (lambda g, b, d: (g, d, b), ValueError, r"arrays\[1\] \('bias'\) is float32 \[4, 3\], 48 bytes: the layout has int16 \[5\], 10"),
    (lambda g, b, d: (g.astype(np.int32), b, d), ValueError, r"arrays\[0\] \('gate_up'\) is int32 \[6, 4\]"),
    (lambda g, b, d: (g.reshape(7, 4, 6), b, d), ValueError, r"arrays\[0\] \('gate_up'\) is float32 \[4, 6\]"),
    (lambda g, b, d: (g.transpose(0, 2, 1), b, d), ValueError, r"arrays\[0\] has strides .*: rows that are C-contiguous"),
    (lambda g, b, d: (np.array(1.0), b, d), ValueError, r"arrays\[0\] has no dimensions"),
    (lambda g, b, d: ([g], b, d), TypeError, r"arrays\[0\] is a list"),
    (lambda g, b, d: (g.astype(object), b, d), TypeError, r"arrays\[0\] holds Python objects"),
    (lambda g, b, d: (g[0, 0, 0], b, d), TypeError, r"arrays\[0\] is a NumPy scalar"),
])  # fmt: skip
def test_arrays_that_are_refused(change, error, message):
    with pytest.raises(error, match=message):
        ExpertCopies.from_stacked(*change(*fused()), layout=LAYOUT, pinned=False)


def test_arguments_that_are_refused():
    with pytest.raises(ValueError, match="arrays is empty"):
        ExpertCopies.from_stacked(pinned=True)
    with pytest.raises(TypeError, match="layout is a dict"):
        ExpertCopies.from_stacked(np.zeros((2, 2)), layout={}, pinned=True)
    for wrong in ({}, 5, "gate", np.zeros(2)):
        with pytest.raises(TypeError, match=f"layout is a {type(wrong).__name__}: a strata.SlotLayout is needed"):
            ExpertCopies.from_buffers([[b"1"]], True, layout=wrong)
    with pytest.raises(ValueError, match="pinned has 3 elements: 2 are needed, one an expert"):
        ExpertCopies.from_stacked(np.zeros((2, 2)), np.zeros((2, 2)), pinned=[True] * 3)


def test_pinned_is_one_an_expert():
    copies = ExpertCopies.from_stacked(*fused(), pinned=[True, False] * 3 + [True])
    assert copies.staged.tolist() == [0, 1] * 3 + [0]


@pytest.fixture
def asked(monkeypatch):
    """Ranges that the runtime was asked about; those below a limit are pinned."""
    ranges = []

    def range_is_pinned(address, nbytes):
        ranges.append((address, nbytes))
        return address + nbytes <= ranges.limit

    def rows_are_pinned(address, stride, nbytes, rows):
        return bytearray(range_is_pinned(address + k * stride, nbytes) for k in range(rows))

    class Ranges(list):
        limit = 0

    ranges = Ranges()
    monkeypatch.setattr(runtime, "ensure", lambda: "software")
    monkeypatch.setattr(_hip, "range_is_pinned", range_is_pinned)
    monkeypatch.setattr(_hip, "rows_are_pinned", rows_are_pinned)
    return ranges


def test_the_runtime_is_asked_once_a_pinned_tensor(asked):
    asked.limit = 2**64
    arrays = fused()
    assert ExpertCopies.from_stacked(*arrays).staged.tolist() == [0] * 7
    assert asked == [(array.ctypes.data, array.nbytes) for array in arrays]


def test_the_runtime_is_asked_about_each_row_of_others(asked):
    stack = np.zeros((4, 8), np.uint8)
    asked.limit = stack.ctypes.data + 20
    assert ExpertCopies.from_stacked(stack).staged.tolist() == [0, 0, 1, 1]
    assert ExpertCopies.from_stacked(stack[::-1], np.zeros((4, 0))).staged.tolist() == [1, 1, 0, 0]


def test_rows_of_which_some_are_registered():
    """The runtime itself, forwards and backwards; a row that leaves pinned memory is staged."""
    runtime.use("software")
    memory = np.zeros(16 * 4096, np.uint8)
    start = -memory.ctypes.data % 4096
    rows = memory[start:start + 12 * 4096].reshape(12, 4096)
    with strata.register(rows[3:7]):
        assert ExpertCopies.from_stacked(rows).staged.tolist() == [int(not 3 <= k < 7) for k in range(12)]
        assert ExpertCopies.from_stacked(rows[::-1]).staged.tolist() == [int(not 3 <= k < 7) for k in range(11, -1, -1)]
        assert _hip.rows_are_pinned(rows.ctypes.data + 2048, 4096, 4096, 11) == bytes([0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0])
    assert ExpertCopies.from_stacked(rows).staged.all()


def test_no_python_an_expert():
    """As many calls for ten experts as for ten thousand."""
    import sys

    counts = []
    for experts in (10, 10_000):
        stack = np.zeros((experts, 4), np.uint8)
        calls = itertools.count()
        sys.setprofile(lambda *_, calls=calls: next(calls))
        try:
            ExpertCopies.from_stacked(stack, stack, layout=SlotLayout({"a": ("uint8", (4,)), "b": ("uint8", (4,))}), pinned=False)
        finally:
            sys.setprofile(None)
        counts.append(next(calls))
    assert counts[0] == counts[1]


def test_torchs_fused_parameters():
    torch = pytest.importorskip("torch")
    gate = torch.nn.Parameter(torch.arange(5 * 6 * 4).to(torch.bfloat16).view(5, 6, 4))
    down = torch.arange(5 * 4 * 3).to(torch.float8_e4m3fn).view(5, 4, 3)
    layout = SlotLayout.like({"gate": gate, "down": down}, stacked=True)
    copies = ExpertCopies.from_stacked(gate, down, layout=layout, pinned=False)
    for entry in range(5):
        slot = image(copies, entry)
        assert slot[:48] == bytes(gate.detach()[entry].view(torch.uint8).flatten().tolist())
        assert slot[256:] == bytes(down[entry].view(torch.uint8).flatten().tolist())
    with pytest.raises(RuntimeError, match="not resizable"):
        gate.untyped_storage().resize_(0)
    views = (gate.detach()[1::2, 2:4], gate.detach().flip(0)[:, 1], gate.detach()[:1].expand(3, 6, 4), gate.detach()[:, 0, 0])
    for view in views:
        made = ExpertCopies.from_stacked(view, pinned=False)
        assert [image(made, i) for i in range(len(made))] == [bytes(row.reshape(-1).view(torch.uint8).tolist()) for row in view]
    for wrong, message in (
        (gate.transpose(1, 2), r"arrays\[0\] is a tensor with strides"),
        (torch.tensor(1.0), r"arrays\[0\] has no dimensions"),
        (down, r"arrays\[0\] \('gate'\) is float8_e4m3fn \[4, 3\]"),
    ):
        with pytest.raises(ValueError, match=message):
            ExpertCopies.from_stacked(wrong, down, layout=layout, pinned=False)
    with pytest.raises(TypeError, match=r"arrays\[1\] is a tensor on device meta"):
        ExpertCopies.from_stacked(gate, torch.empty(5, 4, 3, dtype=torch.float8_e4m3fn, device="meta"), pinned=False)


# from_buffers by a layout.


def test_mappings_by_a_layout():
    arrays = fused()
    items = [dict(zip(reversed(LAYOUT.names), reversed(rows), strict=True)) for rows in zip(*arrays, strict=True)]
    items[2]["down"] = items[2]["down"].tobytes()  # raw bytes of the right size
    items[3] = [items[3][name] for name in LAYOUT]
    copies = ExpertCopies.from_buffers(items, False, layout=LAYOUT)
    assert [image(copies, i) for i in range(7)] == [
        image(ExpertCopies.from_stacked(*arrays, layout=LAYOUT, pinned=False), i) for i in range(7)
    ]


@pytest.mark.parametrize(("change", "error", "message"), [
    (lambda item: item.pop("bias"), ValueError, r"items\[1\] lacks 'bias': the layout has gate_up, bias, down"),
    (lambda item: item.update(up=b""), ValueError, r"items\[1\] has 'up': the layout has gate_up, bias, down"),
    (lambda item: item.update(bias=np.zeros(4, np.int16)), ValueError, r"items\[1\]\['bias'\] is int16 \[4\], 8 bytes: the layout has int16 \[5\], 10"),
    (lambda item: item.update(bias=b"123"), ValueError, r"items\[1\]\['bias'\] is uint8 \[3\], 3 bytes"),
    (lambda item: item.update(bias=np.zeros(5, np.uint16)), ValueError, r"items\[1\]\['bias'\] is uint16 \[5\]"),
    (lambda item: item.update(bias=None), TypeError, r"items\[1\]\['bias'\] is a NoneType"),
])  # fmt: skip
def test_mappings_that_are_refused(change, error, message):
    items = [dict(zip(LAYOUT, rows, strict=True)) for rows in zip(*fused(), strict=True)]
    change(items[1])
    with pytest.raises(error, match=message):
        ExpertCopies.from_buffers(items, False, layout=LAYOUT)


def test_items_that_a_layout_does_not_fit():
    with pytest.raises(ValueError, match=r"items\[0\] has 2 buffers: the layout has 3"):
        ExpertCopies.from_buffers([[b"", b""]], False, layout=LAYOUT)
    with pytest.raises(TypeError, match=r"items\[0\] is a bytes: a mapping"):
        ExpertCopies.from_buffers([b""], False, layout=LAYOUT)
    with pytest.raises(TypeError, match=r"items\[0\] is a dict"):
        ExpertCopies.from_buffers([{"a": b""}], False)


# Streamers.


def test_a_streamer_for_a_list():
    arrays = fused()
    copies = ExpertCopies.from_stacked(*arrays, layout=LAYOUT)
    with strata.ExpertStreamer.for_copies(copies, gpu_ring=3, host_ring=2) as streamer:
        assert streamer.slot_bytes == copies.slot_bytes
        with streamer.begin(copies) as request:
            for slot in request:
                slot.synchronize()
                views = LAYOUT.views(slot.array())
                for name, array in zip(LAYOUT, arrays, strict=True):
                    np.testing.assert_array_equal(views[name], array[slot.entry])
    larger = ExpertCopies([8], [5000], True)
    with strata.ExpertStreamer.for_copies([copies, larger], gpu_ring=1) as streamer:
        assert streamer.slot_bytes == 5000


@pytest.mark.parametrize(("copies", "error", "message"), [
    (ExpertCopies([], []), ValueError, "copies has no entry with bytes"),
    ([], ValueError, "copies has no entry with bytes"),
    (5, TypeError, "copies is a int"), ([5], TypeError, "copies holds a int"),
])  # fmt: skip
def test_a_streamer_for_nothing(copies, error, message):
    with pytest.raises(error, match=message):
        strata.ExpertStreamer.for_copies(copies)
