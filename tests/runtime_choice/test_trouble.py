"""Choosing a runtime where something is odd: a failure that passes, file names, a driver without a device, a fork."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from strata.runtime import software
from tests.runtime_choice.conftest import PROLOGUE
from tests.support.scripts import Ended, ended_well, run_script

#: The software runtime's controls work before it is chosen: it is opened, and not bound.
CONTROLLED = PROLOGUE + "from strata.runtime.software import control\n"


def lines(script: str, prologue: str = PROLOGUE, **environment: str | None) -> list[str]:
    return ended_well(run_script(script, prologue=prologue, **environment))


# --- a failure that passes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nth", [1, 2])
def test_a_failure_of_the_first_call_that_passes(nth: int) -> None:
    """The first call asks the library; the second is the bindings'. Tried again, the same runtime is to be had."""
    out = lines(f"""
        control.inject("hipGetDeviceCount", {nth}, 2)
        attempt("software")
        print(runtime.current(), runtime.library())
        attempt("software")
        stream()
    """, CONTROLLED)
    assert out[0].startswith("software -> RuntimeNotFound")
    assert "hipGetDeviceCount gave" in out[0]
    assert out[1:] == ["None None", "software -> software", "streamed 20"]


def test_another_runtime_after_a_failure_hears_the_true_reason(make_whole: Callable[[str], Path]) -> None:
    root = make_whole("libamdhip64.so.7")
    out = lines("""
        control.inject("hipGetDeviceCount", 2, 2)
        attempt("software")
        attempt("rocm")
        attempt("software")
    """, CONTROLLED, ROCM_PATH=str(root))
    assert out[0].startswith("software -> RuntimeNotFound")
    assert out[1].startswith(f"rocm -> StrataError strata tried {software.library_path()} before")
    assert "another process" in out[1]
    assert out[2] == "software -> software"


# --- names of files ------------------------------------------------------------------------------------------------------

ODD = [b"\xc4\xa3\xd0\xcd.safetensors", "modèle.gguf".encode("latin-1"), b"\xff\xfe amdhip64.so", b"new\nline amdhip64"]


@pytest.mark.parametrize("locale", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {}], ids=["C", "usual"])
@pytest.mark.parametrize("name", ODD)
def test_a_mapped_file_whose_name_is_no_text(name: bytes, locale: dict[str, str], tmp_path: Path) -> None:
    """/proc/self/maps shows it byte for byte."""
    place = os.path.join(os.fsencode(tmp_path), name)
    with open(place, "wb") as file:
        file.write(bytes(mmap.PAGESIZE))
    out = lines(f"""
        import mmap
        with open({place!r}, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        attempt("auto")
        stream()
    """, **locale, STRATA_CUDA_DRIVER=str(tmp_path / "none"))
    assert out[-1] == "streamed 20"


def test_a_rocm_library_under_a_name_that_is_no_text(make_whole: Callable[[str], Path]) -> None:
    """Found, mapped, opened, bound, and told in a log that takes no such letters."""
    root = os.fsencode(make_whole("libamdhip64.so.7"))
    odd = root + b"\xff"
    os.rename(root, odd)
    try:
        script = f"""
        os.environb[b"ROCM_PATH"] = {odd!r}
        print(runtime.use("rocm"), ascii(runtime.library()))
        stream()
        """
        out = lines(script)
    finally:
        os.rename(odd, root)
    assert out[0].startswith("rocm ")
    assert r"\udcff" in out[0]
    assert out[1] == "streamed 20"


# --- how loud ------------------------------------------------------------------------------------------------------------

LOUD = """
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(message)s")
    print(runtime.ensure())
"""


def told(outcome: Ended, level: str) -> list[str]:
    return [line for line in ended_well(outcome) if line.startswith(level)]


@pytest.mark.usefixtures("_no_gpu_here", "_no_rocm_here")
@pytest.mark.parametrize(("status", "count"), [(100, 0), (0, 0), (3, 0)])
def test_a_driver_without_a_device_is_a_warning(status: int, count: int, make_fake: Callable[..., Path]) -> None:
    root = make_fake("libamdhip64.so.6", status=status, count=count)
    warnings = told(run_script(LOUD, prologue=PROLOGUE, ROCM_PATH=str(root)), "WARNING")
    assert len(warnings) == 1
    assert "the software runtime is taken" in warnings[0]
    assert str(root) in warnings[0]


