"""The configurations of the proof: small ones of each kind."""

from __future__ import annotations

from dataclasses import replace

from strata.settings import BatchSettings
from tests.proof.prover.configuration import Configuration, Pass

__all__ = ["quick_suite", "suite"]

_BATCHES = (BatchSettings(1, 1, 1), BatchSettings(2, 2, 2), BatchSettings(4, 3, 4))
_SINGLE, _PAIRS, _LARGE = _BATCHES
_SHARED = "shared: "
_QUICK_SHARED = ("direct and staged mixed", "spans", "slots held")
_RINGS = tuple((gpu, host) for gpu in (4, 8) for host in (3, 4))


def _mixed(length: int) -> str:
    return ("dddsssssddsdss" * 2)[:length]


def suite() -> list[Configuration]:
    """Every kind, with GPU rings of 4 and 8, host rings of 3 and 4, several batches."""
    plain = [*_kinds_of_lists(), *_hosts(), *_requests(), *_engines()]
    return [*plain, *_stagers(), *_sharing(plain)]


def quick_suite() -> list[Configuration]:
    """One configuration of each kind, the smallest of those with the largest batches; of the shared ones a few."""
    smallest: dict[str, Configuration] = {}
    for configuration in suite():
        kind = configuration.kind
        if kind.startswith(_SHARED) and kind.removeprefix(_SHARED) not in _QUICK_SHARED:
            continue
        if _rank(configuration) < _rank(smallest.setdefault(kind, configuration)):
            smallest[kind] = configuration
    return list(smallest.values())


def _kinds_of_lists() -> list[Configuration]:
    made = []
    for batches in _BATCHES:
        for gpu in (4, 8):
            passes = (Pass(("d" * (2 * gpu + 3),)), Pass(("d" * (gpu + 1),)))
            made.append(Configuration("direct", gpu, 3, batches, passes))
        for gpu, host in _RINGS:
            long, second = 2 * gpu + 1, gpu + 2
            made.append(Configuration("staged, pinned buffers", gpu, host, batches,
                                      (Pass(("s" * long,)), Pass(("s" * second,)))))
            made.append(Configuration("direct and staged mixed", gpu, host, batches,
                                      (Pass((_mixed(long),)), Pass((_mixed(second)[::-1],)))))
    return made


def _hosts() -> list[Configuration]:
    made = []
    for gpu, host in _RINGS:
        batches = _LARGE if gpu == 8 else _PAIRS
        passes = (Pass(("s" * (gpu + 3),)), Pass((_mixed(gpu + 1),)))
        made.append(Configuration("staged, pageable buffers", gpu, host, batches, passes, pinned_buffers=0))
        made.append(Configuration("staged, some buffers pageable", gpu, host, batches, passes, pinned_buffers=2))
    for batches in (_SINGLE, _PAIRS, _LARGE):
        passes = (Pass(("s" * 11,)), Pass((_mixed(10),)))
        made.append(Configuration("staged, two workers", 4, 4, batches, passes, workers=2))
    for gpu, host in _RINGS:
        passes = (Pass(("s" * (gpu + 5),)), Pass((_mixed(gpu + 3),)))
        made.append(Configuration("staged, engine far behind", gpu, host, _SINGLE if gpu == 4 else _LARGE, passes,
                                  ahead=True))
    return made


