"""What torch's users pay on the host: looking up a span's tensors, and the transformers adapter an expert."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import strata
from benchmarks.measuring import Row, command, null_runtime, show

CALLS = 20_000
LAYERS, EXPERTS, CHOICES, TOKENS, SPAN = 8, 128, 8, 64, 32


def looked_up() -> tuple[float, float]:
    """Nanoseconds of ``slot.tensors()`` and of ``span.tensors()``, of the calling thread's own."""
    from strata.integrations.torch import TorchStreamer

    layout = strata.SlotLayout({"gate_up_proj": ("bfloat16", (64, 32)), "down_proj": ("bfloat16", (32, 32))})
    weights = [np.zeros((SPAN, nbytes), np.uint8) for nbytes in (64 * 32 * 2, 32 * 32 * 2)]
    copies = strata.ExpertCopies.from_stacked(*weights, layout=layout)
    took = []
    with TorchStreamer(layout, gpu_ring=2 * SPAN) as streamer:
        for take in (lambda request: request.acquire(), lambda request: request.acquire_span(SPAN)):
            with streamer.begin(copies) as request, take(request) as held:
                took.append(_median(lambda held=held: [held.tensors() for _ in range(CALLS)]) / CALLS)
                request.abort()
    return took[0], took[1]


def an_expert() -> float:
    """Nanoseconds an expert of the adapter's layers, matrix products left out."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    from strata.integrations.transformers import _grouped, stream_experts, streamed, unstream

    torch.set_num_threads(1)
    model: Any = Qwen3MoeForCausalLM(Qwen3MoeConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, moe_intermediate_size=16, num_hidden_layers=LAYERS,
        num_attention_heads=2, num_key_value_heads=2, head_dim=8, num_experts=EXPERTS, num_experts_per_tok=CHOICES,
    )).to(torch.bfloat16).eval()
    stream_experts(model, slots=LAYERS * EXPERTS + 1, device="cpu", pinned_bytes=2**30)
    streaming = streamed(model)
    streaming.limit = SPAN
    streaming.lists_ahead = lambda *_: True
    product = _grouped._grouped_mm
    # On a GPU the host only queues it; on a CPU it would be most of the time.
    _grouped._grouped_mm = lambda rows, weight, offs: rows.new_empty(rows.shape[0], weight.shape[-1])
    hidden = torch.zeros(TOKENS, 16, dtype=torch.bfloat16)
    chosen = (torch.arange(TOKENS * CHOICES) % EXPERTS).view(TOKENS, CHOICES)
    shares = torch.full((TOKENS, CHOICES), 1 / CHOICES)
    modules = [layer.module for layer in streaming.layers]
    totals = []
    with torch.inference_mode():
        for _ in range(40):
            began = time.thread_time_ns()
            streaming._begin(TOKENS, None)
            spent = time.thread_time_ns() - began
            request = streaming._forward.request
            while request.issued < len(request):    # what is waited for is no time of the adapter's
                time.sleep(0.001)
            began = time.thread_time_ns()
            for module in modules:
                module(hidden, chosen, shares)
            totals.append(spent + time.thread_time_ns() - began)
    assert streaming.forwards_ahead == len(totals)
    unstream(model)
    _grouped._grouped_mm = product
    return min(totals) / (LAYERS * EXPERTS)      # the least: the rest is what else the machine does


def _median(function: Callable[[], object]) -> float:
    function()
    samples = []
    for _ in range(9):
        began = time.thread_time_ns()
        function()
        samples.append(time.thread_time_ns() - began)
    return statistics.median(samples)


def main() -> None:
    """Measure and print."""
    null_runtime()
    slot, span = (each / 1000 for each in looked_up())
    adapter = an_expert()
    rows: list[Row] = [
        ("slot.tensors()", f"{slot:.2f} us", "2 us", slot <= 2),
        ("span.tensors()", f"{span:.2f} us", "2 us", span <= 2),
        (f"the adapter, an expert ({TOKENS} tokens, all ahead, spans of {SPAN})", f"{adapter / 1000:.1f} us", "5 us",
         adapter <= 5000),
    ]
    show("torch_side: processor time of the calling thread, null schedule", rows)


if __name__ == "__main__":
    sys.exit(command("benchmarks.torch_side", __doc__, main, "torch", "transformers"))
