"""What is measured of an arm: prefill at some lengths, decode, memory; and seconds to the first token."""

from __future__ import annotations

import inspect
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch

__all__ = ["anonymous_bytes", "decode", "drop_from_page_cache", "link_rate", "prefill", "read_rate", "synchronize"]


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def prefill(model: Any, ids: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Seconds and last logits of a prompt, without a cache of keys."""
    synchronize(ids.device)
    began = time.perf_counter()
    with torch.inference_mode():
        logits = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits
    synchronize(ids.device)
    return time.perf_counter() - began, logits.float().cpu()


def decode(model: Any, ids: torch.Tensor, tokens: int) -> tuple[float, list[int]]:
    """Seconds a token after a prompt, the first two tokens not counted; the tokens."""
    got = []
    with torch.inference_mode():
        result = model(input_ids=ids, use_cache=True, logits_to_keep=1)
        name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        keys = {name: result[name]}
        began = 0.0
        for k in range(tokens + 2):
            last = result.logits[:, -1:].argmax(-1)
            got.append(int(last))
            if k == 2:
                synchronize(ids.device)
                began = time.perf_counter()
            result = model(input_ids=last, use_cache=True, **keys)
        synchronize(ids.device)
    return (time.perf_counter() - began) / tokens, got


def link_rate(device: torch.device, nbytes: int = 2**30) -> float:
    """GB/s of one large copy from pinned memory; 0 without a GPU."""
    if device.type != "cuda":
        return 0.0
    source = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(nbytes, dtype=torch.uint8, device=device)
    rates = []
    for _ in range(6):
        synchronize(device)
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        synchronize(device)
        rates.append(nbytes / (time.perf_counter() - began) / 1e9)
    return statistics.median(rates[1:])


def drop_from_page_cache(folder: Path) -> None:
    """Ask the system to forget the files of a folder."""
    os.sync()
    for path in folder.iterdir():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def read_rate(folder: Path, threads: int = 8, most: int = 4 * 10**9) -> float:
    """GB/s of reading files of a folder with some threads, as the page cache or the disk gives them."""
    from concurrent.futures import ThreadPoolExecutor

    files = sorted(folder.glob("*.safetensors"))
    chunk = 8 << 20
    pieces = [(file, at) for file in files for at in range(0, file.stat().st_size, chunk)][:max(1, most // chunk)]
    handles = {file: os.open(file, os.O_RDONLY) for file in files}

    def read(piece: tuple[Path, int]) -> int:
        return len(os.pread(handles[piece[0]], chunk, piece[1]))

    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(read, pieces))
    seconds = time.perf_counter() - began
    for handle in handles.values():
        os.close(handle)
    return total / seconds / 1e9


def anonymous_bytes() -> int:
    """Host memory of this process that is no mapped file; 0 where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)
