"""The comparison: equal where it should be, and red where it should be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import strata
from examples.prefill_engine.checkpoint import Checkpoint, open_checkpoint
from examples.prefill_engine.config import config_from
from examples.prefill_engine.errors import InputError
from examples.prefill_engine.verify import ArmRun, VerifyReport, compare, dependencies, run_arm

RUN = config_from("tiny")[1]
WALKS = ("all", "routed")
NUMBERS = {"residual floats, bitwise", "max absolute difference", "routing hashes (layers x requests)",
           "GDN fingerprints (layers x requests)", "GDN state values, bitwise",
           "position records (tokens x requests)", "SHA256 of position records"}


@pytest.fixture
def control(checkpoint: Checkpoint) -> ArmRun:
    return run_arm(checkpoint, RUN, strata.BatchSettings(), WALKS)


def optimized(checkpoint: Checkpoint, tap=None) -> ArmRun:
    return run_arm(checkpoint, RUN, strata.BatchSettings(8, 16, 16), WALKS, tap=tap)


def red(lines) -> dict[str, set[str]]:
    """Names of the lines that differ, by walk."""
    found: dict[str, set[str]] = {}
    for line in lines:
        if not line.equal:
            found.setdefault(line.walk, set()).add(line.name)
    return found


def flip_in_flight(change: Callable[[np.ndarray], None], at_use: int) -> Callable[..., None]:
    """A tap that changes bytes of one streamed expert, once, after they arrived and before the kernel reads them."""
    uses = []

    def tap(backend, layer, expert, slot):
        if layer == 0 and slot >= RUN.cache_slots - RUN.gpu_ring:
            uses.append(expert)
            if len(uses) == at_use:
                backend.submit(lambda: change(backend.slots(slot, 1)[0].view(np.uint8)))

    return tap


def flip_high_byte(values: np.ndarray) -> None:
    """The sign and most of the exponent of the expert's largest gate weight: one byte."""
    at = int(np.abs(values.view(np.float32)[:512]).argmax())
    values[4 * at + 3] ^= 0x82


def make_not_finite(values: np.ndarray) -> None:
    """One byte of a down weight, so that its exponent is all ones."""
    at = 1024 + int(np.flatnonzero(values.view(np.uint32)[1024:] & 0x0080_0000)[0])
    values[4 * at + 3] |= 0x7F


def test_all_lines_are_equal(checkpoint, schedule) -> None:
    control = run_arm(checkpoint, RUN, strata.BatchSettings(), WALKS)
    other = optimized(checkpoint)
    lines = compare(control, other)
    assert red(lines) == {}
    assert len(lines) == 2 * 13 + 3
    assert "29 lines equal" in str(VerifyReport("", lines))
    for walk in WALKS:
        assert dependencies(other)[walk] < dependencies(control)[walk]
    assert any(routing.chosen.any() for routing in other.outcomes["all"][0].routing)


def test_one_byte_of_one_expert_in_flight(checkpoint, control) -> None:
    lines = compare(control, optimized(checkpoint, flip_in_flight(flip_high_byte, 3)))
    found = red(lines)
    assert found["all"] >= NUMBERS | {"requests of an arm"}
    assert "routed" not in found  # the byte was right again there
    assert found[""] == {"walks against each other"}
    assert "lines DIFFERENT" in str(VerifyReport("", lines))
    hashes = next(line for line in lines if line.name.startswith("routing"))
    assert hashes.detail == "5 of 8"  # the first layer routed before the byte was used; the other request is whole


def test_one_byte_that_makes_a_number_infinite(checkpoint, control) -> None:
    found = red(compare(control, optimized(checkpoint, flip_in_flight(make_not_finite, 3))))
    assert found["all"] >= NUMBERS | {"NaN or Inf", "GDN states finite", "requests of an arm"}


def test_kernels_that_do_not_wait_for_their_copies(checkpoint, software) -> None:
    """The compute stream's waits for completion get lost for a while, on a device that is late with its copies."""
    software.configure(schedule="compute-first", seed=1, idle_ms=0)
    run = replace(RUN, pinned_share=1.0)  # no worker forces a copy, either
    control = run_arm(checkpoint, run, strata.BatchSettings(), ("all",))
    lost = []

    def tap(backend, layer, expert, slot):
        if layer == 1 and not lost:
            # The first chunk has more entries than these: it is acquire's waits that get lost, not a begin's.
            lost.extend(software.inject("hipStreamWaitEvent", nth=k, action="ignore", thread="engine under test")
                        for k in range(1, 21))

    software.thread_role("engine under test")
    try:
        other = run_arm(checkpoint, run, strata.BatchSettings(8, 16, 16), ("all",), tap=tap)
    finally:
        software.thread_role(None)
    assert red(compare(control, other))["all"] >= NUMBERS | {"requests of an arm"}


