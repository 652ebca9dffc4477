"""What a proof runs: small lists, small rings, and everything that an engine may do with them."""

from __future__ import annotations

from dataclasses import dataclass

from strata.settings import BatchSettings

__all__ = ["Configuration", "Pass"]


@dataclass(frozen=True)
class Pass:
    """One request.

    Attributes
    ----------
    lists : tuple of str
        The entries, one letter each, one string for each extension: ``d`` direct, ``s`` staged; a capital letter
        has its bytes in two segments.
    skips : tuple of int
        Entries that are passed unread.
    held : int
        Slots, or spans, that the engine keeps beside the one it takes.
    span : int
        The most entries that it takes at once; 1: entries, not spans.
    stream : int
        Which of the engine's compute streams the kernels run on.
    stop_at : int, optional
        The engine leaves before this entry: a streamer's request is aborted with what is held, a stager's is
        finished early.
    drains : bool
        The engine waits for its compute stream before it finishes the request.
    long_prefill : bool
        As in `strata.ExpertStreamer.begin`.
    """

    lists: tuple[str, ...]
    skips: tuple[int, ...] = ()
    held: int = 0
    span: int = 1
    stream: int = 0
    stop_at: int | None = None
    drains: bool = False
    long_prefill: bool = True

    @property
    def entries(self) -> str:
        """All lists, one behind the other."""
        return "".join(self.lists)


@dataclass(frozen=True)
class Configuration:
    """A streamer, or a host stager alone, and the requests that it serves.

    Attributes
    ----------
    kind : str
        What it is an example of: a row of the table.
    gpu_ring, host_ring : int
        Depths of the rings; ``gpu_ring`` 0 is a host stager alone.
    settings : BatchSettings
        Of a long prefill.
    passes : tuple of Pass
        The requests, one after the other.
    workers : int
        Host threads that gather staged entries.
    pinned_buffers : int, optional
        So many host buffers can be pinned, the others are pageable. Default: all.
    lent : bool
        The engine lends the slots, and reads them itself before each request.
    ahead : bool
        False: copies complete as late as possible, so that the engine takes entries before strata's threads know
        anything done. True: strata's threads are as far ahead of the engine as the rings allow.
    submission : str
        As in `strata.ExpertStreamer`.
    share : bool
        Whether dependencies are shared: what stream order gives already is not asked for.
    """

    kind: str
    gpu_ring: int
    host_ring: int
    settings: BatchSettings
    passes: tuple[Pass, ...]
    workers: int = 1
    pinned_buffers: int | None = None
    lent: bool = False
    ahead: bool = False
    submission: str = "single"
    share: bool = False

    @property
    def is_stager(self) -> bool:
        """Whether it is a host stager alone."""
        return self.gpu_ring == 0

    @property
    def name(self) -> str:
        """Everything that tells it from others, in a line."""
        batches = f"{self.settings.copy_batch}/{self.settings.stage_batch}/{self.settings.stage_copy_batch}"
        rings = f"host {self.host_ring}" if self.is_stager else f"gpu {self.gpu_ring}, host {self.host_ring}"
        lists = " then ".join("+".join(p.lists) + (f" by {p.span}" if p.span > 1 else "") for p in self.passes)
        extras = [f"{self.workers} workers"] if self.workers > 1 else []
        extras += ["ahead"] if self.ahead else []
        extras += ["shared"] if self.share else []
        extras += [f"{self.pinned_buffers} pinned"] if self.pinned_buffers is not None else []
        return f"{self.kind}: {rings}, {batches}, {lists}" + "".join(f", {extra}" for extra in extras)
