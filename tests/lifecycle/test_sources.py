"""Sources in mapped files: what the operating system does to a process whose checkpoint shrinks under it."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.support.scripts import ended_well, run_script

MAPPED = """
    import mmap
    path = {path!r}
    with open(path, "wb") as file:
        file.write(bytes(range(256)) * 16 * 64)
    page = mmap.PAGESIZE
    with open(path, "r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    rows = [memoryview(mapped)[k * page : (k + 1) * page] for k in range(64)]
    copies = strata.ExpertCopies.from_buffers(rows, False)
    streamer = strata.ExpertStreamer(page, gpu_ring=2, host_ring=2, workers=1)
"""


def test_a_mapped_file_is_streamed_and_its_mapping_kept(tmp_path: Path) -> None:
    script = MAPPED.format(path=str(tmp_path / "weights")) + """
    with streamer.begin(copies) as request:
        try:
            mapped.close()
        except BufferError:
            say("kept")
        del rows, copies, mapped
        wrong = 0
        for slot in request:
            slot.synchronize()
            wrong += int((slot.array() != np.tile(np.arange(256, dtype=np.uint8), page // 256)).sum())
    say(wrong, request.consumed)
    """
    assert ended_well(run_script(script)) == ["kept", "0 64"]


def test_a_file_that_is_truncated_under_a_running_request_ends_the_process(tmp_path: Path) -> None:
    """No library can catch it: the page is gone, and reading it is the signal SIGBUS."""
    script = MAPPED.format(path=str(tmp_path / "weights")) + """
    request = streamer.begin(copies)
    request.acquire().release()
    say("truncating")
    os.truncate(path, 0)
    request.skip(63)
    say("not reached")
    """
    done = run_script(script)
    assert done.out == ["truncating"]
    assert done.status == -signal.SIGBUS
