"""Sizes: of the model, and of a run of it. Three named shapes, every size of which is an argument."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from examples.prefill_engine.errors import InputError

__all__ = ["SHAPES", "ModelConfig", "RunConfig", "config_from"]

#: No size is larger: what is made of three of them still is a number that can be printed.
_MOST = 2**40
_MOST_SEED = 2**64 - 1
_MOST_WORKERS = 64  # as `strata.ExpertStreamer`


def _in_range(name: str, value: object, least: int, most: int = _MOST) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InputError(f"{name} is {value!r:.60}: an integer from {least} to {most} is wanted")


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the model; with `seed`, its weights too.

    Attributes
    ----------
    layers, hidden, vocab : int
        Decoder layers, width of the residual stream, token ids.
    experts, top_k, expert_width, shared_width : int
        Routed experts a layer, how many a token takes, inner width of an expert and of the shared expert.
    attention_heads, kv_heads, head_dim, rotary_dim : int
        Full attention, in every `full_every`-th layer; query heads share key/value heads in groups.
    gdn_heads, gdn_key_dim, gdn_value_dim, conv_width : int
        Gated DeltaNet, in the other layers.
    full_every : int
        4: three layers of Gated DeltaNet, then one of full attention.
    seed : int
        Of the weights.
    """

    layers: int
    hidden: int
    experts: int
    top_k: int
    expert_width: int
    shared_width: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    gdn_heads: int
    gdn_key_dim: int
    gdn_value_dim: int
    vocab: int
    conv_width: int = 4
    full_every: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            least, most = (0, _MOST_SEED) if field.name == "seed" else (1, _MOST)
            _in_range(field.name, getattr(self, field.name), least, most)
        if self.top_k > self.experts:
            raise InputError(f"top_k is {self.top_k} and experts {self.experts}: a token takes at most all experts")
        if self.attention_heads % self.kv_heads:
            raise InputError(f"attention_heads is {self.attention_heads}: a multiple of kv_heads "
                             f"({self.kv_heads}) is wanted")
        if self.rotary_dim % 2 or self.rotary_dim > self.head_dim:
            raise InputError(f"rotary_dim is {self.rotary_dim}: an even number up to head_dim "
                             f"({self.head_dim}) is wanted")
        if self.conv_width < 2:
            raise InputError(f"conv_width is {self.conv_width}: 2 or more is wanted")

    @property
    def expert_bytes(self) -> int:
        """Bytes of an expert: gate, up and down, bfloat16."""
        return 3 * self.hidden * self.expert_width * 2

    def is_full_attention(self, layer: int) -> bool:
        """Whether the layer is one of full attention."""
        return layer % self.full_every == self.full_every - 1

    def as_dict(self) -> dict[str, int]:
        """All sizes by name."""
        return asdict(self)


@dataclass(frozen=True)
class RunConfig:
    """How the model is run.

    Attributes
    ----------
    tokens, chunk : int
        Length of the prompt, and of the chunks that it is prefilled in; the last one may be shorter.
    short_below : int
        A chunk of fewer tokens takes the short path: routed experts only, at 1/1/1.
    cache_slots, gpu_ring : int
        Slots of the expert cache, and how many of them a request borrows for the ring.
    host_ring, workers : int
        Host buffers, and threads that fill them.
    pinned_share : float
        Share of each layer's experts that is loaded into pinned memory; the rest stays in the mapped file.
    """

    tokens: int
    chunk: int
    short_below: int
    cache_slots: int
    gpu_ring: int
    host_ring: int = 32
    workers: int = 1
    pinned_share: float = 0.7

    def __post_init__(self) -> None:
        for name in ("chunk", "gpu_ring", "host_ring"):
            _in_range(name, getattr(self, name), 1)
        _in_range("workers", self.workers, 1, _MOST_WORKERS)
        for name in ("tokens", "short_below", "cache_slots"):
            _in_range(name, getattr(self, name), 0)
        if not 0.0 <= self.pinned_share <= 1.0:
            raise InputError(f"pinned_share is {self.pinned_share}: 0 to 1 is allowed")

    def as_dict(self) -> dict[str, Any]:
        """All sizes by name."""
        return asdict(self)


#: `tiny` is for tests; `default` verifies in well under a minute on two cores; `reference` wants a GPU: 48 layers
#: of 512 experts of 1,382,400 bytes are 34 GB. There 4,925 experts stay resident, so that 19,651 are streamed through
#: the 1,575 slots that the cache lends, as the recorded request did.
SHAPES: dict[str, tuple[ModelConfig, RunConfig]] = {
    "tiny": (
        ModelConfig(layers=4, hidden=32, experts=16, top_k=2, expert_width=32, shared_width=16, attention_heads=4,
                    kv_heads=2, head_dim=8, rotary_dim=4, gdn_heads=2, gdn_key_dim=8, gdn_value_dim=8, vocab=64),
        RunConfig(tokens=40, chunk=16, short_below=12, cache_slots=12, gpu_ring=8, host_ring=4),
    ),
    "default": (
        ModelConfig(layers=8, hidden=128, experts=64, top_k=4, expert_width=128, shared_width=64, attention_heads=4,
                    kv_heads=2, head_dim=32, rotary_dim=16, gdn_heads=4, gdn_key_dim=32, gdn_value_dim=32, vocab=512),
        RunConfig(tokens=216, chunk=64, short_below=32, cache_slots=128, gpu_ring=48),
    ),
    "reference": (
        ModelConfig(layers=48, hidden=640, experts=512, top_k=10, expert_width=360, shared_width=180,
                    attention_heads=10, kv_heads=2, head_dim=64, rotary_dim=16, gdn_heads=16, gdn_key_dim=64,
                    gdn_value_dim=64, vocab=4096),
        RunConfig(tokens=4205, chunk=4205, short_below=64, cache_slots=4925 + 1575, gpu_ring=1575, workers=8,
                  pinned_share=0.709),
    ),
}


def config_from(shape: str = "default", **sizes: Any) -> tuple[ModelConfig, RunConfig]:
    """Take a named shape with some sizes changed.

    Parameters
    ----------
    shape : {"tiny", "default", "reference"}
    **sizes
        Fields of `ModelConfig` and `RunConfig`; those that are None stay as the shape has them.

    Raises
    ------
    InputError
        Naming the shape or the size, its value and what is allowed.
    """
    if shape not in SHAPES:
        raise InputError(f"shape is {shape!r}: one of {', '.join(SHAPES)} is wanted")
    given = {name: value for name, value in sizes.items() if value is not None}
    model, run = SHAPES[shape]
    model_names = {field.name for field in fields(ModelConfig)}
    run_names = {field.name for field in fields(RunConfig)}
    unknown = sorted(set(given) - model_names - run_names)
    if unknown:
        raise InputError(f"{unknown[0]} is no size of the model or the run")
    return (replace(model, **{k: v for k, v in given.items() if k in model_names}),
            replace(run, **{k: v for k, v in given.items() if k in run_names}))
