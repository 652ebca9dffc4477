"""What the tests of the adapter share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers

from strata.integrations.transformers import OLDEST

__all__ = ["IS_OLDEST", "NEW_TOKENS", "one_thread", "outputs"]

IS_OLDEST = tuple(int(part) for part in transformers.__version__.split(".")[:2]) == OLDEST
NEW_TOKENS = 8


@pytest.fixture
def one_thread() -> Iterator[None]:
    """With more, the CPU's GEMMs split their sums by size, and transformers' own eager and grouped_mm differ."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def outputs(model: Any, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a prompt, and what is generated after it (the prompt again where the model generates nothing)."""
    with torch.inference_mode():
        torch.manual_seed(5)  # a model of diffusion begins with noise
        logits = model(input_ids=ids).logits
        tokens = ids
        if isinstance(model, transformers.GenerationMixin) and model.can_generate():
            tokens = model.generate(ids, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False,
                                    pad_token_id=0)
    return logits, tokens
