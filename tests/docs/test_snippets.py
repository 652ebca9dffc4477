"""Every snippet and command of README and docs is run, or says why it is not."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
         if path.exists()]
BLOCK = re.compile(
    r"(?:<!-- (?:not run: (?P<why>[^>]+)|from (?P<source>[^>]+)) -->\n+)?^```(?P<kind>\w+)\n(?P<text>.*?)^```",
    re.MULTILINE | re.DOTALL)

#: Commands that other tests, or CI, run as they stand: what they begin with, and where.
ELSEWHERE = {
    "pip install": ".ci/run",
    "pytest": ".ci/run",
    "python -m pytest": ".ci/run",
    "strata replay": "tests/replay",
    "strata selftest": "tests/proof",
    "strata bench": "tests/bench",
    "python -m tests.mutants": "tests/mutants",
    "python -m examples.prefill_engine": "tests/prefill_engine",
    "python -m benchmarks.": "tests/benchmarks",
    "tests/sanitize.sh": ".ci/run",
    "python setup.py build_ext": ".ci/run",
    ".ci/run": ".ci/run",
    "bash .ci/run": ".ci/run",
    "python -m venv": ".ci/run",
    ". .venv/bin/activate": ".ci/run",
    "ruff check": ".ci/run",
    "cython-lint": ".ci/run",
    "mypy": ".ci/run",
    "python -m mypy.stubtest": ".ci/run",
    "python -m build": ".ci/run",
    "python -m tests.architecture.stubs": "tests/architecture",
    "python -m strata.integrations.transformers": "tests/integrations",
    "python -m torch.distributed.run": "tests/examples",
    "sphinx-build": ".ci/run",
}


def blocks(*kinds: str) -> list[object]:
    found = []
    for page in PAGES:
        for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
            if match["kind"] in kinds:
                line = page.read_text(encoding="utf-8")[: match.start("text")].count("\n")
                found.append(pytest.param(match["why"], match["source"], match["text"], id=f"{page.relative_to(ROOT)}:{line}"))
    return found


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STRATA_", "PYTEST_"))}
    where = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    return {**kept, "STRATA_HIP_RUNTIME": "software", "PYTHONPATH": where, "HOME": str(folder)}


@pytest.mark.parametrize(("why", "source", "text"), blocks("python"))
def test_python(why: str | None, source: str | None, text: str, tmp_path: Path) -> None:
    if why:
        pytest.skip(why)
    if source:  # a part of a file that a test runs
        assert text in (ROOT / source).read_text(encoding="utf-8")
        return
    if "torch" in text:
        pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, env=environment(tmp_path), capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def commands(text: str) -> list[str]:
    lines = text.replace("\\\n", " ").splitlines()
    whole = [re.sub(r"\s+#.*", "", line).strip() for line in lines]
    return [part.strip() for line in whole if line and not line.startswith("#") and not re.match(r"\w+='", line)
            for part in line.split("&&")]


@pytest.mark.parametrize(("why", "source", "text"), blocks("sh", "bash"))
def test_commands_are_real(why: str | None, source: str | None, text: str) -> None:
    """The command exists, its options exist, and something runs it."""
    for command in commands(text):
        words = [word for word in shlex.split(command) if "=" not in word.partition("/")[0] or word.startswith("-")]
        line = " ".join(words)
        known = [begin for begin in ELSEWHERE if line.startswith(begin)]
        assert known or why, f"nothing runs {command!r}, and the page does not say why (<!-- not run: ... -->)"
        if line.startswith(("strata ", "python -m benchmarks.", "python -m examples.", "python -m tests.")):
            check_options(words)


def check_options(words: list[str]) -> None:
    """Each option of the command stands in its help."""
    command = words[1:] if words[0] == "python" else ["-m", *words]
    until = next((k for k, word in enumerate(command[2:], 2) if word.startswith("-")), len(command))
    said = help_of(*command[:until])
    for word in command[until:]:
        if word.startswith("--"):
            assert word.partition("=")[0] in said, f"{' '.join(words)}: no {word}"


@cache
def help_of(*command: str) -> str:
    done = subprocess.run([sys.executable, *command, "--help"], cwd=ROOT, env=environment(ROOT), capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_snippets() -> None:
    assert len(blocks("python")) >= 3
    assert len(blocks("sh", "bash")) >= 8
