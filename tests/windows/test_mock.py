"""strata where `sys.platform` is ``win32`` and what only Unix has is taken away (see ``mock/sitecustomize.py``)."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from setuptools import Distribution

import strata
from strata.runtime import cuda, software
from tests.support.scripts import PROLOGUE, environment, source

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(strata.__file__).resolve().parent
MOCK = Path(__file__).resolve().parent / "mock"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with its libraries under the names that a build on Windows gives them."""
    root = tmp_path_factory.mktemp("windows")
    shutil.copytree(PACKAGE, root / "strata", ignore=shutil.ignore_patterns("*.pyx", "*.cpp", "__pycache__"))
    for library in (root / "strata" / "runtime").rglob("*.so"):
        library.rename(library.with_suffix(".dll"))
    return root


def python(installed: Path, *words: str, **changes: str | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=installed, capture_output=True, text=True, timeout=120,
        env=environment(PYTHONPATH=f"{MOCK}:{installed}", STRATA_HIP_RUNTIME="software", **changes))


def run(installed: Path, script: str, prologue: str = PROLOGUE, **changes: str | None) -> list[str]:
    done = python(installed, "-c", source(script, prologue), **changes)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.splitlines()


def test_the_mock_takes_things_away(installed: Path) -> None:
    assert run(installed, """
        import os, signal, sys
        print(sys.platform, hasattr(os, "fork"), hasattr(os, "register_at_fork"), hasattr(signal, "SIGKILL"))
        for look in (lambda: open("/proc/self/maps"), lambda: __import__("pathlib").Path("/proc/meminfo").read_text()):
            try:
                look()
            except FileNotFoundError:
                print("not there")
    """, prologue="") == ["win32 False False False", "not there", "not there"]


def test_import(installed: Path) -> None:
    said = run(installed, "import strata, strata.capi; print(strata.__file__, strata.runtime.use('software'))", prologue="")
    assert said == [f"{installed / 'strata' / '__init__.py'} software"]


def test_direct_and_staged_experts_are_streamed(installed: Path) -> None:
    assert run(installed, """
        with strata.ExpertStreamer(64, gpu_ring=8, host_ring=4, workers=2,
                                   settings=strata.BatchSettings(4, 2, 2)) as streamer:
            wrong = 0
            with streamer.begin(direct) as request:
                request.extend(staged)
                for entry, slot in enumerate(request):
                    slot.synchronize()
                    wrong += bool((slot.array() != entry).any())
            say(entry + 1, wrong, request.counters.as_dict()["fence_errors"])
        with strata.ExpertStreamer(64, gpu_ring=8) as streamer:
            request = streamer.begin(direct)
            request.acquire()
            request.abort()
            with streamer.begin(staged) as request:
                say(sum(int(slot.array()[0]) for slot in request if slot.synchronize() is None))
    """) == ["128 0 0", str(sum(range(64, 128)))]


def test_the_hosts_memory_is_asked_for(installed: Path) -> None:
    """24 GiB, as the mock's kernel32 says."""
    assert run(installed, """
        from strata import _host_memory
        say(_host_memory.total())
        say(_host_memory.available())
    """) == [str(24 << 30), str(8 << 30)]


def test_the_replay_runs(installed: Path, tmp_path: Path) -> None:
    case, report = tmp_path / "case.json", tmp_path / "out.json"
    case.write_text(json.dumps({"expert_bytes": 4096, "direct_pinned_copies": 45, "staged_copies": 29, "gpu_ring": 8,
                                "order": "all direct copies first", "host_ring": 4,
                                "arms": {"grouped": {"copy_batch": 8, "stage_batch": 16, "stage_copy_batch": 16}},
                                "counters": {}}))
    done = python(installed, "-m", "strata", "replay", "--case", str(case), "--json", str(report))
    assert done.returncode == 0, done
    assert json.loads(report.read_text())


@pytest.mark.parametrize(("platform", "suffix"), [("win32", ".dll"), ("linux", ".so")])
def test_the_libraries_are_built_under_the_names_that_are_looked_for(
    monkeypatch: pytest.MonkeyPatch, platform: str, suffix: str
) -> None:
    sysconfig.get_config_vars()  # this machine's, for setuptools
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "platform", platform)
    spec = importlib.util.spec_from_file_location("strata_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    setup = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup)
    command = setup.BuildExt(Distribution())
    built = [Path(command.get_ext_filename(extension.name)) for extension in setup.runtime_extensions()]
    assert [PACKAGE.parent / path for path in built] == [software.library_path(), cuda.library_path()]
    assert {path.suffix for path in built} == {suffix}
    linked = [word for extension in setup.runtime_extensions() for word in extension.extra_link_args]
    assert any("soname" in word for word in linked) == (platform == "linux")


def test_a_loaded_library_is_found(installed: Path) -> None:
    """torch's, say: the bindings must open the same copy."""
    at = r"C:\torch\lib\amdhip64_7.dll"
    assert run(installed, """
        from strata.runtime import _libraries
        print(_libraries._mapped_libraries())
    """, prologue="import strata", STRATA_TEST_MODULES=rf"C:\x\other.dll;{at};C:\x\amdhip64.txt") == [str([at])]


def test_the_latest_library_of_a_folder_comes_first(installed: Path, tmp_path: Path) -> None:
    """The plain name is HIP 5's there."""
    for name in ("amdhip64.dll", "amdhip64_6.dll", "amdhip64_7.dll", "amdhip64_10.dll", "amdhip64.lib"):
        (tmp_path / "bin" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "bin" / name).touch()
    names = [f"amdhip64{tail}.dll" for tail in ("_10", "_7", "_6", "")]
    assert run(installed, """
        from pathlib import Path
        from strata.runtime import _libraries
        print([Path(path).name for path in _libraries._rocm_candidates()])
    """, prologue="import strata", HIP_PATH=str(tmp_path), PATH="") == [str(names)]


def test_a_library_that_the_bindings_cannot_be_told_of_is_said(installed: Path) -> None:
    """Their path is in the ANSI code page."""
    elsewhere = installed / "Тест"
    shutil.copytree(installed / "strata", elsewhere / "strata")
    done = subprocess.run(
        [sys.executable, "-c", "import strata; strata.runtime.use('software')"], capture_output=True, text=True,
        cwd=elsewhere, env=environment(PYTHONPATH=f"{MOCK}:{elsewhere}", PYTHONUTF8="1"), timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("strata.errors.RuntimeNotFound: the software runtime (")
    assert "does not open" in done.stderr.splitlines()[-1]
