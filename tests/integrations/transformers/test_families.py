"""Every family: the same logits and the same tokens as transformers' own experts, bit by bit.

Under the software runtime's schedule that ``STRATA_SOFTWARE_SCHEDULE`` names; CI runs it under eager, lazy and random.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the extra transformers")
pytest.importorskip("transformers", reason="needs the extra transformers")

import torch

from strata.integrations.transformers import OLDEST, stream_experts, streamed, unstream
from tests.integrations.transformers import families
from tests.integrations.transformers.families import FAMILIES, Family
from tests.integrations.transformers.support import IS_OLDEST, NEW_TOKENS, one_thread, outputs

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]
__all__ = ["one_thread"]

#: One of each kind: concatenated, interleaved and transposed with biases, transposed, without gate, with a norm, tied.
QUICK = {"qwen3_moe", "mixtral", "gpt_oss", "aria", "nemotron_h", "muse_spark", "diffusion_gemma", "openai_privacy_filter"}


@pytest.mark.parametrize(
    "family", [pytest.param(family, id=family.name, marks=() if family.name in QUICK else pytest.mark.slow)
               for family in FAMILIES])
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


def test_the_schedule_is_the_one_that_was_asked_for(software: Any) -> None:
    assert software.configuration()["schedule"] == os.environ.get("STRATA_SOFTWARE_SCHEDULE", "eager")


def test_the_table_is_whole() -> None:
    """It has every family that this transformers has behind the decorator, and no family twice."""
    names = [family.name for family in FAMILIES if not (family.newer and IS_OLDEST)]
    assert len(set(names)) == len(names) >= 50
    assert set(names) == families.behind_the_decorator()
