"""A tree that is not whole is refused by the build, and what it has made before is taken for what it is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from setuptools import Extension
from setuptools.dist import Distribution

from tests.windows.cross_compile import load_setup

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The sources, without what was built of them."""
    shutil.copytree(ROOT / "strata", tmp_path / "strata", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for generated in (path.with_suffix(".cpp") for path in (tmp_path / "strata").rglob("*.pyx")):
        generated.unlink(missing_ok=True)
    shutil.copy(ROOT / "setup.py", tmp_path)
    return tmp_path


def build(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=tree, capture_output=True,
                          text=True, timeout=120)


@pytest.mark.parametrize("name", ["_planner.pyx", "engine/issuer.pyx"])
def test_a_module_is_missing(tree: Path, name: str) -> None:
    (tree / "strata" / name).unlink()
    done = build(tree)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"this checkout is not whole: missing are ['strata/{name}'], not listed in setup.py are []")
    assert not list(tree.rglob("*.so"))


def test_a_module_is_not_listed(tree: Path) -> None:
    (tree / "strata" / "engine" / "more.pyx").touch()
    done = build(tree)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("not listed in setup.py are ['strata/engine/more.pyx']")


def test_a_runtime_has_no_sources(tree: Path) -> None:
    shutil.rmtree(tree / "strata" / "runtime" / "cuda" / "native")
    done = build(tree)
    assert done.returncode == 1
    assert "strata/runtime/cuda/native has no C++ sources" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_declaration_is_missing(tree: Path) -> None:
    (tree / "strata" / "_hip.pxd").unlink()
    done = build(tree)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("CompileError: strata/_hip.pyx")
    assert not list(tree.rglob("*.so"))


def test_a_module_is_generated_again_where_what_it_was_made_from_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its file, Cython or the directives come with no newer time; what stands is left alone."""
    setup = load_setup()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    generated: list[str] = []

    def cythonize(core: list[Extension], *, force: bool = False, **_: object) -> None:
        for source in (Path(extension.sources[0]) for extension in core):
            output = source.with_suffix(".cpp")
            if force or not output.exists() or output.stat().st_mtime < source.stat().st_mtime:
                generated.append(source.stem)
                output.write_text(source.read_text())

    def again() -> list[str]:
        generated.clear()
        setup.generate([Extension(f"strata.{name}", [f"strata/{name}.pyx"]) for name in ("a", "b")])
        return list(generated)

    def write(name: str, text: str) -> None:
        path = tmp_path / "strata" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        os.utime(path, (0, 0))

    monkeypatch.setattr(setup, "cythonize", cythonize)
    for name in ("a.pyx", "b.pyx", "a.pxd"):
        write(name, "1")
    assert again() == ["a", "b"]
    assert again() == []
    write("a.pyx", "2")
    assert again() == ["a"]
    write("a.pxd", "2")
    assert again() == ["a", "b"]
    monkeypatch.setitem(setup.DIRECTIVES, "emit_code_comments", True)
    assert again() == ["a", "b"]
    monkeypatch.setattr(setup.Cython, "__version__", "another")
    assert again() == ["a", "b"]
    (tmp_path / "strata" / "b.cpp").unlink()
    assert again() == ["b"]
    (tmp_path / "build" / "generated.keys").write_text("strata.a 0")  # what a full disk left of it
    assert again() == ["a", "b"]


@pytest.mark.skipif(sys.platform == "win32", reason="runtimes are compiled apart there")
def test_a_runtimes_unit_finds_its_sources_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A linked temporary folder: what is above it is not what its name says."""
    setup = load_setup()
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(setup.build_ext, "build_extension", lambda command, extension: None)
    (tmp_path / "some" / "where").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "some" / "where")
    command = setup.BuildExt(Distribution())
    command.build_temp = str(tmp_path / "link")
    for extension in setup.runtime_extensions():
        command.build_extension(extension)
        unit = Path(extension.sources[0])
        named = re.findall(r'#include "(.+)"\n', unit.read_text())
        assert named
        assert [path for path in named if not (unit.parent / path).exists()] == []


def test_other_flags_build_all_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a build with them has ended: not where it broke off, nor where pip asked for the metadata alone."""
    setup = load_setup()
    monkeypatch.chdir(tmp_path)

    def command(flags: str) -> Any:
        monkeypatch.setattr(setup, "EXTRA", [flags])
        made = setup.BuildExt(Distribution({"name": "x"}))
        made.finalize_options()
        return made

    def broken(command: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(setup.build_ext, "run", lambda command: None)
    assert command("-O0").force
    command("-O0").run()
    assert not command("-O0").force
    assert command("-O1").force
    assert command("-O1").force
    monkeypatch.setattr(setup.build_ext, "run", broken)
    with pytest.raises(KeyboardInterrupt):
        command("-O1").run()
    assert command("-O0").force
