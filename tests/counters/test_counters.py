"""The snapshot of counters as a value: names, arithmetic, comparison, printing."""

import dataclasses
import inspect
import json
import re
from importlib import resources

import pytest

from strata.counters import Counters

KINDS = ["copies", "copy_calls", "bytes", "copied_records", "reuse_waits", "reuse_waits_shared"]
COUNTS = [
    *(f"direct_{kind}" for kind in KINDS),
    *(f"staged_{kind}" for kind in KINDS),
    "dma_done_records",
    "host_reuse_waits",
    "fences",
    "fence_errors",
    "pageable_buffers",
    "copied_waits",
    "used_records",
    "skipped",
    "begin_waits",
    "host_reuse_waits_shared",
    "copied_waits_shared",
    "used_records_shared",
    "dropped",
    "dropped_bytes",
    "dropped_late",
    "batch_calls",
    "refused_batches",
]
SECONDS = [
    "wait_publication_s",
    "wait_window_s",
    "wait_source_s",
    "wait_host_reuse_s",
    "host_memcpy_s",
    "submission_s",
    "dependency_calls_s",
    "wall_s",
]


def numbered() -> Counters:
    """Every counter another value."""
    return Counters(
        **{name: 1000 + i for i, name in enumerate(COUNTS)},
        **{name: 1.5 + i for i, name in enumerate(SECONDS)},
    )


def test_names_and_defaults():
    counters = Counters()
    assert list(counters.as_dict()) == COUNTS + SECONDS
    assert all(type(getattr(counters, name)) is int for name in COUNTS)
    assert all(type(getattr(counters, name)) is float for name in SECONDS)
    assert set(counters.as_dict().values()) == {0}


def test_every_counter_is_documented():
    documented = re.findall(r"\b[a-z_]+\b", inspect.getdoc(Counters) or "")
    assert set(COUNTS + SECONDS) <= set(documented)


def test_snapshots_are_values():
    assert numbered() == numbered() != Counters()
    assert len({numbered(), numbered()}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        numbered().fences = 1
    numbered().as_dict()["fences"] = -1  # a dict of its own


def test_difference_and_sum_go_by_counter():
    before = Counters(direct_copies=3, fences=1, wall_s=0.25)
    after = Counters(direct_copies=10, fences=1, skipped=2, wall_s=1.0)
    assert after - before == Counters(direct_copies=7, skipped=2, wall_s=0.75)
    assert (after - before) + before == after
    assert numbered() + Counters() == numbered()
    assert numbered() - numbered() == Counters()


@pytest.mark.parametrize("other", [0, None, {}])
def test_arithmetic_needs_counters(other):
    with pytest.raises(TypeError):
        numbered() - other
    with pytest.raises(TypeError):
        numbered() + other


def test_matches_gives_what_differs():
    counters = Counters(direct_copies=5, fences=2)
    assert counters.matches({}) == {}
    assert counters.matches({"direct_copies": 5, "fences": 2, "skipped": 0}) == {}
    assert counters.matches({"direct_copies": 5, "fences": 1, "skipped": 4}) == {
        "fences": (2, 1),
        "skipped": (0, 4),
    }


def test_matches_refuses_unknown_names():
    with pytest.raises(ValueError, match="'direct_copy'"):
        Counters().matches({"direct_copy": 0})


def test_matches_takes_the_reference_request():
    text = resources.files("strata").joinpath("data/reference_request.json").read_text("utf-8")
    for expected in json.loads(text)["counters"].values():
        assert len(expected) == 6
        assert Counters(**expected).matches(expected) == {}
        assert Counters().matches(expected).keys() == expected.keys()


def test_table_shows_every_counter_once():
    table = str(numbered())
    for name in COUNTS:
        assert table.count(f"{getattr(numbered(), name):,}") == 1
    for name in SECONDS:
        assert len(re.findall(rf"(?<!\d){getattr(numbered(), name):.6f}", table)) == 1


def test_table_says_where_nothing_was_timed():
    assert str(Counters(direct_copies=3)).endswith("\nseconds             none counted")
    assert "none counted" not in str(Counters(wall_s=1e-6))


def test_table_is_grouped_and_aligned():
    lines = str(Counters(direct_bytes=19_267_891_200, staged_bytes=7_897_651_200, wall_s=3.738)).split("\n")
    assert lines[0].split() == ["direct", "staged"]
    assert [line for line in lines[1:] if re.fullmatch("[a-z]+( [a-z]+)?", line)] == [
        "host ring",
        "engine",
        "seconds",
    ]
    assert "bytes                19,267,891,200  7,897,651,200" in lines
    assert "  wall                     3.738000" in lines
    ends = {
        line.index(text) + len(text)
        for line in lines
        for text in ("19,267,891,200", "3.738000")
        if text in line
    }
    assert len(ends) == 1
    assert not any(line.endswith(" ") for line in lines)
