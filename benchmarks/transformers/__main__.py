"""Prefill, decode, memory and seconds to the first token of a Qwen3-MoE whose experts do not move in.

All arms in one run, their bits compared with the resident model's. On a machine without a GPU: --shape tiny.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from benchmarks.transformers.arms import ARMS, Arm, without
from benchmarks.transformers.measure import decode, drop_from_page_cache, link_rate, prefill, read_rate
from benchmarks.transformers.model import SHAPES, make_checkpoint
from benchmarks.transformers.report import markdown
from strata.tools.cli.arguments import positive
from strata.tools.files import write_whole

FIRST_TOKEN_ARMS = ("strata, files", "accelerate cpu_offload", "double buffer of layers, pinned")
DECODE_PROMPT = 512


def main() -> int:
    """Make a checkpoint, run the arms, write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transformers", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for transformers.json and transformers.md")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-30b-a3b")
    parser.add_argument("--tokens", type=int, nargs="+", default=None, help="default: 8192 512 16")
    parser.add_argument("--repeat", type=positive, default=3)
    parser.add_argument("--decode", type=positive, default=24, help="tokens that are decoded")
    parser.add_argument("--folder", type=Path, default=None,
                        help="where the checkpoint is made; default: a temporary folder")
    parser.add_argument("--only", nargs="+", default=None, help="arms whose names begin so")
    parser.add_argument("--no-first-token", action="store_true", help="leave out what needs processes of their own")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="strata-transformers-"))
    try:
        run = measure(arguments, folder / "checkpoint")
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(write(arguments.out, run))
    wrong = [name for name, row in run["arms"].items() if name.startswith("strata") and not row.get("equal")]
    if wrong:
        print(f"failed, or other bits than the resident model's: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


def measure(arguments: argparse.Namespace, path: Path) -> dict[str, Any]:
    """Everything, as one dict."""
    import transformers

    import strata

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    shape = SHAPES[arguments.shape]
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    lengths = arguments.tokens or ([8192, 512, 16] if arguments.shape != "tiny" else [256, 64, 8])
    say(f"makes a checkpoint of {arguments.layers} layers")
    if not (path / "config.json").is_file():
        make_checkpoint(path, shape, arguments.layers, device)
    run: dict[str, Any] = {
        "shape": arguments.shape, "layers": arguments.layers, "tokens": lengths,
        "expert_gb": arguments.layers * shape.experts * shape.expert_bytes / 1e9,
        "machine": {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, software runtime",
            "torch": torch.__version__, "transformers": transformers.__version__, "strata": strata.__version__,
        },
        "link_gb_s": link_rate(device), "arms": {}, "walks": {}, "first_token": [], "first_tokens": lengths[0],
        "read_gb_s": {},
    }
    wanted = [arm for arm in ARMS if arguments.only is None or arm.name == "resident"
              or arm.name.startswith(tuple(arguments.only))]
    if not arguments.no_first_token:
        first_tokens(run, path, device, lengths[0], {arm.name for arm in wanted})
    say("loads the model on the host")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="auto")
    prompts = {n: torch.randint(3, shape.vocabulary, (1, n), generator=torch.Generator().manual_seed(n)).to(device)
               for n in {*lengths, min(DECODE_PROMPT, lengths[0])}}
    want: dict[str, Any] = {}
    for arm in wanted:
        why = without(device, arm.name)
        if why is None:
            say(arm.name)
            try:
                run["arms"][arm.name] = one(arm, arguments, path, device, loaded, prompts, lengths, want)
            except Exception as problem:
                traceback.print_exc()
                why = f"{type(problem).__name__}: {problem}"
        if why is not None:
            run["arms"][arm.name] = {"why": why}
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        write(arguments.out, run)
    say("both walks")
    run["walks"] = walks(arguments, path, device, prompts, lengths)
    return run


def write(folder: Path, run: dict[str, Any]) -> str:
    """Write what there is, as JSON and as a table: a run that is ended early keeps the arms that it had. The table."""
    table = markdown(run)
    write_whole(folder / "transformers.json", json.dumps(run, indent=1) + "\n")
    write_whole(folder / "transformers.md", table)
    return table


