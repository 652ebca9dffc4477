"""A model whose experts are streamed: its layers, its ring, and the forward that runs."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn

from strata.engine.request import Request
from strata.engine.span import Span
from strata.integrations.torch import TorchStreamer
from strata.integrations.transformers._cache import ExpertCache
from strata.integrations.transformers._experts import ExpertsLayer
from strata.integrations.transformers._grouped import RoutedRows, SlotWeights, to_device
from strata.integrations.transformers._walk import expected_share, lists_ahead

__all__ = ["StreamedModel", "experts_forward", "layer_of"]

logger = logging.getLogger("strata")

COMPILED = ("torch.compile of a model whose experts are streamed is not supported: its copies are driven by the host, "
            "layer by layer; compile parts of the model that hold no experts")
#: Where an experts module keeps who streams it: with the module, so that both go together.
_ATTRIBUTE = "_strata"


def layer_of(module: nn.Module) -> tuple[StreamedModel, ExpertsLayer] | None:
    """Who streams a module, if anyone does."""
    return module.__dict__.get(_ATTRIBUTE)


def experts_forward(
    self: nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """The experts implementation ``"strata"`` of transformers' ``ExpertsInterface``.

    Parameters
    ----------
    self : torch.nn.Module
        An experts module that `stream_experts` or `from_pretrained` took.
    hidden_states : (tokens, hidden) tensor
    top_k_index, top_k_weights : (tokens, k) tensors

    Returns
    -------
    (tokens, hidden) tensor
    """
    # Constant where this is traced, and then what is called eagerly knows.
    return _layer_forward(self, hidden_states, top_k_index, top_k_weights, torch.compiler.is_compiling())


@torch.compiler.disable(reason=COMPILED)
def _layer_forward(
    module: nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor, traced: bool
) -> torch.Tensor:
    if traced:
        raise RuntimeError(COMPILED)
    found = layer_of(module)
    if found is None:
        if any(parameter.is_meta for parameter in module.parameters()):
            raise RuntimeError("this model's experts have no weights: from_pretrained left them in their files, and "
                               "unstream() was called; load the model again")
        raise RuntimeError(
            "the experts implementation is 'strata', but this experts module is not streamed (a copy of a streamed "
            "model, or one whose configuration was shared): call strata.integrations.transformers.stream_experts "
            "on its model, or model.set_experts_implementation('grouped_mm')"
        )
    model, layer = found
    return model.forward_layer(layer, hidden_states, top_k_index, top_k_weights)


@dataclass(eq=False)
class _Forward:
    """One forward that runs: its request, and how far it is."""

    request: Request
    thread: int
    order: Sequence[ExpertsLayer]
    tokens: int
    ahead: bool             # whether the layers from `position` on are listed
    hooked: bool            # whether the end of the forward will be seen
    position: int = 0       # in `order`: the next layer expected
    listed: int = 0         # entries
    passed: int = 0         # entries of the layers so far, dropped ones included
    taken: int = 0          # entries acquired: dropped ones after them are passed when more are wanted
    routed: int = 0         # experts that the layers seen had rows for
    seen: list[ExpertsLayer] = field(default_factory=list)

    def place(self, layer: ExpertsLayer) -> int | None:
        """Where a layer comes in the order, from the current position on."""
        return next((k for k in range(self.position, len(self.order)) if self.order[k] is layer), None)


class StreamedModel:
    """What streams the experts of one model.

    Parameters
    ----------
    model : torch.nn.Module
    layers : list of ExpertsLayer
        With their `copies`.
    streamer : strata.integrations.torch.TorchStreamer
        With slots for the largest expert.
    cache : ExpertCache or None
    pins : contextlib.ExitStack
        Closed at the end: it unpins.

    Attributes
    ----------
    lists_ahead : callable
        Whether a forward of (tokens, choices, experts, evenness) lists all experts ahead; `lists_ahead` of the package
        unless another one is set, to measure say.
    evenness : dict
        Share of the experts that was routed over the expected one, in the last forward, by its tokens' bit length.
    forwards_ahead, forwards_routed : int
        Forwards that listed all experts ahead, and only what was routed.
    out_of_order : int
        Forwards that called a layer which was not expected; they went on with what is routed.

    Notes
    -----
    One thread at a time runs a forward. A second one is refused while the first is in it.
    """

    def __init__(self, model: nn.Module, layers: list[ExpertsLayer], streamer: TorchStreamer, cache: ExpertCache | None,
                 pins: contextlib.ExitStack) -> None:  # fmt: skip
        self.layers = layers
        self.streamer = streamer
        self.device = streamer.memory.device
        self.limit = max(1, streamer.gpu_ring // 3)     # of a span: copies go on into the rest of the ring
        self.cache = cache
        self.order: list[ExpertsLayer] = list(layers)
        self.lists_ahead: Callable[[int, int, int, float], bool] = lists_ahead
        self.evenness: dict[int, float] = {}
        self.forwards_ahead = 0
        self.forwards_routed = 0
        self.out_of_order = 0
        self.closed = False
        # A model that is dropped takes its slots along. The streamer knows nothing of the model.
        self._free = weakref.finalize(model, _free, streamer, pins)
        self._lock = threading.Lock()
        self._forward: _Forward | None = None
        self._inside: int | None = None     # the thread whose forward the hooks saw begin
        weights = functools.cache(SlotWeights)
        for layer in layers:
            layer.ring = weights(streamer.memory, layer.layout, layer.module.is_transposed)
            layer.cached = weights(cache.bytes, layer.layout, layer.module.is_transposed) if cache is not None else None
            layer.module.__dict__[_ATTRIBUTE] = (self, layer)
        self._root = _common_ancestor(model, layers)
        self._hooks = [
            self._root.register_forward_pre_hook(self._before, with_kwargs=True),
            self._root.register_forward_hook(self._after, always_call=True),
        ]

    # --- hooks: the beginning and the end of a forward ----------------------------------------------------------

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin early: the first copies run while the first layer's attention does."""
        self._begin_early(module, args, kwargs, torch.compiler.is_compiling())

    @torch.compiler.disable(reason=COMPILED)
    def _begin_early(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], traced: bool) -> None:
        if traced:
            raise RuntimeError(COMPILED)
        self._refuse(module)
        tokens = _tokens(args, kwargs)
        if tokens:
            self._inside = threading.get_ident()
            self._begin(tokens, None)

    @torch.compiler.disable(reason=COMPILED)
    def _after(self, module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        thread = threading.get_ident()
        with self._lock:
            if self._inside == thread:
                self._inside = None
            if self._forward is not None and self._forward.thread == thread:
                self._end(failed=result is None)

    def _refuse(self, module: nn.Module) -> None:
        if self.closed:
            raise RuntimeError("this model's experts are not streamed any more: unstream() was called")
        if module.training:
            raise RuntimeError("a model whose experts are streamed is for inference: call model.eval()")

    # --- a layer --------------------------------------------------------------------------------------------------

    def forward_layer(
        self, layer: ExpertsLayer, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Compute one layer's experts."""
        module = layer.module
        self._refuse(module)
        if torch.is_grad_enabled() and (hidden_states.requires_grad or top_k_weights.requires_grad):
            raise RuntimeError("gradients through streamed experts are not supported: run under torch.no_grad() or "
                               "torch.inference_mode()")
        if hidden_states.device != self.device:
            raise RuntimeError(f"{layer.name} was called on {hidden_states.device}; its experts are streamed to "
                               f"{self.device}")
        self._begin(len(hidden_states), layer)
        forward = self._forward
        assert forward is not None
        try:
            with torch.no_grad():
                rows = RoutedRows(module, hidden_states, top_k_index, top_k_weights)
                if forward.ahead:
                    self._from_ahead(forward, layer, rows)
                elif self.cache is None:
                    self._from_ring(forward, layer, rows, rows.routed)
                else:
                    self._from_cache(forward, layer, rows, self.cache)
                result = rows.sum()
        except BaseException:
            with self._lock:
                self._end(failed=True)
            raise
        forward.seen.append(layer)
        forward.routed += len(rows.routed)
        if not forward.hooked and forward.position == len(forward.order):
            with self._lock:
                self._end(failed=False)
        return result

    def _spans(self, forward: _Forward, begin: int, end: int) -> Iterator[Span]:
        """Take the entries from `begin` to `end` in runs of neighbouring slots.

        Each is released when the next is asked for. No run crosses the end of a layer's list; entries that were dropped
        are holes in it.
        """
        if forward.taken < begin < end:
            forward.request.skip(begin - forward.taken)     # what was dropped
            forward.taken = begin
        while forward.taken < end:
            span = forward.request.acquire_span(self.limit)
            span.tensors()      # on a CPU it waits for the bytes, on a GPU it refuses another stream
            forward.taken = span.end
            yield span
            span.release()      # not after an exception: the abort knows what is held

    def _from_ahead(self, forward: _Forward, layer: ExpertsLayer, rows: RoutedRows) -> None:
        begin = forward.passed
        forward.passed += layer.experts
        routed = rows.routed
        if len(routed) < layer.experts:
            # Before anything is waited for: what has not been taken yet is not copied any more.
            forward.request.drop(np.delete(np.arange(begin, forward.passed), routed))
        for span in self._spans(forward, begin, begin + routed[-1] + 1 if routed else begin):
            rows.multiply(range(span.begin - begin, span.end - begin), layer.ring.run(span.slot, len(span)))

    def _from_ring(self, forward: _Forward, layer: ExpertsLayer, rows: RoutedRows, experts: list[int]) -> None:
        begin = self._list(forward, layer, experts)
        for span in self._spans(forward, begin, forward.passed):
            rows.multiply(experts[span.begin - begin:span.end - begin], layer.ring.run(span.slot, len(span)))

    def _from_cache(self, forward: _Forward, layer: ExpertsLayer, rows: RoutedRows, cache: ExpertCache) -> None:
        routed = rows.routed
        if len(routed) > cache.rows:
            self._from_ring(forward, layer, rows, routed)
            return
        found, missing = cache.split(layer.index, routed)
        if missing:
            begin = self._list(forward, layer, missing)
            keep = set(found.values())
            for span in self._spans(forward, begin, forward.passed):
                for entry in range(span.begin, span.end):
                    expert = missing[entry - begin]
                    row = cache.fill(layer.index, expert, self.streamer.memory[span.slot + entry - span.begin], keep)
                    assert row is not None
                    keep.add(row)
                    found[expert] = row
        if routed:
            rows.multiply(routed, layer.cached.copied(to_device([found[expert] for expert in routed], self.device)))

    def _list(self, forward: _Forward, layer: ExpertsLayer, experts: list[int]) -> int:
        """List experts that are taken at once; return the first one's entry."""
        begin = forward.listed
        forward.request.extend(layer.copies.take(experts))
        forward.listed += len(experts)
        forward.passed = forward.listed
        return begin

    # --- the forward as a whole -----------------------------------------------------------------------------------

    def _begin(self, tokens: int, layer: ExpertsLayer | None) -> None:
        """Go on with the forward that runs, or begin one; `layer` is None before the first."""
        thread = threading.get_ident()
        with self._lock:
            forward = self._forward
            if forward is not None:
                if forward.thread != thread and _runs(forward.thread, self._root):
                    raise RuntimeError("this model's experts are streamed for a forward of another thread; one thread "
                                       "at a time can use it")
                if layer is not None and forward.thread == thread:
                    place = forward.place(layer)
                    if place is not None:
                        self._pass_by(forward, place)
                        return
                    if forward.hooked:
                        self._pass_by(forward, len(forward.order))
                        forward.ahead = False
                        self.out_of_order += 1
                        logger.info("%s came in another order than in the forward before: its experts are copied when "
                                    "their routing is known", layer.name)
                        return
                # What runs ended unseen: an exception, or Ctrl-C, outside of its layers.
                self._end(failed=True)
            order = self.order if layer is None or layer in self.order else [layer]
            first = layer or order[0]
            even = self.evenness.get(tokens.bit_length(), 1.0)
            ahead = self.lists_ahead(tokens, first.choices, first.experts, even)
            forward = _Forward(self.streamer.begin(), thread, order, tokens, ahead=ahead, hooked=self._inside == thread)
            self._forward = forward
            try:
                if ahead:
                    self.forwards_ahead += 1
                    for each in order:
                        forward.request.extend(each.copies)
                        forward.listed += each.experts
                else:
                    self.forwards_routed += 1
                if layer is not None:
                    place = forward.place(layer)
                    assert place is not None
                    self._pass_by(forward, place)
            except BaseException:
                self._end(failed=True)
                raise

    def _pass_by(self, forward: _Forward, place: int) -> None:
        """Leave out the layers before `place`, which this forward does not call."""
        left_out = sum(each.experts for each in forward.order[forward.position:place])
        if forward.ahead and left_out:
            forward.request.drop(range(forward.passed, forward.passed + left_out))
            forward.passed += left_out
        forward.position = place + 1

    def _end(self, *, failed: bool) -> None:
        """End what runs; the lock is held."""
        forward = self._forward
        if forward is None:
            return
        self._forward = None
        try:
            if failed or forward.passed < forward.listed:
                forward.request.abort()
            else:
                forward.request.finish()
        finally:
            if failed:
                if self.cache is not None:
                    self.cache.clear()
            elif forward.seen and forward.tokens:
                self.order = list(forward.seen)
                expected = sum(each.experts * expected_share(forward.tokens, each.choices, each.experts)
                               for each in forward.seen)
                self.evenness[forward.tokens.bit_length()] = forward.routed / expected

    def close(self) -> None:
        """End what runs, take the hooks off and free the slots and the cache."""
        if self.closed:
            return
        with self._lock:
            forward = self._forward
            if forward is not None and forward.thread != threading.get_ident() and _runs(forward.thread, self._root):
                raise RuntimeError("another thread is in a forward of this model")
            self.closed = True
            self._end(failed=True)
            for hook in self._hooks:
                hook.remove()
            for layer in self.layers:
                layer.module.__dict__.pop(_ATTRIBUTE, None)
                layer.ring = layer.cached = None
            self.cache = None
            self._free()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a model whose experts are streamed cannot be copied or pickled: unstream() it first")


def _free(streamer: TorchStreamer, pins: contextlib.ExitStack) -> None:
    try:
        streamer.close()
    finally:
        pins.close()


def _tokens(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Tokens of a forward by its arguments; 0 where they do not say."""
    ids = kwargs.get("input_ids")
    if ids is None and args and isinstance(args[0], torch.Tensor):
        ids = args[0]
    if isinstance(ids, torch.Tensor):
        return ids.numel()
    embeddings = kwargs.get("inputs_embeds")
    if isinstance(embeddings, torch.Tensor):
        return embeddings.shape[:-1].numel()
    return 0


def _common_ancestor(model: nn.Module, layers: list[ExpertsLayer]) -> nn.Module:
    """The smallest module that holds every experts module and is called itself."""
    if len(layers) == 1:
        return model
    paths = [layer.name.split(".") for layer in layers]
    shared = paths[0]
    while (any(path[:len(shared)] != shared for path in paths)
           or isinstance(model.get_submodule(".".join(shared)), (nn.ModuleList, nn.ModuleDict))):
        shared = shared[:-1]
    return model.get_submodule(".".join(shared))


def _runs(thread: int, module: nn.Module) -> bool:
    """Whether a thread is inside a call of a module now."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code.co_name == "_call_impl" and frame.f_locals.get("self") is module:
            return True
        frame = frame.f_back
    return False
