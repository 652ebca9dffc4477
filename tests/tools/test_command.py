"""How commands end: one line and a status, whatever happens to them and to what they write to."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.ab import Protocol
from strata.tools import command
from strata.tools.cli import main
from strata.tools.replay import load_case, replay
from strata.tools.selftest import Bench
from tests.support.devices import device
from tests.support.scripts import environment

ROOT = Path(__file__).resolve().parents[2]
unix = pytest.mark.skipif(sys.platform == "win32", reason="devices and signals are Unix's")

_CASE = {"expert_bytes": 4096, "direct_pinned_copies": 20, "staged_copies": 20, "gpu_ring": 8, "host_ring": 4,
         "order": "all direct copies first", "arms": {}, "counters": {}}

#: Commands that print something and are quick about it; CASE stands for a small case's file.
QUICK = (
    ["-m", "strata", "replay", "--case", "CASE", "--pool", "1MiB", "--repeat", "1", "--runtime", "software"],
    ["-m", "strata", "--help"],
    ["-m", "strata", "bench", "--help"],
    ["-m", "examples.prefill_engine", "run", "--shape", "tiny", "--runtime", "software"],
    ["-m", "examples.prefill_engine", "arm", "--shape", "tiny", "--runtime", "software", "--warmups", "0"],
    ["-m", "benchmarks.requests", "--help"],
)


@pytest.fixture(autouse=True, scope="session")
def _case(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("case") / "case.json"
    path.write_text(json.dumps(_CASE))
    QUICK[0][4] = str(path)


def run(arguments: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment(PYTHONUNBUFFERED=None), text=True, timeout=120,
                          stderr=subprocess.PIPE, **options)  # type: ignore[call-overload, no-any-return]


@unix
@pytest.mark.parametrize("arguments", QUICK, ids=lambda a: " ".join(a[1:3]))
def test_a_full_standard_output(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = run(arguments, stdout=full)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("error: standard output: No space left on device")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@unix
@pytest.mark.parametrize("arguments", QUICK[:1] + QUICK[3:4], ids=lambda a: " ".join(a[1:3]))
def test_a_closed_standard_output(arguments: list[str]) -> None:
    done = run(["-c", "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])",
                *arguments])
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("error: standard output is closed")
    assert "Traceback" not in done.stderr


@unix
@pytest.mark.parametrize("arguments", QUICK, ids=lambda a: " ".join(a[1:3]))
def test_a_reader_that_has_gone(arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = run(arguments, stdout=write)
    finally:
        os.close(write)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@unix
def test_a_closed_standard_error() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import os, sys; os.close(2); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])",
         *QUICK[0]], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert "ok: every counter matches" in done.stdout


@unix
def test_a_report_is_written_though_it_cannot_be_printed(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = run([*QUICK[0], "--json", str(tmp_path / "out.json")], stdout=full)
    assert done.returncode == 1
    assert '"ok": true' in (tmp_path / "out.json").read_text()


@unix
@pytest.mark.parametrize("arguments", [QUICK[0], QUICK[3]], ids=lambda a: " ".join(a[1:3]))
@pytest.mark.parametrize(("path", "status", "words"), [
    ("full", 1, "No space left on device"), ("n" * 300, 2, "File name too long"), ("null", 0, "")])
def test_places_for_a_report(arguments: list[str], path: str, status: int, words: str, tmp_path: Path) -> None:
    if path in ("full", "null"):
        path = str(device(path, tmp_path))
    done = run([*arguments, "--json", path], stdout=subprocess.DEVNULL)
    assert done.returncode == status, done.stderr
    assert words in done.stderr
    assert done.stderr.count("error") == (1 if status else 0)
    assert "Traceback" not in done.stderr
    if os.path.exists(path):
        assert stat.S_ISCHR(os.stat(path).st_mode)


@unix
@pytest.mark.parametrize("path", ["/dev/urandom", "/dev/zero"])
def test_a_case_without_an_end(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--case", path]) == 2
    assert "is longer than 1,048,576 bytes" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["n" * 300, "a\0b"])
def test_a_case_that_cannot_be_a_file(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--case", path]) == 2
    said = capsys.readouterr().err
    assert "cannot be read" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("arguments", [
    ["selftest", "--seed", "-1"], ["selftest", "--seed", str(2**64)], ["replay", "--repeat", "-1"]])
def test_numbers_out_of_range(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "wanted" in capsys.readouterr().err


@pytest.mark.parametrize(("ending", "status", "words"), [
    (KeyboardInterrupt(), 130, "c: interrupted"), (command.MissingExtra("no x"), 2, "c: error: no x")])
def test_how_a_command_ends(ending: BaseException, status: int, words: str,
                            capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise ending

    assert command.run_command("c", work) == status
    assert capsys.readouterr().err == words + "\n"


@unix
@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_that_ends_a_process_unwinds(name: str, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    unwound = []
    number = getattr(signal, name)

    def work() -> int:
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        finally:
            unwound.append(True)
        return 0

    before = signal.signal(number, signal.SIG_DFL)
    try:
        assert command.run_command("c", work) == status
        assert unwound == [True]
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert capsys.readouterr().err == f"c: ended by {name}\n"


@unix
def test_a_hangup_that_is_ignored_stays_so() -> None:
    """As nohup has it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert command.run_command("c", lambda: os.kill(os.getpid(), signal.SIGHUP) or 7) == 7
    finally:
        signal.signal(signal.SIGHUP, before)


