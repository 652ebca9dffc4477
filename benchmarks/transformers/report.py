"""The table of a run."""

from __future__ import annotations

from typing import Any

__all__ = ["markdown"]


def markdown(run: dict[str, Any]) -> str:
    """A run as Markdown: what it ran on, one row an arm, seconds to the first token."""
    lengths = run["tokens"]
    machine = run["machine"]
    lines = [
        f"{run['shape']}, {run['layers']} layers, {run['expert_gb']:.2f} GB of experts, bfloat16; {machine['device']}, "
        f"torch {machine['torch']}, transformers {machine['transformers']}, strata {machine['strata']}. One large "
        f"pinned copy: {run['link_gb_s']:.1f} GB/s. GB/s count all experts; what no token is routed to need not be "
        "copied.",
        "",
        "| arm | " + " | ".join(f"{n} tokens: tokens/s (GB/s)" for n in lengths)
        + " | decode, tokens/s | GPU peak, GB | bits |",
        "|---|" + "---|" * (len(lengths) + 3),
    ]
    for name, row in run["arms"].items():
        if "why" in row:
            lines.append(f"| {name} | not run: {row['why']} |" + " |" * (len(lengths) + 2))
            continue
        cells = []
        for n in lengths:
            got = row["prefill"][str(n)]
            copied = f"; {got['copied_gb']:.2f} GB copied" if got["copied_gb"] else ""
            cells.append(f"{n / got['seconds']:,.0f} ({run['expert_gb'] / got['seconds']:.1f}{copied})")
        same = "equal" if row["equal"] else f"differ by {row['difference']:.3g}"
        peak = f"{row['gpu_peak_bytes'] / 1e9:.2f}" if row["gpu_peak_bytes"] else ""
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {1 / row['decode_seconds']:.2f} | {peak} | {same} |")
    if run["walks"]:
        lines += ["", "| walk, from files | " + " | ".join(f"{n} tokens, s" for n in lengths) + " |",
                  "|---|" + "---|" * len(lengths)]
        for walk, row in run["walks"].items():
            lines.append(f"| {walk} | " + " | ".join(f"{row[str(n)]:.4f}" for n in lengths) + " |")
    if run["first_token"]:
        lines += ["", f"Seconds from the call that loads to the first token of {run['first_tokens']} tokens, each in a "
                  "process of its own that has imported what it needs:", "",
                  "| arm | page cache | seconds | of which loading | that forward again | host memory before, GB | "
                  "GPU peak, GB |",
                  "|---|---|---|---|---|---|---|"]
        for row in run["first_token"]:
            if "why" in row:
                lines.append(f"| {row['arm']} | {row['cache']} | failed: {row['why']} | | | | |")
                continue
            lines.append(f"| {row['arm']} | {row['cache']} | {row['seconds']:.2f} | {row['load_seconds']:.2f} | "
                         f"{row['again_seconds']:.2f} | {row['host_bytes'] / 1e9:.2f} | "
                         f"{row['gpu_peak_bytes'] / 1e9:.2f} |")
        lines.append("")
        lines.append(f"The same files read by 8 threads: {run['read_gb_s']['warm']:.1f} GB/s from the page cache, "
                     f"{run['read_gb_s']['cold']:.2f} GB/s after the system was asked to forget them.")
    return "\n".join(lines) + "\n"
