"""How a command says what went wrong: one line on standard error, and an exit status."""

from __future__ import annotations

import sys

from strata.tools.progress import Progress

__all__ = ["complain"]


def complain(command: str, progress: Progress, problem: BaseException, status: int) -> int:
    """Print a problem in one line and return the exit status."""
    progress.clear()
    text = " ".join(str(problem).split()) or type(problem).__name__
    print(f"strata {command}: error: {text}", file=sys.stderr)
    return status