def one(arm: Arm, arguments: argparse.Namespace, path: Path, device: torch.device, loaded: Any,
        prompts: dict[int, torch.Tensor], lengths: list[int], want: dict[str, Any]) -> dict[str, Any]:
    """Measure an arm; the first one's results are what the others are compared with."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began = time.perf_counter()
    row: dict[str, Any] = {"prefill": {}, "equal": True, "difference": 0.0}
    with arm.open(path, device, loaded) as model:
        row["open_seconds"] = time.perf_counter() - began
        for n in lengths:
            repeat, before = 1 if arm.slow else arguments.repeat, copied_bytes(model)
            runs = [prefill(model, prompts[n]) for _ in range(repeat + 1)]
            row["prefill"][str(n)] = {"first_seconds": runs[0][0],
                                      "seconds": statistics.median(seconds for seconds, _ in runs[1:]),
                                      "copied_gb": (copied_bytes(model) - before) / (repeat + 1) / 1e9}
            for _, logits in runs:
                compare(row, want, str(n), logits)
        tokens = min(4, arguments.decode) if arm.slow else arguments.decode
        row["decode_seconds"], got = decode(model, prompts[min(DECODE_PROMPT, lengths[0])], tokens)
        before = want.setdefault("decode", got)
        row["equal"] &= got == before[:len(got)]
        row["gpu_peak_bytes"] = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
        streaming = model.__dict__.get("_strata_model")
        if streaming is not None:
            row["counters"] = {name: int(value) for name, value in
                               streaming[0].streamer.counters.as_dict().items() if isinstance(value, int)}
            if streaming[0].cache is not None:
                row["cache"] = {"hits": streaming[0].cache.hits, "misses": streaming[0].cache.misses}
    return row


def copied_bytes(model: Any) -> int:
    """Bytes of experts that strata has copied so far; 0 where it streams nothing."""
    streaming = model.__dict__.get("_strata_model")
    if streaming is None:
        return 0
    counters = streaming[0].streamer.counters
    return int(counters.direct_bytes + counters.staged_bytes)


def compare(row: dict[str, Any], want: dict[str, Any], key: str, logits: torch.Tensor) -> None:
    """Bits against the first arm's."""
    expected = want.setdefault(key, logits)
    row["equal"] &= torch.equal(logits, expected)
    row["difference"] = max(row["difference"], float((logits - expected).abs().max()))


def walks(arguments: argparse.Namespace, path: Path, device: torch.device, prompts: dict[int, torch.Tensor],
          lengths: list[int]) -> dict[str, dict[str, float]]:
    """Seconds of each walk, and of the one that the formula takes, from files: medians of walks that take turns."""
    from strata.integrations.transformers import from_pretrained, lists_ahead, streamed, unstream

    model = from_pretrained(path, device=device)
    choices = {"all ahead": lambda *_: True, "routed only": lambda *_: False, "by the formula": lists_ahead}
    seconds: dict[str, dict[str, list[float]]] = {name: {str(n): [] for n in lengths} for name in choices}
    for n in lengths:
        for _ in range(2 * arguments.repeat + 1):
            for name, choice in choices.items():
                streamed(model).lists_ahead = choice
                seconds[name][str(n)].append(prefill(model, prompts[n])[0])
    unstream(model)
    return {name: {n: statistics.median(each[1:]) for n, each in row.items()} for name, row in seconds.items()}


def first_tokens(run: dict[str, Any], path: Path, device: torch.device, tokens: int, names: set[str]) -> None:
    """Seconds to the first token, warm and cold, each in a process of its own.

    One process before them is not counted: it brings the libraries into the page cache, for all arms alike.
    """
    run["read_gb_s"]["warm"] = max(read_rate(path) for _ in range(2))
    first_token(path, FIRST_TOKEN_ARMS[0], device, tokens)
    drop_from_page_cache(path)
    run["read_gb_s"]["cold"] = read_rate(path)
    for name in FIRST_TOKEN_ARMS:
        if name not in names or without(device, name) is not None:
            continue
        for cache in ("warm", "cold"):
            say(f"first token: {name}, {cache}")
            if cache == "cold":
                drop_from_page_cache(path)
            else:
                read_rate(path, most=2**62)
            run["first_token"].append({"arm": name, "cache": cache, **first_token(path, name, device, tokens)})


def first_token(path: Path, arm: str, device: torch.device, tokens: int) -> dict[str, Any]:
    """What one process found, or why it failed."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.transformers.first_token", "--path", str(path), "--arm", arm,
         "--device", str(device), "--tokens", str(tokens)], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"why": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def say(text: str) -> None:
    """What is being done, to stderr."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
