"""Rules of the layout: one room that calls HIP, layers that only look down, threads that never take the GIL."""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import re
from pathlib import Path

import pytest

import strata
from tests.support.scripts import ended_well, run_script

PACKAGE = Path(strata.__file__).resolve().parent
CYTHON = sorted([*PACKAGE.glob("*.pyx"), *PACKAGE.glob("*.pxd")])
FACE = sorted(PACKAGE.rglob("*.py"))

#: Each may use those before it.
LAYERS = [
    ["_clock"],
    ["_hip", "_threads"],
    ["_control", "_counters", "_extent", "_host_functions"],
    ["_gpu_ring"],
    ["_planner"],
    ["_host_ring"],
    ["_issuer"],
    ["_pipeline"],
    ["_teardown"],
    ["_core"],
    ["_request", "_stager"],
    ["capi"],
]
#: Run on strata's own threads, or in calls that must not raise.
NATIVE = ["_control", "_gpu_ring", "_host_ring", "_issuer", "_pipeline", "_teardown"]


def code(path: Path) -> str:
    """A Cython file without comments and docstrings."""
    text = re.sub(r'"""(?:.|\n)*?"""', '""', path.read_text())
    return re.sub(r"#(?!include).*", "", text)


def cimports(path: Path) -> set[str]:
    """Modules of the package that a Cython file cimports."""
    text = code(path)
    named = set(re.findall(r"from strata\.(\w+) cimport", text))
    for group in re.findall(r"from strata cimport ([\w, ]+)", text):
        named |= {name.strip() for name in group.split(",")}
    return named


def test_there_is_something_to_look_at() -> None:
    assert len(CYTHON) >= 18
    assert len(FACE) >= 10
    known = {name for layer in LAYERS for name in layer}
    assert {path.stem for path in CYTHON} - known == {"__init__"}


def test_only_one_file_calls_hip() -> None:
    uses = [path.name for path in CYTHON if re.search(r"\bcyhip\b|\brocm\b", code(path))]
    assert uses == ["_hip.pyx"]
    for path in FACE:
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            assert not any(name.split(".")[0] in ("rocm", "hip") for name in names), path


@pytest.mark.parametrize("path", [path for path in CYTHON if path.stem != "__init__"], ids=lambda path: path.name)
def test_layers_look_down_only(path: Path) -> None:
    depth = {name: k for k, layer in enumerate(LAYERS) for name in layer}
    for name in cimports(path) - {path.stem}:
        assert depth[name] < depth[path.stem], f"{path.name} cimports {name}"


def test_the_planner_knows_nothing_of_threads() -> None:
    for suffix in ("pyx", "pxd"):
        path = PACKAGE / f"_planner.{suffix}"
        assert cimports(path) <= {"_hip", "_counters", "_gpu_ring", "_planner"}
        assert not re.search(r"\b(thread|Thread|Watermark|mutex|condition_variable)\b", code(path))


@pytest.mark.parametrize("path", FACE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_python_face_holds_no_scheduling(path: Path) -> None:
    """It reaches the core through the streamer's, the stager's and the planner's classes alone."""
    below = {"_issuer", "_pipeline", "_teardown", "_host_ring", "_gpu_ring", "_control", "_threads", "_extent", "_counters"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            parts = set((node.module or "").split(".")) | {alias.name for alias in node.names}
            assert not parts & below, ast.unparse(node)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                assert not set(alias.name.split(".")) & below, ast.unparse(node)


@pytest.mark.parametrize("path", [p for p in CYTHON if p.suffix == ".pyx"], ids=lambda path: path.name)
def test_files_are_short_enough_to_read(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 800


@pytest.mark.parametrize("name", NATIVE)
def test_native_code_never_takes_the_gil(name: str) -> None:
    for suffix in ("pyx", "pxd"):
        text = code(PACKAGE / f"{name}.{suffix}")
        assert "with gil" not in text
        assert not re.search(r"^\s*(def|class|import|from \S+ import|raise|try|print)\b", text, flags=re.MULTILINE)
        functions = re.findall(
            r"^cdef (?!enum|struct|extern|class)([^\n(=]*)\((?:[^()]|\([^()]*\))*\)([^\n]*)", text, flags=re.MULTILINE
        )
        assert functions
        for start, ending in functions:
            if start.startswith(("list ", "object ")):
                continue  # words for the face; Cython lets no nogil function call it
            assert ending.strip().rstrip(":").strip() == "noexcept nogil", start


def test_the_core_is_portable() -> None:
    """No POSIX: threads, clocks and conditions are the C++ library's."""
    sources = [*CYTHON, *(PACKAGE / "include" / "strata").glob("*")]
    assert len(sources) > len(CYTHON)
    for path in sources:
        header = r"(?:unistd|pthread|fcntl|dlfcn|sched|semaphore|sys/\w+)\.h"
        posix = re.findall(rf"#\s*include\s*[<\"]({header})", path.read_text())
        assert posix == [], path
        assert "libc.unistd" not in path.read_text()
        assert "posix." not in code(path)


def test_there_is_no_python_behind_a_core_that_does_not_build() -> None:
    for path in PACKAGE.glob("*.pyx"):
        module = importlib.import_module(f"strata.{path.stem}")
        assert isinstance(module.__spec__.loader, importlib.machinery.ExtensionFileLoader), path.stem
        assert not path.with_suffix(".py").exists()
    for path in FACE:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Try) and any(
                isinstance(inner, ast.ImportFrom) and (inner.level or (inner.module or "").startswith("strata"))
                for inner in node.body
            ):
                caught = {ast.unparse(handler.type) for handler in node.handlers if handler.type}
                assert not caught & {"ImportError", "ModuleNotFoundError"}, path


def test_nothing_is_read_or_opened_at_import() -> None:
    """Importing chooses no runtime, starts no thread and reads no variable of the environment."""

    script = """
        import os, sys
        class Watched(type(os.environ)):
            pass
        read = []
        original = type(os.environ).__getitem__
        type(os.environ).__getitem__ = lambda self, key: (read.append(key), original(self, key))[1]
        import strata
        print([key for key in read if key.startswith(("STRATA_", "HIP_", "ROCM_"))])
        print(strata.runtime.current(), len(os.listdir("/proc/self/task")) - threads_before)
        print("amdhip64" in open("/proc/self/maps").read(), "strata_hip" in open("/proc/self/maps").read())
    """
    before = "import os, numpy\nthreads_before = len(os.listdir('/proc/self/task'))\n"
    done = run_script(script, prologue=before, STRATA_STAGER_RING="many", STRATA_HIP_RUNTIME="nonsense")
    assert ended_well(done) == ["[]", "None 0", "False False"]
