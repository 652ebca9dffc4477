"""TorchStreamer on a torch for the CPU, over the software runtime: named tensors, streams, lifetimes, bad input."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import strata
from strata import SlotLayout, _hip

torch = pytest.importorskip("torch")

from strata.integrations.torch import TorchStreamer, pin  # noqa: E402

EXPERTS, WIDTH, HIDDEN = 24, 6, 10
LAYOUT = SlotLayout({"gate_up": ("bfloat16", (2 * WIDTH, HIDDEN)), "down": ("float32", (HIDDEN, WIDTH)),
                     "bias": ("float8_e4m3fn", (5,))})


@pytest.fixture
def weights():
    generator = torch.Generator().manual_seed(3)
    return {
        "gate_up": torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, generator=generator).bfloat16(),
        "down": torch.randn(EXPERTS, HIDDEN, WIDTH, generator=generator),
        "bias": torch.randn(EXPERTS, 5, generator=generator).to(torch.float8_e4m3fn),
    }


def copies_of(weights):
    return strata.ExpertCopies.from_stacked(*weights.values(), layout=LAYOUT)


def same(a, b) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_slots_are_named_tensors(weights, software, schedule) -> None:
    software.configure(schedule=schedule)
    with TorchStreamer(LAYOUT, gpu_ring=5, host_ring=4) as streamer, streamer.begin(copies_of(weights)) as request:
        for expert, slot in enumerate(request):
            views = slot.tensors()
            assert list(views) == list(weights)
            assert all(same(views[name], weights[name][expert]) for name in weights)


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_spans_are_named_tensors(weights, software, schedule) -> None:
    software.configure(schedule=schedule)
    with TorchStreamer(LAYOUT, gpu_ring=7, host_ring=4) as streamer, streamer.begin(copies_of(weights)) as request:
        seen = 0
        for span in request.spans(4):
            views = span.tensors()
            for name, whole in weights.items():
                assert same(views[name], whole[span.begin : span.end])
            seen += len(span)
        assert seen == EXPERTS


def test_views_are_made_once(weights) -> None:
    with TorchStreamer(LAYOUT, gpu_ring=4) as streamer, streamer.begin(copies_of(weights)) as request:
        seen = {}
        for slot in request:
            assert seen.setdefault(slot.slot, slot.tensors()) is slot.tensors()


def test_a_tensor_is_lent(weights) -> None:
    """Rows of a tensor that are longer than the layout, in memory that the software runtime knows."""
    with TorchStreamer(LAYOUT, gpu_ring=8) as streamer:
        memory = streamer.memory
    with TorchStreamer(LAYOUT, slots=memory[::2]) as streamer:
        assert streamer.gpu_ring == 4
        with streamer.begin(copies_of(weights)) as request:
            for expert, slot in enumerate(request):
                assert same(slot.tensors()["down"], weights["down"][expert])


def test_tensors_outlive_the_streamer(weights) -> None:
    streamer = TorchStreamer(LAYOUT, gpu_ring=EXPERTS)
    with streamer.begin(copies_of(weights)) as request:
        kept = [slot.tensors()["gate_up"] for slot in request]
    streamer.close()
    del streamer, request
    gc.collect()
    for expert, tensor in enumerate(kept):
        assert same(tensor, weights["gate_up"][expert])


def test_works_in_inference_mode_and_its_tensors_outside(weights) -> None:
    with torch.inference_mode():
        streamer = TorchStreamer(LAYOUT, gpu_ring=4)
    with streamer, streamer.begin(copies_of(weights)) as request:
        for expert, slot in enumerate(request):
            x = torch.ones(WIDTH, requires_grad=True)
            (slot.tensors()["down"] @ x).sum().backward()  # a tensor of inference mode cannot be saved for this
            torch.testing.assert_close(x.grad, weights["down"][expert].sum(0))


def test_bytes_without_a_layout() -> None:
    source = np.arange(300, dtype=np.uint8)
    with TorchStreamer(300, gpu_ring=2) as streamer, streamer.begin(strata.ExpertCopies.from_buffers([source])) as request:
        for slot in request:
            assert torch.equal(slot.tensors()["bytes"], torch.from_numpy(source))


def test_streams_as_objects(weights) -> None:
    from strata import _hip

    class Stream:
        def __init__(self) -> None:
            self.handle = _hip.create_stream()

        def __cuda_stream__(self):
            return 0, self.handle

    compute, copy = Stream(), Stream()
    with TorchStreamer(LAYOUT, gpu_ring=4, compute_stream=compute, copy_stream=copy) as streamer:
        assert (streamer.compute_stream, streamer.copy_stream) == (compute.handle, copy.handle)
        with streamer.begin(copies_of(weights)) as request:
            for expert, slot in enumerate(request):
                assert same(slot.tensors()["down"], weights["down"][expert])
    for stream in (compute, copy):
        _hip.synchronize_stream(stream.handle)
        _hip.destroy_stream(stream.handle)

    class Later:
        def __cuda_stream__(self):
            return 1, 0

    with pytest.raises(TypeError, match="version 1 of __cuda_stream__"):
        strata.ExpertStreamer(64, gpu_ring=2, copy_stream=Later())


def test_bad_input(weights) -> None:
    for arguments, kind, words in (
        (("x",), TypeError, "layout is 'x'"),
        ((True,), TypeError, "layout is True"),
    ):
        with pytest.raises(kind, match=words):
            TorchStreamer(*arguments, gpu_ring=2)
    for options, kind, words in (
        ({"slots": [1, 2]}, TypeError, "slots is list"),
        ({"slots": torch.empty(4, 400)}, ValueError, "2-D tensor of torch.uint8"),
        ({"slots": torch.empty(4, 4, dtype=torch.uint8)}, ValueError, "at least 1 row of at least"),
        ({"slots": torch.empty(0, 4000, dtype=torch.uint8)}, ValueError, "at least 1 row"),
        ({"slots": torch.empty(4000, 4, dtype=torch.uint8).T}, ValueError, "strides"),
        ({"slots": torch.empty(4 * 4096 + 1, dtype=torch.uint8)[1:].view(4, 4096)}, ValueError, "1 bytes into"),
        ({"slots": torch.empty(4, 4096, dtype=torch.uint8)}, ValueError, "not all device memory"),
        ({"slots": torch.empty(4, 4096, dtype=torch.uint8), "gpu_ring": 5}, ValueError, "gpu_ring is 5"),
        ({"device": "cuda"}, strata.StrataError, "the device is cuda"),
        ({"device": "meta"}, strata.StrataError, "the device is meta"),
        ({"gpu_ring": 0}, ValueError, "gpu_ring is 0"),
    ):
        with pytest.raises(kind, match=words):
            TorchStreamer(LAYOUT, **options)
    with TorchStreamer(LAYOUT, gpu_ring=4) as streamer:
        with pytest.raises(ValueError, match="slots is given"):
            streamer.begin(copies_of(weights), slots=[1, 2, 3, 4])
        with streamer.begin(copies_of(weights)) as request:
            slot = request.acquire()
            slot.release()
            with pytest.raises(strata.StrataError, match="was released before"):
                slot.tensors()
            request.abort()
    with strata.ExpertStreamer(LAYOUT.nbytes, gpu_ring=4) as streamer, streamer.begin(copies_of(weights)) as request:
        with pytest.raises(strata.StrataError, match="TorchStreamer"):
            request.acquire().tensors()
        request.abort()


def test_pin_keeps_to_its_budget(software) -> None:
    tensors = [torch.full((50_000,), k, dtype=torch.uint8) for k in range(4)]
    before = software.live()["registered_ranges"]
    with pin(tensors, limit=120_000) as got:
        assert [t.data_ptr() for t in got.tensors] == [t.data_ptr() for t in tensors[:2]]
        assert (got.nbytes, len(got.left)) == (100_000, 2)
        assert "120000" in got.why
        assert software.live()["registered_ranges"] == before + 2
        copies = strata.ExpertCopies.from_stacked(got.tensors[0].view(10, -1))
        assert not copies.staged.any()
    assert software.live()["registered_ranges"] == before
    # What lies in one that came before counts nothing, be it the same or a part.
    with pin([tensors[0], tensors[0], tensors[0][10:20], tensors[1]], limit=100_000) as got:
        assert (len(got.tensors), got.nbytes, got.left) == (4, 100_000, [])
        assert software.live()["registered_ranges"] == before + 2
        with pin(tensors[:1]):
            pass
        assert not strata.ExpertCopies.from_buffers(tensors[:1]).staged.any()
    with pytest.raises(ValueError, match="overlaps"):
        pin([tensors[2], tensors[0][:20], tensors[0]])
    assert software.live()["registered_ranges"] == before
    with pytest.raises(ValueError, match=r"tensors\[1\]"):
        pin([tensors[0], tensors[1][::2]])
    with pytest.raises(TypeError, match=r"tensors\[0\] is ndarray"):
        pin([np.zeros(3)])
    with pytest.raises(ValueError, match="limit is -1"):
        pin(tensors, limit=-1)
    with pytest.raises(TypeError, match=r"tensors is a torch\.Tensor; a list"):
        pin(tensors[0])
    assert software.live()["registered_ranges"] == before


def test_dlpack_and_array_interfaces(weights) -> None:
    with strata.ExpertStreamer(LAYOUT.nbytes, gpu_ring=4) as streamer, streamer.begin(copies_of(weights)) as request:
        slot = request.acquire()
        assert slot.__dlpack_device__() == (1, 0)
        whole = slot.array()
        for made in (torch.from_dlpack(slot), np.from_dlpack(slot)):
            assert np.array_equal(np.asarray(made), whole)
            assert np.asarray(made).ctypes.data == slot.address
        with pytest.raises(BufferError, match="copy is True"):
            slot.__dlpack__(copy=True)
        slot.__dlpack__()  # a capsule that nobody takes lets go of the slot
        slot.release()
        with pytest.raises(strata.StrataError, match="released before"):
            slot.__dlpack__()
        request.abort()


@pytest.mark.parametrize("lent", [False, True])
def test_only_lent_streams_are_recorded_for_the_allocator(weights, monkeypatch, lent) -> None:
    """The allocator records an event on each of them when the memory is dropped: strata's own one is gone by then."""
    recorded = []
    monkeypatch.setattr(TorchStreamer, "_use_on", lambda self, stream: recorded.append(stream))
    copy = _hip.create_stream() if lent else None
    try:
        with TorchStreamer(LAYOUT, gpu_ring=8, copy_stream=copy) as streamer:
            with streamer.begin(copies_of(weights)) as request:
                request.skip(EXPERTS)
            assert (streamer.copy_stream in recorded) is lent
            assert streamer.compute_stream in recorded
    finally:
        if lent:
            _hip.destroy_stream(copy)
