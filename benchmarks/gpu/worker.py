"""The process that measures cases: ``python -m benchmarks.gpu.worker CASES.json``.

It says one JSON object a line on what was its standard output: that it makes sources, which case begins, what
it came to. Whatever peers print goes to the standard error. `benchmarks.gpu.supervise` reads it.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any, TextIO

from benchmarks.gpu.cases import Case, Size
from benchmarks.gpu.measuring import Pace, Result

__all__ = ["main"]


def _say(out: TextIO, **what: Any) -> None:
    out.write(json.dumps(what) + "\n")
    out.flush()


def _measure(case: Case, bench: Any, reasons: dict[str, str | None]) -> Result:
    from benchmarks.gpu import peers

    try:
        peer = peers.load(case.peer)
        if case.peer not in reasons:
            reasons[case.peer] = peer.available()
        reason = reasons[case.peer]
        if reason is None:
            return peer.run(case, bench)
    except Exception as problem:
        traceback.print_exc()
        reason = f"{type(problem).__name__}: {problem}"
    return Result(case, reason=reason)


def main(path: str) -> None:
    """Measure the cases of a file and say what they came to."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    plan = json.loads(Path(path).read_text())
    import torch

    import strata
    from benchmarks.gpu.peers import Bench
    from benchmarks.gpu.sources import Sources
    from benchmarks.native import load

    device = torch.device("cuda", 0)
    torch.zeros(1, device=device)
    strata.runtime.use("cuda")
    load()
    cases = [Case(**case) for case in plan["cases"]]
    sizes = {data["nbytes"]: Size(**data) for data in plan["sizes"]}
    benches: dict[int, Bench] = {}
    reasons: dict[str, str | None] = {}
    for index, case in enumerate(cases):
        if case.size not in benches:
            # All sizes' pools stay: foreign packages come last, and use every one of them again.
            _say(out, event="sources", size=case.size)
            size = sizes[case.size]
            sources = Sources(size, device)
            sources.make(pageable=any(c.size == case.size and c.memory != "pinned" for c in cases))
            benches[case.size] = Bench(size, sources, device, Pace(**plan["pace"]))
        _say(out, event="begin", index=index)
        result = _measure(case, benches[case.size], reasons)
        gc.collect()
        torch.cuda.empty_cache()
        _say(out, event="result", index=index, result=result.as_dict())
    # Without tear-down: what a foreign package left behind may hang there, and everything is said.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
