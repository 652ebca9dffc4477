"""What is measured: sizes of expert, and for each the cases of all peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["FOREIGN", "PEERS", "SIZES", "SLOTS", "TWO_LAYERS", "Case", "Size", "all_cases", "bank_columns", "in_order",
           "mixed_split"]

#: Slots at equal memory, and of the peers that are also run with two layers of 128 experts.
SLOTS = 96
TWO_LAYERS = 256

#: Direct and staged entries of the reference request: mixed cases keep this proportion.
REFERENCE_DIRECT, REFERENCE_STAGED = 13_938, 5_713

#: The modules of `benchmarks.gpu.peers`, in the order of the report.
PEERS = ("bare", "strata_ring", "torch_ring", "double_buffer", "freetoken_cache", "diffusers_offload",
         "accelerate_offload")

#: Peers that are packages of others: run last, since what they leave behind in a process may disturb.
FOREIGN = ("freetoken_cache", "diffusers_offload", "accelerate_offload")

#: Whole layers of 48 (two of them fill 96 slots) and of 128 experts divide every pool.
GRANULE = 384


@dataclass(frozen=True)
class Size:
    """A size of expert and how much memory is streamed from.

    Parameters
    ----------
    nbytes : int
        Bytes of an expert.
    hidden : int
        Columns of its bf16 matrix, for the consumer that multiplies.
    pinned, pageable : int
        Experts in the pools; multiples of 384.
    mixed : int
        Entries of the mixed list.
    sequential : int
        Experts for peers that take milliseconds for each.
    """

    nbytes: int
    hidden: int
    pinned: int
    pageable: int
    mixed: int
    sequential: int

    @property
    def name(self) -> str:
        """The size in bytes, as text."""
        return str(self.nbytes)

    def reduced(self) -> Size:
        """The same size with small pools, for a trial run."""
        return Size(self.nbytes, self.hidden, min(self.pinned, 2 * GRANULE), GRANULE,
                    min(self.mixed, 2 * GRANULE), min(self.sequential, 96))


#: The reference expert first: if time runs out, the others are lost.
SIZES = (
    Size(1_382_400, 640, 4608, 2304, 6550, 768),
    Size(65_536, 64, 24_576, 12_288, 24_576, 768),
    Size(8_388_608, 2048, 768, 384, 768, 96),
)


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    Parameters
    ----------
    peer : str
        Module of `benchmarks.gpu.peers`.
    variant : str
        What distinguishes it from the peer's other cases, for reading.
    size : int
        Bytes of an expert.
    memory : {"pinned", "pageable", "mixed"}
        Where the sources lie.
    consumer : {"null", "kernel", "matvec", "host"}
        What is done with an expert on the device; *host* measures host time alone.
    entries : int
        Experts streamed in one pass.
    slots : int
        Experts' worth of GPU memory; 0 where the peer has no such notion.
    options : dict
        What the peer's module makes of the variant.
    """

    peer: str
    variant: str
    size: int
    memory: str
    consumer: str
    entries: int
    slots: int = SLOTS
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A name that no other case has."""
        return f"{self.peer} | {self.variant} | {self.size} | {self.memory} | {self.consumer} | {self.slots}"

    def as_dict(self) -> dict[str, Any]:
        """The case as plain data."""
        return asdict(self)


def mixed_split(entries: int) -> tuple[int, int]:
    """Direct and staged entries of a mixed list of this length, in the reference request's proportion."""
    direct = round(entries * REFERENCE_DIRECT / (REFERENCE_DIRECT + REFERENCE_STAGED))
    return direct, entries - direct


def bank_columns(nbytes: int, hidden: int) -> tuple[int, int]:
    """Columns of the intermediate layer in the gate_up and in the down bank.

    The same number, where an expert is three bf16 matrices of ``hidden`` columns; else the down bank takes the
    remainder, so that an expert has exactly its bytes.

    Raises
    ------
    ValueError
        If the bytes are no whole number of rows.
    """
    rows, rest = divmod(nbytes, 2 * hidden)
    if rest or rows < 3:
        raise ValueError(f"{nbytes} bytes are no three bf16 matrices of {hidden} columns")
    gate = rows // 3
    return gate, rows - 2 * gate


SINGLE, SHORT, EIGHT, LONG = (1, 1, 1), (8, 4, 4), (8, 16, 16), (32, 16, 16)


def _strata(size: Size, memory: str, consumer: str, settings: tuple[int, int, int], entries: int, *,
            workers: int = 8, group: bool = False, engine: str = "Python", host_ring: int = 16) -> Case:
    text = "/".join(map(str, settings)) + (" group" if group else "")
    if memory != "pinned":
        text += f", {workers} worker{'s' if workers > 1 else ''}"
    if host_ring != 16:
        text += f", host ring {host_ring}"
    if engine != "Python":
        text += f", {engine} engine"
    return Case("strata_ring", text, size.nbytes, memory, consumer, entries, SLOTS,
                {"settings": list(settings), "workers": workers, "submission": "group" if group else "single",
                 "engine": engine, "host_ring": host_ring})


