"""The result of the proof as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from strata.tools.report import Report
from strata.tools.tables import Table
from tests.proof.prover.predict import AVOIDED, REASONS
from tests.proof.prover.trials import Trial

__all__ = ["NecessityReport", "by_kind", "by_purpose", "by_reason"]

_INTRODUCTION = """\
# Is every dependency needed?

A dependency call that the contract does not need costs time for nothing; one that it needs and that nobody would miss
in a test may be lost in the next change. So each one was left out once: the software runtime accepted the call and
did nothing, and the run was watched by its happens-before checker and compared byte by byte. A needed call that
nothing misses, or a redundant one that something misses, fails the proof.

"""

_SUMMARY = """\
This page is generated: `python -m tests.proof.prover.necessity --summary docs/necessity.md`. With `--markdown FILE`
the same run writes everything, as CI does: how the calls are found, what is predicted and what counts as found, the
counts by purpose, and the reason for each redundant call.
"""

_HOW = """\
## How

- **Which runs.** Small requests of every kind, several in a row: GPU rings of 4 and 8 slots, host rings of 3 and 4
  buffers, batches 1/1/1, 2/2/2 and 4/3/4 (`copy_batch`/`stage_batch`/`stage_copy_batch`). Between two requests the
  engine overwrites the sources at once, and where it lends the slots it reads them itself. Unless said otherwise,
  copies are held back, so that entries are taken before anything is known to be done.
- **Which calls.** Every `hipEventRecord`, `hipStreamWaitEvent`, `hipEventSynchronize`, `hipEventQuery`,
  `hipStreamSynchronize` and `hipStreamQuery` that strata makes in a run: from the first `begin` to the end of `close`,
  by the engine's thread, the issuer and the workers. A call is known by its thread, its function and its ordinal among
  that thread's calls of the function, and the log of each run confirms that it was the call that was meant. Where a
  thread asks until the answer is yes, that is one call, and ignoring it is one false yes.
- **What is predicted.** `tests.proof.prover.contract` plays the contract through by itself: groups, threads, hand-overs and
  calls, without any of strata's own code. The calls of the real run, with their events and streams, must be exactly
  its calls, thread by thread. `tests.proof.prover.order` then says, before anything is tried, which pairs of accesses would
  have no order any more without the call. If there are any, the call is *needed*; if there are none, it is redundant
  by design, for one of the reasons below.
- **What counts as found.** A finding of the checker. It must name the very kinds of access that were predicted, such
  as a D2H read before an H2D write. Wrong bytes are counted beside it: each call is dropped under the schedule that
  is most likely to show its loss (copies early for what protects slots, kernels early for what announces bytes, and
  everything late for what protects host memory), so that most losses are seen in the bytes, too.
"""


def by_kind(results: Sequence[Trial]) -> list[tuple[str, int, int, int, int, int, int]]:
    """Count by kind of configuration.

    Returns
    -------
    list of tuple
        Kind, configurations, calls tried, found, of these with wrong bytes, redundant by design, missed.
    """
    rows = []
    for kind in dict.fromkeys(trial.configuration.kind for trial in results):
        rows.append(_counts(kind, [t for t in results if t.configuration.kind == kind]))
    return rows


def _counts(name: str, some: Sequence[Trial]) -> tuple[str, int, int, int, int, int, int]:
    needed = [t for t in some if t.prediction.needed]
    found = [t for t in needed if t.found]
    return (name, len({t.configuration.name for t in some}), len(some), len(found),
            sum(t.wrong_bytes > 0 for t in found), len(some) - len(needed), sum(t.missed for t in some))


def by_purpose(results: Sequence[Trial]) -> list[tuple[str, str, int, int, int, int, int]]:
    """Count by what the contract makes the call for: purpose, function, then as `by_kind` from the third."""
    rows = []
    for purpose in dict.fromkeys(trial.call.purpose for trial in results):
        some = [t for t in results if t.call.purpose == purpose]
        functions = dict.fromkeys(f"`{t.call.function}`" for t in some)
        rows.append((purpose, ", ".join(functions), *_counts(purpose, some)[2:]))
    return rows


def by_reason(results: Sequence[Trial]) -> list[tuple[str, str, int]]:
    """Count redundant calls: purpose, reason, calls."""
    counts = Counter((t.call.purpose, t.prediction.reason) for t in results if not t.prediction.needed)
    return [(purpose, REASONS[reason], count) for (purpose, reason), count in sorted(counts.items())]


class NecessityReport(Report):
    """All trials; with `whole` also how they were made, and the counts by purpose and reason."""

    def __init__(self, results: Sequence[Trial], *, whole: bool = True) -> None:
        self.results = results
        self.whole = whole

    def parts(self) -> list[str | Table]:
        """Return the page."""
        total = _counts("**all**", self.results)
        columns = ("calls tried", "found", "wrong bytes, too", "redundant by design", "missed")
        result = [
            f"## Result: {total[2]:,} calls tried, {total[3]:,} found, {total[5]:,} redundant by design, "
            f"missed: {total[-1]}",
            Table(("configurations", "number", *columns), [*by_kind(self.results), total]),
            _BELOW_THE_TABLE.strip(),
        ]
        if not self.whole:
            return [_INTRODUCTION.strip(), _SUMMARY.strip(), *result]
        return [
            _INTRODUCTION.strip(), _HOW.strip(), *result,
            "## By what the call is for", Table(("purpose", "call", *columns), by_purpose(self.results), left=2),
            "## Redundant by design, and why", Table(("purpose", "reason", "calls"), by_reason(self.results), left=2),
            _CLOSING.strip(),
        ]


_BELOW_THE_TABLE = """
The rows that begin with "shared" have `share_dependencies=True`. Calls that stream order makes redundant are left
out there: of the reasons for a redundant call, these may not occur, and the proof fails if one does:

{avoided}

Other calls stay redundant there, since strata cannot know that they are: it depends on what the host happens to know, what
the engine queued before strata heard of it, whether a use is asked for later, and what the ends of requests and of the
streamer wait for.

Which of two workers gets a job depends on the run, and so which of their waits are repetitions: there the rule is
applied to the call that was ignored, from what that thread had waited for before. This row, and what is seen in the
bytes, which depends on who is quick, may differ by a few from run to run. With shared dependencies no wait is repeated.
""".format(avoided=";\n".join(f"- {text}" for reason, text in REASONS.items() if reason in AVOIDED) + ".")

_CLOSING = """
Each of these calls belongs to a rule that is needed elsewhere, and leaving it out would tie one part of strata to what
another part, or the engine, happens to do. Without shared dependencies one wait for each acquired entry keeps `acquire` free of the question which
entries of the group were skipped. One `used` record for each entry lets whatever grouping comes next ask for any of
them. The end of a request waits for the host ring's last DMA by its own event, since the host ring also serves engines
that issue their own copies; and it synchronizes the copy stream, since sources that are read in place have no such
event. Closing waits for the kernels that read owned slots by their events, and does not count on what freeing does.
"""
