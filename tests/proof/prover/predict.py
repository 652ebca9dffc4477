"""What leaving out one dependency call must come to, said before it is tried.

A call is *needed* if without it two conflicting accesses of the run have no order any more. Otherwise it is redundant
by design, and there is a reason, found from what the contract's own sequence says about the call.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.proof.prover.configuration import Configuration
from tests.proof.prover.contract import Call, Play
from tests.proof.prover.order import Facts, lost_orders, lost_without_each

__all__ = ["AVOIDED", "REASONS", "Prediction", "predict"]

#: Why a call may be left out, by a short name.
REASONS = {
    "group's first wait": "a later `copied` wait of its group: the first one has ordered the compute stream",
    "host knows": "the engine's thread knows that the DMA is done: a worker has waited for it before it filled the "
                  "buffer again, and what was published since handed that on",
    "group was skipped": "every entry of its group was skipped, so that no wait asks for the record",
    "within a span": "a span waits for its last group alone, whose record comes behind this one",
    "nobody asks": "no later wait asks for this record: another one of its group covers it, the slot is not used "
                   "again, or a begin fence stands for it",
    "wait is redundant": "only waits that are redundant themselves ask for this record",
    "not read": "no kernel has read what the group overwrites: the entries were skipped",
    "covered": "an earlier wait of the copy stream covers the kernels that read the group's slots",
    "queued early": "the kernels that read the slots were queued before an earlier record that the copy stream has "
                    "waited for, or the engine has waited for them: strata is not told of either",
    "fence behind reuse waits": "each slot's own reuse wait covers what the begin fence covers",
    "no job asks": "no later job of its list waits for this `dma_done`, and the end of the request waits for what "
                   "comes behind it",
    "same thread": "the worker's thread has waited for the same record already",
    "pageable": "the buffer is pageable: the runtime has read it before the copy call returns",
    "stream is drained": "the copy stream is synchronized right behind it",
    "dma_done waited for": "the last `dma_done` has been waited for, and nothing that is used again lies behind it",
    "engine drained": "the engine has waited for its compute stream, which had waited for every copy",
    "freeing waits": "what it waits for is freed next, and freeing waits for the device",
    "lent slots stay": "lent slots are not freed by strata",
}


#: Redundant by stream order, and not made where dependencies are shared.
AVOIDED = frozenset({"group's first wait", "covered", "fence behind reuse waits", "same thread"})


@dataclass(frozen=True)
class Prediction:
    """What must happen if a call is left out.

    Attributes
    ----------
    lost : frozenset of (str, str)
        The kinds of access that lose their order, earlier and later: needed if there are any.
    reason : str
        Where it is redundant: a key of `REASONS`.
    """

    lost: frozenset[tuple[str, str]]
    reason: str = ""

    @property
    def needed(self) -> bool:
        """Whether leaving it out must be found."""
        return bool(self.lost)


def predict(configuration: Configuration, played: Play) -> list[Prediction]:
    """Predict for each dependency call, by its number.

    Raises
    ------
    RuntimeError
        If the contract's own sequence leaves something unordered, or a call is redundant without any of `REASONS`.
    """
    facts = Facts()
    unordered = lost_orders(played.steps, facts=facts)
    if unordered:
        raise RuntimeError(f"{configuration.name}: the contract itself does not order {sorted(map(str, unordered))}")
    without = lost_without_each(played.steps)
    lost = [frozenset((a, b) for a, b, _ in without[_gone(played, call)]) for call in played.calls]
    predictions = []
    for call in played.calls:
        reason = "" if lost[call.number] else _reason(configuration, played, facts, call, lost)
        if configuration.share and reason in AVOIDED:
            raise RuntimeError(f"{configuration.name}: {call}: sharing should have avoided it: {REASONS[reason]}")
        predictions.append(Prediction(lost[call.number], reason))
    return predictions


def _end_wait(played: Play, query: Call) -> int:
    return next(c.number for c in played.calls if c.purpose == "end wait" and c.request == query.request)


def _gone(played: Play, call: Call) -> int:
    """The step that is gone without a call. An end query that is told a false yes leaves the end wait out."""
    return _end_wait(played, call) if call.purpose == "end query" and call.optional else call.number


def _reason(
    configuration: Configuration, played: Play, facts: Facts, call: Call, lost: list[frozenset[tuple[str, str]]]
) -> str:
    purpose = call.purpose
    new = call.number not in facts.nothing_new
    if purpose == "copied wait":
        # A compute stream learns of a copy by such a wait, or by what its submitting thread knows.
        group = (purpose, call.request, call.group)
        repeated = any((c.purpose, c.request, c.group) == group for c in played.calls[: call.number])
        return "group's first wait" if repeated else "host knows"
    if purpose == "reuse wait":
        if call.number in facts.unread:
            return "not read"
        return _if(call.number in facts.covered, "queued early" if configuration.share else "covered", call)
    if purpose == "begin wait":
        return "fence behind reuse waits"
    if purpose == "end query" and not call.optional:
        return _if(not new, "engine drained", call)
    if purpose in ("end wait", "end query"):
        new = _end_wait(played, call) not in facts.nothing_new
        return _if(not new, "dma_done waited for", call)
    if purpose == "closing wait":
        return "lent slots stay" if configuration.lent else "freeing waits"
    if purpose == "host wait":
        pinned = configuration.pinned_buffers
        if pinned is not None and call.first % configuration.host_ring >= pinned:
            return "pageable"
        return _if(call.number in facts.repeated, "same thread", call)
    if purpose in ("last host wait", "fence record"):
        return "freeing waits" if configuration.is_stager else "stream is drained"
    asking = [played.calls[n] for n in facts.asked.get(call.number, [])]
    asking = [c for c in asking if c.purpose not in ("closing wait", "last host wait")]
    if not asking:
        unasked = "within a span" if configuration.passes[call.request].span > 1 else "group was skipped"
        return {"dma_done record": "no job asks", "copied record": unasked}.get(purpose, "nobody asks")
    if purpose in ("begin record", "end record"):
        return "fence behind reuse waits"
    return _if(all(not lost[c.number] for c in asking),
               "pageable" if purpose == "dma_done record" else "wait is redundant", call)


def _if(holds: bool, reason: str, call: Call) -> str:
    if not holds:
        raise RuntimeError(f"{call}: it orders nothing, and no reason is known")
    return reason
