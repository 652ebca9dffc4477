"""A process of the self-test: reads its order from standard input, and answers in lines of JSON."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from strata import runtime
from strata.errors import RuntimeNotFound, StrataError
from strata.tools.selftest.bench import Bench
from strata.tools.selftest.fixtures import FIXTURES, run_fixtures

__all__ = ["main"]


def main() -> int:
    """Run the fixtures that the parent asks for."""
    # Whatever else writes to standard output shall not come between the lines.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lock = threading.Lock()

    def answer(**said: Any) -> None:
        with lock:
            print(json.dumps(said), file=answers, flush=True)

    order = json.loads(sys.stdin.read())
    try:
        runtime.use(order["runtime"])
        about = runtime.describe()
    except (RuntimeNotFound, StrataError) as problem:
        answer(unusable=" ".join(str(problem).split()))
        return 0
    answer(about=about)
    bench = Bench(schedule=order["schedule"], seed=order["seed"], quick=order["quick"], share=order["share"],
                  say=lambda text: answer(at=text))
    for name in FIXTURES:
        for outcome in run_fixtures(bench, [name]):
            answer(outcome=outcome.as_dict())
    answer(finished=True)
    return 0
