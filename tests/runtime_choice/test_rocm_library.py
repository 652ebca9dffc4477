"""AMD's library in the shapes in which it is found: without a device, versioned only, broken, mapped already."""

from __future__ import annotations

import glob
from pathlib import Path

import pytest

from tests.runtime_choice.conftest import PROLOGUE
from tests.support.scripts import ended_well, run_script

#: The only name under which Debian ships HIP 5.2.
VERSIONED = "libamdhip64.so.5.2.21153"


def lines(script: str, **environment: str | None) -> list[str]:
    return ended_well(run_script(script, prologue=PROLOGUE, **environment))


def path_in(root: Path, file_name: str) -> str:
    return str(root / "lib" / file_name)


@pytest.mark.parametrize("file_name", [VERSIONED, "libamdhip64.so", "libamdhip64.so.7"])
@pytest.mark.usefixtures("_no_rocm_here")
def test_a_library_without_a_device_is_found_and_is_one_readable_error(file_name: str, make_fake) -> None:
    root = make_fake(file_name, status=100, count=0)
    out = lines("attempt('rocm'); print(runtime.current())", ROCM_PATH=str(root))
    assert out[0] == (
        f"rocm -> RuntimeNotFound the rocm runtime cannot be used: {path_in(root, file_name)}: "
        "hipGetDeviceCount gave hipErrorNoDevice (100)"
    )
    assert out[1] == "None"


@pytest.mark.parametrize("name", ["auto", None])
@pytest.mark.usefixtures("_no_rocm_here", "_no_gpu_here")
def test_auto_takes_the_software_runtime_then_and_says_why(name: str | None, make_fake) -> None:
    root = make_fake(VERSIONED, status=100, count=0)
    script = """
        logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
        stream()
        print(runtime.current())
    """
    out = lines(script, ROCM_PATH=str(root), STRATA_HIP_RUNTIME=name)
    assert out[-2:] == ["streamed 20", "software"]
    assert any("hipErrorNoDevice" in line and VERSIONED in line for line in out)


@pytest.mark.usefixtures("_no_rocm_here")
def test_software_when_asked_for_is_taken_whatever_else_is_there(make_fake, make_whole) -> None:
    for root in (make_fake(VERSIONED, status=100, count=0), make_whole("libamdhip64.so.7")):
        out = lines(
            "attempt('software'); stream(); print('amdhip64' in open('/proc/self/maps').read())", ROCM_PATH=str(root)
        )
        assert out == ["software -> software", "streamed 20", "False"]


@pytest.mark.usefixtures("_no_rocm_here")
def test_other_answers_of_a_library_without_use(make_fake) -> None:
    for fake, words in (
        ({"status": 0, "count": 0}, "lacks hip"),  # and nothing else is there
        ({"status": 0, "count": 1}, "lacks hip"),
        ({"status": 3, "count": 0}, "(3)"),
        ({"status": 100, "count": 0, "named": False}, "status (100)"),
    ):
        root = make_fake("libamdhip64.so.6", **fake)
        out = lines("attempt('rocm'); print(runtime.current()); attempt('software'); stream()", ROCM_PATH=str(root))
        assert out[0].startswith("rocm -> RuntimeNotFound")
        assert words in out[0], fake
        assert path_in(root, "libamdhip64.so.6") in out[0]
        assert out[1:] == ["None", "software -> software", "streamed 20"]


@pytest.mark.usefixtures("_no_rocm_here")
def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libamdhip64.so").write_text("not yet downloaded\n")
    out = lines("attempt('rocm'); attempt('auto')", ROCM_PATH=str(tmp_path))
    assert out[0].startswith("rocm -> RuntimeNotFound")
    assert "it does not open" in out[0]
    assert path_in(tmp_path, "libamdhip64.so") in out[0]
    assert " -> RuntimeNotFound" not in out[1]


@pytest.mark.usefixtures("_no_rocm_here")
def test_every_place_that_was_looked_at_is_named(make_fake) -> None:
    first, second = make_fake("libamdhip64.so", status=100, count=0), make_fake(VERSIONED, status=101, count=0)
    out = lines("attempt('rocm')", ROCM_PATH=str(first), LD_LIBRARY_PATH=str(second / "lib"))
    assert path_in(first, "libamdhip64.so") in out[0]
    assert path_in(second, VERSIONED) in out[0]


@pytest.mark.parametrize("file_name", ["libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.7.2.70201"])
@pytest.mark.usefixtures("_no_rocm_here")
def test_a_library_with_a_device_is_taken_and_streams(file_name: str, make_whole) -> None:
    root = make_whole(file_name)
    script = """
        attempt("rocm")
        attempt("auto")
        attempt("software")
        stream()
        print(runtime.current(), runtime.library())
    """
    out = lines(script, ROCM_PATH=str(root))
    assert out[:2] == ["rocm -> rocm", "auto -> rocm"]
    assert out[2].startswith("software -> StrataError the runtime of this process is rocm")
    assert out[3:] == ["streamed 20", f"rocm {path_in(root, file_name)}"]