@pytest.mark.usefixtures("_no_gpu_here", "_no_rocm_here")
def test_a_cuda_driver_that_is_none_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("not a library")
    warnings = told(run_script(LOUD, prologue=PROLOGUE, STRATA_CUDA_DRIVER=str(tmp_path / "libcuda.so.1")), "WARNING")
    assert len(warnings) == 1
    assert str(tmp_path) in warnings[0]


@pytest.mark.usefixtures("_no_gpu_here", "_no_rocm_here")
@pytest.mark.parametrize("node", ["/dev/kfd", "/dev/nvidiactl"])
def test_a_kernel_driver_without_its_library_is_a_warning(node: str, tmp_path: Path) -> None:
    script = f"""
    exists = os.path.exists
    os.path.exists = lambda path: path == {node!r} or exists(path)
    """ + LOUD
    warnings = told(run_script(script, prologue=PROLOGUE, STRATA_CUDA_DRIVER=str(tmp_path / "none")), "WARNING")
    assert len(warnings) == 1
    assert node in warnings[0]


@pytest.mark.usefixtures("_no_gpu_here", "_no_rocm_here")
def test_nothing_there_is_information(tmp_path: Path) -> None:
    outcome = run_script(LOUD, prologue=PROLOGUE, STRATA_CUDA_DRIVER=str(tmp_path / "none"))
    assert told(outcome, "WARNING") == []
    assert any("no GPU was found" in line for line in told(outcome, "INFO"))


# --- a fork in the midst ---------------------------------------------------------------------------------------------------

FORKED = """
    def child_of(what):
        pid = os.fork()
        if pid == 0:
            for use in uses:
                try:
                    print("no error from", use(), flush=True)
                except strata.StrataError as error:
                    print("before this process was forked" in str(error), flush=True)
            sys.exit(0)
        print(what, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    import threading
    import numpy as np
    uses = [lambda: runtime.use("software"), lambda: runtime.use("auto"), runtime.ensure, runtime.describe,
            lambda: strata.ExpertStreamer(64), lambda: strata.HostStager(64), lambda: strata.pinned_empty(4, "u1"),
            lambda: runtime.launch_host(0, print)]
"""


@pytest.mark.parametrize("where", ["choose", "find"])
def test_a_fork_while_another_thread_chooses(where: str) -> None:
    """It holds the lock, and may have opened half of a library: the child is told, at once, by every use."""
    name = "auto" if where == "choose" else "software"
    out = lines(FORKED + f"""
    from strata.runtime import _libraries
    inside, go_on = threading.Event(), threading.Event()
    original = _libraries.{where}
    def held(*arguments):
        inside.set()
        go_on.wait()
        return original(*arguments)
    _libraries.{where} = held
    thread = threading.Thread(target=lambda: runtime.use({name!r}))
    thread.start()
    inside.wait()
    child_of("child")
    go_on.set()
    thread.join()
    stream()
    """)
    assert out == ["True"] * 8 + ["child 0", "streamed 20"]


def test_a_fork_between_a_failed_choice_and_the_next_is_free() -> None:
    out = lines("""
        attempt("rocm")
        pid = os.fork()
        if pid == 0:
            attempt("software")
            stream()
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    """)
    assert out[1:] == ["software -> software", "streamed 20", "0"]


def test_every_lock_is_renewed_in_a_child() -> None:
    """Held by another thread at the fork: whoever wants one in the child gets it."""
    out = lines("""
        import threading
        from strata import _process_lock
        locks = list(_process_lock._all)
        inside, go_on = threading.Event(), threading.Event()
        def hold():
            import contextlib
            with contextlib.ExitStack() as stack:
                for each in locks:
                    stack.enter_context(each)
                inside.set()
                go_on.wait()
        thread = threading.Thread(target=hold)
        thread.start()
        inside.wait()
        pid = os.fork()
        if pid == 0:
            for each in locks:
                with each:
                    pass
            os.environ["STRATA_HIP_COPY_BATCH"] = "8"
            print(strata.BatchSettings.from_env(runtime="software").copy_batch, len(locks), flush=True)
            attempt("software")
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        go_on.set()
        thread.join()
    """)
    assert out == ["1 2", "software -> software", "0"]


def test_no_module_makes_a_lock_that_children_inherit() -> None:
    """At module level every lock is a ProcessLock."""
    package = Path(software.__file__).parents[2]
    found = [str(path.relative_to(package)) for path in package.rglob("*.py*") if path.suffix in (".py", ".pyx")
             for line in path.read_text(encoding="utf-8").splitlines()
             if line.startswith(("_", "L")) and "threading." in line and ("Lock(" in line or "Condition(" in line)]
    assert found == []
