"""Where a benchmark ran: the machine, and the commit of what ran on it."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import strata
from benchmarks.ab.memory import psutil

__all__ = ["Machine", "commit_here", "processor"]


@dataclass(frozen=True)
class Machine:
    """What a reader needs to judge figures.

    Attributes
    ----------
    system, processor, python, strata : str
    processors : int
        Logical ones.
    memory : int
        Bytes.
    load : float or None
        Processes that wanted a processor in the last minute before the benchmark.
    commit : str
        Of the checkout, with ``, changed`` where files differ from it; or why there is none.
    """

    system: str
    processor: str
    processors: int
    memory: int
    load: float | None
    python: str
    strata: str
    commit: str

    @classmethod
    def here(cls) -> Machine:
        """Look at this machine."""
        return cls(
            system=platform.platform(),
            processor=processor(),
            processors=os.cpu_count() or 1,
            memory=int(psutil().virtual_memory().total),
            load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
            python=f"{platform.python_implementation()} {platform.python_version()}",
            strata=strata.__version__,
            commit=commit_here(),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON wants it."""
        return asdict(self)

    def __str__(self) -> str:
        load = "" if self.load is None else f", load {self.load:.2f} before"
        return (f"{self.processor}, {self.processors} processors, {self.memory / 2**30:.1f} GiB, {self.system}, "
                f"{self.python}{load}")


def processor() -> str:
    """Return the processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def commit_here() -> str:
    """Return the commit of the checkout that holds the package, else of the one that the command runs in."""
    package = Path(strata.__file__).parent
    for folder, file in ((package, "__init__.py"), (Path.cwd(), "strata/__init__.py")):
        if _git(folder, "ls-files", "--error-unmatch", file) is None:
            continue  # a file that happens to lie in somebody's checkout, or none
        commit = _git(folder, "rev-parse", "HEAD")
        if commit:
            return commit + (", changed" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    return "unknown: not run from a checkout"


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
