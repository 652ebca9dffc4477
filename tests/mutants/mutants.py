"""Faults to put into the core, one at a time: a line changed, or moved.

Each breaks a rule of docs/contract.md, and leaves the counters as they are where it can: what must be seen is the
lost order, not that something was counted less often.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MUTANTS", "Edit", "Mutant"]


@dataclass(frozen=True)
class Edit:
    """One place in a file.

    Attributes
    ----------
    old, new : str
        Whole lines as they are, and what comes in their place.
    """

    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """A fault of the core.

    Attributes
    ----------
    name : str
    file : str
        Under ``strata/``, or one of ``benchmarks/`` or ``examples/``.
    rule : str
        What it breaks.
    edits : tuple of Edit
        More than one where a line moves far.
    """

    name: str
    file: str
    rule: str
    edits: tuple[Edit, ...]

    @property
    def path(self) -> str:
        """The file from the root of the tree."""
        return self.file if self.file.startswith(("benchmarks/", "examples/")) else f"strata/{self.file}"

    @property
    def builds(self) -> bool:
        """Whether something has to be compiled."""
        return self.file.endswith(".pyx")

    @property
    def module(self) -> str:
        """The extension module to be built again."""
        return Path(self.file).stem

    def applied(self, text: str) -> str:
        """Return the file's text with the fault.

        Raises
        ------
        ValueError
            If some old text is not there exactly once: the core has changed, and the mutant must follow.
        """
        for edit in self.edits:
            found = [match.start() for match in re.finditer(f"^{re.escape(edit.old)}", text, re.MULTILINE)]
            if len(found) != 1:
                raise ValueError(
                    f"mutant {self.name!r}: found {len(found)} times, not once, in {self.path}:\n{edit.old}")
            text = text[: found[0]] + edit.new + text[found[0] + len(edit.old) :]
        return text


def _line(name: str, file: str, rule: str, old: str, new: str) -> Mutant:
    return Mutant(name, file, rule, (Edit(old + "\n", new + "\n"),))


def _moved(name: str, file: str, rule: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, file, rule, tuple(Edit(old, new) for old, new in edits))


_PLANNER, _GPU_RING, _HOST_RING = "_planner.pyx", "engine/gpu_ring.pyx", "engine/host_ring.pyx"
_ISSUER, _PIPELINE, _TEARDOWN = "engine/issuer.pyx", "engine/pipeline.pyx", "engine/teardown.pyx"
_CONSUMPTION = "engine/consumption.pyx"

MUTANTS: tuple[Mutant, ...] = (
    # Slots.
    _line(
        "reuse wait dropped", _PLANNER,
        "reuse wait: the copy stream waits for the kernels that read the slots before",
        "    status = _hip.stream_wait_event(ring.copy_stream, event)",
        "    status = _hip.HIP_SUCCESS",
    ),
    _line(
        "reuse looks at the terminal slot alone", _PLANNER,
        "reuse wait: on the most recently recorded `used` among the group's slots",
        "    cdef uintptr_t event = gpu_ring_latest_use(ring, begin, end, &order)",
        "    cdef uintptr_t event = gpu_ring_latest_use(ring, end - 1, end, &order)",
    ),
    _line(
        "reuse waits on the neighbour's use", _GPU_RING,
        "release: `used[i % gpu_ring]` covers the slot's own readers",
        "    use = ring.records << SLOT_BITS | <uint64_t>last",
        "    use = ring.records << SLOT_BITS | <uint64_t>((last + 1) % ring.size)",
    ),
    _line(
        "window one slot too wide", _PLANNER,
        "window: the first copy is submitted only when `e <= consumed + gpu_ring`",
        "    return group_end <= consumed + ring.window",
        "    return group_end <= consumed + ring.window + 1",
    ),
    _line(
        "window for the group's first slot alone", _ISSUER,
        "window: until the *end* of the group fits",
        "            if not issuer.consumed.wait(end - issuer.ring.window, issuer.control.stop, kForever):",
        "            if not issuer.consumed.wait(begin + 1 - issuer.ring.window, issuer.control.stop, kForever):",
    ),
    _moved(
        "consumed before used is recorded", _CONSUMPTION,
        "release: `used` is recorded, then `consumed = i + 1`",
        (
            "    status = gpu_ring_record_used(&p.ring, p.issuer.consumed.get(), end)\n",
            "    status = p.issuer.consumed.get()\n    _hip.announce_release(&p.issuer.consumed)\n"
            "    p.issuer.consumed.advance(end)\n    status = gpu_ring_record_used(&p.ring, status, end)\n",
        ),
        (
            "    p.pending = 0\n    _hip.announce_release(&p.issuer.consumed)\n    p.issuer.consumed.advance(end)\n",
            "    p.pending = 0\n",
        ),
    ),
    _line(
        "begin fence without its wait", _PIPELINE,
        "begin fence: lent slots are written only behind what is queued on the compute stream",
        "    status = _hip.stream_wait_event(p.ring.copy_stream, p.fence)",
        "    status = _hip.HIP_SUCCESS",
    ),
    _line(
        "begin fence on the new stream instead of the old", _PIPELINE,
        "begin fence: where the compute stream is another than the last request's, for the old one",
        "        step = _fence_on(p, p.last_compute_stream)",
        "        step = _fence_on(p, compute_stream)",
    ),
    # Publication.
    _moved(
        "copied recorded before the last copy", _ISSUER,
        "publication: `copied[t]` is recorded behind all copies of the group",
        (
            "        if not _copy_entry(issuer, command, i, staged, batched, at_once, counters):\n",
            "        if i + 1 == first + n and not _dependency(issuer, command.first_entry + first,\n"
            "                                                  command.first_entry + first + n, counters, False):\n"
            "            return False\n"
            "        if not _copy_entry(issuer, command, i, staged, batched, at_once, counters):\n",
        ),
        (
            "        if not _dependency(issuer, begin, end, counters, False):\n            return\n",
            "        pass\n",
        ),
    ),
    _moved(
        "published before the record", _ISSUER,
        "publication: `copied[t]` is recorded, then `issued = e`",
        (
            "        if not _dependency(issuer, begin, end, counters, False):\n            return\n"
            "        _hip.announce_release(&issuer.issued)\n        issuer.issued.advance(end)\n",
            "        _hip.announce_release(&issuer.issued)\n        issuer.issued.advance(end)\n"
            "        if not _dependency(issuer, begin, end, counters, False):\n            return\n",
        ),
    ),
    _line(
        "a group with a failed call is published", _ISSUER,
        "publication: a group with a failed copy or record is never published",
        "    return False\n\n\ncdef bint _dependency(Issuer* issuer, int64_t begin, int64_t end, KindCounters* counters,",
        "    return True\n\n\ncdef bint _dependency(Issuer* issuer, int64_t begin, int64_t end, KindCounters* counters,",
    ),
    _line(
        "acquire waits on the entry's own slot", _CONSUMPTION,
        "acquire: the compute stream waits on `copied[t]` of the terminal",
        "    status = _hip.stream_wait_event(p.ring.compute_stream, p.ring.copied[(group_end - 1) % p.ring.size])",
        "    status = _hip.stream_wait_event(p.ring.compute_stream, p.ring.copied[last % p.ring.size])",
    ),
    _line(
        "acquire without its wait", _CONSUMPTION,
        "acquire: the compute stream waits on `copied[t]`",
        "    status = _hip.stream_wait_event(p.ring.compute_stream, p.ring.copied[(group_end - 1) % p.ring.size])",
        "    status = _hip.HIP_SUCCESS",
    ),
    _line(
        "a direct group one longer than its batch", _PLANNER,
        "groups: never longer than its batch",
        "            limit = min(min(limits.copy_batch, limits.gpu_ring - slot), n - i)",
        "            limit = min(min(limits.copy_batch + 1, limits.gpu_ring - slot), n - i)",
    ),
    # Host buffers.
    _line(
        "buffer released at issue", _HOST_RING,
        "host ring: `dma_done` must have *completed*; that the copy was issued is not enough",
        "    status = _hip.event_synchronize(ring.dma_done[(end - 1) % ring.size])",
        "    status = _hip.HIP_SUCCESS",
    ),
    _line(
        "an ownership group counts as issued one too early", _HOST_RING,
        "host ring: the group must have been issued to its end",
        "    ring.dma_published.advance(end)",
        "    ring.dma_published.advance(end + ring.stage_batch)",
    ),
    _line(
        "a buffer's event recorded again before its worker has waited", _ISSUER,
        "host ring: ready before re-record",
        "    if not host_ring_wait_ready(issuer.host, command.jobs[index], kForever):",
        "    if command.jobs[index] >= issuer.host.size:\n"
        "        _hip.event_record(issuer.host.dma_done[command.jobs[index] % issuer.host.size],\n"
        "                          issuer.ring.copy_stream)\n"
        "    if not host_ring_wait_ready(issuer.host, command.jobs[index], kForever):",
    ),
    _moved(
        "ready before the bytes are gathered", _HOST_RING,
        "a staged entry is copied once a worker has gathered it",
        (
            "    if take_entry(worker.command, index) and not _gather(worker, worker.command, index, ring.buffers[job % ring.size]):\n"
            "        return\n"
            "    if ring.timing:\n        add_shared(ring.counters.host_memcpy_ns, now_ns() - began)\n"
            "    _hip.announce_release(&ring.ready[job % ring.size])\n    ring.ready[job % ring.size].advance(job + 1)\n",
            "    _hip.announce_release(&ring.ready[job % ring.size])\n    ring.ready[job % ring.size].advance(job + 1)\n"
            "    if take_entry(worker.command, index) and not _gather(worker, worker.command, index, ring.buffers[job % ring.size]):\n"
            "        return\n"
            "    if ring.timing:\n        add_shared(ring.counters.host_memcpy_ns, now_ns() - began)\n",
        ),
    ),
    _line(
        "gaps between segments keep another expert's bytes", _HOST_RING,
        "copies: bytes of the slot between the segments of a staged entry are zeros",
        "        memset(<void*>(buffer + <uintptr_t>done), 0, n)",
        "        pass",
    ),
    _line(
        "fence skipped", _HOST_RING,
        "host ring: at the end, `dma_done` is recorded for what was submitted: one fence",
        "    ring.end_status = _hip.event_record(ring.dma_done[ring.end_event], ring.stream)",
        "    ring.end_status = _hip.HIP_SUCCESS",
    ),
    # Ends.
    _line(
        "abort without draining the copy stream", _ISSUER,
        "failures: sources stay alive until the copy stream was drained",
        "    if issuer.dirty.load(memory_order_relaxed) == 0:",
        "    if issuer.dirty.load(memory_order_relaxed) == 0 or issuer.control.stop.load(memory_order_acquire):",
    ),
    _line(
        "finish without draining the copy stream", _TEARDOWN,
        "ends: nothing reads a source or writes a slot any more",
        "    status = _hip.stream_query(p.ring.copy_stream)",
        "    status = _hip.HIP_SUCCESS",
    ),
    _line(
        "abort without a record for held slots", _CONSUMPTION,
        "ends: slots that the engine holds get their `used` record",
        "            status = gpu_ring_record_used(&p.ring, at, end)",
        "            status = _hip.HIP_SUCCESS",
    ),
    _line(
        "close without waiting for the last readers", _ISSUER,
        "ends: owned slots are freed once their last use has completed",
        "            issuer.finish_status = gpu_ring_wait_uses(issuer.ring)",
        "            issuer.finish_status = _hip.HIP_SUCCESS",
    ),
    # Shared dependencies.
    _line(
        "a reuse wait shared with an earlier use", _PLANNER,
        "sharing: none where the copy stream has waited for this use or a later one",
        "    if ring.share and order <= ring.waited_order:",
        "    if ring.share and order <= ring.waited_order + 1:",
    ),
    _line(
        "a copied wait shared with the group before", _CONSUMPTION,
        "sharing: none where the compute stream has waited on the entry's group or a later one",
        "    if p.ring.share and last < p.waited:",
        "    if p.ring.share and last <= p.waited:",
    ),
    _line(
        "pending recorded one entry too far", _CONSUMPTION,
        "sharing: one record for what was released, and no more",
        "    return _record(p, p.released)",
        "    return _record(p, min(p.released + 1, p.acquired))",
    ),
    _line(
        "abort without a record for what is pending", _CONSUMPTION,
        "sharing: finish and abort record what is pending",
        "    cdef int64_t reads = p.pending",
        "    cdef int64_t reads = 0",
    ),
    _line(
        "host waits shared before they are over", _HOST_RING,
        "sharing: the others wait for what the first one found",
        "        if not ring.dma_found[(end - 1) % ring.size].wait(end, ring.control.stop, kForever):",
        "        if ring.control.stop.load(memory_order_acquire):",
    ),
    # Dropped entries.
    _line(
        "a dropped job published at once", _HOST_RING,
        "drop: a dropped job has its turn at the buffer",
        "    if job >= ring.size:",
        "    if job >= ring.size and take_entry(worker.command, index):",
    ),
    _line(
        "a dropped job not awaited", _ISSUER,
        "drop: the issuer waits for `ready` of every job",
        "        if staged and not batched and not _await_source(issuer, command, i):",
        "        if (staged and not batched and command.marks[i].load(memory_order_acquire) != 1\n"
        "                and not _await_source(issuer, command, i)):",
    ),
    _line(
        "a group of dropped entries without its record", _ISSUER,
        "drop: every group keeps its record and its publication",
        "        if not _dependency(issuer, begin, end, counters, False):",
        "        if entry_is_taken(command, begin - command.first_entry) and not _dependency(issuer, begin, end, counters, False):",
    ),
    _line(
        "a dropped job without its dma_done", _ISSUER,
        "drop: every job is submitted to the ownership bookkeeping",
        "        if staged and not batched and not _submitted(issuer, command, i):",
        "        if staged and not batched and entry_is_taken(command, i) and not _submitted(issuer, command, i):",
    ),
    # Spans and submission.
    _line(
        "a span waits on its first group", _CONSUMPTION,
        "spans: one wait, on the last group's `copied`",
        "        step = _await_bytes(p, begin + n - 1, _group_end(command, begin + n - 1))",
        "        step = _await_bytes(p, begin, _group_end(command, begin))",
    ),
    _line(
        "a span's record covers its last slot alone", _GPU_RING,
        "spans: one record, the last use of each of its slots",
        "    for s in range(first, last + 1):",
        "    for s in range(last, last + 1):",
    ),
    _line(
        "neighbours merged across regions", _ISSUER,
        "submission: within one source region",
        "        if (region >= 0 and region == pieces.region and src == pieces.src + <uintptr_t>pieces.nbytes",
        "        if (src == pieces.src + <uintptr_t>pieces.nbytes",
    ),
    _line(
        "neighbours merged across lent slots", _ISSUER,
        "submission: within one allocation of slots",
        "                and (slot == pieces.slot or issuer.ring.one_allocation)):",
        "                ):",
    ),
)
