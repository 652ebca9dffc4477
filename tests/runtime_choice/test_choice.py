"""One process, one runtime: how it is chosen, and what happens to a second choice."""

from __future__ import annotations

import pytest

from strata.runtime import software
from tests.runtime_choice.conftest import PROLOGUE
from tests.support.scripts import ended_well, run_script


def lines(script: str, **environment: str | None) -> list[str]:
    return ended_well(run_script(script, prologue=PROLOGUE, **environment))


def test_nothing_is_chosen_by_importing_or_asking() -> None:
    script = """
        print(runtime.current(), runtime.library())
        strata.CopyPlan([-1, 0], gpu_ring=2, host_ring=2, settings=strata.BatchSettings())
        strata.ExpertCopies([0], [0])
        strata.ExpertCopies.from_buffers([b"abc"], False)
        print(runtime.current(), runtime.library())
    """
    assert lines(script, STRATA_HIP_RUNTIME="software") == ["None None", "None None"]


def test_the_same_name_again_is_a_no_op_and_another_an_error() -> None:
    script = """
        for name in ("software", "software", "auto", "rocm", "cuda", "software"):
            attempt(name)
        print(runtime.current(), runtime.library())
        stream()
    """
    out = lines(script)
    assert out[:3] == ["software -> software", "software -> software", "auto -> software"]
    for name, line in zip(("rocm", "cuda"), out[3:5], strict=True):
        assert line.startswith(f"{name} -> StrataError the runtime of this process is software")
        assert f"it cannot become {name}" in line
    assert out[5:] == ["software -> software", f"software {software.library_path()}", "streamed 20"]


@pytest.mark.parametrize("name", ["hip", "", "Software", "SOFTWARE ", None, 3])
def test_a_name_that_is_none(name: object) -> None:
    out = lines(f"attempt({name!r}); attempt('software')")
    assert out[0].startswith(f"{name} -> ValueError name is {name!r}; one of rocm, software, cuda, auto is wanted")
    assert out[1] == "software -> software"


@pytest.mark.parametrize(
    "first",
    [
        "strata.ExpertStreamer(64, gpu_ring=4).close()",
        "strata.HostStager(64).close()",
        "strata.pinned_empty(4, 'u1')",
        "strata.ExpertCopies.from_buffers([b'abc'])",
        "print(runtime.describe()['runtime'], runtime.describe()['device'])",
        "print(runtime.ensure())",
    ],
)
def test_the_first_use_chooses_by_the_environment(first: str) -> None:
    out = lines(f"{first}\nprint(runtime.current())", STRATA_HIP_RUNTIME=" software ")
    assert out[-1] == "software"


@pytest.mark.parametrize("value", ["cpu", "rocm,software", "0"])
def test_a_variable_that_names_no_runtime_is_an_error_of_the_first_use(value: str) -> None:
    script = """
        for use in (lambda: strata.ExpertStreamer(64), lambda: strata.pinned_empty(4, "u1"), runtime.ensure):
            try:
                use()
            except strata.SettingsError as error:
                print(error)
        print(runtime.current())
        attempt("software")     # what is chosen in code does not read it
        stream()
    """
    out = lines(script, STRATA_HIP_RUNTIME=value)
    expected = f"STRATA_HIP_RUNTIME is {value!r}; one of rocm, software, cuda, auto is allowed"
    assert out == [expected] * 3 + ["None", "software -> software", "streamed 20"]


@pytest.mark.parametrize("value", [None, "", "  ", "auto"])
@pytest.mark.usefixtures("_no_gpu_here")
def test_auto_without_a_gpu_takes_the_software_runtime_and_says_so(value: str | None) -> None:
    script = """
        logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
        print(runtime.ensure())
        print(runtime.ensure())
    """
    out = lines(script, STRATA_HIP_RUNTIME=value)
    assert out[-2:] == ["software", "software"]
    said = [line for line in out if line.startswith("strata INFO")]
    assert len(said) == len(out) - 2
    assert any("no GPU was found, so the software runtime is taken" in line for line in said)
    assert any(f"HIP runtime: software ({software.library_path()})" in line for line in said)


