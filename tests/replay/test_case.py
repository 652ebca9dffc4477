"""The case file: the reference request's facts, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from strata import BatchSettings
from strata.tools.replay import InputError, load_case

CaseFile = Callable[[Any], str]


def test_reference_request() -> None:
    case = load_case()
    assert case.name == "reference_request"
    assert (case.direct, case.staged, len(case)) == (13_938, 5_713, 19_651)
    assert (case.expert_bytes, case.gpu_ring, case.host_ring) == (1_382_400, 96, 16)
    assert case.nbytes == 27_165_542_400
    assert case.arms == {"control": BatchSettings(1, 1, 1), "optimized": BatchSettings(8, 16, 16)}
    assert case.expected(BatchSettings(8, 16, 16)) == {
        "direct_copied_records": 1743,
        "direct_reuse_waits": 1743,
        "staged_copied_records": 417,
        "staged_reuse_waits": 417,
        "dma_done_records": 358,
        "host_reuse_waits": 5697,
    }
    assert case.expected(BatchSettings(2, 1, 1)) is None


@pytest.mark.parametrize("order", ["all direct copies first, as seen", "all staged copies first"])
def test_order_and_jobs(small: dict[str, Any], case_file: CaseFile, order: str) -> None:
    small |= {"direct_pinned_copies": 3, "staged_copies": 2, "order": order}
    case = load_case(case_file(small))
    expected = [-1, -1, -1, 0, 1] if "direct" in order else [0, 1, -1, -1, -1]
    assert case.jobs().tolist() == expected
    assert np.array_equal(case.is_staged(), np.array(expected) >= 0)


def test_recorded_arm_is_found_by_its_clamped_settings(small: dict[str, Any], case_file: CaseFile) -> None:
    small["arms"]["wide"] = {"copy_batch": 8, "stage_batch": 16, "stage_copy_batch": 16}
    small["counters"]["wide"] = {"dma_done_records": 8}
    assert load_case(case_file(small)).expected(BatchSettings(8, 4, 4)) == {"dma_done_records": 8}


WRONG = [
    ({"expert_bytes": 0}, "expert_bytes is 0; an integer from 1 to 2**40"),
    ({"expert_bytes": 2**50}, "expert_bytes is 1125899906842624"),
    ({"expert_bytes": "4096"}, "expert_bytes is '4096'"),
    ({"direct_pinned_copies": -1}, "direct_pinned_copies is -1; an integer from 0"),
    ({"staged_copies": 1.5}, "staged_copies is 1.5"),
    ({"gpu_ring": True}, "gpu_ring is True"),
    ({"host_ring": None}, "host_ring is None"),
    ({"order": "mixed"}, "order is 'mixed'; text that begins with 'all direct copies first' or "),
    ({"order": 3}, "order is 3"),
    ({"copies": 75}, "copies is 75; direct_pinned_copies, staged_copies and expert_bytes make it 74"),
    ({"h2d_bytes": 1}, "h2d_bytes is 1"),
    ({"arms": []}, "arms is []; a JSON object is wanted"),
    ({"arms": {"a": 1}}, "arms['a'] is 1"),
    ({"arms": {"a": {"copy_batch": 1, "stage_batch": 1}}}, "arms['a'].stage_copy_batch is missing"),
    ({"arms": {"a": {"copy_batch": 0, "stage_batch": 1, "stage_copy_batch": 1}}}, "arms['a'].copy_batch is 0"),
    ({"counters": {"other": {}}}, "counters['other'] belongs to no arm; one of 'control' is allowed"),
    ({"counters": {"control": {"joules": 1}}}, "counters['control'] names 'joules'"),
    ({"counters": {"control": {"wall_s": 1}}}, "counters['control'] names 'wall_s'"),
    ({"counters": {"control": {"fences": -1}}}, "counters['control'].fences is -1"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[m for _, m in WRONG])
def test_wrong_field_is_named(
    small: dict[str, Any], case_file: CaseFile, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_case(case_file({**small, **change}))
    assert str(caught.value).startswith(f"case 'case.json': {message}")


@pytest.mark.parametrize("field", ["expert_bytes", "direct_pinned_copies", "staged_copies", "gpu_ring",
                                   "host_ring", "order", "arms", "counters"])
def test_missing_field_is_named(small: dict[str, Any], case_file: CaseFile, field: str) -> None:
    del small[field]
    with pytest.raises(InputError, match=f"{field} is missing"):
        load_case(case_file(small))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"text"', json.dumps([1] * 50)])
def test_what_is_no_object_is_refused(case_file: CaseFile, text: str) -> None:
    with pytest.raises(InputError, match=r"case 'case.json' is "):
        load_case(case_file(text))
