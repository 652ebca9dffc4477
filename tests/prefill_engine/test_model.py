"""The engine's numbers against an oracle, and against other ways to cut the prompt."""

from __future__ import annotations

import numpy as np
import pytest

from examples.prefill_engine.engine import prompt
from examples.prefill_engine.experts import RoutePlan
from examples.prefill_engine.mixers import GdnState, gated_delta_rule
from examples.prefill_engine.numpy_backend import NumpyOps
from tests.prefill_engine import oracle


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 150])
def test_blocks_of_the_delta_rule_are_the_recurrence(tokens: int) -> None:
    random = np.random.default_rng(tokens)
    q, k, v = (random.standard_normal((tokens, 3, d)).astype(np.float32) for d in (8, 8, 6))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    beta = random.random((tokens, 3), np.float32)
    decay = -random.random((tokens, 3), np.float32)
    start = random.standard_normal((3, 8, 6)).astype(np.float32)
    state = GdnState(start.copy(), np.zeros(0, np.float32))
    out = gated_delta_rule(NumpyOps(), q, k, v, beta, decay, state)
    wanted, matrix = oracle.delta_rule(q, k, v, beta, decay, start)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, wanted, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(state.matrix, matrix, rtol=2e-4, atol=2e-4)


def test_the_oracle_gets_the_same(make_engine, checkpoint) -> None:
    engine = make_engine()
    ids = prompt(engine.model, 40)
    outcome = engine.prefill(ids)
    residual, matrices, logits = oracle.forward(checkpoint, ids)
    np.testing.assert_allclose(outcome.residual, residual, rtol=1e-3, atol=1e-3)
    assert list(outcome.gdn) == list(matrices) == [0, 1, 2]
    for layer, matrix in matrices.items():
        np.testing.assert_allclose(outcome.gdn[layer]["matrix"], matrix, rtol=1e-3, atol=1e-3)
    assert outcome.first_token == int(np.argmax(logits))
    assert outcome.residual.dtype == np.float32


def test_state_is_carried_over_chunks(make_engine) -> None:
    whole, cut = make_engine(chunk=40), make_engine(chunk=16)
    ids = prompt(whole.model, 40)
    a, b = whole.prefill(ids), cut.prefill(ids)
    np.testing.assert_allclose(a.residual, b.residual, rtol=1e-3, atol=1e-3)
    for layer in a.gdn:
        np.testing.assert_allclose(a.gdn[layer]["matrix"], b.gdn[layer]["matrix"], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(a.gdn[layer]["conv"], b.gdn[layer]["conv"], rtol=1e-3, atol=1e-3)


def test_a_prompt_begins_from_an_empty_context(make_engine) -> None:
    engine = make_engine()
    ids = prompt(engine.model, 40)
    first = engine.prefill(ids)
    engine.prefill(ids[::-1].copy())
    assert engine.prefill(ids).fingerprint() == first.fingerprint()


def test_route_plan() -> None:
    chosen = np.array([[2, 0], [0, 3], [2, 3]])
    order = np.array([3, 1, 0, 4, 2])
    plan = RoutePlan.of(NumpyOps(), chosen, np.argsort(order))
    assert plan.bounds.tolist() == [0, 2, 2, 4, 4, 6]
    assert plan.tokens.tolist() == [1, 2, 0, 1, 0, 2]
    for token in range(3):
        for choice in range(2):
            row = plan.rows[token * 2 + choice]
            turn = order.tolist().index(chosen[token, choice])
            assert plan.tokens[row] == token
            assert plan.bounds[turn] <= row < plan.bounds[turn + 1]
