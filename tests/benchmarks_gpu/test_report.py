"""JSON and Markdown: every sample, every ratio, every reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.gpu import machine
from benchmarks.gpu.cases import Case
from benchmarks.gpu.measuring import Result
from benchmarks.gpu.report import RaceReport
from tests.benchmarks_gpu.factory import result, strata

HEAD: dict[str, Any] = {
    "command": "race --out x", "commit": "abc", "quick": False,
    "machine": {"device": {"name": "a GPU", "driver_version": "1.2"}, "processor": "a CPU", "cores": 4,
                "system": "Linux", "python": "3.12", "versions": {"torch": "2"}},
}


def markdown(results: list[Result]) -> str:
    return RaceReport(HEAD, results).markdown()


def row(text: str, *cells: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if all(f"| {cell} |" in line for cell in cells)]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_row_has_median_spread_ratios_and_thread_time() -> None:
    verified = strata(45.0, variant="ours", consumer="kernel")
    verified.verified = True
    text = markdown([result("bare", 50.0, variant="loop", how="loop"),
                     result("torch_ring", 30.0, variant="ring", consumer="kernel"), verified])
    assert row(text, "strata_ring", "ours") == ["strata_ring", "ours", "96", "45.00", "22.50 to 90.00", "3", "0.900",
                                                "1.500", "2.00", "sum of all bytes"]
    for part in ("a GPU", "1.2", "abc", "race --out x", "torch 2", "a CPU"):
        assert part in text


def test_ratios_stay_within_their_size_memory_and_consumer() -> None:
    text = markdown([result("bare", 50.0, how="loop", size=2_000_000),
                     result("torch_ring", 30.0, memory="pageable", variant="ring"),
                     strata(45.0, variant="ours")])
    assert row(text, "strata_ring", "ours")[6:8] == ["", ""]


def test_what_was_not_measured_is_listed_with_its_reason() -> None:
    text = markdown([Result(Case("freetoken_cache", "prefill", 64, "pinned", "null", 1),
                                            reason="no module\nnamed flashlib")])
    lines = text[text.index("## Not measured"):]
    assert "freetoken_cache" in lines
    assert "no module named flashlib" in lines


def test_json_holds_every_sample_and_comes_back(tmp_path: Path) -> None:
    results = [result("bare", 50.0, how="loop"), strata(49.0)]
    for _ in range(2):
        RaceReport(HEAD, results).write_into(tmp_path)
    data = json.loads((tmp_path / "race.json").read_text())
    assert data["commit"] == "abc"
    back = [Result.from_dict({k: v for k, v in item.items() if k != "gb_s"}) for item in data["results"]]
    assert back == results
    assert any(target["verdict"] == "MISSED" for target in data["targets"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["race.json", "race.md"]


def test_machine_is_described_without_a_gpu() -> None:
    said = machine.describe()
    assert said["python"]
    assert machine.commit("named") == "named"
