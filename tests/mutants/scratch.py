"""A copy of the source tree that is built once, and the tests that are run on it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.mutants.mutants import Mutant

__all__ = ["AROUND_PANELS", "PANELS", "ScratchTree", "Verdict", "panels_of"]

ROOT = Path(__file__).resolve().parents[2]

#: The tests that must notice: the same for every mutant, each line in a process of its own. The quickest to find come
#: first; where one witness is enough, those that docs/mutants.md names are asked before the others.
PANELS: Mapping[str, Sequence[str]] = {
    "happens-before checker": ("tests/proof/test_checker_on_core.py",),
    "spans": tuple(f"tests/spans/test_{what}.py" for what in ("sharing", "drop", "submission", "spans")),
    "streamer": ("tests/streamer/test_bytes.py", "tests/streamer/test_begin_waits.py", "tests/streamer/test_ends.py"),
    "stager": ("tests/stager/test_stager.py",),
    "failures": ("tests/faults/test_groups.py", "tests/faults/test_prompt_abort.py", "tests/faults/test_ready.py"),
    "contract's calls": ("tests/proof/test_necessity.py",),
    "self-test": ("tests/proof/test_fixtures.py::test_passes",),
}

#: The tests that must notice a fault in the Python around the core, by where it lies: the longest beginning counts.
AROUND_PANELS: Mapping[str, tuple[str, Sequence[str]]] = {
    "strata/": ("face", (
        "tests/settings", "tests/streamer/test_arguments.py", "tests/streamer/test_holding.py",
        "tests/runtime_choice/test_choice.py", "tests/copies/test_pinned.py", "tests/copies/test_expert_copies.py")),
    "strata/tools/": ("files and ends of commands", ("tests/tools",)),
    "strata/tools/replay/": ("replay", ("tests/replay/test_report.py", "tests/replay/test_command.py")),
    "strata/tools/selftest/": ("self-test's own", tuple(f"tests/proof/test_fixtures.py::{test}" for test in (
        "test_values_of_the_cases", "test_nothing_tried_is_nothing_shown", "test_buffers_are_forced_pageable_on_a_device"))),
    "benchmarks/": ("harness", ("tests/bench",)),
    "benchmarks/native/": ("private cache", ("tests/benchmarks/test_cache.py",)),
    "examples/": ("example", ("tests/prefill_engine/test_command.py",)),
}

#: Of one test, and of one panel; the panels take 20 to 60 s each.
TEST_LIMIT_S = 30
PANEL_LIMIT_S = 240

_COPIED = ("strata", "tests", "benchmarks", "examples", "setup.py", "pyproject.toml", "README.md", "LICENSE")
_CACHES = shutil.ignore_patterns("__pycache__")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.so", "*.dll")


def panels_of(mutant: Mutant) -> Mapping[str, Sequence[str]]:
    """The tests that are run on a mutant."""
    if mutant.builds:
        return PANELS
    where = max((place for place in AROUND_PANELS if mutant.path.startswith(place)), key=len)
    name, paths = AROUND_PANELS[where]
    return {name: paths}


@dataclass(frozen=True)
class Verdict:
    """What one panel said.

    Attributes
    ----------
    panel : str
    caught : bool
        A test failed, hung, or ended its process.
    how : str
        ``failed``, ``hang``, ``crash``, or ``passed``.
    test : str
        The test's node id.
    message : str
        The first line of what it said.
    """

    panel: str
    caught: bool
    how: str = "passed"
    test: str = ""
    message: str = ""


class ScratchTree:
    """A built copy of the source tree, in which one fault at a time is put.

    Parameters
    ----------
    folder : Path
        An empty folder.
    build : bool
        False where no mutant has to be compiled: then what the checkout has built in place is taken, if it has.
    like : ScratchTree, optional
        Another one, which is built: this one is its copy.

    Raises
    ------
    RuntimeError
        If it cannot be built.
    """

    def __init__(self, folder: Path, *, build: bool = True, like: ScratchTree | None = None) -> None:
        self.root = folder.resolve() / "tree"
        self._kept = folder.resolve() / "kept"
        self._kept.mkdir(parents=True)
        if like is not None:
            shutil.copytree(like.root, self.root)  # times of files included
            build = False
        else:
            build = build or not list((ROOT / "strata").glob("_planner*.so"))
            self._copy_checkout(built=not build)
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("STRATA_", "PYTEST_"))},
            "PYTHONPATH": str(self.root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "STRATA_HIP_RUNTIME": "software",
            # Compiles in a third of the time; what is looked for is an order, not a speed.
            "STRATA_BUILD_FLAGS": os.environ.get("STRATA_BUILD_FLAGS", "-O0"),
        }
        if build:
            self._build()
        where = self._python("-c", "import strata.engine.issuer as m; print(m.__file__)").stdout.strip()
        if not Path(where).is_relative_to(self.root):
            raise RuntimeError(f"the tests would run on {where}, not on the scratch copy {self.root}")

    def _copy_checkout(self, *, built: bool) -> None:
        self.root.mkdir()
        for name in _COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.root / name, ignore=_CACHES if built else _LEFT_OUT)
            else:
                shutil.copy2(ROOT / name, self.root / name)
        if not built:
            for made in [*(self.root / "strata").glob("*.cpp"), *(self.root / "strata" / "engine").glob("*.cpp")]:
                made.unlink()  # Cython's, of another build

    def _python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.root, env=self._environment, text=True, capture_output=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(arguments)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        return done

    def _build(self) -> None:
        self._python("setup.py", "--quiet", "build_ext", "--inplace")

    def _files_of(self, module: str) -> list[Path]:
        """What a build of the module reads and writes; setuptools keeps a library in build/, and copies that."""
        kinds = (".pyx", ".cpp", ".o", ".so")
        places = (self.root / "strata", self.root / "build")
        files = [path for place in places for path in place.rglob(f"{module}.*") if path.suffix in kinds]
        return [*files, self.root / "build" / "generated.keys"]  # of what the C++ was generated

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Build with the fault; afterwards everything is as it was, times of files included.

        Raises
        ------
        ValueError
            If the line is not there.
        RuntimeError
            If it does not build, or nothing was built.
        """
        source = self.root / mutant.path
        text = mutant.applied(source.read_text(encoding="utf-8"))
        if not mutant.builds:
            whole = source.read_bytes()
            try:
                source.write_text(text, encoding="utf-8")
                yield
            finally:
                source.write_bytes(whole)
            return
        kept = {path: self._kept / str(number) for number, path in enumerate(self._files_of(mutant.module))}
        for path, copy in kept.items():
            shutil.copy2(path, copy)
        try:
            # The faults are in .pyx files alone: no other module has a part of them inlined.
            source.write_text(text, encoding="utf-8")
            self._build()
            for path, copy in kept.items():
                if path.suffix == ".so" and path.read_bytes() == copy.read_bytes():
                    raise RuntimeError(f"mutant {mutant.name!r}: the build made the same {path.name} again")
            yield
        finally:
            for path, copy in kept.items():
                path.unlink(missing_ok=True)
                shutil.copy2(copy, path)

    def verdicts(self, panels: Mapping[str, Sequence[str]], *, first_only: bool = False) -> list[Verdict]:
        """Run panels one by one until one notices; or all of them, two at a time."""
        if not first_only:
            with ThreadPoolExecutor(2) as pool:
                return list(pool.map(self.verdict, panels, panels.values()))
        found = []
        for panel, paths in panels.items():
            found.append(self.verdict(panel, paths))
            if found[-1].caught:
                break
        return found

    def verdict(self, panel: str, paths: Sequence[str]) -> Verdict:
        """Run one panel up to its first failure.

        Raises
        ------
        RuntimeError
            If pytest could not run it.
        """
        report = self._kept / f"{panel}.xml"
        report.unlink(missing_ok=True)
        command = [
            sys.executable, "-m", "pytest", "-x", "-vv", "--no-header", "-p", "no:cacheprovider", "-m", "not slow",
            f"--timeout={TEST_LIMIT_S}", f"--junitxml={report}", *paths,
        ]
        with open(report.with_suffix(".txt"), "w+", encoding="utf-8", errors="replace") as output:
            process = subprocess.Popen(
                command, cwd=self.root, env=self._environment, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True)
            try:
                status = process.wait(PANEL_LIMIT_S)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                _end(process)
            output.seek(0)
            text = output.read()
        if status == 0:
            return Verdict(panel, False)
        last = (re.findall(r"^(tests/\S+::.+?)(?: (?:PASSED|FAILED|ERROR|SKIPPED)\b.*)?$", text, re.MULTILINE) or ["?"])[-1]
        if status is None:
            return Verdict(panel, True, "hang", last, f"ended after {PANEL_LIMIT_S} s")
        if status == 1 and report.exists():
            return _first_failure(panel, report, last)
        if "+ Timeout +" in text:
            return Verdict(panel, True, "hang", last, "ended by the test's time limit")
        if status < 0:
            return Verdict(panel, True, "crash", last, f"the process ended by {signal.Signals(-status).name}")
        raise RuntimeError(f"pytest ended with {status} at {panel}:\n{text[-4000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """The process, and what it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _first_failure(panel: str, report: Path, test: str) -> Verdict:
    for case in ElementTree.parse(report).iter("testcase"):
        for kind in ("failure", "error"):
            found = case.find(kind)
            if found is not None:
                message = found.get("message", "").strip().splitlines()[0]
                hung = message.startswith("Failed: Timeout")
                if message == "AssertionError":  # of a helper, whose asserts pytest does not rewrite
                    message = re.findall(r"^>\s+(assert .*)$", found.text or "", re.MULTILINE)[-1]
                return Verdict(panel, True, "hang" if hung else "failed", test, message)
    raise RuntimeError(f"pytest failed at {panel}, but no test did: see {report}")
