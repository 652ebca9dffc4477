"""`ExpertCopies` from torch's tensors: the bytes that they mean, or a TypeError; and nothing moves under a list."""

from __future__ import annotations

import ctypes
import gc
import pickle
import weakref

import numpy as np
import pytest

import strata
from strata.copies import ExpertCopies

torch = pytest.importorskip("torch")
reductions = pytest.importorskip("torch.multiprocessing.reductions")


def content(copies: ExpertCopies, entry: int) -> bytes:
    begin, end = copies.entry_starts[entry : entry + 2].tolist()
    rows = zip(copies.addresses[begin:end].tolist(), copies.nbytes[begin:end].tolist(), strict=True)
    return b"".join(ctypes.string_at(address, size) for address, size in rows)


def held(*tensors) -> ExpertCopies:
    return ExpertCopies.from_buffers(tensors, False)


DTYPES = [
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
    "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "float8_e8m0fnu", "float4_e2m1fn_x2", "int4", "uint4", "uint1", "bits8", "bits16", "complex32",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_gives_its_bytes(name: str) -> None:
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"this torch has no {name}")
    size = torch.empty(1, dtype=dtype).element_size()
    raw = torch.arange(6 * size, dtype=torch.uint8)
    tensor = torch.empty(0, dtype=dtype).set_(raw.untyped_storage(), 1, (5,), (1,))
    copies = held(tensor)
    assert content(copies, 0) == bytes(raw.tolist())[size:]
    assert copies.addresses.tolist() == [tensor.data_ptr()]


@pytest.mark.parametrize("make", [
    lambda t: t, torch.nn.Parameter, lambda t: t.as_subclass(type("Named", (torch.Tensor,), {})),
    lambda t: t.requires_grad_() * 1, lambda t: t.view(2, 3)[1], lambda t: t[2:3].reshape(()),
    lambda t: t.untyped_storage(), lambda t: t.view(torch.int32),
], ids=["tensor", "parameter", "subclass", "graph", "row", "scalar", "storage", "view"])  # fmt: skip
def test_whatever_holds_the_bytes(make) -> None:
    source = make(torch.arange(6, dtype=torch.float32))
    if isinstance(source, torch.UntypedStorage):
        expected = bytes(source.tolist())
    else:
        expected = source.detach().as_subclass(torch.Tensor).numpy().tobytes()
    assert expected
    copies = held(source)
    assert content(copies, 0) == expected


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_typed_storage() -> None:
    source = torch.arange(6, dtype=torch.bfloat16)
    assert content(held(source.storage()), 0) == bytes(source.view(torch.uint8).tolist())


def test_empty_tensors() -> None:
    copies = held(torch.empty(0), torch.empty(3, 0), torch.empty(0).untyped_storage())
    assert copies.nbytes.tolist() == [0, 0, 0]
    assert copies.owners == ()


# Nothing is resized or freed.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "uint8"])
def test_a_storage_is_not_resized_while_a_list_refers_to_it(dtype: str) -> None:
    tensor = torch.zeros(1000, dtype=torch.uint8).view(getattr(torch, dtype))
    copies = held(tensor[10:20])
    with pytest.raises(RuntimeError, match="not resizable"):
        tensor.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="not resizable"):
        tensor.resize_(2**20)
    assert content(copies, 0) == bytes(10 * tensor.element_size())


def test_a_storage_given_as_such_is_not_resized() -> None:
    storage = torch.arange(16, dtype=torch.uint8).untyped_storage()
    copies = held(storage)
    with pytest.raises(RuntimeError, match="not resizable"):
        storage.resize_(0)
    assert content(copies, 0) == bytes(range(16))


