"""Hugging Face models whose experts are streamed: one call.

``model = from_pretrained(path)`` loads everything but the experts, and leaves those in their files;
``stream_experts(model)`` takes the experts of a model that is loaded. ``model.generate(...)`` is unchanged.
"""

from __future__ import annotations

try:
    import transformers as _transformers
    from transformers.integrations.moe import ExpertsInterface as _ExpertsInterface
except ImportError as _problem:
    raise ImportError(
        "strata.integrations.transformers needs transformers and torch: pip install 'strata-moe[transformers]'"
    ) from _problem

from strata.integrations.transformers._load import from_pretrained
from strata.integrations.transformers._stream import IMPLEMENTATION, stream_experts, streamed, unstream
from strata.integrations.transformers._streamed import StreamedModel, experts_forward
from strata.integrations.transformers._versions import NEWEST, OLDEST, check_version
from strata.integrations.transformers._walk import AHEAD_FROM, expected_share, lists_ahead

__all__ = [
    "AHEAD_FROM",
    "NEWEST",
    "OLDEST",
    "StreamedModel",
    "expected_share",
    "from_pretrained",
    "lists_ahead",
    "stream_experts",
    "streamed",
    "unstream",
]

check_version(_transformers.__version__)
_ExpertsInterface.register(IMPLEMENTATION, experts_forward)
