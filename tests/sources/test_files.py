"""Entries whose bytes lie in files: read by the workers, wherever they lie, and an error that says what went wrong."""

from __future__ import annotations

import errno
import os
import pickle

import numpy as np
import pytest

import strata
from strata.sources import File

NBYTES = 70_001  # no multiple of a page


@pytest.fixture
def content(tmp_path):
    """A file of 40 entries' bytes behind a header of 13, and those bytes."""
    values = np.random.default_rng(5).integers(0, 256, 13 + 40 * NBYTES, dtype=np.uint8)
    path = tmp_path / "experts.bin"
    values.tofile(path)
    return path, values


def entries_of(file: File, values, order=range(40)):
    """Each entry in two segments, the second before the first in the slot, a gap of 3 bytes between them."""
    first = NBYTES // 3
    offsets, nbytes, places, wanted = [], [], [], []
    for entry in order:
        at = 13 + entry * NBYTES
        offsets += [at, at + first]
        nbytes += [first, NBYTES - first]
        places += [NBYTES - first + 3, 0]
        wanted.append(np.concatenate([values[at + first : at + NBYTES], np.zeros(3, np.uint8), values[at : at + first]]))
    copies = strata.ExpertCopies(
        offsets, nbytes, offsets=places, entry_starts=np.arange(len(wanted) + 1) * 2, files=[file],
        file_index=np.zeros(len(offsets), np.int64))
    return copies, wanted


def streamed(copies, wanted, **options) -> list[int]:
    """Entries that came wrong."""
    bad = []
    with strata.ExpertStreamer(copies.slot_bytes, gpu_ring=5, host_ring=4, workers=3,
                               settings=strata.BatchSettings(2, 2, 2), **options) as streamer:
        with streamer.begin(copies) as request:
            for entry, slot in enumerate(request):
                slot.synchronize()
                if not np.array_equal(slot.array()[: len(wanted[entry])], wanted[entry]):
                    bad.append(entry)
    return bad


@pytest.mark.parametrize("direct", [False, True])
def test_every_byte_of_every_place(content, direct) -> None:
    path, values = content
    copies, wanted = entries_of(File(path, direct=direct), values)
    assert copies.staged.all()
    assert streamed(copies, wanted) == []


@pytest.mark.parametrize("begin", [0, 4096, 4095])
@pytest.mark.parametrize("nbytes", [1, 4096, 3 * 2**20, 3 * 2**20 + 5])
def test_direct_reads_of_any_alignment(tmp_path, begin, nbytes) -> None:
    values = np.random.default_rng(nbytes).integers(0, 256, begin + nbytes, dtype=np.uint8)
    values.tofile(tmp_path / "f")
    copies = strata.ExpertCopies([begin], [nbytes], files=[File(tmp_path / "f", direct=True)], file_index=[0])
    assert streamed(copies, [values[begin:]]) == []


def test_memory_and_files_in_one_entry_and_in_one_list(content) -> None:
    path, values = content
    file = File(path)
    own = np.arange(100, dtype=np.uint8)
    mixed = strata.ExpertCopies([own.ctypes.data, 13], [100, 50], False, files=[file], file_index=[-1, 0],
                                entry_starts=[0, 2], owners=[own])
    from_file, wanted = entries_of(file, values)
    memory = strata.ExpertCopies.from_buffers([own])
    joined = strata.ExpertCopies.concatenate([memory, from_file, mixed])
    assert joined.files == (file,)
    assert joined.file_index[[0, 1, -2, -1]].tolist() == [-1, 0, -1, 0]
    picked = joined.take([41, 3, 0])
    assert streamed(picked, [np.concatenate([own, values[13:63]]), wanted[2], own]) == []


def test_pinned_memory_stays_direct_beside_a_file(content) -> None:
    path, _ = content
    pinned = strata.pinned_empty(64, np.uint8)
    copies = strata.ExpertCopies([pinned.ctypes.data, 13], [64, 64], None, files=[File(path)], file_index=[-1, 0],
                                 owners=[pinned])
    assert copies.staged.tolist() == [0, 1]


def test_a_name_that_is_replaced_keeps_its_old_bytes(content) -> None:
    path, values = content
    copies, wanted = entries_of(File(path), values)
    other = path.with_suffix(".new")
    np.zeros_like(values).tofile(other)
    os.replace(other, path)
    assert streamed(copies, wanted) == []