@pytest.mark.parametrize("move", [
    lambda t: t.share_memory_(), lambda t: t.untyped_storage().share_memory_(), lambda t: t.view(10, 100)[3].share_memory_(),
    lambda t: torch.nn.ParameterList([torch.nn.Parameter(t, False)]).share_memory(),
    lambda t: reductions.reduce_storage(t.untyped_storage()),
], ids=["tensor", "storage", "view", "module", "another process"])  # fmt: skip
def test_a_storage_that_was_moved_meanwhile_is_refused(move) -> None:
    """torch moves it and frees the old bytes, whoever looks at them."""
    tensor = torch.zeros(1000, dtype=torch.uint8)
    numpy = ExpertCopies.from_buffers([np.zeros(8, np.uint8)], False)
    lists = [held(tensor), held(tensor[:100]).take([0]), ExpertCopies.concatenate([numpy, held(tensor)]),
             ExpertCopies.from_stacked(tensor.view(10, 100), pinned=False)]  # fmt: skip
    lists.append(lists[0].take([0]))
    with strata.ExpertStreamer(1000, gpu_ring=2) as streamer, strata.HostStager(1000) as stager:
        move(tensor)
        for copies in lists:
            with pytest.raises(ValueError, match=r"copies has a torch storage that lay at 0x.* and was moved to 0x"):
                streamer.begin(copies)
            with pytest.raises(ValueError, match="was moved to 0x"):
                stager.start(copies)
        with streamer.begin(numpy) as request:
            with pytest.raises(ValueError, match="was moved to 0x"):
                request.extend(lists[0])
            assert len(request) == 1
            request.extend(held(tensor))
            assert [slot.nbytes for slot in request] == [8, 1000]


def test_a_tensor_may_be_given_other_memory() -> None:
    """`set_`, `data =` and a swap of tensors leave the storage, which the list holds, where it is."""
    for change in (
        lambda t: t.set_(torch.zeros(1)),
        lambda t: setattr(t, "data", torch.zeros(3)),
        lambda t: torch.utils.swap_tensors(t, torch.zeros(3)),
    ):
        tensor = torch.arange(1000, dtype=torch.float32)
        expected = tensor.numpy().tobytes()
        copies = held(torch.empty(0).set_(tensor.untyped_storage(), 0, (1000,), (1,)))
        tensor = torch.empty(0).set_(tensor.untyped_storage(), 0, (1000,), (1,))
        change(tensor)
        del tensor
        gc.collect()
        torch.full((1000,), -1.0)
        assert content(copies, 0) == expected


def test_storages_go_with_the_last_list() -> None:
    array = np.zeros(64, np.uint8).view(type("Array", (np.ndarray,), {}))
    alive = weakref.ref(array)
    copies = held(torch.from_numpy(array)[8:])
    del array
    gc.collect()
    assert alive() is not None
    taken = copies.take([0])
    del copies
    gc.collect()
    assert alive() is not None
    del taken
    gc.collect()
    assert alive() is None


def test_many_views_keep_one_storage_once() -> None:
    fused = torch.zeros(64, 32, dtype=torch.bfloat16)
    copies = ExpertCopies.from_buffers(list(fused), False)
    assert len(copies.owners) == 1
    assert len(set(copies.regions.tolist())) == 1
    assert len(set(held(*torch.zeros(2, 8), torch.zeros(8)).regions.tolist())) == 2


def test_short_lived_tensors_keep_their_storages() -> None:
    copies = ExpertCopies.from_buffers((torch.full((100,), n, dtype=torch.uint8) for n in range(50)), False)
    gc.collect()
    assert [content(copies, i) for i in range(50)] == [bytes([n]) * 100 for n in range(50)]


def test_torchs_modes_change_nothing() -> None:
    tensor = torch.arange(8, dtype=torch.bfloat16)
    with torch.inference_mode():
        made_inside = torch.arange(8, dtype=torch.bfloat16)
        assert content(held(tensor), 0) == content(held(made_inside), 0)
    assert content(held(made_inside), 0) == bytes(tensor.view(torch.uint8).tolist())
    with torch.device("meta"):
        assert content(held(tensor), 0) == bytes(tensor.view(torch.uint8).tolist())


# What is refused.