@unix
def test_a_handler_of_the_callers_own_is_kept() -> None:
    got = []
    before = signal.signal(signal.SIGTERM, lambda *_: got.append(True))
    try:
        assert command.run_command("c", lambda: os.kill(os.getpid(), signal.SIGTERM) or 7) == 7
    finally:
        signal.signal(signal.SIGTERM, before)
    assert got == [True]


@pytest.mark.parametrize(("module", "package", "extra"), [
    ("benchmarks.planner", "Cython", "bench"), ("benchmarks.memory", "psutil", "bench"),
    ("benchmarks.engine_side", "setuptools", "bench"), ("benchmarks.issuing", "Cython", "bench"),
    ("benchmarks.gpu.race", "torch", "torch")])
def test_a_missing_extra_is_named(module: str, package: str, extra: str, tmp_path: Path) -> None:
    program = (f"import runpy, sys; sys.modules[{package!r}] = None; sys.argv = ['x', *{['--out', str(tmp_path)]!r}] "
               f"if 'race' in {module!r} else ['x']; runpy.run_module({module!r}, run_name='__main__')")
    done = run(["-c", program], stdout=subprocess.PIPE)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr == (f"python -m {module}: error: {package} is not installed: pip install 'strata-moe[{extra}]', "
                           f"or {package} alone\n")


@unix
def test_code_of_a_shared_folder_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "benchmarks" / "ab").mkdir(parents=True)
    for name in ("benchmarks/__init__.py", "benchmarks/ab/__init__.py", "benchmarks/ab/command.py"):
        (tmp_path / name).write_text("raise RuntimeError('ran')\n")
    tmp_path.chmod(0o1777)
    monkeypatch.chdir(tmp_path)
    assert main(["bench"]) == 2
    assert "everybody may write to it" in capsys.readouterr().err


@pytest.mark.parametrize(("make", "name"), [
    (lambda: Bench(schedule="late"), "schedule"), (lambda: Bench(seed=-1), "seed"), (lambda: Bench(seed="1"), "seed"),
    (lambda: replay(load_case(), repeat=0), "repeat"), (lambda: replay(load_case(), repeat=True), "repeat"),
    (lambda: replay(load_case(), pool_bytes=0), "pool_bytes"), (lambda: replay(load_case(), pool_bytes=1.5), "pool_bytes"),
    (lambda: Protocol(processes=0), "processes"), (lambda: Protocol(warmups=-1), "warmups"),
    (lambda: Protocol(samples=0), "samples"), (lambda: Protocol(interval_s=0), "interval_s"),
    (lambda: Protocol(timeout_s=float("inf")), "timeout_s"), (lambda: Protocol(timeout_s=10**400), "timeout_s"),
    (lambda: Protocol(min_available=-1), "min_available")])
def test_arguments_are_named(make: object, name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} is .*wanted$"):
        make()  # type: ignore[operator]


def test_a_number_is_no_path() -> None:
    with pytest.raises(TypeError):
        load_case(0)  # type: ignore[arg-type]
