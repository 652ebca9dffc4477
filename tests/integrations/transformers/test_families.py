"""Every family: the same logits and the same tokens as transformers' own experts, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra transformers")
transformers = pytest.importorskip("transformers", reason="needs the extra transformers")

import torch

from strata.integrations.transformers import OLDEST, stream_experts, streamed, unstream
from tests.integrations.transformers import families
from tests.integrations.transformers.families import FAMILIES, Family

pytestmark = pytest.mark.filterwarnings("ignore")

IS_OLDEST = tuple(int(part) for part in transformers.__version__.split(".")[:2]) == OLDEST
NEW_TOKENS = 8


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """With more, the CPU's GEMMs split their sums by size, and transformers' own eager and grouped_mm differ."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def outputs(model: Any, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a prompt, and what is generated after it (the prompt again where the model generates nothing)."""
    with torch.inference_mode():
        torch.manual_seed(5)  # a model of diffusion begins with noise
        result = model(input_ids=ids)
        logits = result.logits
        tokens = ids
        if isinstance(model, transformers.GenerationMixin) and model.can_generate():
            tokens = model.generate(ids, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False,
                                    pad_token_id=0)
    return logits, tokens


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_bits_are_those_of_transformers(family: Family) -> None:
    if family.newer and IS_OLDEST:
        pytest.skip(f"came after transformers {OLDEST[0]}.{OLDEST[1]}")
    model = families.build(family)
    ids = families.prompt()
    want = {}
    for implementation in ("eager", "grouped_mm"):
        model.set_experts_implementation(implementation)
        want[implementation] = outputs(model, ids)
    stream_experts(model, slots=5, device="cpu")
    logits, tokens = outputs(model, ids)
    streaming = streamed(model)
    assert streaming.forwards_ahead >= 1
    assert streaming.out_of_order == 0
    assert torch.isfinite(logits).all()
    assert logits.std() > 0.01
    # With two experts a token, eager's sum in the order of experts has the bits of the sum in router order.
    for implementation, (expected, expected_tokens) in want.items():
        assert torch.equal(logits, expected), implementation
        assert torch.equal(tokens, expected_tokens), implementation
    if tokens is not ids:
        assert tokens.shape[1] == ids.shape[1] + NEW_TOKENS
        assert streaming.forwards_routed >= 1
    unstream(model)
    assert torch.equal(outputs(model, ids)[0], want["grouped_mm"][0])


def test_the_table_is_whole() -> None:
    """It has every family that this transformers has behind the decorator, and no family twice."""
    names = [family.name for family in FAMILIES if not (family.newer and IS_OLDEST)]
    assert len(set(names)) == len(names) >= 50
    assert set(names) == families.behind_the_decorator()