@pytest.mark.usefixtures("_no_rocm_here")
def test_slots_of_a_device_are_lent_to_array_libraries_and_not_to_numpy(make_whole) -> None:
    root = make_whole("libamdhip64.so")
    script = """
        import numpy as np
        source = np.zeros(64, np.uint8)
        with strata.ExpertStreamer(64, gpu_ring=2) as streamer:
            with streamer.begin(strata.ExpertCopies.from_buffers([source])) as request:
                for slot in request:
                    lent = slot.__cuda_array_interface__
                    print(lent["shape"], lent["typestr"], lent["data"] == (slot.address, False))
                    try:
                        slot.array()
                    except strata.StrataError as error:
                        print(error)
    """
    out = lines(script, ROCM_PATH=str(root), STRATA_HIP_RUNTIME="rocm")
    assert out[0] == "(64,) |u1 True"
    assert "software runtime" in out[1]


@pytest.mark.usefixtures("_no_rocm_here")
def test_a_broken_copy_does_not_hide_a_good_one(make_fake, make_whole) -> None:
    broken, good = make_fake("libamdhip64.so", status=100, count=0), make_whole("libamdhip64.so.7")
    out = lines(
        "attempt('rocm'); print(runtime.library()); stream()",
        ROCM_PATH=str(broken),
        LD_LIBRARY_PATH=str(good / "lib"),
    )
    assert out == ["rocm -> rocm", path_in(good, "libamdhip64.so.7"), "streamed 20"]


@pytest.mark.usefixtures("_no_rocm_here")
def test_the_copy_that_the_process_has_mapped_is_the_one_that_is_used(make_whole) -> None:
    """torch brings its own; a second copy would know none of its streams."""
    torchs, systems = make_whole("libamdhip64.so"), make_whole("libamdhip64.so")
    script = f"""
        import ctypes
        theirs = ctypes.CDLL({path_in(torchs, "libamdhip64.so")!r})
        stream_handle = ctypes.c_void_p()
        assert theirs.hipStreamCreateWithFlags(ctypes.byref(stream_handle), 1) == 0
        attempt("rocm")
        print(runtime.library())
        # A stream of that copy can be lent.
        strata.ExpertStreamer(64, gpu_ring=2, compute_stream=stream_handle.value).close()
        copies = {{line.split()[-1] for line in open("/proc/self/maps") if "amdhip64" in line}}
        print(len(copies))
    """
    out = lines(script, ROCM_PATH=str(systems))
    assert out == ["rocm -> rocm", path_in(torchs, "libamdhip64.so"), "1"]


@pytest.mark.usefixtures("_no_rocm_here")
def test_handles_of_another_copy_are_refused(make_whole) -> None:
    root = make_whole("libamdhip64.so")
    script = f"""
        import ctypes
        attempt("software")
        other = ctypes.CDLL({path_in(root, "libamdhip64.so")!r})
        stream_handle, slots = ctypes.c_void_p(), ctypes.c_void_p()
        assert other.hipStreamCreateWithFlags(ctypes.byref(stream_handle), 1) == 0
        assert other.hipMalloc(ctypes.byref(slots), ctypes.c_size_t(4096)) == 0
        for arguments in (
            dict(gpu_ring=2, compute_stream=stream_handle.value),
            dict(gpu_ring=2, copy_stream=stream_handle.value),
            dict(slots=[slots.value], compute_stream=0),
        ):
            try:
                strata.ExpertStreamer(64, **arguments)
            except ValueError as error:
                print(error)
    """
    out = lines(script)
    assert out[0] == "software -> software"
    assert "compute_stream is" in out[1]
    assert "copy_stream is" in out[2]
    for line in out[1:3]:
        assert "no stream of the software runtime" in line
    assert "slots[0] is" in out[3]
    assert "device memory of the software runtime" in out[3]


def test_debians_own_library_without_a_device() -> None:
    """HIP 5.2 as the distribution ships it, where it is installed."""
    if not glob.glob("/usr/lib/*/libamdhip64.so.5*"):
        pytest.skip("the package libamdhip64-5 is not installed")
    if glob.glob("/dev/kfd"):
        pytest.skip("this machine may have a device for it")
    out = lines("attempt('rocm'); print(runtime.current()); attempt('auto'); stream()")
    assert out[0].startswith("rocm -> RuntimeNotFound the rocm runtime cannot be used")
    assert "libamdhip64.so.5" in out[0]
    assert "\n" not in out[0]
    assert out[1] == "None"
    assert out[2] in ("auto -> software", "auto -> cuda")
    assert out[3] == "streamed 20"
