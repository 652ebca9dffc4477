"""No process of an arm stays behind: after Ctrl-C, SIGTERM, the watchdog, or a limit of time."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from types import SimpleNamespace

import psutil
import pytest

from benchmarks.ab import WatchdogError, Workload
from benchmarks.ab.memory import MemoryWatch
from benchmarks.ab.processes import run_process
from strata.settings import BatchSettings

_LIMIT_S = 60


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE  # nobody reaps orphans in some containers
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def hanging(planned):
    """Processes of the fake workload hang; the plan's fifo says their numbers once they do."""
    os.mkfifo(planned.fifo)
    planned.set("all", do="hang")
    return planned


def read_pids(planned) -> list[int]:
    return [int(pid) for pid in planned.fifo.read_text().split()]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("stubborn", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_signals_end_what_was_started(hanging, bench_process, number: int, status: int, stubborn: bool) -> None:
    hanging.set("all", stubborn=stubborn)
    bench = subprocess.Popen(bench_process(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        pids = read_pids(hanging)  # blocks until the workload hangs
        assert len(pids) == 2
        bench.send_signal(number)
        out, errors = bench.communicate(timeout=_LIMIT_S)
    finally:
        bench.kill()
        bench.wait()
    assert bench.returncode == status
    assert out == ""
    assert "Traceback" not in errors
    assert [gone(pid) for pid in pids] == [True, True]


def command(planned) -> list[str]:
    return Workload.named(planned.command).arms([BatchSettings(1, 1, 1)])[0].command(0, 1)


def test_watchdog_ends_a_running_process(hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is short from the moment on at which the workload hangs."""
    plenty, short = SimpleNamespace(available=2**40), SimpleNamespace(available=2**20)
    pids: list[int] = []
    reader = threading.Thread(target=lambda: pids.extend(read_pids(hanging)), daemon=True)
    reader.start()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: plenty if reader.is_alive() else short)
    watch = MemoryWatch(2**30)
    with pytest.raises(WatchdogError, match=r"0\.00 GiB of memory is available; 1\.00 GiB must stay so"):
        run_process(command(hanging), watch, interval_s=0.02, timeout_s=_LIMIT_S)
    reader.join()
    assert [gone(pid) for pid in pids] == [True, True]
    assert watch.min_available == 2**20
    assert watch.max_working_set > 0


@pytest.mark.slow
def test_a_process_that_takes_too_long_is_ended(hanging) -> None:
    pids: list[int] = []
    reader = threading.Thread(target=lambda: pids.extend(read_pids(hanging)), daemon=True)
    reader.start()
    with pytest.raises(WatchdogError, match=r"has not ended within 5 s"):
        run_process(command(hanging), MemoryWatch(0), interval_s=0.05, timeout_s=5)
    reader.join(_LIMIT_S)
    assert pids
    assert [gone(pid) for pid in pids] == [True, True]


def test_memory_is_looked_at_before_anything_is_started(planned, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short memory is found before the first process makes it shorter."""
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda *arguments, **options: started.append(arguments))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**20))
    with pytest.raises(WatchdogError):
        run_process(command(planned), MemoryWatch(2**30), interval_s=0.02, timeout_s=_LIMIT_S)
    assert started == []


def test_looks_at_the_memory_come_as_often_as_asked_for(hanging, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []
    wait = subprocess.Popen.wait

    def waited(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        waits.append(timeout)
        return wait(self, 0.01) if len(waits) < 4 else wait(self, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", waited)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=2**40 if len(waits) < 3 else 0))
    reader = threading.Thread(target=read_pids, args=(hanging,), daemon=True)
    reader.start()
    with pytest.raises(WatchdogError, match="is available"):
        run_process(command(hanging), MemoryWatch(2**30), interval_s=0.5, timeout_s=_LIMIT_S)
    assert waits[:3] == [0.5] * 3


def test_the_working_set_is_the_whole_familys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a child has gone, or tells nobody what it holds."""
    def member(rss: int | Exception) -> SimpleNamespace:
        def info() -> SimpleNamespace:
            if isinstance(rss, Exception):
                raise rss
            return SimpleNamespace(rss=rss)

        return SimpleNamespace(memory_info=info)

    children = [member(20), member(psutil.NoSuchProcess(7)), member(psutil.AccessDenied(8)), member(300)]
    parent = member(1)
    parent.children = lambda *, recursive: children if recursive else children[:1]
    monkeypatch.setattr(psutil, "Process", lambda pid: parent)
    watch = MemoryWatch(0)
    watch.sample(1234)
    children.pop()
    watch.sample(1234)
    assert (watch.max_working_set, watch.samples) == (321, 2)