def _strata_cases(size: Size, main: bool) -> list[Case]:
    arms = [(s, False) for s in (SINGLE, EIGHT, LONG)] + [(s, True) for s in (EIGHT, LONG)]
    cases = []
    for settings, group in arms:
        for engine in ("Python", "compiled"):
            cases.append(_strata(size, "pinned", "null", settings, size.pinned, group=group, engine=engine))
        if main or settings != LONG:
            cases.append(_strata(size, "pinned", "kernel", settings, size.pinned, group=group))
    for workers in (8, 4, 2, 1):
        cases.append(_strata(size, "pageable", "null", EIGHT, 2 * size.pageable, workers=workers))
    for settings, group in ((SINGLE, False), (LONG, False), (EIGHT, True)):
        cases.append(_strata(size, "pageable", "null", settings, 2 * size.pageable, group=group))
    # A batch as long as the host ring leaves the workers nothing to fill while its copies run: shorter batches,
    # and a deeper ring, beside it. Host memory, not the GPU's.
    for settings, host_ring in ((SHORT, 16), (EIGHT, 64), (SINGLE, 64)):
        for group in (False, True)[:2 if settings == EIGHT else 1]:
            cases.append(_strata(size, "pageable", "null", settings, 2 * size.pageable, host_ring=host_ring,
                                 group=group))
    cases.append(_strata(size, "mixed", "null", EIGHT, size.mixed, host_ring=64, group=True))
    cases.append(_strata(size, "mixed", "kernel", EIGHT, size.mixed, host_ring=64, group=True))
    cases.append(_strata(size, "pageable", "null", EIGHT, 2 * size.pageable, engine="compiled"))
    cases.append(_strata(size, "pageable", "kernel", EIGHT, 2 * size.pageable))
    for settings, group in ((SINGLE, False), (EIGHT, False), (EIGHT, True))[0 if main else 1:]:
        for consumer in ("null", "kernel"):
            cases.append(_strata(size, "mixed", consumer, settings, size.mixed, group=group))
    if main:
        for memory, entries in (("pinned", size.pinned), ("mixed", size.mixed)):
            for settings, group in ((SINGLE, False), (EIGHT, False), (EIGHT, True)):
                cases.append(_strata(size, memory, "matvec", settings, entries, group=group))
    return cases


def _host_cases(size: Size) -> list[Case]:
    """Host time of an entry where nothing makes the host wait: a ring longer than the list."""
    n = 512
    cases = [_with_slots(_strata(size, "pinned", "host", settings, n, group=group), n + 1)
             for settings, group in ((SINGLE, False), (EIGHT, False), (LONG, False), (EIGHT, True), (LONG, True))]
    return [*cases, Case("torch_ring", "ring", size.nbytes, "pinned", "host", n, n + 1)]


def _with_slots(case: Case, slots: int) -> Case:
    return Case(case.peer, case.variant, case.size, case.memory, case.consumer, case.entries, slots, case.options)


def all_cases(size: Size) -> list[Case]:
    """Every case of a size, in the order of the report: what others are compared with comes first."""
    main = size.nbytes == SIZES[0].nbytes
    consumers = ["null", "kernel"] + (["matvec"] if main else [])

    def case(peer: str, variant: str, memory: str, consumer: str, entries: int, slots: int = SLOTS,
             **options: Any) -> Case:
        return Case(peer, variant, size.nbytes, memory, consumer, entries, slots, options)

    cases = [
        case("bare", "one large copy", "pinned", "null", size.pinned, 0, how="large"),
        case("bare", "loop of copies", "pinned", "null", size.pinned, how="loop"),
        case("bare", "loop of torch's copy_", "pinned", "null", size.pinned, how="torch"),
    ]
    torch_ring = [case("torch_ring", "ring", "pinned", consumer, size.pinned) for consumer in consumers]
    torch_ring += [case("torch_ring", "ring", "pageable", consumer, size.pageable) for consumer in ("null", "kernel")]
    torch_ring += [case("torch_ring", "ring", "mixed", consumer, size.mixed) for consumer in consumers]
    cases += torch_ring
    cases += _strata_cases(size, main)
    if size.nbytes == 65_536:
        cases += _host_cases(size)
    for slots in (TWO_LAYERS, SLOTS):
        for whole in (False, True):
            text = "one copy a layer" if whole else "one copy an expert"
            cases += [case("double_buffer", text, "pinned", consumer, size.pinned, slots, whole=whole)
                      for consumer in consumers]
    cases += [case("double_buffer", "one copy an expert", "pageable", consumer, size.pageable, TWO_LAYERS, whole=False)
              for consumer in ("null", "kernel")]
    cases.append(case("bare", "loop of copies, again at the end", "pinned", "null", size.pinned, how="loop"))
    for slots in (SLOTS, TWO_LAYERS):
        cases += [case("freetoken_cache", "prefill", "pinned", consumer, size.pinned, slots)
                  for consumer in consumers]
    layered = min(size.pinned, 6 * GRANULE)
    for slots in (SLOTS, TWO_LAYERS):
        cases += [case("diffusers_offload", "groups, stream, record_stream", "pinned", consumer, layered, slots,
                       record_stream=True) for consumer in consumers]
    cases.append(case("diffusers_offload", "groups, stream", "pinned", "kernel", layered, SLOTS, record_stream=False))
    cases += [case("accelerate_offload", "a module an expert", memory, consumer, size.sequential, 1)
              for memory, consumer in (("pinned", "null"), ("pinned", "kernel"), ("pageable", "null"))]
    return cases


def in_order(sizes: Sequence[Size], only: Sequence[str]) -> list[Case]:
    """The cases of these sizes and peers in the order in which they are run: foreign packages last."""
    cases = [case for size in sizes for case in all_cases(size) if case.peer in only]
    return sorted(cases, key=lambda case: case.peer in FOREIGN)
