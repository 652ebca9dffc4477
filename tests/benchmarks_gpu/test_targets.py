"""Ratios: the right cases are compared, the verdict is not rounded, what is missing is no success."""

from __future__ import annotations

import pytest

from benchmarks.gpu.cases import Case
from benchmarks.gpu.measuring import Result
from benchmarks.gpu.targets import Target, evaluate, gb_s
from tests.benchmarks_gpu.factory import SIZE, result, strata


def find(targets: list[Target], *words: str) -> Target:
    (target,) = [t for t in targets if all(word in t.name for word in words)]
    return target


def test_rate_is_the_median() -> None:
    assert gb_s(result("bare", 50.0)) == pytest.approx(50.0)
    assert gb_s(Result(Case("bare", "v", SIZE, "pinned", "null", 1), reason="none")) is None


def test_direct_takes_the_slowest_setting_over_the_fastest_bare_loop() -> None:
    target = find(evaluate([
        result("bare", 40.0, how="loop"), result("bare", 50.0, how="loop"), result("bare", 60.0, how="torch"),
        strata(49.0, settings=(1, 1, 1)), strata(55.0), strata(20.0, submission="group"),
        strata(10.0, engine="compiled"), strata(5.0, memory="pageable"), strata(4.0, consumer="kernel"),
    ]), "direct, slowest", "Python")
    assert target.measured == pytest.approx(49 / 50)
    assert target.verdict == "MISSED"


def test_group_is_compared_with_one_large_copy() -> None:
    results = [result("bare", 100.0, slots=0, how="large"), result("bare", 50.0, how="loop"),
               strata(97.5, submission="group"), strata(99.0)]
    target = find(evaluate(results), "grouped", "Python")
    assert target.measured == pytest.approx(0.975)
    assert target.verdict == "met"


def test_staged_takes_eight_workers_at_the_grouped_settings() -> None:
    results = [result("bare", 50.0, how="loop"), result("torch_ring", 5.0, memory="pageable"),
               strata(49.0, memory="pageable"), strata(12.0, memory="pageable", workers=1)]
    assert find(evaluate(results), "staged", "bare").measured == pytest.approx(0.98)
    assert find(evaluate(results), "staged", "torch ring").measured == pytest.approx(9.8)


def host(peer: str, host_us: float, issue_us: float) -> Result:
    return Result(Case(peer, "v", 65_536, "pinned", "host", 512, 513), host_us=host_us, issue_us=issue_us)


def test_host_time_takes_the_slowest_setting() -> None:
    targets = evaluate([host("strata_ring", 2.0, 3.0), host("strata_ring", 4.0, 1.0), host("torch_ring", 36.0, 12.0)])
    assert find(targets, "host time").measured == pytest.approx(9.0)
    assert find(targets, "host time").verdict == "met"
    assert find(targets, "issuing").measured == pytest.approx(4.0)
    assert find(targets, "issuing").verdict == "MISSED"


def test_engine_compares_with_the_best_peer_at_equal_memory_and_with_the_large_double_buffer() -> None:
    where = {"consumer": "kernel"}
    targets = evaluate([
        strata(40.0, **where), strata(44.0, submission="group", **where),
        result("torch_ring", 22.0, **where),
        result("double_buffer", 30.0, slots=96, whole=False, **where),
        result("double_buffer", 45.0, slots=256, whole=True, **where),
        result("freetoken_cache", 33.0, slots=96, **where),
        result("diffusers_offload", 90.0, slots=256, **where),
        result("torch_ring", 80.0, consumer="null"),
    ])
    assert find(targets, "/ torch ring", "pinned").measured == pytest.approx(2.0)
    equal = find(targets, "equal memory", "pinned")
    assert equal.measured == pytest.approx(44 / 33)
    assert "freetoken_cache" in equal.detail
    double = find(targets, "double buffer over 256")
    assert double.measured == pytest.approx(44 / 45)
    assert double.verdict == "MISSED"


def test_missing_measurements_are_no_success() -> None:
    targets = evaluate([strata(50.0), Result(Case("bare", "v", SIZE, "pinned", "null", 1, options={"how": "loop"}),
                                             reason="crashed")])
    target = find(targets, "direct, slowest", "Python")
    assert target.measured is None
    assert target.verdict == "not measured"


@pytest.mark.parametrize(("measured", "verdict"), [(0.98999, "MISSED"), (0.99, "met"), (None, "not measured")])
def test_verdict_is_not_rounded(measured: float | None, verdict: str) -> None:
    assert Target("x", 0.99, measured, "").verdict == verdict