@pytest.mark.parametrize("direct", [False, True])
def test_a_file_that_has_shrunk_ends_the_request(content, direct) -> None:
    path, values = content
    copies, wanted = entries_of(File(path, direct=direct), values)
    os.truncate(path, 13 + 20 * NBYTES + 10)
    with strata.ExpertStreamer(copies.slot_bytes, gpu_ring=5, host_ring=4, workers=1) as streamer:
        with pytest.raises(strata.SourceReadError) as caught, streamer.begin(copies) as request:
            for entry, slot in enumerate(request):
                slot.synchronize()
                assert np.array_equal(slot.array()[: len(wanted[entry])], wanted[entry])
        problem = caught.value
        assert isinstance(problem, OSError)
        assert (problem.errno, problem.filename, problem.entry) == (errno.EIO, str(path), 20)
        assert problem.offset == 13 + 20 * NBYTES
        assert problem.got == 10
        for part in (str(path), "entry 20", "has shrunk", str(problem.offset)):
            assert part in str(problem)
        again = pickle.loads(pickle.dumps(problem))
        assert str(again) == str(problem)
        # The streamer serves the next request.
        good, right = entries_of(File(path), values, range(10))
        with streamer.begin(good) as request:
            for entry, slot in enumerate(request):
                slot.synchronize()
                assert np.array_equal(slot.array()[: len(right[entry])], right[entry])


def test_an_error_of_the_system_has_its_errno(content, tmp_path) -> None:
    path, values = content
    file = File(path)
    copies, _ = entries_of(file, values)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        os.dup2(folder, file.handle)  # reading a folder fails
    finally:
        os.close(folder)
    with strata.ExpertStreamer(copies.slot_bytes, gpu_ring=5) as streamer:
        with pytest.raises(strata.SourceReadError, match="entry 0") as caught, streamer.begin(copies) as request:
            request.acquire()
    assert caught.value.errno == errno.EISDIR
    stager = strata.HostStager(copies.slot_bytes, host_ring=2)
    with pytest.raises(strata.SourceReadError, match="entry 0"):
        stager.start(copies)
        stager.wait(0, timeout=10)
    stager.close()


def test_the_stager_reads_files(content) -> None:
    path, values = content
    copies, _wanted = entries_of(File(path), values, range(3))
    with strata.HostStager(copies.slot_bytes, host_ring=4) as stager:
        stager.start(copies)
        for job in range(3):
            stager.wait(job, timeout=10)


def test_a_list_keeps_its_files_open(content) -> None:
    path, values = content
    copies, wanted = entries_of(File(path), values)
    handle = copies.files[0].handle
    assert streamed(copies, wanted) == []
    os.fstat(handle)
    del copies
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


def test_bad_input(content, tmp_path) -> None:
    path, _ = content
    file = File(path)
    size = path.stat().st_size
    make = strata.ExpertCopies
    for arguments, kind, words in (
        ({"files": [file]}, ValueError, "file_index is None"),
        ({"file_index": [0]}, ValueError, "files is None"),
        ({"files": ["x"], "file_index": [0]}, TypeError, r"files\[0\] is a str"),
        ({"files": [file], "file_index": [1]}, ValueError, "file_index is 1"),
        ({"files": [file], "file_index": [-2]}, ValueError, "file_index is -2"),
        ({"files": [file], "file_index": [0, 0]}, ValueError, "file_index"),
        ({"files": [file], "file_index": [0.0]}, TypeError, "file_index"),
    ):
        with pytest.raises(kind, match=words):
            make([0], [4], False, **arguments)
    for at, nbytes in ((size - 3, 4), (size + 1, 1), (2**63, 1), (0, size + 1)):
        with pytest.raises(ValueError, match="which has"):
            make([at], [nbytes], False, files=[file], file_index=[0])
    make([size], [0], False, files=[file], file_index=[0])
    with pytest.raises(FileNotFoundError):
        File(tmp_path / "none")
    with pytest.raises(ValueError, match="no regular file"):
        File(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ValueError, match="no regular file"):
        File(tmp_path / "fifo")
    with pytest.raises(ValueError, match="NUL"):
        File("a\0b")
    for wrong in (b"bytes", 5, None, file):
        with pytest.raises(TypeError, match="path is"):
            File(wrong)
    with pytest.raises(TypeError, match="direct is"):
        File(path, direct=1)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(file)
    # Open up to the end of the process: requests that run then are ended later than finalizers are called.
    assert not file._finalizer.atexit
