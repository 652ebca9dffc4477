"""The engine: it owns the model, the routing, the cache and the kernels, and has strata stream the experts."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

import strata
from examples.prefill_engine.backend import Array, Backend, Groups, Ops, make_backend
from examples.prefill_engine.checkpoint import Checkpoint
from examples.prefill_engine.config import ModelConfig, RunConfig
from examples.prefill_engine.errors import InputError
from examples.prefill_engine.expert_cache import ExpertCache
from examples.prefill_engine.experts import RoutePlan, apply_experts, combine, expert_views, route
from examples.prefill_engine.host_experts import HostExperts
from examples.prefill_engine.mixers import (
    AttentionState,
    GdnState,
    Positions,
    attention,
    gated_delta_net,
    rms_norm,
)
from examples.prefill_engine.result import PrefillResult, Routing
from examples.prefill_engine.streamers import check_streamer, make_streamer
from examples.prefill_engine.walks import CHOICES, AllExperts, RoutedExperts, Walk, chosen_walk

__all__ = ["Engine", "Tap", "prompt"]

_MOST_OF_A_SPAN = 32  # where a grouped product keeps a GPU busy (measured: benchmarks.gpu.spans)

#: Called before an expert's kernel is queued, with the back end, layer, expert and cache slot. For tests.
Tap = Callable[[Backend, int, int, int], None]


def prompt(model: ModelConfig, tokens: int) -> npt.NDArray[np.int64]:
    """(tokens,) token ids, by the model's seed."""
    return np.random.Generator(np.random.PCG64([model.seed, 3])).integers(0, model.vocab, tokens)