@pytest.mark.parametrize("pinned", [True, False])
def test_one_byte_at_the_source(checkpoint, control, copied, pinned) -> None:
    """The optimized arm streams, and its cache holds, a byte that the other's checkpoint does not have."""
    from examples.prefill_engine.host_experts import HostExperts
    sources = HostExperts(checkpoint, RUN.pinned_share)
    layer, expert = next((layer, e) for layer in (0,) for e in np.flatnonzero(sources.pinned[0] == pinned)
                         if control.outcomes["all"][0].routing[0].chosen.ravel().tolist().count(e) > 3)
    name = f"model.layers.{layer}.mlp.experts.{expert}.down_proj.weight"
    file = next(copied.glob("model-00001-*"))
    wanted = checkpoint.tensor(name).tobytes()
    content = bytearray(file.read_bytes())
    at = bytes(content).index(wanted)
    content[at + 3] ^= 0x80
    file.write_bytes(content)
    found = red(compare(control, optimized(Checkpoint(copied))))
    assert found["all"] >= NUMBERS
    assert found["routed"] >= NUMBERS


def test_a_retained_slot_that_was_overwritten(checkpoint, control) -> None:
    def tap(backend, layer, expert, slot):
        if layer == 3:
            backend.submit(lambda: backend.slots(0, 1)[0].view(np.uint8).__setitem__(100, 255))

    found = red(compare(control, optimized(checkpoint, tap)))
    assert "retained cache, before and after" in found[""]
    assert "borrowed cache, before and after" not in found[""]


def test_a_borrowed_slot_that_is_not_filled_again(checkpoint, control, monkeypatch) -> None:
    from examples.prefill_engine import expert_cache

    whole = expert_cache._fill

    def all_but_one(streamer, copies):
        counters = whole(streamer, copies.take(range(len(copies) - 1)) if streamer.gpu_ring == RUN.gpu_ring else copies)
        return counters

    other = run_arm(checkpoint, RUN, strata.BatchSettings(8, 16, 16), WALKS)
    assert red(compare(control, other)) == {}
    monkeypatch.setattr(expert_cache, "_fill", all_but_one)
    found = red(compare(control, optimized(checkpoint)))
    assert found[""] == {"borrowed cache, before and after"}
    assert found["all"] == {"transfer counts and bytes"}


@pytest.mark.parametrize(("field", "name"), [
    ("staged_bytes", "transfer counts and bytes"), ("direct_copies", "transfer counts and bytes"),
    ("skipped", "transfer counts and bytes"), ("fence_errors", "fence errors")])
@pytest.mark.parametrize("of", ["counters", "refill_counters"])
def test_counters_that_differ(control, field: str, name: str, of: str) -> None:
    outcome = control.outcomes["routed"][1]
    counters = getattr(outcome, of)
    spoiled = replace(outcome, **{of: replace(counters, **{field: getattr(counters, field) + 1})})
    other = replace(control, outcomes={**control.outcomes, "routed": [control.outcomes["routed"][0], spoiled]})
    assert red(compare(control, other)) == {"routed": {name}}


def test_minus_zero_is_another_float(control) -> None:
    outcome = control.outcomes["all"][0]
    residual = outcome.residual.copy()
    residual[0, 0] = 0.0
    negative = residual.copy()
    negative[0, 0] = -0.0

    def arm(values):
        return replace(control, outcomes={"all": [replace(outcome, residual=values)] * 2})

    found = red(compare(arm(residual), arm(negative)))
    assert found == {"all": {"residual floats, bitwise", "position records (tokens x requests)",
                             "SHA256 of position records"}}


@pytest.mark.parametrize("field", ["positions", "ids"])
def test_a_token_that_was_computed_elsewhere(control, field: str) -> None:
    """The numbers are right; where they were computed is not."""
    outcome = control.outcomes["all"][0]
    moved = getattr(outcome, field).copy()
    moved[7] += 1
    other = replace(control, outcomes={
        **control.outcomes, "all": [replace(outcome, **{field: moved}), control.outcomes["all"][1]]})
    lines = compare(control, other)
    assert red(lines) == {"all": {"position records (tokens x requests)", "SHA256 of position records"}}
    assert next(line.detail for line in lines if line.name.startswith("position")) == "79 of 80"


def test_arms_that_cannot_be_compared(checkpoint, control, tmp_path) -> None:
    other = open_checkpoint(config_from("tiny", seed=9)[0], tmp_path / "other")
    with pytest.raises(InputError, match="model or seed: seed 0 and 9"):
        compare(control, run_arm(other, RUN, strata.BatchSettings(), ("all",)))
    with pytest.raises(InputError, match="chunk 16 and 20"):
        compare(control, replace(control, run=replace(RUN, chunk=20)))
    with pytest.raises(InputError, match="walks"):
        compare(control, replace(control, outcomes={"all": control.outcomes["all"]}))