@pytest.mark.usefixtures("_no_rocm_here")
def test_rocm_without_a_library_is_not_found_and_another_may_be_chosen_then() -> None:
    out = lines("attempt('rocm'); print(runtime.current()); attempt('rocm'); attempt('software'); stream()")
    assert out[0].startswith("rocm -> RuntimeNotFound the rocm runtime cannot be used: no libamdhip64")
    assert out[1] == "None"
    assert out[2] == out[0]
    assert out[3:] == ["software -> software", "streamed 20"]


@pytest.mark.usefixtures("_no_rocm_here")
def test_rocm_by_the_environment_without_a_library_is_an_error_of_the_first_use() -> None:
    script = """
        try:
            strata.ExpertStreamer(64)
        except strata.RuntimeNotFound as error:
            print(error)
        print(runtime.current())
    """
    out = lines(script, STRATA_HIP_RUNTIME="rocm")
    assert out[0].startswith("the rocm runtime cannot be used")
    assert out[1] == "None"


def test_threads_that_choose_at_the_same_time_agree() -> None:
    script = """
        import threading
        barrier = threading.Barrier(8)
        chosen = []
        def choose(k):
            barrier.wait()
            chosen.append(runtime.use("software") if k % 2 else runtime.ensure())
        threads = [threading.Thread(target=choose, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(chosen.count("software"))
        stream()
    """
    assert lines(script, STRATA_HIP_RUNTIME="software") == ["8", "streamed 20"]


def test_the_first_hip_call_ever_may_come_from_another_thread() -> None:
    script = """
        import threading
        thread = threading.Thread(target=stream)
        thread.start()
        thread.join()
        stream()
    """
    assert lines(script, STRATA_HIP_RUNTIME="software") == ["streamed 20", "streamed 20"]


def test_hip_used_through_the_bindings_before_is_an_error() -> None:
    """They hold a library by then, whichever it was."""
    script = """
        from rocm.bindings.util import paths
        original = paths.get_library_path
        paths.get_library_path = lambda name, *rest: os.fsencode(os.environ["OTHER"])
        from rocm.bindings import hip
        print(hip.hipGetDeviceCount()[1])
        paths.get_library_path = original
        for name in ("software", "software", "auto"):
            attempt(name)
        print(runtime.current())
        try:
            stream()
        except strata.StrataError as error:
            print(error)
    """
    out = lines(script, OTHER=str(software.library_path()), STRATA_HIP_RUNTIME="software")
    assert out[0] == "1"
    for line in out[1:3]:
        assert line.startswith("software -> StrataError HIP was used through hip-python's bindings before")
        assert "strata.runtime.use()" in line
        assert "STRATA_HIP_RUNTIME" in line
    assert "StrataError" in out[3]
    assert out[4] == "None"
    assert out[5].startswith("HIP was used through")


@pytest.mark.usefixtures("_no_rocm_here")
def test_hip_tried_through_the_bindings_before_without_a_library_is_an_error() -> None:
    """They keep what they looked for, too."""
    script = """
        from rocm.bindings import hip
        try:
            hip.hipGetDeviceCount()
        except RuntimeError:
            print("no library")
        attempt("software")
        print(runtime.current())
    """
    out = lines(script)
    assert out[0] == "no library"
    assert out[1].startswith("software -> StrataError HIP was used through hip-python's bindings before")
    assert out[2] == "None"


def test_importing_the_bindings_before_is_none() -> None:
    out = lines("from rocm.bindings import hip; attempt('software'); stream()")
    assert out == ["software -> software", "streamed 20"]


def test_the_bindings_use_the_same_library_afterwards() -> None:
    script = """
        attempt("software")
        from rocm.bindings import hip
        print(hip.hipGetDeviceCount()[1])
        print(runtime.describe()["library"] == runtime.library())
        maps = open("/proc/self/maps").read()
        print(len({line.split()[-1] for line in maps.splitlines() if "strata_hip_software" in line}))
    """
    assert lines(script) == ["software -> software", "1", "True", "1"]
