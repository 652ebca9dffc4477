"""Names of experts' tensors in checkpoints: built-in families, and patterns of one's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from strata.errors import CheckpointError

__all__ = ["FAMILIES", "ExpertPattern", "Family", "Match", "matcher"]

_MOST = 10**6  #: layers, experts

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # between dots
_GATE_UP_DOWN = {
    "gate_proj": "gate", "w1": "gate", "gate": "gate", "fc1": "gate",
    "up_proj": "up", "w3": "up", "up": "up", "fc3": "up",
    "down_proj": "down", "w2": "down", "down": "down", "fc2": "down",
}  # fmt: skip
_LAYERS = r"(?P<prefix>(?:.*\.)?(?:layers|blocks|block|h|blk))\.#\."
#: Endings of tensors of which gate's and up's go into one tensor of the slot, and what they add to its name.
_FUSED_ENDINGS = {"weight": "", "bias": "_bias", "weight_scale_inv": "_scale_inv", "weight_scale": "_scale"}


class Match(NamedTuple):
    """What a name says: which piece of which tensor of the slot, of which layer and expert.

    `expert` is -1 where the tensor holds all of them; `rows` where it does so along its rows.
    """

    stack: str
    layer: int
    expert: int
    field: str
    piece: str
    family: str
    interleaved: bool = False
    transposed: bool = False
    rows: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """A way of naming, as the docs list it."""

    name: str
    example: str
    models: str
    pattern: re.Pattern[str]
    read: Callable[[re.Match[str]], tuple[str, str, dict[str, bool]] | None]


def _apart(match: re.Match[str]) -> tuple[str, str, dict[str, bool]] | None:
    role, ending = _GATE_UP_DOWN[match["role"]], match["ending"]
    if ending not in _FUSED_ENDINGS:  # packed along another axis: a tensor of its own
        return f"{role}_proj.{ending}", role, {}
    return ("down_proj" if role == "down" else "gate_up_proj") + _FUSED_ENDINGS[ending], role, {}


def _fused(match: re.Match[str]) -> tuple[str, str, dict[str, bool]] | None:
    name = {"w13_weight": "gate_up_proj", "w2_weight": "down_proj", "fc1": "gate_up_proj", "fc2": "down_proj",
            "gate_and_up_projs": "gate_up_proj", "down_projs": "down_proj", "input_linear": "gate_up_proj",
            "output_linear": "down_proj", "mlp1": "gate_up_proj", "mlp2": "down_proj",
            "ffn_gate_up_exps": "gate_up_proj"}.get(match["role"], match["role"])  # fmt: skip
    ending = match["ending"] or ""
    usual = {".weight": "", "_weight": "", ".bias": "_bias"}
    ending = usual.get(ending, ending.replace("weight.", "").replace(".", "_"))
    flags = {"interleaved": match["role"] in ("w13_weight", "mlp1")}
    if name in ("gate_proj", "up_proj"):
        return "gate_up_proj" + ending, name[:-5], flags
    return name + ending, "down" if name == "down_proj" else "gate_up", flags


def _dbrx(match: re.Match[str]) -> tuple[str, str, dict[str, bool]] | None:
    role = {"w1": "gate", "v1": "up", "w2": "down"}[match["role"]]
    return "down_proj" if role == "down" else "gate_up_proj", role, {"rows": True, "transposed": role == "down"}


def _gguf(match: re.Match[str]) -> tuple[str, str, dict[str, bool]] | None:
    role = match["role"]
    ending = {"weight": "", "bias": "_bias"}.get(match["ending"], "_" + match["ending"])
    if role == "gate_up":
        return "gate_up_proj" + ending, "gate_up", {}
    return ("down_proj" if role == "down" else "gate_up_proj") + ending, role, {}


_BLOCK = r"(?:\w+\.)*?"
FAMILIES: tuple[Family, ...] = (
    Family(
        "per-expert", "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight",
        "Mixtral, Phi-MoE, MiniMax, MiniMax-M2, Kimi-Linear (block_sparse_moe, w1 w3 w2); Qwen2/3-MoE, Qwen3-Next, "
        "OLMoE, FlexOlmo, DeepSeek V2/V3, GLM4-MoE, dots1, Ernie 4.5, Hunyuan, LongCat, Kimi K2, Bailing, Granite 4 "
        "apart (mlp.experts); Jamba, LFM2-MoE, Mistral's own (feed_forward.experts); DeepSeek's own (ffn.experts); "
        "Nemotron-H (mixer.experts, no gate); with biases, FP8 scales, packed 4 bits",
        re.compile(rf"^{_LAYERS}{_BLOCK}experts\.#\.(?P<role>gate_proj|up_proj|down_proj|w1|w2|w3|fc1|fc2|fc3)\."
                   r"(?P<ending>[\w.]+)$"),
        _apart,
    ),
    Family(
        "fused", "model.layers.{layer}.mlp.experts.gate_up_proj",
        "gpt-oss (with biases; bf16 and MXFP4 blocks and scales; interleaved), Llama-4, Qwen3-VL-MoE (transposed), "
        "Qwen3.5-MoE, transformers' own fused form of every family, Aria (fc1, fc2), Inkling (w13_weight, "
        "interleaved), Nemotron speech (gate_and_up_projs)",
        re.compile(rf"^{_LAYERS}{_BLOCK}experts\.(?P<role>gate_up_proj|down_proj|up_proj|gate_proj|w13_weight|w2_weight"
                   r"|fc1|fc2|gate_and_up_projs|down_projs)(?P<ending>(?:\.weight|\.bias|_bias|_blocks|_scales|_scale_inv"
                   r"|_scale|\.weight_scale_inv|\.weight_scale)?)$"),
        _fused,
    ),
    Family(
        "linear", "model.layers.{layer}.block_sparse_moe.input_linear.weight",
        "Granite-MoE (block_sparse_moe), JetMoE (mlp)",
        re.compile(rf"^{_LAYERS}(?:block_sparse_moe|mlp|moe)\.(?P<role>input_linear|output_linear)(?P<ending>\.weight)$"),
        _fused,
    ),
    Family(
        "stepfun", "model.layers.{layer}.moe.gate_proj.weight",
        "Step-3 (fused, gate and up apart)",
        re.compile(rf"^{_LAYERS}moe\.(?P<role>gate_proj|up_proj|down_proj)(?P<ending>\.weight|\.weight_scale_inv)$"),
        _fused,
    ),
    Family(
        "openai", "block.{layer}.mlp.mlp1_weight.blocks",
        "gpt-oss as OpenAI ships it (interleaved)",
        re.compile(rf"^{_LAYERS}mlp\.(?P<role>mlp1|mlp2)(?P<ending>_weight|_weight\.blocks|_weight\.scales|_bias)$"),
        _fused,
    ),
    Family(
        "dbrx", "transformer.blocks.{layer}.ffn.experts.mlp.w1",
        "DBRX (experts along the rows; w2 transposed)",
        re.compile(rf"^{_LAYERS}ffn\.experts\.mlp\.(?P<role>w1|v1|w2)$"),
        _dbrx,
    ),
    Family(
        "gguf", "blk.{layer}.ffn_gate_exps.weight",
        "GGUF of every family, as llama.cpp names them",
        re.compile(rf"^{_LAYERS}ffn_(?P<role>gate_up|gate|up|down)_exps\.(?P<ending>weight|bias|scale)$"),
        _gguf,
    ),
    Family(
        "gguf per-expert", "blk.{layer}.ffn_gate.{expert}.weight",
        "GGUF of Mixtral before 2024-04",
        re.compile(rf"^{_LAYERS}ffn_(?P<role>gate|up|down)\.#\.(?P<ending>weight)$"),
        _gguf,
    ),
)  # fmt: skip


def _in_families(name: str, known: dict[str, Any]) -> Match | None:
    """Match a name against the built-in families; `known` remembers what names that differ by numbers share."""
    key = _NUMBER.sub("#", name)
    if key not in known:
        known[key] = None
        for family in FAMILIES:
            match = family.pattern.match(key)
            if match:
                read = family.read(match)
                if read is not None:
                    known[key] = (family.name, read, match["prefix"].count("#"), match["prefix"])
                break
    found = known[key]
    if found is None:
        return None
    family_name, (slot_field, piece, flags), skipped, prefix = found
    numbers = _NUMBER.findall(name)
    for number in numbers[:skipped]:
        prefix = prefix.replace("#", number, 1)
    layer, *rest = (_number(name, number) for number in numbers[skipped:])
    return Match(prefix, layer, rest[0] if rest else -1, slot_field, piece, family_name, **flags)


def _number(name: str, digits: str) -> int:
    if len(digits) > 7 or int(digits) >= _MOST:
        raise CheckpointError(f"{name[:200]!r} has number {digits[:40]}: layers and experts from 0 to {_MOST - 1} are "
                              "allowed")
    return int(digits)


@dataclass(frozen=True)
class ExpertPattern:
    """Names of one's own.

    Parameters
    ----------
    fields : mapping of str to str or sequence of str
        For each tensor of the slot the name of the checkpoint's, with ``{layer}`` and, where each expert has one of
        its own, ``{expert}``; ``*`` stands for any text. Several names are pieces that lie one after the other in the
        slot's tensor (gate, then up).
    transposed : bool, default False
        The tensors of two dimensions are [in, out] in the file, rather than [out, in].
    interleaved : bool, default False
        Gate and up alternate in the first tensor, rather than following one another.
    """

    fields: Mapping[str, str | Sequence[str]]
    transposed: bool = False
    interleaved: bool = False
    _compiled: tuple[tuple[str, str, re.Pattern[str]], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.fields, Mapping) or not self.fields:
            raise TypeError(f"pattern is {self.fields!r}: a mapping of the slot's tensors to names is needed")
        compiled = []
        for slot_field, names in self.fields.items():
            pieces = [names] if isinstance(names, str) else list(names)
            if not isinstance(slot_field, str) or not slot_field or not pieces:
                raise TypeError(f"pattern has {slot_field!r}: {names!r}; a name and one or more patterns are needed")
            for k, piece in enumerate(pieces):
                compiled.append((slot_field, str(k), _compile(slot_field, piece)))
        object.__setattr__(self, "_compiled", tuple(compiled))

    def match(self, name: str) -> Match | None:
        """What a name says, or None."""
        for slot_field, piece, pattern in self._compiled:
            match = pattern.match(name)
            if match:
                groups = match.groupdict()
                expert = groups.get("expert")
                return Match("", _number(name, groups["layer"]), -1 if expert is None else _number(name, expert),
                             slot_field, piece, "pattern", self.interleaved, self.transposed)  # fmt: skip
        return None


def _compile(slot_field: str, template: Any) -> re.Pattern[str]:
    if not isinstance(template, str):
        raise TypeError(f"pattern has {slot_field!r}: {template!r}; a string is needed")
    if template.count("{layer}") != 1 or template.count("{expert}") > 1 or re.search(
        r"\{(?!layer\}|expert\})", template
    ):
        raise ValueError(f"pattern has {slot_field!r}: {template!r}; {{layer}} once and {{expert}} at most once are "
                         "needed")
    text = re.escape(template).replace(r"\{layer\}", r"(?P<layer>\d+)").replace(r"\{expert\}", r"(?P<expert>\d+)")
    return re.compile(text.replace(r"\*", ".*") + r"\Z")


def matcher(pattern: Any) -> Callable[[str], Match | None]:
    """The function from a tensor's name to what it says."""
    if pattern is None:
        known: dict[str, Any] = {}
        return lambda name: _in_families(name, known)
    if isinstance(pattern, Mapping):
        pattern = ExpertPattern(pattern)
    if not isinstance(pattern, ExpertPattern):
        raise TypeError(f"pattern is a {type(pattern).__name__}: None, a mapping or an ExpertPattern is needed")
    return pattern.match
