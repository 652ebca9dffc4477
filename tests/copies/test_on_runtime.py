"""Pinned memory and lists of copies over a real runtime: what the runtime says of an address."""

import gc
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import strata
from strata import _hip

PAGE = mmap.PAGESIZE


@pytest.fixture(autouse=True)
def a_runtime():
    """The one that was chosen for the run, else the software runtime."""
    if strata.runtime.current() is None:
        strata.runtime.use("software")


@pytest.fixture
def pages():
    """Four pages of pageable memory, aligned."""
    room = np.zeros(5 * PAGE, np.uint8)
    first = -room.ctypes.data % PAGE
    return room[first : first + 4 * PAGE]


def staged(*sources) -> list[int]:
    return strata.ExpertCopies.from_buffers(sources).staged.tolist()


def test_pinned_memory_is_direct():
    array = strata.pinned_empty((8, 100), np.float32)
    array[:] = 3.5
    assert staged(array, array[0], array[7], array.reshape(-1)[799:]) == [0, 0, 0, 0]
    assert array.sum() == 3.5 * 800


def test_the_heap_is_staged(pages):
    assert staged(pages, bytes(100), bytearray(7)) == [1, 1, 1]


def test_a_map_is_staged(tmp_path):
    path = tmp_path / "checkpoint"
    path.write_bytes(bytes(3 * PAGE))
    assert staged(np.memmap(path, np.uint8, "r")) == [1]


def test_one_pageable_segment_stages_the_entry(pages):
    pinned = strata.pinned_empty(64, np.uint8)
    assert staged([pinned, pinned], [pinned, pages], [pages[:0], pinned]) == [0, 1, 0]


def test_registering_pins_and_leaving_unpins(pages):
    with strata.register(pages[PAGE : 2 * PAGE]) as inner:
        assert staged(inner, inner[1:-1], pages[:PAGE], pages[2 * PAGE :]) == [0, 0, 1, 1]
    assert staged(inner) == [1]


def test_a_range_that_leaves_pinned_memory_is_staged(pages):
    with strata.register(pages[PAGE : 2 * PAGE]):
        assert staged(pages[PAGE : 2 * PAGE + 1], pages[PAGE - 1 : 2 * PAGE], pages) == [1, 1, 1]


def test_a_range_with_a_pageable_hole_is_staged(pages):
    """Both its ends are pinned: what lies between counts, too."""
    with strata.register(pages[:PAGE]), strata.register(pages[3 * PAGE :]):
        assert staged(pages, pages[: 3 * PAGE + 1]) == [1, 1]


def test_registering_twice_nests(pages):
    before = _hip.last_error()  # of whoever called HIP before in this process
    with strata.register(pages):
        with strata.register(pages):
            assert staged(pages) == [0]
        assert staged(pages) == [0]
        assert _hip.last_error() == before
    assert staged(pages) == [1]


def test_memory_goes_back_with_the_last_view():
    array = strata.pinned_empty(PAGE, np.uint8)
    address = array.ctypes.data
    view = array[10:20]
    del array
    gc.collect()
    assert _hip.range_is_pinned(address, PAGE)
    del view
    gc.collect()
    assert not _hip.range_is_pinned(address, PAGE)


def test_more_than_there_is():
    with pytest.raises(strata.HipError, match="hipHostMalloc"):
        strata.pinned_empty(2**62, np.uint8)
    assert _hip.last_error() == 0


# At the end of a process.

AT_EXIT = {
    "a global array": "kept = strata.pinned_empty(4096, 'u1')",
    "an array in a cycle": "kept = [strata.pinned_empty(4096, 'u1')]; kept.append(kept)",
    "a list of copies": "kept = strata.ExpertCopies.from_buffers([strata.pinned_empty(4096, 'u1')])",
    "a block never left": "kept = strata.register(np.zeros(4096)); kept.__enter__()",
    "sys.exit in a block": "with strata.register(np.zeros(4096)): sys.exit(0)",
    "a fork": """
kept = strata.pinned_empty(4096, 'u1')
block = strata.register(np.zeros(4096))
block.__enter__()
child = os.fork()
if not child:
    block.__exit__(None, None, None)
    del kept
    try:
        strata.pinned_empty(1, 'u1')
    except strata.StrataError as error:
        sys.exit(0 if 'fork' in str(error) else 'another error: ' + str(error))
    sys.exit('no error')
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
block.__exit__(None, None, None)
""",
}


@pytest.mark.parametrize("name", AT_EXIT)
def test_the_process_ends_in_peace(name, tmp_path):
    script = (
        f"import os, sys; import numpy as np; import strata; strata.runtime.use('software')\n{AT_EXIT[name]}"
    )
    package = Path(strata.__file__).parent  # the child takes the package that is tested here
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(package.parent)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
