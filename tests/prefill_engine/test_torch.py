"""The formulas over torch: the torch back end's array functions on CPU tensors, in NumPy's place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import strata
from examples.prefill_engine import engine as engine_module
from examples.prefill_engine.backend import Groups
from examples.prefill_engine.config import config_from
from examples.prefill_engine.engine import prompt
from examples.prefill_engine.numpy_backend import NumpyBackend
from examples.prefill_engine.verify import compare, run_arm

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # each host function runs on another thread; pools of them would only compete


class TorchOnHost(NumpyBackend):
    """The software runtime's stream and memory, and torch's arithmetic."""

    name = "torch on the host"

    def __init__(self) -> None:
        from examples.prefill_engine.torch_backend import TorchOps

        #: How each product's rows were shared out: on the device, as a GPU takes them, and on the host.
        self.shared = shared = []

        class InFloat32(TorchOps):
            """Experts' products as NumPy has them, whose rounding would else decide about routes."""

            def grouped(self, x: Any, weights: Any, groups: Groups) -> Any:
                shared.append((groups.on_device.dtype, groups.on_device.tolist(), groups.ends.tolist()))
                parts = zip(np.split(np.arange(len(x)), groups.ends[:-1]), weights, strict=True)
                return torch.cat([x[rows] @ weight.float().T for rows, weight in parts])

        super().__init__()
        self.ops = InFloat32("cpu")

    def to_host(self, array: Any) -> Any:
        return array.numpy().copy()

    def slots(self, first: int, count: int, step: int = 1) -> Any:
        return torch.from_numpy(super().slots(first, count, step)).view(torch.bfloat16)


@pytest.fixture
def on_torch(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function after which engines are made on torch."""
    return lambda: monkeypatch.setattr(engine_module, "make_backend", TorchOnHost)


@pytest.mark.parametrize("sizes", [{}, {"chunk": 40}, {"short_below": 0, "chunk": 13}])
def test_torch_gets_what_numpy_gets(make_engine, on_torch, sizes: dict) -> None:
    engine = make_engine(**sizes)
    ids = prompt(engine.model, 40)
    wanted = engine.prefill(ids)
    on_torch()
    engine = make_engine(**sizes)
    found = engine.prefill(ids, "routed")
    assert engine.backend.name == "torch on the host"
    assert engine.backend.shared
    for dtype, on_device, on_host in engine.backend.shared:
        assert dtype == torch.int32
        assert on_device == on_host
    np.testing.assert_allclose(found.residual, wanted.residual, rtol=1e-3, atol=1e-3)
    for layer, state in wanted.gdn.items():
        for name, values in state.items():
            np.testing.assert_allclose(found.gdn[layer][name], values, rtol=1e-3, atol=1e-3)
    for a, b in zip(wanted.routing, found.routing, strict=True):
        np.testing.assert_array_equal(a.chosen, b.chosen)
        assert b.chosen.dtype == np.int64
        assert b.shares.dtype == np.float32
    assert found.first_token == wanted.first_token
    assert engine.cache.wrong_slots() == ([], [])


def test_all_lines_are_equal(checkpoint, on_torch) -> None:
    on_torch()
    run = config_from("tiny")[1]
    arms = [run_arm(checkpoint, run, strata.BatchSettings(*s), ("all", "routed")) for s in ((1, 1, 1), (8, 16, 16))]
    assert [line for line in compare(*arms) if not line.equal] == []


@pytest.mark.parametrize("loop", [False, True])
def test_grouped_products_in_bfloat16(loop: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of an expert that nobody chose, of one and of several, with and without torch's grouped GEMM."""
    from examples.prefill_engine import torch_backend

    if loop:
        monkeypatch.setattr(torch_backend, "_GROUPED", None)
    made = torch.Generator().manual_seed(3)
    x = torch.randn((12, 64), generator=made)
    weights = torch.randn((4, 32, 64), generator=made).to(torch.bfloat16)
    ends = np.array([1, 1, 9, 12])
    groups = Groups(ends, torch.tensor(ends, dtype=torch.int32))
    found = torch_backend.TorchOps("cpu").grouped(x, weights, groups)
    assert found.dtype == torch.bfloat16
    rows = x.to(torch.bfloat16).float()
    begin = 0
    for expert, end in enumerate(ends):
        torch.testing.assert_close(found[begin:end].float(), rows[begin:end] @ weights[expert].float().T, rtol=1e-2, atol=1e-2)
        begin = end


def test_of_equal_shares_the_first_is_taken() -> None:
    from examples.prefill_engine.torch_backend import TorchOps

    values, chosen = TorchOps("cpu").largest(torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0]]), 3)
    assert chosen.tolist() == [[1, 2, 4]]
    assert values.tolist() == [[3.0, 3.0, 3.0]]
