"""What a streamer or a request did, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

__all__ = ["Counters"]

#: Counted for direct and for staged entries apart, in the order of the table.
_KINDS = ("copies", "copy_calls", "bytes", "copied_records", "reuse_waits", "reuse_waits_shared")

#: Sections of the printed table: title -> (label, attribute).
_SECTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "host ring": (
        ("dma_done_records", "dma_done_records"),
        ("host_reuse_waits", "host_reuse_waits"),
        ("host shared", "host_reuse_waits_shared"),
        ("fences", "fences"),
        ("fence_errors", "fence_errors"),
        ("pageable_buffers", "pageable_buffers"),
    ),
    "engine": (
        ("copied_waits", "copied_waits"),
        ("copied shared", "copied_waits_shared"),
        ("used_records", "used_records"),
        ("used shared", "used_records_shared"),
        ("skipped", "skipped"),
        ("begin_waits", "begin_waits"),
        ("dropped", "dropped"),
        ("dropped_bytes", "dropped_bytes"),
        ("dropped_late", "dropped_late"),
        ("batch_calls", "batch_calls"),
        ("refused_batches", "refused_batches"),
    ),
    "seconds": (
        ("copy wait", "wait_publication_s"),
        ("window", "wait_window_s"),
        ("staged source", "wait_source_s"),
        ("host-buffer reuse", "wait_host_reuse_s"),
        ("host memcpy", "host_memcpy_s"),
        ("submission", "submission_s"),
        ("dependency calls", "dependency_calls_s"),
        ("wall", "wall_s"),
    ),
}


@dataclass(frozen=True)
class Counters:
    """A snapshot of counters: operations of the application, not of the hardware's buses.

    Counts are always on and exact. Seconds are counted only with timing on, else they are 0. Snapshots are
    immutable, may be shared between threads, and can be subtracted and added: ``after - before`` is what
    happened in between.

    Attributes
    ----------
    direct_copies, staged_copies : int
        Entries whose copies were submitted, empty ones too. A direct entry is read where it lies, in pinned
        memory; a staged one goes through the host ring.
    direct_copy_calls, staged_copy_calls : int
        Host-to-device copies submitted: one a segment of a direct entry, one a staged entry; none for
        zero bytes; neighbours that became one copy are one.
    direct_bytes, staged_bytes : int
        Payload bytes of these entries.
    direct_copied_records, staged_copied_records : int
        ``copied`` events recorded, one a copy group.
    direct_reuse_waits, staged_reuse_waits : int
        Waits of the copy stream for a ``used`` event before a copy group overwrites its slots; none for a
        group whose slots are all fresh.
    direct_reuse_waits_shared, staged_reuse_waits_shared : int
        Groups whose latest use the copy stream had waited for before, so that they needed no wait of their own.
        Like the other counters of this name only with ``share_dependencies``.
    dma_done_records : int
        ``dma_done`` events recorded where a job ended its ownership group.
    host_reuse_waits : int
        Waits of a worker before it writes into a host buffer that an earlier job of the request used.
    host_reuse_waits_shared : int
        Times that a worker took over what another one had waited for.
    fences : int
        Extra ``dma_done`` records at a request's end, for a last ownership group that was not full.
    fence_errors : int
        Fences that could not be recorded.
    pageable_buffers : int
        Buffers of the host ring that could not be pinned.
    copied_waits : int
        Waits of the compute stream for a ``copied`` event, one an acquired entry or span.
    copied_waits_shared : int
        Entries and spans that were acquired without one, behind a wait that covers them.
    used_records : int
        ``used`` events recorded, those of skipped and of aborted entries included; one a span.
    used_records_shared : int
        Entries, spans and skips whose use another one's record covers.
    skipped : int
        Entries that the engine skipped.
    begin_waits : int
        Waits of the copy stream for work that was queued on compute streams before a request began.
    dropped : int
        Entries that were dropped in time: nothing of them was gathered or copied. Together with ``direct_copies`` and
        ``staged_copies`` they are the entries that the issuer has reached.
    dropped_bytes : int
        Their payload bytes.
    dropped_late : int
        Entries whose drop came too late: they are copied all the same, and passed over.
    batch_calls : int
        Calls that submitted several copies at once; ``copy_calls`` counts the copies.
    refused_batches : int
        Groups whose batch call the runtime refused as not supported: their copies were submitted one by one.
    wait_publication_s : float
        Seconds the engine's thread waited for an entry to be published ("copy wait").
    wait_window_s : float
        Seconds the issuer waited for the engine to consume entries, so that a group's slots come free.
    wait_source_s : float
        Seconds the issuer waited for a staged entry's host buffer to be filled.
    wait_host_reuse_s : float
        Seconds the workers, taken together, waited for host buffers to come free.
    host_memcpy_s : float
        Seconds the workers, taken together, copied from pageable sources into host buffers.
    submission_s : float
        Seconds in calls that submit copies.
    dependency_calls_s : float
        Seconds in calls that record events or queue waits for them.
    wall_s : float
        Seconds from a request's begin to its end.
    """

    # In the order of the engine's block: strata/engine/counters.pxd.
    direct_copies: int = 0
    direct_copy_calls: int = 0
    direct_bytes: int = 0
    direct_copied_records: int = 0
    direct_reuse_waits: int = 0
    direct_reuse_waits_shared: int = 0
    staged_copies: int = 0
    staged_copy_calls: int = 0
    staged_bytes: int = 0
    staged_copied_records: int = 0
    staged_reuse_waits: int = 0
    staged_reuse_waits_shared: int = 0
    dma_done_records: int = 0
    host_reuse_waits: int = 0
    fences: int = 0
    fence_errors: int = 0
    pageable_buffers: int = 0
    copied_waits: int = 0
    used_records: int = 0
    skipped: int = 0
    begin_waits: int = 0
    host_reuse_waits_shared: int = 0
    copied_waits_shared: int = 0
    used_records_shared: int = 0
    dropped: int = 0
    dropped_bytes: int = 0
    dropped_late: int = 0
    batch_calls: int = 0
    refused_batches: int = 0
    wait_publication_s: float = 0.0
    wait_window_s: float = 0.0
    wait_source_s: float = 0.0
    wait_host_reuse_s: float = 0.0
    host_memcpy_s: float = 0.0
    submission_s: float = 0.0
    dependency_calls_s: float = 0.0
    wall_s: float = 0.0

    def as_dict(self) -> dict[str, int | float]:
        """The counters as a new dict, attribute name to value, in the order of the attributes."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def matches(self, expected: Mapping[str, int | float]) -> dict[str, tuple[int | float, int | float]]:
        """Compare some counters with what they should be.

        Parameters
        ----------
        expected : mapping of str to number
            Counter name to expected value; counters that it does not name are not compared.

        Returns
        -------
        dict of str to (actual, expected)
            One item for each counter that differs: empty where all of them match.

        Raises
        ------
        TypeError
            `expected` is no mapping.
        ValueError
            `expected` names something that is no counter.
        """
        if not isinstance(expected, Mapping):
            raise TypeError(f"expected is {expected!r}; a mapping of counter names to numbers is wanted")
        actual = self.as_dict()
        unknown = [name for name in expected if name not in actual]
        if unknown:
            raise ValueError(f"expected names {unknown[0]!r}: one of {', '.join(actual)} is allowed")
        return {name: (actual[name], value) for name, value in expected.items() if actual[name] != value}

    def __add__(self, other: object) -> Counters:
        if not isinstance(other, Counters):
            return NotImplemented
        theirs = other.as_dict()
        return Counters(**{name: value + theirs[name] for name, value in self.as_dict().items()})  # type: ignore[arg-type]

    def __sub__(self, other: object) -> Counters:
        if not isinstance(other, Counters):
            return NotImplemented
        theirs = other.as_dict()
        return Counters(**{name: value - theirs[name] for name, value in self.as_dict().items()})  # type: ignore[arg-type]

    def __str__(self) -> str:
        """A table for reading: direct and staged side by side, then host ring, engine, seconds."""
        rows = [("", "direct", "staged")]
        rows += [
            (kind, f"{getattr(self, f'direct_{kind}'):,}", f"{getattr(self, f'staged_{kind}'):,}")
            for kind in _KINDS
        ]
        for title, names in _SECTIONS.items():
            if title == "seconds" and not any(getattr(self, attribute) for _, attribute in names):
                rows.append((title, "none counted", ""))  # timing is off, or nothing has ended yet
                continue
            rows.append((title, "", ""))
            for label, attribute in names:
                value = getattr(self, attribute)
                text = f"{value:.6f}" if title == "seconds" else f"{value:,}"
                rows.append(("  " + label, text, ""))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return "\n".join(
            f"{label:<{widths[0]}}  {first:>{widths[1]}}  {second:>{widths[2]}}".rstrip()
            for label, first, second in rows
        )