def _requests() -> list[Configuration]:
    made = []
    for batches in (_PAIRS, _LARGE):
        for letters in ("d" * 14, _mixed(14)):
            passes = (Pass((letters,)), Pass((letters[:3],)), Pass((letters[:11],)), Pass((letters[:2],)),
                      Pass((letters[:9],)))
            made.append(Configuration("short after long, long after short", 8, 4, batches, passes))
        made.append(Configuration("short after long, long after short", 8, 4, batches, (
            Pass(("d" * 10,)), Pass(("ddss",), long_prefill=False), Pass((_mixed(9),)))))
    for batches, gpu in ((_SINGLE, 4), (_PAIRS, 8), (_LARGE, 8)):
        for letters in ("d" * 14, _mixed(14)):
            made.append(Configuration("lent slots", gpu, 3, batches, (
                Pass((letters[:gpu + 3],)), Pass((letters[:gpu - 2],)), Pass((letters[:gpu + 1],))), lent=True))
    for batches in _BATCHES:
        made.append(Configuration("another compute stream", 8, 4, batches, (
            Pass(("d" * 10,)), Pass(("dd",), stream=1), Pass(("d" * 9,), stream=1), Pass((_mixed(9),)))))
    made.append(Configuration("another compute stream", 4, 3, _PAIRS, (
        Pass((_mixed(7),)), Pass((_mixed(6),), stream=1), Pass((_mixed(5),))), lent=True))
    for batches, gpu in ((_SINGLE, 4), (_LARGE, 8)):
        made.append(Configuration("extensions", gpu, 4, batches, (
            Pass(("ddd", "sssss", "d", "dssd")), Pass(("s", "dd", "sss", "dddd")))))
    for batches, gpu in ((_SINGLE, 4), (_PAIRS, 4), (_LARGE, 8)):
        for letters in ("d" * 14, "s" * 14, _mixed(14)):
            made.append(Configuration("aborted, and begun at once", gpu, 4, batches, (
                Pass((letters,), stop_at=3, held=1), Pass((letters[:gpu + 2],))), ahead=True))
    for batches, gpu in ((_SINGLE, 4), (_LARGE, 8)):
        made.append(Configuration("engine waits before it finishes", gpu, 3, batches, (
            Pass((_mixed(gpu + 3),), drains=True), Pass(("d" * (gpu + 1),), drains=True))))
    return made


def _engines() -> list[Configuration]:
    made = []
    for batches, gpu in ((_SINGLE, 4), (_PAIRS, 8), (_LARGE, 8)):
        skips = (1, 2, 4, 5, 6, 7, 9)
        made.append(Configuration("skipped entries", gpu, 3, batches, (
            Pass(("d" * 12,), skips=skips), Pass((_mixed(11),), skips=(0, 3, 4, 5)))))
    for batches, gpu in ((_SINGLE, 4), (_LARGE, 8)):
        made.append(Configuration("slots held", gpu, 4, batches, (
            Pass((_mixed(gpu + 4),), held=gpu - batches.copy_batch, skips=(2,)), Pass(("d" * (gpu + 2),), held=1))))
    # What is pending is part of a group when the next group is asked for.
    made.append(Configuration("slots held", 8, 4, _LARGE, (Pass(("d" * 12,), held=5), Pass(("ddd",)))))
    for batches, gpu in ((_SINGLE, 4), (_PAIRS, 5), (_LARGE, 8)):
        made.append(Configuration("spans", gpu, 4, batches, (
            Pass((_mixed(gpu + 3), "ddd"), span=3), Pass((_mixed(gpu + 2),), span=gpu, held=1),
            Pass(("d" * (gpu + 1),), span=2, held=1))))
        made.append(Configuration("spans", gpu, 4, batches, (
            Pass((_mixed(gpu + 3),), span=2, held=1, stop_at=4), Pass(("dds",), span=3)), ahead=True))
    made.append(Configuration("several segments", 4, 3, _PAIRS, (Pass(("DDDSSSDdsS",)), Pass(("DSDSDS",)))))
    made.append(Configuration("group submission", 8, 3, _LARGE, (Pass(("d" * 12 + "sss",)), Pass(("DDDDdddddd",))),
                              submission="group"))
    return made


def _sharing(plain: list[Configuration]) -> list[Configuration]:
    """The smallest of each kind with the smallest and with the largest batches again, with shared dependencies."""
    chosen: dict[tuple[str, bool, bool], Configuration] = {}
    for configuration in plain:
        key = (configuration.kind, configuration.settings == _SINGLE, configuration.ahead)
        kept = chosen.setdefault(key, configuration)
        if _rank(configuration) < _rank(kept):
            chosen[key] = configuration
    return [replace(c, kind=f"{_SHARED}{c.kind}", share=True) for c in chosen.values()]


def _rank(configuration: Configuration) -> tuple[int, int]:
    """Large batches first, then few entries."""
    return -configuration.settings.copy_batch, sum(len(p.entries) for p in configuration.passes)


def _stagers() -> list[Configuration]:
    made = []
    for host in (3, 4):
        for batches in _BATCHES:
            made.append(Configuration("host stager alone", 0, host, batches,
                                      (Pass(("s" * 10,)), Pass(("s" * 5,)), Pass(("s" * 7,)))))
            made.append(Configuration("host stager alone, ended early", 0, host, batches, (
                Pass(("s" * 10,), stop_at=5), Pass(("s" * 6,), stop_at=1), Pass(("s" * 6,)))))
    return made
