"""Seconds from the call that loads a model to its first token, in a process of its own; prints a line of JSON.

What a program imports before that call is imported before it, for all arms alike.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.transformers.arms import ARMS, move_all_but_experts, without
from benchmarks.transformers.measure import anonymous_bytes, synchronize


def main() -> int:
    """Load, run one prompt, say when the first token was there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transformers.first_token", description=__doc__)
    parser.add_argument("--path", type=Path, required=True)
    parser.add_argument("--arm", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--tokens", type=int, required=True)
    arguments = parser.parse_args()
    import transformers
    from transformers import AutoModelForCausalLM, PreTrainedModel  # noqa: F401

    import strata.integrations.transformers  # noqa: F401

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    device = torch.device(arguments.device)
    arm = next(arm for arm in ARMS if arm.name == arguments.arm)
    without(device, arm.name)       # imports the arm's own library
    if device.type == "cuda":
        torch.cuda.init()
        torch.zeros(1, device=device)
    config = transformers.AutoConfig.from_pretrained(arguments.path)
    ids = torch.randint(3, config.vocab_size, (1, arguments.tokens), generator=torch.Generator().manual_seed(1))
    ids = ids.to(device)
    before = anonymous_bytes()
    began = time.perf_counter()
    loaded = None
    if not arm.own:
        loaded = AutoModelForCausalLM.from_pretrained(arguments.path, dtype="auto")
        move_all_but_experts(loaded, device)
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(arm.open(arguments.path, device, loaded))
        ready = time.perf_counter()
        host = anonymous_bytes() - before
        token = _first(model, ids)
        seconds = time.perf_counter() - began
        found = {
            "seconds": seconds, "load_seconds": ready - began, "token": token, "host_bytes": host,
            "host_bytes_after": anonymous_bytes() - before,
            "gpu_peak_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0,
        }
        began = time.perf_counter()
        _first(model, ids)
        print(json.dumps({**found, "again_seconds": time.perf_counter() - began}))
    return 0


def _first(model: Any, ids: torch.Tensor) -> int:
    with torch.inference_mode():
        token = int(model(input_ids=ids, use_cache=False, logits_to_keep=1).logits.argmax())
    synchronize(ids.device)
    return token


if __name__ == "__main__":
    sys.exit(main())
