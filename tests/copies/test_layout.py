"""`SlotLayout`: where an expert's tensors lie in a slot; what it refuses; how it reads."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata import SlotLayout
from strata.layout import DTYPE_BYTES

MOE = {"gate_up_proj": ("bfloat16", (6, 4)), "bias": ("float32", (3,)), "down_proj": ("float8_e4m3fn", (4, 3))}


def test_tensors_lie_one_after_the_other_at_aligned_offsets():
    layout = SlotLayout(MOE)
    assert layout.names == ("gate_up_proj", "bias", "down_proj") == tuple(layout)
    assert layout.dtypes == ("bfloat16", "float32", "float8_e4m3fn")
    assert layout.shapes == ((6, 4), (3,), (4, 3))
    assert layout.offsets == (0, 256, 512)
    assert layout.nbytes == 524
    assert [field.nbytes for field in layout.fields] == [48, 12, 12]
    assert [field.itemsize for field in layout.fields] == [2, 4, 1]
    assert layout["bias"].offset == 256
    assert len(layout) == 3
    assert "bias" in layout
    assert "other" not in layout


def test_alignment_and_offsets_of_ones_own():
    assert SlotLayout(MOE, align=4).offsets == (0, 48, 60)
    assert SlotLayout(MOE, align=16).nbytes == 76
    layout = SlotLayout(MOE, offsets=[100, 64, 80])
    assert layout.offsets == (100, 64, 80)
    assert layout.nbytes == 148
    assert SlotLayout([]).nbytes == 0
    assert SlotLayout({"none": ("float32", (0, 5)), "x": ("uint8", (3,))}).offsets == (0, 0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(DTYPE_BYTES)), st.lists(st.integers(0, 9), max_size=3))), st.integers(0, 9))
def test_offsets_are_those_of_a_slow_model(tensors, power):
    layout = SlotLayout([(f"t{k}", dtype, shape) for k, (dtype, shape) in enumerate(tensors)], align=2**power) if all(
        DTYPE_BYTES[dtype] <= 2**power for dtype, _ in tensors) else None
    at = 0
    for field, (dtype, shape) in zip(layout.fields if layout else (), tensors, strict=False):
        while at % 2**power:
            at += 1
        assert field.offset == at
        at += DTYPE_BYTES[dtype] * int(np.prod(shape, dtype=int))
        assert at <= layout.nbytes or not field.nbytes


@pytest.mark.parametrize(("dtype", "name", "itemsize"), [
    (np.float32, "float32", 4), (np.dtype("<i2"), "int16", 2), ("torch.bfloat16", "bfloat16", 2), (bool, "bool", 1),
    (("Q4_K", 144), "Q4_K", 144), (("bfloat16", 2), "bfloat16", 2), (np.complex64, "complex64", 8), ("<f4", "float32", 4),
])  # fmt: skip
def test_dtypes(dtype, name, itemsize):
    field = SlotLayout({"w": (dtype, (3,))}, align=512)["w"]
    assert (field.dtype, field.itemsize, field.nbytes) == (name, itemsize, 3 * itemsize)


def test_it_is_a_value():
    layout = SlotLayout(MOE)
    same = SlotLayout([(name, *row) for name, row in MOE.items()])
    assert layout == same
    assert hash(layout) == hash(same)
    assert layout != SlotLayout(MOE, align=16)
    assert layout != 5
    assert {layout: 1}[same] == 1
    assert pickle.loads(pickle.dumps(layout)) == copy.copy(layout) == copy.deepcopy(layout) == layout
    for name in ("fields", "_fields", "other"):
        with pytest.raises(AttributeError):
            setattr(layout, name, ())
    with pytest.raises(AttributeError):
        layout["bias"].offset = 5
    blocks = SlotLayout({"w": (("Q4_K", 144), (2, 2))}, offsets=[16])
    assert pickle.loads(pickle.dumps(blocks)) == blocks


def test_repr_tells_all():
    assert repr(SlotLayout({"w": ("bfloat16", (1536, 2048)), "b": ("float32", ())})) == (
        "<SlotLayout: 2 tensors, 6,291,460 bytes\n"
        "  w: bfloat16 [1536, 2048] at 0, 6,291,456 bytes\n"
        "  b: float32 [] at 6,291,456, 4 bytes>"
    )


def test_like_example_tensors():
    one = {"w": np.zeros((3, 4), np.float16), "b": b"12345", "i": memoryview(np.zeros(2, np.int32))}
    assert SlotLayout.like(one) == SlotLayout({"w": ("float16", (3, 4)), "b": ("uint8", (5,)), "i": ("int32", (2,))})
    fused = {"w": np.zeros((8, 3, 4)), "b": np.zeros((8,), np.int8)}
    assert SlotLayout.like(fused, stacked=True, align=8) == SlotLayout({"w": ("float64", (3, 4)), "b": ("int8", ())}, align=8)
    with pytest.raises(ValueError, match=r"examples\['b'\] has no dimensions"):
        SlotLayout.like({"b": np.array(1.0)}, stacked=True)
    with pytest.raises(TypeError, match=r"examples\['b'\] is a int"):
        SlotLayout.like({"b": 5})
    for wrong in (5, True, 1.5):
        with pytest.raises(TypeError, match=f"offsets is a {type(wrong).__name__}"):
            SlotLayout(MOE, offsets=wrong)
    with pytest.raises(TypeError, match="examples is a list"):
        SlotLayout.like([np.zeros(3)])


def test_like_torchs_tensors():
    torch = pytest.importorskip("torch")
    layout = SlotLayout.like({
        "gate": torch.empty(8, 4, 2, dtype=torch.bfloat16, device="meta"),
        "scale": torch.nn.Parameter(torch.empty(8, 4)),
        "fp8": torch.empty(8, 3, dtype=torch.float8_e4m3fn),
    }, stacked=True)
    assert layout == SlotLayout({"gate": ("bfloat16", (4, 2)), "scale": ("float32", (4,)), "fp8": ("float8_e4m3fn", (3,))})
    assert SlotLayout({"w": (torch.bfloat16, torch.Size([2]))}) == SlotLayout({"w": ("bfloat16", (2,))})


def test_views_of_a_slots_bytes():
    layout = SlotLayout({"w": ("float32", (2, 3)), "f": ("bfloat16", (4,)), "q": (("Q8_0", 34), (2,)), "s": ("int16", ())})
    memory = np.arange(2000, dtype=np.uint16).view(np.uint8)
    views = layout.views(memory)
    assert views["w"].dtype == np.float32
    assert views["w"].shape == (2, 3)
    assert views["f"].shape == (4, 2)
    assert views["q"].shape == (2, 34)
    assert views["s"].shape == ()
    for name, view in views.items():
        begin = layout[name].offset
        assert view.tobytes() == memory[begin : begin + layout[name].nbytes].tobytes()
        assert np.shares_memory(view, memory)


@pytest.mark.parametrize(("memory", "error", "message"), [
    (np.zeros(523, np.uint8), ValueError, "memory has 523 bytes: the layout's 524 are needed"),
    (np.zeros(524, np.int8), TypeError, "memory is no one-dimensional array of uint8"),
    (np.zeros((2, 524), np.uint8), TypeError, "memory is no one-dimensional array of uint8"),
    (b"1234", TypeError, "memory is no one-dimensional array of uint8"),
    (np.zeros(2000, np.uint8)[::2], ValueError, "memory has strides"),
])  # fmt: skip
def test_views_of_other_memory(memory, error, message):
    with pytest.raises(error, match=message):
        SlotLayout(MOE).views(memory)


@pytest.mark.parametrize(("fields", "error", "message"), [
    ({"w": ("bf16", (2,))}, ValueError, "dtype of 'w' is 'bf16': bool, "),
    ({"w": (">f4", (2,))}, ValueError, "dtype of 'w' is '>f4'"),
    ({"w": (object, (2,))}, ValueError, "dtype of 'w' is <class 'object'>"),
    ({"w": (np.dtype([("a", "i4")]), (2,))}, ValueError, "dtype of 'w' is dtype"),
    ({"w": (("bfloat16", 3), (2,))}, ValueError, r"dtype of 'w' is \('bfloat16', 3\): bfloat16 has 2 bytes"),
    ({"w": (("Q", 0), (2,))}, ValueError, r"dtype of 'w' is \('Q', 0\): 1 bytes or more"),
    ({"w": (("Q", 1.5), (2,))}, TypeError, "dtype of 'w' is 1.5: an integer"),
    ({"w": ("uint8", (2, -1))}, ValueError, r"shape of 'w' is \(2, -1\): sizes of 0"),
    ({"w": ("uint8", 5)}, TypeError, "shape of 'w' is 5: integers are needed"),
    ({"w": ("uint8", (2.0,))}, TypeError, r"shape of 'w' is \(2.0,\): integers are needed"),
    ({"w": ("uint8", (2**40, 2**40))}, ValueError, f"'w' ends at byte {2**80}: at most"),
    ({"w": "uint8"}, TypeError, r"fields\['w'\] is 'uint8': \(dtype, shape\) is needed"),
    ({"": ("uint8", (2,))}, TypeError, r"fields\[0\] has the name ''"),
    ([("w", "uint8", (1,)), ("w", "uint8", (1,))], ValueError, "fields has 'w' twice"),
    ([("w", "uint8")], TypeError, r"fields\[0\] is \('w', 'uint8'\): \(name, dtype, shape\) is needed"),
    (5, TypeError, "fields is a int"),
])  # fmt: skip
def test_fields_that_are_refused(fields, error, message):
    with pytest.raises(error, match=message):
        SlotLayout(fields)


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ({"align": 0}, ValueError, "align is 0: a power of two"),
    ({"align": 48}, ValueError, "align is 48: a power of two"),
    ({"align": 1.0}, TypeError, "align is 1.0: an integer"),
    ({"align": 1}, ValueError, r"offset of 'x' is 3: a multiple of 2"),
    ({"offsets": [0]}, ValueError, "offsets has 1 values: 2 are needed"),
    ({"offsets": [0, 2]}, ValueError, "offset of 'x' is 2, but 'w' takes 0 to 2: tensors may not overlap"),
    ({"offsets": [0, -2]}, ValueError, "offset of 'x' is -2"),
    ({"offsets": [0, "4"]}, TypeError, "offsets is '4': an integer"),
])  # fmt: skip
def test_places_that_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        SlotLayout([("w", "uint8", (3,)), ("x", "bfloat16", (4,))], **arguments)


def test_a_name_that_is_not_there():
    with pytest.raises(KeyError, match="'up': the layout has gate_up_proj, bias, down_proj"):
        SlotLayout(MOE)["up"]
