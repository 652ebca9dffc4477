"""The passes of a replay in order: every arm checked, then all arms timed in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from strata import runtime
from strata._planner import CopyPlan
from strata.copies import ExpertCopies
from strata.settings import BatchSettings, Submission
from strata.streamer import ExpertStreamer
from strata.tools.replay.case import Case, InputError
from strata.tools.replay.passes import Checked, check_pass, timed_pass, warm_up
from strata.tools.replay.pools import Sources
from strata.tools.replay.report import Arm, ReplayReport
from strata.tools.replay.sharing import shared_counts

__all__ = ["make_arm", "replay"]

_NO_SETTINGS = BatchSettings()

Say = Callable[[str], None]


def replay(
    case: Case,
    settings: Sequence[BatchSettings] = (),
    *,
    pool_bytes: int = 2**30,
    repeat: int = 3,
    submission: Submission = "single",
    share: bool = False,
    separate_timing: bool = False,
    say: Say = lambda text: None,
) -> ReplayReport:
    """Stream a case at each of some settings, check every byte and every counter, and time it.

    Parameters
    ----------
    case : Case
    settings : sequence of BatchSettings, optional
        The arms; clamped to the case's rings. Default: those of the case, or 1/1/1 where it has none.
    pool_bytes : int, optional
        Bytes of the pinned and of the pageable pool of sources.
    repeat : int, optional
        Timed passes of each arm, 1 or more.
    submission : {"single", "group", "coalesced"}, optional
        How copies are submitted; see `strata.ExpertStreamer`.
    share : bool, optional
        With shared dependencies. What is counted follows from the plan then, and from a like request before: that comes
        first, in place of a short one.
    separate_timing : bool, optional
        Time without clocks inside, and split the stalls in one more pass of each arm. Default: the timed
        passes are split themselves, which costs them some readings of the clock an entry.
    say : callable, optional
        Called with a line of progress, often.

    Returns
    -------
    ReplayReport

    Raises
    ------
    InputError
        `repeat` or `pool_bytes` is below 1 or no integer; a pool cannot hold an entry.
    HipError, StrataError, MemoryError
        From streaming.

    Notes
    -----
    Each arm has a streamer of its own, and those of all arms are open while the arms take turns. A short
    request that uses every slot comes first, so that each pass finds the rings warmed.
    """
    for name, value in (("repeat", repeat), ("pool_bytes", pool_bytes)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} is {value!r:.60}; an integer from 1 is wanted")
    about = runtime.describe()
    say("filling the pools")
    sources = Sources(case, pool_bytes)
    copies = sources.copies
    wanted = list(settings) or list(case.arms.values()) or [_NO_SETTINGS]
    arms = [make_arm(case, asked, copies, submission, share) for asked in wanted]

    with ExitStack() as stack:
        streamers = [
            stack.enter_context(_warmed(case, arm.settings, copies, submission, share, not separate_timing))
            for arm in arms
        ]
        for arm, streamer in zip(arms, streamers, strict=True):
            arm.submission = streamer.submission
            checked = check_pass(streamer, sources, _counting(say, f"checking {arm.name}", len(case)))
            _note_check(arm, checked)
        for turn in range(repeat):
            for arm, streamer in zip(arms, streamers, strict=True):
                say(f"timing {arm.name}, pass {turn + 1} of {repeat}")
                seconds, counters = timed_pass(streamer, copies)
                arm.samples.append(seconds)
                arm.note_counters(counters)
                if not separate_timing:
                    arm.stalls.append(counters)
    if separate_timing:
        for arm in arms:
            say(f"splitting the stalls of {arm.name}")
            with _warmed(case, arm.settings, copies, submission, share, True) as streamer:
                _, counters = timed_pass(streamer, copies)
            arm.note_counters(counters)
            arm.stalls.append(counters)
    return ReplayReport(
        case=case,
        about=about,
        arms=arms,
        pool_bytes=sources.pool_bytes,
        distinct_sources=sources.distinct,
        repeat=repeat,
        separate_timing=separate_timing,
    )


def _counting(say: Say, what: str, entries: int) -> Callable[[int], None]:
    return lambda done: say(f"{what}: {done:,} of {entries:,} entries")


@contextmanager
def _warmed(
    case: Case, settings: BatchSettings, copies: ExpertCopies, submission: Submission, share: bool, timing: bool
) -> Iterator[ExpertStreamer]:
    try:
        streamer = ExpertStreamer(
            case.expert_bytes,
            gpu_ring=case.gpu_ring,
            host_ring=case.host_ring,
            settings=settings,
            timing=timing,
            submission=submission,
            share_dependencies=share,
        )
    except ValueError as problem:  # a ring that is larger than the device, say
        raise InputError(f"case {case.name!r} does not fit: {problem}") from None
    with streamer:
        if share:
            timed_pass(streamer, copies)
        else:
            warm_up(streamer, copies)
        yield streamer


def make_arm(
    case: Case, asked: BatchSettings, copies: ExpertCopies, submission: str = "single", share: bool = False
) -> Arm:
    """Make an arm, with what it must count: from the case where it was recorded, else from the plan."""
    merged = submission == "coalesced"
    settings = asked.clamped(case.gpu_ring, case.host_ring, merged=merged)
    recorded = None if share else case.expected(settings)
    jobs = copies.jobs()
    plan = CopyPlan(jobs, gpu_ring=case.gpu_ring, host_ring=case.host_ring, settings=settings, merged=merged)
    n = len(case)
    counts = shared_counts(plan, jobs) if share else plan.counts() | {"copied_waits": n, "used_records": n}
    arm = Arm(
        asked=asked,
        settings=settings,
        nbytes=case.nbytes,
        expected=dict(recorded if recorded is not None else counts if share else plan.counts()),
        recorded=recorded is not None,
        totals={
            "direct_copies": case.direct,
            "staged_copies": case.staged,
            "direct_bytes": case.direct * case.expert_bytes,
            "staged_bytes": case.staged * case.expert_bytes,
            "direct_copy_calls": case.direct,
            "staged_copy_calls": case.staged,
            "copied_waits": counts["copied_waits"],
            "used_records": counts["used_records"],
            "skipped": 0,
            "dropped": 0,
            "begin_waits": 0,
            "fence_errors": 0,
        },
    )
    if merged:
        del arm.totals["direct_copy_calls"]  # as few as the neighbours in the pool allow
    return arm


def _note_check(arm: Arm, checked: Checked) -> None:
    arm.counters = checked.counters
    arm.bytes_checked = checked.nbytes
    arm.bytes_wrong = checked.wrong
    arm.first_wrong = checked.first_wrong
    arm.note_counters(checked.counters)
