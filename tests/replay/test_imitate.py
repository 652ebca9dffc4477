"""``strata replay --imitate``: where the costs come from, and what the streams' own clocks say of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from benchmarks.imitation.platform import Costs, derive, imitate, load_recorded
from strata.settings import BatchSettings
from strata.tools.cli import main
from strata.tools.replay import InputError, load_case

CaseFile = Callable[[Any], str]

#: Operations on the copy stream in the small case at 1/1/1: a wait and a record an entry, and a record a job.
SMALL_DEPENDENCIES = 2 * 45 + 3 * 29
OPTIMIZED = BatchSettings(8, 4, 4)


@pytest.fixture
def measured(small: dict[str, Any]) -> dict[str, Any]:
    """The small case with figures: 300 us an entry of which 500/3 us are compute."""
    small["processed_tokens"] = 100
    small["arms"]["optimized"] = {"copy_batch": 8, "stage_batch": 4, "stage_copy_batch": 4}
    small["performance"] = {
        "control": {"pp_tok_s": 4000.0, "run_wall_ms": 22.2, "done_prefill_ms": 25.0, "copy_wait_ms": 9.8},
        "optimized": {"pp_tok_s": 6000.0, "run_wall_ms": 14.0, "done_prefill_ms": 16.5, "copy_wait_ms": 2.0},
    }
    small["derived"] = {"microseconds_per_removed_operation_by_copy_wait": 50.0}
    return small


def costs_of(path: str | None) -> Costs:
    case = load_case(path)
    return derive(case, *load_recorded(case, path))


def reference() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((files("strata") / "data" / "reference_request.json").read_text())
    return data


def test_costs_of_the_reference_request() -> None:
    """Recomputed from the file's fields, by other means than the package's."""
    data = reference()
    control, counters = data["performance"]["control"], data["counters"]["control"]
    on_stream = sum(value for name, value in counters.items() if name != "host_reuse_waits")
    assert on_stream == 2 * 13938 + 3 * 5713 == 45015
    costs = costs_of(None)
    assert costs.dependency_ns == 54_800
    # All that the copy stream does at 1/1/1 takes the measured wall; the compute is the wall less the copy wait.
    total_ms = (on_stream * costs.dependency_ns + 19651 * costs.copy_ns) / 1e6
    assert total_ms == pytest.approx(control["run_wall_ms"], abs=1e-6)
    assert 19651 * costs.compute_ns / 1e6 + control["copy_wait_ms"] == pytest.approx(6144, abs=0.01)
    assert costs.copy_ns / 1e3 == pytest.approx(187.1, abs=0.05)
    assert costs.compute_ns / 1e3 == pytest.approx(172.9, abs=0.05)
    assert costs.pp_tok_s(6144) == pytest.approx(4205 / 6.2573)


def test_the_optimized_arm_is_not_looked_at(case_file: CaseFile) -> None:
    data = reference()
    before = costs_of(case_file(data))
    for name in data["performance"]["optimized"]:
        data["performance"]["optimized"][name] *= 3
    data["counters"]["optimized"] = dict.fromkeys(data["counters"]["optimized"], 7)
    data["follow_up_performance"] = {}
    assert costs_of(case_file(data)) == before
    del data["performance"]["optimized"], data["arms"]["optimized"], data["counters"]["optimized"]
    assert costs_of(case_file(data)) == before
    data["performance"]["control"]["run_wall_ms"] += 1  # while the control arm is
    assert costs_of(case_file(data)) != before


def test_clocks_add_up(measured: dict[str, Any], case_file: CaseFile, software: Any) -> None:
    path = case_file(measured)
    case, costs = load_case(path), costs_of(path)
    recorded, *_ = load_recorded(case, path)
    assert costs.dependency_ns == 50_000
    assert costs.copy_ns == pytest.approx((22.2e6 - SMALL_DEPENDENCIES * 50e3) / 74)
    assert costs.compute_ns == round(12.4e6 / 74)
    control, optimized = imitate(case, costs, recorded)
    assert [one.arm.settings for one in (control, optimized)] == [BatchSettings(), OPTIMIZED]
    for one in (control, optimized):
        assert one.arm.mismatches == {}
        # Whatever else the threads of a busy machine did, this is what was charged.
        assert one.run_wall_ms - one.copy_wait_ms == pytest.approx(12.4, abs=0.001)
        assert one.copy_wait_ms > 0
        assert one.copy_idle_ms > 0
        assert one.waited_s * 1e3 >= one.run_wall_ms - 0.1
        assert one.pp_tok_s == pytest.approx(100 / (one.run_wall_ms + 2.8) * 1e3)
    assert control.run_wall_ms - control.copy_idle_ms == pytest.approx(22.2, abs=0.001)
    # 45 entries by 8 in a ring of 8: 6 groups. 29 follow in the ring from place 5: 3, and then by 4, also cut
    # where the host ring of 4 begins anew.
    counters = optimized.arm.counters
    groups = counters.direct_copied_records + counters.staged_copied_records
    assert counters.direct_copied_records == 6
    waits = counters.direct_reuse_waits + counters.staged_reuse_waits
    assert waits == groups
    saved = SMALL_DEPENDENCIES - (groups + waits + counters.dma_done_records + counters.fences)
    assert saved > 100
    busy = optimized.run_wall_ms - optimized.copy_idle_ms
    assert busy == pytest.approx(22.2 - saved * 0.05, abs=0.001)
    assert software.spent("copy").operations == 0  # nothing costs anything afterwards
    assert software.configuration()["schedule"] == "eager"


def test_a_dearer_dependency_leaves_less_for_copies(measured: dict[str, Any], case_file: CaseFile) -> None:
    cheap = costs_of(case_file(measured))
    measured["derived"]["microseconds_per_removed_operation_by_copy_wait"] = 60.0
    dear = costs_of(case_file(measured))
    assert dear.dependency_ns - cheap.dependency_ns == 10_000
    assert cheap.copy_ns - dear.copy_ns == pytest.approx(SMALL_DEPENDENCIES * 10_000 / 74)
    assert dear.compute_ns == cheap.compute_ns


def test_command_prints_both_and_writes_json(
    measured: dict[str, Any], case_file: CaseFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    path = case_file(measured)
    options = ["--imitate", "hip-windows", "--json", str(out), "--settings", "4,1,1", "--repeat", "3"]
    assert main(["replay", "--case", path, *options]) == 0
    text = capsys.readouterr().out
    report = json.loads(out.read_text())
    assert report["ok"] is True
    assert report["imitates"] == "hip-windows"
    control, optimized, further = report["arms"]
    assert [arm["settings"] for arm in report["arms"]] == [[1, 1, 1], [8, 4, 4], [4, 1, 1]]
    assert control["expected"] == measured["counters"]["control"]
    assert control["counters_match"] is True
    assert (control["expected_from"], optimized["expected_from"]) == ("case", "plan")
    assert optimized["measured"] == {"pp_tok_s": 6000.0, "run_wall_ms": 14.0, "copy_wait_ms": 2.0}
    assert further["measured"] is None
    assert len(further["run_walls_ms"]) == 3
    assert further["imitated"]["run_wall_ms"] == sorted(further["run_walls_ms"])[1]
    changes = optimized["change_percent"]
    assert changes["pp_tok_s"]["measured"] == pytest.approx(50)
    assert changes["run_wall_ms"]["measured"] == pytest.approx((14 / 22.2 - 1) * 100)
    assert changes["run_wall_ms"]["imitated"] == pytest.approx(
        (optimized["imitated"]["run_wall_ms"] / control["imitated"]["run_wall_ms"] - 1) * 100)
    assert changes["copy_wait_ms"]["without_idle"] == pytest.approx(
        (optimized["without_idle"]["copy_wait_ms"] / control["without_idle"]["copy_wait_ms"] - 1) * 100)
    assert further["change_percent"]["pp_tok_s"]["measured"] is None
    assert "+50.0 %" in text
    assert "-79.6 %" in text  # the measured copy wait
    assert "taken for granted:" in text
    assert all(assumption in text for assumption in report["assumptions"])


def test_a_counter_that_is_not_the_case_s_fails(
    measured: dict[str, Any], case_file: CaseFile, capsys: pytest.CaptureFixture[str]
) -> None:
    measured["counters"]["control"]["host_reuse_waits"] = 24
    assert main(["replay", "--case", case_file(measured), "--imitate", "hip-windows"]) == 1
    assert "1/1/1: host_reuse_waits is 25, expected 24" in capsys.readouterr().out


def test_the_case_without_figures_is_refused(small: dict[str, Any], case_file: CaseFile, capsys: Any) -> None:
    assert main(["replay", "--case", case_file(small), "--imitate", "hip-windows"]) == 2
    assert "performance is None" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data["performance"].pop("control"), "'control'"),
        (lambda data: data["performance"]["control"].pop("copy_wait_ms"), "performance.control.copy_wait_ms is None"),
        (lambda data: data["performance"]["control"].update(run_wall_ms=0), "run_wall_ms is 0"),
        (lambda data: data["performance"]["control"].update(done_prefill_ms=20.0), "done_prefill_ms is 20.0"),
        (lambda data: data["performance"]["control"].update(copy_wait_ms=20.0), "for the compute stream"),
        (lambda data: data["performance"]["control"].update(run_wall_ms=8.0, copy_wait_ms=0.5), "left for copies"),
        (lambda data: data["derived"].clear(), "by_copy_wait is None"),
        (lambda data: data.update(processed_tokens="many"), "processed_tokens is 'many'"),
        (lambda data: data["counters"]["control"].pop("dma_done_records"), "lacks dma_done_records"),
    ],
)
def test_figures_that_say_nothing(measured: dict[str, Any], case_file: CaseFile, change: Any, words: str) -> None:
    change(measured)
    with pytest.raises(InputError) as refused:
        costs_of(case_file(measured))
    assert words in str(refused.value)


@pytest.mark.parametrize("option", [["--runtime", "rocm"], ["--submission", "group"], ["--separate-timing"],
                                    ["--pool", "1GiB"], ["--json", "/no/such/folder/out.json"]])
def test_options_that_mean_nothing_here(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--imitate", "hip-windows", *option]) == 2
    assert option[0] in capsys.readouterr().err


@pytest.mark.slow
def test_reference_request(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert main(["replay", "--imitate", "hip-windows", "--json", str(out)]) == 0
    control, optimized = json.loads(out.read_text())["arms"]
    counters = reference()["counters"]
    assert control["expected"] == counters["control"]
    assert optimized["expected"] == counters["optimized"]
    assert control["counters_match"]
    assert optimized["counters_match"]
    # Charged, on any machine: 45,015 and 4,678 dependency calls beside the same copies.
    assert control["without_idle"]["run_wall_ms"] == pytest.approx(6144, abs=0.1)
    assert optimized["without_idle"]["run_wall_ms"] == pytest.approx(6144 - (45015 - 4678) * 0.0548, abs=0.1)
