"""Rules of the layout: one room that calls HIP, layers that only look down, threads that never take the GIL."""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import re
from pathlib import Path

import pytest

from tests.support.scripts import ended_well, run_script

PACKAGE = Path(__file__).resolve().parents[2] / "strata"
CYTHON = sorted(path for place in (PACKAGE, PACKAGE / "engine") for kind in ("*.pyx", "*.pxd") for path in place.glob(kind))
FACE = sorted(PACKAGE.rglob("*.py"))

#: Each may use those before it.
LAYERS = [
    ["_arrays", "engine.clock", "engine.files", "engine.dlpack"],
    ["_hip", "engine.threads"],
    ["engine.control", "engine.counters", "engine.command", "engine.host_functions"],
    ["engine.gpu_ring", "engine.batch_probe"],
    ["_planner"],
    ["engine.host_ring"],
    ["engine.issuer"],
    ["engine.pipeline"],
    ["engine.consumption"],
    ["engine.teardown"],
    ["engine.core"],
    ["engine.running"],
    ["engine.slot"],
    ["engine.span"],
    ["engine.request", "engine.stager"],
    ["engine.begin"],
    ["capi"],
]
#: Run on strata's own threads, or in calls that must not raise.
NATIVE = ["control", "gpu_ring", "host_ring", "issuer", "pipeline", "consumption", "teardown"]


def code(path: Path) -> str:
    """A Cython file without comments and docstrings."""
    text = re.sub(r'"""(?:.|\n)*?"""', '""', path.read_text())
    return re.sub(r"#(?!include).*", "", text)


def cimports(path: Path) -> set[str]:
    """Modules of the package that a Cython file cimports."""
    text = code(path)
    named = set(re.findall(r"from strata\.([\w.]+) cimport", text))
    for package, group in re.findall(r"from strata(\.engine)? cimport ([\w, ]+)", text):
        named |= {f"{package}.{name.strip()}".lstrip(".") for name in group.split(",")}
    return named - {"engine"}


def module(path: Path) -> str:
    """A Cython file's module, without the package's name."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def test_there_is_something_to_look_at() -> None:
    assert len(CYTHON) >= 18
    assert len(FACE) >= 10
    known = {name for layer in LAYERS for name in layer}
    assert {module(path) for path in CYTHON} - known == {"__init__", "engine.__init__"}


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
    for name in cimports(path) - {module(path)}:
        assert depth[name] < depth[module(path)], f"{path.name} cimports {name}"


def test_the_planner_knows_nothing_of_threads() -> None:
    for suffix in ("pyx", "pxd"):
        path = PACKAGE / f"_planner.{suffix}"
        assert cimports(path) <= {"_arrays", "_hip", "engine.counters", "engine.gpu_ring", "_planner"}
        assert not re.search(r"\b(thread|Thread|Watermark|mutex|condition_variable)\b", code(path))


@pytest.mark.parametrize("path", FACE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_python_face_holds_no_scheduling(path: Path) -> None:
    """It reaches the core through the streamer's, the stager's and the planner's classes alone."""
    allowed = {"begin", "core", "request", "slot", "span", "stager", "host_functions"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("strata.engine"):
            names = (node.module or "").split(".")[2:] or [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".")[2] for alias in node.names if alias.name.startswith("strata.engine.")]
        else:
            continue
        assert names[0] in allowed if names else True, ast.unparse(node)


@pytest.mark.parametrize("path", [p for p in CYTHON if p.suffix == ".pyx"], ids=lambda path: path.name)
def test_files_are_short_enough_to_read(path: Path) -> None:
    # The one room that calls HIP has a short function for each of its calls.
    assert len(path.read_text().splitlines()) < (1000 if path.name == "_hip.pyx" else 800)


@pytest.mark.parametrize("name", NATIVE)
def test_native_code_never_takes_the_gil(name: str) -> None:
    for suffix in ("pyx", "pxd"):
        text = code(PACKAGE / "engine" / f"{name}.{suffix}")
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
    """No POSIX: threads, clocks and conditions are the C++ library's.

    Two headers are apart, for what the C++ library has no word for: that a thread takes no signals, and its name; and
    reads of a file at a position.
    """
    headers = {path.name for path in (PACKAGE / "include" / "strata").glob("*")}
    assert headers == {"threads.hpp", "thread_start.hpp", "files.hpp"}
    sources = [*CYTHON, PACKAGE / "include" / "strata" / "threads.hpp"]
    for path in sources:
        header = r"(?:unistd|pthread|fcntl|dlfcn|sched|semaphore|sys/\w+)\.h"
        text = path.read_text()
        posix = re.findall(rf"#\s*include\s*[<\"]({header})", text)
        if posix and path.suffix == ".hpp":  # a foreign declaration with a branch for each system
            assert re.search(r"#if defined\(_WIN32\)\n(?:.|\n)*#else\n(?:#include .*\n)*#endif", text), path
            continue
        assert posix == [], path
        assert "libc.unistd" not in path.read_text()
        assert "posix." not in code(path)


def test_the_one_header_that_knows_systems_knows_the_others_too() -> None:
    """Without POSIX it compiles to what Windows has; each include lies in a branch for its system."""
    text = (PACKAGE / "include" / "strata" / "thread_start.hpp").read_text()
    windows, _, others = text.partition("#if defined(_WIN32)\n")[2].partition("#else\n")
    assert "#include <windows.h>" in windows
    assert re.findall(r"#include <(\w+\.h)>", others.partition("#endif")[0]) == ["pthread.h", "signal.h"]
    assert len(re.findall(r"#include <\w+\.h>", text)) == 3


def test_there_is_no_python_behind_a_core_that_does_not_build() -> None:
    for path in (path for path in CYTHON if path.suffix == ".pyx"):
        built = importlib.import_module(f"strata.{module(path)}")
        assert isinstance(built.__spec__.loader, importlib.machinery.ExtensionFileLoader), path.stem
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
