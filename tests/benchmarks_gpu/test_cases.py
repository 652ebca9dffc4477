"""The list of cases: complete, without doubles, and such that every peer can take its lists."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.gpu import cases, race
from benchmarks.gpu.race import parse

SIZES = [*cases.SIZES, *(size.reduced() for size in cases.SIZES)]


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s.nbytes}-{s.pinned}")
def test_every_peer_has_cases_and_none_twice(size: cases.Size) -> None:
    listed = cases.all_cases(size)
    assert {case.peer for case in listed} == set(cases.PEERS)
    assert len({case.key for case in listed}) == len(listed)


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s.nbytes}-{s.pinned}")
def test_layers_are_whole_and_lists_fit_the_pools(size: cases.Size) -> None:
    assert size.pinned % cases.GRANULE == size.pageable % cases.GRANULE == 0
    assert size.pageable <= size.pinned  # the pageable pool is made from the pinned one
    for case in cases.all_cases(size):
        if case.peer in ("double_buffer", "freetoken_cache", "diffusers_offload"):
            pool = size.pinned if case.memory == "pinned" else size.pageable
            assert case.entries % (case.slots // 2) == 0
            assert case.entries <= pool


def test_pinned_memory_stays_within_what_a_host_can_spare() -> None:
    assert sum(size.nbytes * size.pinned for size in cases.SIZES) <= 40e9


def test_foreign_packages_come_after_everything_else() -> None:
    peers = [case.peer for case in cases.in_order(cases.SIZES, cases.PEERS)]
    first = min(index for index, peer in enumerate(peers) if peer in cases.FOREIGN)
    assert set(peers[first:]) == set(cases.FOREIGN)


def test_mixed_lists_keep_the_reference_proportion() -> None:
    assert cases.mixed_split(13_938 + 5_713) == (13_938, 5_713)
    direct, staged = cases.mixed_split(6550)
    assert (direct, staged) == (4646, 1904)


def test_only_and_sizes_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    args = parse(["--out", "x", "--only", "bare,torch_ring", "--sizes", "65536"])
    assert args.only == ("bare", "torch_ring")
    assert [size.nbytes for size in args.sizes] == [65_536]
    for wrong in (["--only", "nobody"], ["--sizes", "7"]):
        with pytest.raises(SystemExit):
            parse(["--out", "x", *wrong])
        assert wrong[1] in capsys.readouterr().err


@pytest.mark.parametrize(("nbytes", "hidden", "columns"), [
    (1_382_400, 640, (360, 360)), (65_536, 64, (170, 172)), (8_388_608, 2048, (682, 684)),
])
def test_banks_hold_exactly_an_expert(nbytes: int, hidden: int, columns: tuple[int, int]) -> None:
    gate, down = cases.bank_columns(nbytes, hidden)
    assert (gate, down) == columns
    assert (2 * gate + down) * hidden * 2 == nbytes


def test_banks_of_no_whole_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="1001"):
        cases.bank_columns(1001, 64)


def test_without_torch_there_is_no_race(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert race.main(["--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == (
        "python -m benchmarks.gpu.race: error: torch is not installed: pip install 'strata-moe[torch]', or torch alone\n")
    assert not (tmp_path / "out").exists()
