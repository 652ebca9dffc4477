"""Several GPUs: each process has one of those that the caller sees."""

from __future__ import annotations

import pytest

from benchmarks.gpu.several import _devices


@pytest.mark.parametrize(("chosen", "want"), [(None, ["0", "1"]), ("", ["0", "1"]), ("3,2,5", ["3", "2"])])
def test_the_processes_share_the_gpus_that_the_caller_chose(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, want: list[str]
) -> None:
    monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert _devices(2) == want