class Wrapper(torch.Tensor):
    """As wrappers of quantized weights are made: a shape, a dtype and a device, and no storage."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        inner = [a.inner if isinstance(a, cls) else a for a in args]
        return function(*inner, **(kwargs or {}))


def fake() -> object:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(4)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("make", "message"), [
    (lambda: torch.ones(4, dtype=torch.complex64).conj(), r"lazily conjugated tensor: pass its resolve_conj\(\)"),
    (lambda: torch.ones(4, dtype=torch.complex64).conj().imag, r"lazily negated tensor: pass its resolve_neg\(\)"),
    (lambda: torch._neg_view(torch.ones(4)), r"lazily negated tensor: pass its resolve_neg\(\)"),
    (lambda: torch.ones(4, device="meta"), "a tensor on device meta: sources are host memory"),
    (lambda: torch.ones(4, device="meta").untyped_storage(), "on device meta: sources are host memory"),
    (lambda: torch.eye(3).to_sparse(), r"layout torch.sparse_coo: a dense one \(torch.strided\) is needed"),
    (lambda: torch.eye(3).to_sparse_csr(), r"layout torch.sparse_csr: a dense one"),
    (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested tensor"),
    (lambda: Wrapper(torch.ones(4)), r"Wrapper without a storage of its own: pass the tensors that it is made of"),
    (fake, "FakeTensor without a storage of its own"),
])  # fmt: skip
def test_tensors_that_are_no_bytes_of_the_host(make, message: str) -> None:
    with pytest.raises(TypeError, match=rf"^items\[1\] is .*{message}"):
        ExpertCopies.from_buffers([b"fine", make()], False)


def test_inside_a_transform() -> None:
    seen = []

    def look(x):
        with pytest.raises(TypeError, match="without a storage of its own"):
            held(x)
        seen.append(1)
        return x.sum()

    torch.func.vmap(look)(torch.ones(3, 2))
    torch.func.grad(look)(torch.ones(3))
    assert seen == [1, 1]


def test_tensors_that_are_not_contiguous() -> None:
    for tensor in (torch.ones(4, 4).t(), torch.ones(1, 4).expand(3, 4), torch.ones(8)[::2],
                   torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)):
        with pytest.raises(ValueError, match=r"items\[0\] is a tensor with strides \(.*\), shape \(.*\): C-contiguous"):
            held(tensor)


def test_a_storage_that_was_freed_before() -> None:
    tensor = torch.ones(100)
    tensor.untyped_storage().resize_(16)
    with pytest.raises(ValueError, match=r"items\[0\] is a tensor of 400 bytes in a storage of 16"):
        held(tensor)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match=r"items\[0\] is a tensor of 400 bytes in a storage of 0"):
        held(tensor)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_quantized_tensors_are_their_integers() -> None:
    quantize = getattr(torch, "quantize_per_tensor", None)
    if quantize is None:
        pytest.skip("this torch has no quantized tensors")
    tensor = quantize(torch.tensor([1.0, 2.0, 3.0]), 0.5, 1, torch.qint8)
    assert content(held(tensor), 0) == bytes(tensor.int_repr().tolist())


# Streamed.


def test_it_streams_parameters_as_they_lie() -> None:
    fused = torch.nn.Parameter(torch.arange(6 * 40, dtype=torch.float32).to(torch.bfloat16).view(6, 40))
    copies = ExpertCopies.from_buffers(fused, False)
    expected = [bytes(row.view(torch.uint8).tolist()) for row in fused.detach()]
    with strata.ExpertStreamer(80, gpu_ring=4, host_ring=2) as streamer, streamer.begin(copies) as request:
        del fused
        for slot in request:
            slot.synchronize()
            assert slot.array()[:80].tobytes() == expected[slot.entry]


def test_pickle_buffers_of_tensors() -> None:
    source = torch.arange(8, dtype=torch.uint8)
    assert content(held(pickle.PickleBuffer(source.numpy())), 0) == bytes(range(8))