class Engine:
    """Prefills prompts, one at a time.

    Parameters
    ----------
    checkpoint : Checkpoint
    run : RunConfig
        `tokens` is not used: a prompt has its own length.
    settings : strata.BatchSettings
        How many entries share a dependency in long prefill.
    streamer : {"strata", "torch-ring"}
        What copies the experts of a prompt, and fills the lent slots again; *torch-ring* on torch alone.
    sources : HostExperts, optional
        Shared by the engines of a process, since they are large. Default: made here.
    tap : callable, optional

    Raises
    ------
    InputError
        If the sizes do not fit one another, or the back end cannot have the streamer.

    Notes
    -----
    A context manager; for one thread.
    """

    def __init__(self, checkpoint: Checkpoint, run: RunConfig, settings: strata.BatchSettings, *,
                 streamer: str = "strata", sources: HostExperts | None = None, tap: Tap | None = None) -> None:
        self.model = checkpoint.model
        self.run = run
        self._tap = tap
        self.backend = make_backend()
        self._ops = self.backend.ops
        try:
            check_streamer(streamer, self.backend)
            self._sources = HostExperts(checkpoint, run.pinned_share) if sources is None else sources
            self.cache = ExpertCache(self.model, self._sources, self.backend, run.cache_slots, run.gpu_ring)
            self._streamer = make_streamer(streamer, self.backend, self.model.expert_bytes, self.cache.retained,
                                           self.cache.lent_addresses, run, settings)
        except BaseException:
            self.backend.close()
            raise
        self.settings = self._streamer.settings
        #: Entries that are taken together, at most: half of the ring, so that copies go on meanwhile.
        self.span = max(1, min(_MOST_OF_A_SPAN, run.gpu_ring // 2))
        try:
            self.cache.refill(self._streamer)
            self._turns = [_Turns(self.cache, layer, self._ops) for layer in range(self.model.layers)]
            self._dense = {layer: {name: self._ops.asarray(values) for name, values in checkpoint.dense(layer).items()}
                           for layer in (None, *range(self.model.layers))}
        except BaseException:
            self.close()
            raise

    def prefill(self, ids: npt.NDArray[np.int64], walk: str = "auto") -> PrefillResult:
        """Prefill one prompt from an empty context.

        Parameters
        ----------
        ids : (tokens,) integers
        walk : {"all", "routed", "auto"}
            *auto*: for each chunk the one that `chosen_walk` names.

        Returns
        -------
        PrefillResult

        Raises
        ------
        InputError
            If the prompt is empty, shorter than a chunk, or has an unknown id; the cache was not touched.
        HipError, StrataError
            As strata has it; the lent slots were filled again, if that was still possible.
        """
        self._check(ids, walk)
        prefill = _Prefill(self, ids, walk)
        began = time.perf_counter()
        try:
            prefill.chunks()
        except BaseException:
            with suppress(Exception):  # what queued work raises now comes after the first cause
                self.backend.synchronize()
            self.cache.refill(self._streamer)
            raise
        ran = time.perf_counter()
        refill = self.cache.refill(self._streamer)
        refilled = time.perf_counter()
        token = prefill.first_token()
        return prefill.outcome(token, refill, run_wall_s=ran - began, prefill_s=refilled - began,
                               ttft_s=time.perf_counter() - began)

    def _check(self, ids: npt.NDArray[np.int64], walk: str) -> None:
        if walk not in CHOICES:
            raise InputError(f"walk is {walk!r}: one of {', '.join(CHOICES)} is wanted")
        if len(ids) == 0:
            raise InputError("the prompt has 0 tokens: there is nothing to prefill")
        if len(ids) < self.run.chunk:
            raise InputError(f"the prompt has {len(ids)} tokens and a chunk {self.run.chunk}: a prompt has at least "
                             "one whole chunk")
        if int(ids.min()) < 0 or int(ids.max()) >= self.model.vocab:
            raise InputError(f"token ids from {int(ids.min())} to {int(ids.max())}: 0 to {self.model.vocab - 1} are "
                             "known")

    def _open_walk(self, tokens: int, walk: str) -> Walk:
        if tokens < self.run.short_below:
            return RoutedExperts(self._streamer, self.cache, self._sources, long_prefill=False)
        if walk == "auto":
            walk = chosen_walk(tokens, self.model.top_k, self.model.experts)
        if walk == "all":
            return AllExperts(self._streamer, self.cache, self._sources)
        return RoutedExperts(self._streamer, self.cache, self._sources, long_prefill=True)

    def close(self) -> None:
        """Free everything. Idempotent."""
        self._streamer.close()
        self.backend.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()


class _Turns:
    """In which order a layer's experts have their turn: those that are resident, then those that are streamed."""

    def __init__(self, cache: ExpertCache, layer: int, ops: Ops) -> None:
        self.first_slot, self.step, resident = cache.resident(layer)
        self.resident = len(resident)
        self.order = np.concatenate([resident, cache.absent(layer)])
        self.of = np.empty_like(self.order)
        self.of[self.order] = np.arange(len(self.order))
        self.on_device = ops.asarray(self.of)


class _Prefill:
    """One prompt on its way through the layers. What `submit` is given runs in stream order, perhaps later."""

    def __init__(self, engine: Engine, ids: npt.NDArray[np.int64], walk: str) -> None:
        self._engine = engine
        self._model = engine.model
        self._backend = engine.backend
        self._ops = engine._ops
        self._ids = ids
        self._walk = walk
        self._states = [self._fresh_state(layer) for layer in range(self._model.layers)]
        self._positions: list[npt.NDArray[np.int64]] = []
        self._residuals: list[Array] = []
        self._routing: list[list[tuple[Array, Array]]] = [[] for _ in range(self._model.layers)]
        self._counters = strata.Counters()
        self._x: Array = None  # the residual stream of the current chunk, (tokens, hidden)
        self._h: Array = None  # its norm: what router and experts see
        self._chosen: Array = None
        self._shares: Array = None
        self._plan: RoutePlan
        self._gathered: Array = None  # rows of h, sorted by expert
        self._outputs: Array = None  # of the experts, in the same order

    def _fresh_state(self, layer: int) -> AttentionState | GdnState:
        model, zeros = self._model, self._ops.zeros
        if model.is_full_attention(layer):
            return AttentionState(zeros(model.kv_heads, 0, model.head_dim), zeros(model.kv_heads, 0, model.head_dim))
        channels = model.gdn_heads * (2 * model.gdn_key_dim + model.gdn_value_dim)
        return GdnState(zeros(model.gdn_heads, model.gdn_key_dim, model.gdn_value_dim),
                        zeros(model.conv_width - 1, channels))

    def chunks(self) -> None:
        for first in range(0, len(self._ids), self._engine.run.chunk):
            ids = self._ids[first:first + self._engine.run.chunk]
            walk = self._engine._open_walk(len(ids), self._walk)
            with walk.request as request:
                positions = Positions.of(self._model, first, len(ids), self._ops)
                self._positions.append(positions.at)
                self._backend.submit(partial(self._embed, self._ops.asarray(ids)))
                for layer in range(self._model.layers):
                    self._layer(layer, positions, walk)
            self._counters += request.counters
            self._backend.submit(lambda: self._residuals.append(self._x))
        self._backend.synchronize()

    def _layer(self, layer: int, positions: Positions, walk: Walk) -> None:
        submit = self._backend.submit
        submit(lambda: self._mix(layer, positions))
        # The host must know how many rows each expert has: which to extend by, which to drop.
        self._backend.synchronize()
        self._routing[layer].append((self._chosen, self._shares))
        plan = self._plan
        bounds = self._backend.to_host(plan.bounds)
        turns = self._engine._turns[layer]
        routed = bounds[turns.of] < bounds[turns.of + 1]
        taken = np.concatenate([turns.order[:turns.resident], walk.entries(layer, routed)])
        ends = bounds[turns.of[taken] + 1]  # what is not taken has no rows
        whole = len(taken) == len(turns.order)
        groups = Groups(ends, plan.bounds[1:] if whole else self._ops.asarray(ends))
        turn = turns.resident
        if turn:
            self._experts(layer, taken, groups, 0, turn, turns.first_slot, turns.step)
        while turn < len(taken):
            with walk.request.acquire_span(min(self._engine.span, len(taken) - turn)) as span:
                self._experts(layer, taken, groups, turn, len(span), self._engine.cache.retained + span.slot, 1)
                turn += len(span)
        submit(lambda: self._combine(layer, plan.rows))

    def _experts(self, layer: int, taken: npt.NDArray[np.int64], groups: Groups, turn: int, count: int, slot: int,
                 step: int) -> None:
        """Queue the work of `count` experts, from the `turn`-th on, whose weights lie in every `step`-th slot."""
        begin = int(groups.ends[turn - 1]) if turn else 0
        ends = groups.ends[turn:turn + count] - begin
        if self._engine._tap is not None:
            for k in np.flatnonzero(np.diff(ends, prepend=0)).tolist():
                self._engine._tap(self._backend, layer, int(taken[turn + k]), slot + k * step)
        if not ends[-1]:
            return
        gate_up, down = expert_views(self._model, self._backend.slots(slot, count, step))
        rows = slice(begin, begin + int(ends[-1]))

        def work() -> None:
            group = Groups(ends, groups.on_device[turn:turn + count] - begin)
            self._outputs[rows] = apply_experts(self._ops, gate_up, down, self._gathered[rows], group)

        self._backend.submit(work)

    # --- in stream order ----------------------------------------------------------------------------------------

    def _embed(self, ids: Array) -> None:
        self._x = self._engine._dense[None]["model.embed_tokens.weight"][ids]

    def _mix(self, layer: int, positions: Positions) -> None:
        ops, model, weights, state = self._ops, self._model, self._engine._dense[layer], self._states[layer]
        h = rms_norm(ops, self._x, weights["input_layernorm.weight"])
        if isinstance(state, AttentionState):
            self._x = self._x + attention(ops, model, weights, h, state, positions)
        else:
            self._x = self._x + gated_delta_net(ops, model, weights, h, state)
        self._h = rms_norm(ops, self._x, weights["post_attention_layernorm.weight"])
        self._chosen, self._shares = route(ops, model, weights, self._h)
        self._plan = RoutePlan.of(ops, self._chosen, self._engine._turns[layer].on_device)
        self._gathered = self._h[self._plan.tokens]
        self._outputs = ops.empty(*self._gathered.shape)

    def _combine(self, layer: int, rows: Array) -> None:
        weights = self._engine._dense[layer]
        self._x = self._x + combine(self._ops, self._model, weights, self._h, self._outputs, rows, self._shares)

    def _head(self) -> None:
        weights = self._engine._dense[None]
        last = rms_norm(self._ops, self._residuals[-1][-1:], weights["model.norm.weight"])
        self._logits = last @ weights["lm_head.weight"].T

    # --- results --------------------------------------------------------------------------------------------------

    def first_token(self) -> int:
        self._backend.submit(self._head)
        self._backend.synchronize()
        return int(np.argmax(self._backend.to_host(self._logits)))

    def outcome(self, token: int, refill: strata.Counters, **seconds: float) -> PrefillResult:
        host = self._backend.to_host
        gdn: dict[int, dict[str, Any]] = {
            layer: {"matrix": host(state.matrix), "conv": host(state.conv)}
            for layer, state in enumerate(self._states) if isinstance(state, GdnState)}
        return PrefillResult(
            tokens=len(self._ids), first_token=token, counters=self._counters, refill_counters=refill, **seconds,
            ids=self._ids, positions=np.concatenate(self._positions),
            residual=np.concatenate([host(r) for r in self._residuals]),
            routing=[Routing.join([Routing(host(chosen), host(shares)) for chosen, shares in chunks])
                     for chunks in self._routing], gdn=gdn)
