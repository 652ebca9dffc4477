"""A workload that reports what a plan tells it to, or misbehaves as told. Times are fixed numbers."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

_CHILD = "import signal; signal.pause()"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plan", required=True)
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--settings")
    who.add_argument("--peer")
    parser.add_argument("--warmups", type=int, required=True)
    parser.add_argument("--samples", type=int, required=True)
    arguments = parser.parse_args()
    called = arguments.settings or arguments.peer
    plan = json.loads(Path(arguments.plan).read_text())
    started = Path(plan["log"])
    with started.open("a") as file:
        file.write(json.dumps([called, arguments.warmups, arguments.samples]) + "\n")
    number = started.read_text().count(json.dumps(called))
    mine: dict[str, Any] = {**plan["all"], **plan.get(called, {})}
    do = mine.get("do")
    if do == "crash":
        print("the kernel is gone", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if do == "garbage":
        print("Loading model... done")
        return
    if do == "hang":
        child = subprocess.Popen([sys.executable, "-c", _CHILD])
        if mine.get("stubborn"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with open(plan["fifo"], "w") as fifo:
            fifo.write(f"{os.getpid()} {child.pid}")
        while True:
            signal.pause()
    arm = arguments.peer or [int(part) for part in called.split(",")]
    walls = mine["walls"][number - 1]
    print(json.dumps({
        "arm": mine.get("arm", arm),
        "model": mine["model"],
        "seed": mine["seed"],
        "walk": mine.get("walk", "all"),
        "fingerprint": mine["fingerprint"],
        "samples": [
            {
                "pp_tok_s": mine["tokens"] / wall * 1e3,
                "run_wall_ms": wall,
                "done_prefill_ms": wall + 5,
                "ttft_ms": wall + 10,
                "copy_wait_ms": mine["copy_wait"],
                "stall": mine.get("stall", {"wait_window": 0.25}),
                "counters": {**mine["counters"], **({"fences": k} if mine.get("varying") else {})},
            }
            for k, wall in enumerate(walls[: mine.get("samples", arguments.samples)])
        ],
    }))


if __name__ == "__main__":
    main()
