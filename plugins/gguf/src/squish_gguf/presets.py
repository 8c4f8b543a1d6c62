"""llama.cpp's quantization presets as tables: the type for each kind of tensor. Source: llama-quant.cpp, v0.5.0."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from squish_core.api import DENSE, CodecError, CodecSpec, ErrorCode, TensorSpec

from .types import PRESET_NAMES, TYPES

Choice = tuple[tuple[str, str], ...]
"""(condition, type) pairs; the first true condition gives the type. The preset's own type is the default."""


@frozen
class Preset:
    """A preset: its `general.file_type` number, its default type, and the kinds of tensors with other types.

    `head` is the type of `output.weight`. A `low` preset, of 1 or 2 bits, has its own rules for experts and none for
    70B models. `matrices`: the type of all tensors but stacks of experts, if only stacks get the preset's own type.
    """

    number: int
    type: str
    choices: Mapping[str, Choice] = field(factory=dict)
    head: str = "q6_k"
    low: bool = False
    matrices: str = ""


@frozen
class Position:
    """The position of a tensor: `index` of `count` tensors of its kind, in a model with these heads and experts."""

    index: int
    count: int
    heads_per_kv: int
    experts: int
    falcon: bool
    statistics: bool


def more_bits(position: Position) -> bool:
    """Return whether a layer is in the first or last eighth, or every third in between."""
    eighth = position.count // 8
    return position.index < eighth or position.index >= 7 * position.count // 8 or (position.index - eighth) % 3 == 2


CONDITIONS: dict[str, Callable[[Position], bool]] = {
    "always": lambda position: True,
    "more bits": more_bits,
    "first eighth": lambda position: position.index < position.count // 8,
    "first sixteenth": lambda position: position.index < position.count // 16,
    "middle": lambda position: position.count // 8 <= position.index < 7 * position.count // 8,
    "first two": lambda position: position.index < 2,
    "first four": lambda position: position.index < 4,
    "4 heads per KV head": lambda position: position.heads_per_kv >= 4,
    "4 heads per KV head or 4 experts": lambda position: position.heads_per_kv >= 4 or position.experts >= 4,
    "8 experts": lambda position: position.experts == 8,
    "8 experts, more bits": lambda position: position.experts == 8 and more_bits(position),
    "falcon": lambda position: position.falcon,
    "falcon, first sixteenth": lambda position: position.falcon and position.index < position.count // 16,
    "falcon, more bits": lambda position: position.falcon and more_bits(position),
    "statistics, first eighth": lambda position: position.statistics and position.index < position.count // 8,
    "no statistics": lambda position: not position.statistics,
    "no statistics, first eighth": lambda position: not position.statistics and position.index < position.count // 8,
}

_Q5_FOR_8_EXPERTS: dict[str, Choice] = {"attn_output": (("falcon", ""), ("8 experts", "q5_k"))}
_IQ4: dict[str, Choice] = {
    "attn_v": (("4 heads per KV head", "q5_k"),),
    "ffn_down": (("no statistics, first eighth", "q5_k"),),
    **_Q5_FOR_8_EXPERTS,
}
_MIDDLE_IQ3_XXS: Choice = (("middle", "iq3_xxs"),)
_Q4_K_EMBEDDINGS: dict[str, Choice] = {"token_embd": (("always", "q4_k"),)}


def _low(number: int, own_type: str, wide: str, output: str = "") -> Preset:
    """Return a preset of 1 or 2 bits; `wide` is the type of its important tensors, `output` that of `attn_output`."""
    return Preset(
        number,
        own_type,
        {
            "attn_v": (("4 heads per KV head or 4 experts", "q4_k"), ("always", wide)),
            "attn_k": (("8 experts", "q4_k"),),
            "ffn_down": (("first eighth", wide),),
            "attn_output": (("8 experts", "q5_k"), *((("always", output),) if output else ())),
            "token_embd": (("always", wide),),
        },
        head="q5_k",
        low=True,
    )


PRESETS: dict[str, Preset] = {
    "f32": Preset(0, "f32"),
    "f16": Preset(1, "f16"),
    "bf16": Preset(32, "bf16"),
    "q4_0": Preset(2, "q4_0", {"ffn_down": (("statistics, first eighth", "q4_1"),)}),
    "q4_1": Preset(3, "q4_1"),
    "q5_0": Preset(8, "q5_0", {"ffn_down": (("statistics, first eighth", "q5_1"),)}),
    "q5_1": Preset(9, "q5_1"),
    "q8_0": Preset(7, "q8_0"),
    "q2_k": Preset(10, "q2_k", {
        "attn_v": (("4 heads per KV head", "q4_k"), ("always", "q3_k")),
        "ffn_down": (("always", "q3_k"),),
        "attn_output": (("falcon", ""), ("8 experts", "q5_k"), ("always", "q3_k")),
    }),
    "q2_k_s": Preset(21, "q2_k", {
        "attn_v": (("4 heads per KV head", "q4_k"),),
        "ffn_down": (("first eighth", "q4_k"),),
    }),
    "q3_k_s": Preset(11, "q3_k", _Q5_FOR_8_EXPERTS),
    "q3_k_m": Preset(12, "q3_k", {
        "attn_v": (("first two", "q5_k"), ("always", "q4_k")),
        "ffn_down": (("first sixteenth", "q5_k"), ("falcon, more bits", "q4_k"), ("falcon", ""), ("always", "q4_k")),
        "attn_output": (("falcon", ""), ("8 experts", "q5_k"), ("always", "q4_k")),
    }),
    "q3_k_l": Preset(13, "q3_k", {
        "attn_v": (("always", "q5_k"),),
        "ffn_down": (("falcon", "q4_k"), ("always", "q5_k")),
        "attn_output": (("falcon", "q4_k"), ("8 experts", ""), ("always", "q5_k")),
    }),
    "q4_k_s": Preset(14, "q4_k", {
        "attn_v": (("first four", "q5_k"),),
        "ffn_down": (("falcon", ""), ("first eighth", "q5_k")),
        **_Q5_FOR_8_EXPERTS,
    }),
    "q4_k_m": Preset(15, "q4_k", {
        "attn_v": (("more bits", "q6_k"),),
        "ffn_down": (
            ("falcon, first sixteenth", "q6_k"), ("falcon, more bits", "q5_k"), ("falcon", ""), ("more bits", "q6_k"),
        ),
        **_Q5_FOR_8_EXPERTS,
    }),
    "q5_k_s": Preset(16, "q5_k"),
    "q5_k_m": Preset(17, "q5_k", {
        "attn_v": (("more bits", "q6_k"),),
        "ffn_down": (("more bits", "q6_k"),),
    }),
    "q6_k": Preset(18, "q6_k"),
    "iq1_s": _low(24, "iq1_s", "q2_k", "iq2_xxs"),
    "iq1_m": _low(31, "iq1_m", "q2_k", "iq2_xxs"),
    "iq2_xxs": _low(19, "iq2_xxs", "q2_k"),
    "iq2_xs": _low(20, "iq2_xs", "q2_k"),
    "iq2_s": _low(28, "iq2_xs", "iq3_s", "iq3_s"),
    "iq2_m": _low(29, "iq2_s", "iq3_s", "iq3_s"),
    "iq3_xxs": Preset(23, "iq3_xxs", {
        "attn_v": (("4 heads per KV head", "q4_k"), ("no statistics", "iq3_s")),
        "attn_k": (("always", "iq2_s"),),
        "attn_q": (("always", "iq2_s"),),
        "ffn_down": (("no statistics, first eighth", "q4_k"), ("no statistics", "q3_k")),
        "attn_output": (("falcon", ""), ("8 experts", "q5_k"), ("always", "iq3_s")),
        "token_embd": (("always", "iq3_s"),),
    }, head="q5_k"),
    "iq3_xs": Preset(22, "iq3_s", {
        "attn_v": (("4 heads per KV head", "q4_k"),),
        "attn_k": (("always", "iq3_xxs"),),
        "attn_q": (("always", "iq3_xxs"),),
        "ffn_gate": _MIDDLE_IQ3_XXS,
        "ffn_up": _MIDDLE_IQ3_XXS,
        **_Q5_FOR_8_EXPERTS,
    }),
    "iq3_s": Preset(26, "iq3_s", {"attn_v": (("4 heads per KV head", "q4_k"),), **_Q5_FOR_8_EXPERTS}),
    "iq3_m": Preset(27, "iq3_s", {
        "attn_v": (("always", "q4_k"),),
        "ffn_down": (("first eighth", "q4_k"), ("8 experts, more bits", "q4_k")),
        "attn_output": (("falcon", ""), ("8 experts", "q5_k"), ("always", "q4_k")),
    }),
    "iq4_nl": Preset(25, "iq4_nl", _IQ4),
    "iq4_xs": Preset(30, "iq4_xs", _IQ4),
    "tq1_0": Preset(36, "tq1_0", _Q4_K_EMBEDDINGS),
    "tq2_0": Preset(37, "tq2_0", _Q4_K_EMBEDDINGS),
    "mxfp4_moe": Preset(38, "mxfp4", head="q8_0", matrices="q8_0"),
    "q1_0": Preset(40, "q1_0"),
    "q2_0": Preset(41, "q2_0", _Q4_K_EMBEDDINGS),
}  # fmt: skip
"""Other kinds get the preset's default type; `quantize` has the rules for `output`, 70B models and 8 experts."""

FALLBACKS = {
    **dict.fromkeys(("q2_0", "q2_k", "q3_k", "tq1_0", "tq2_0"), "q4_0"), "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0",
    **dict.fromkeys(("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs"), "iq4_nl"),
}  # fmt: skip
"""Types with 32-element blocks, for rows that longer blocks do not divide; f16 if these do not fit either."""

UNTOUCHED = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj",
    "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight", "time_mix_first.weight",
    "time_mix_w0.weight", "time_mix_w1.weight", "time_mix_w2.weight", "time_mix_v0.weight", "time_mix_v1.weight",
    "time_mix_v2.weight", "time_mix_a0.weight", "time_mix_a1.weight", "time_mix_a2.weight", "time_mix_g1.weight",
    "time_mix_g2.weight", "time_mix_decay_w1.weight", "time_mix_decay_w2.weight", "time_mix_lerp_fused.weight",
    "attn_rel_b.weight", ".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd",
    ".patch_merger", "a.rvq.codebook", "mm.a.code_embd",
)  # fmt: skip
UNTOUCHED_NAMES = ("position_embd.weight", "token_types.weight")
"""Tensors that no preset quantizes: `UNTOUCHED` matches substrings of the name, `UNTOUCHED_NAMES` whole names."""

KINDS = (
    ("attn_qkv.weight", "attn_v"),
    ("attn_kv_b.weight", "attn_v"),
    ("attn_v.weight", "attn_v"),
    ("attn_k.weight", "attn_k"),
    ("attn_q.weight", "attn_q"),
    ("attn_output.weight", "attn_output"),
    ("ffn_up", "ffn_up"),
    ("ffn_gate", "ffn_gate"),
    ("ffn_down", "ffn_down"),
)
ALIASES = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m"}
"""Names of llama-quantize for presets that have another one."""
FLOATS = ("f32", "f16", "bf16")
ELEMENTS = {kind.name.lower(): kind.elements for kind in TYPES.values()}
NEED_STATISTICS = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs")
"""Types that llama.cpp refuses to encode without an importance matrix, except for embeddings and output."""
EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
SEVENTY_B = {"llama": 80, "qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}
"""Architecture -> layer count of its 70B model, whose `attn_v` gets q5_k instead of q3_k or q4_k."""


def kind_of(name: str) -> str:
    """Return a tensor's kind in the preset tables, by its GGUF name."""
    if name == "output.weight":
        return "output"
    return "token_embd" if name in EMBEDDINGS else next((kind for text, kind in KINDS if text in name), "other")


def quantizable(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether presets quantize a tensor at all."""
    return (
        any(size > 1 for size in shape[:-1])
        and name.endswith("weight")
        and name not in UNTOUCHED_NAMES
        and not any(text in name for text in UNTOUCHED)
    )


def preset_for(name: str, names: Iterable[str], metadata: Mapping[str, Any]) -> str | None:
    """Return the rule for a type name of llama-quantize in a model; None for floats and for other files."""
    if "general.architecture" not in metadata or all(kind_of(each) == "other" for each in names):
        return None
    name = ALIASES.get(name, name)
    if name not in PRESETS or PRESETS[name].type in FLOATS:
        return None
    return name if name in PRESET_NAMES else f"llama-quantize:type={name}"


IN_WORDS = {
    "more bits": "in the first and last eighth of the layers, and every third between",
    "first eighth": "in the first eighth of the layers",
    "first sixteenth": "in the first sixteenth of the layers",
    "middle": "in the layers between the first and the last eighth",
    "first two": "in the first two layers",
    "first four": "in the first four layers",
    "4 heads per KV head": "with 4 heads or more for each KV head",
    "4 heads per KV head or 4 experts": "with 4 heads or more for each KV head, or 4 experts or more",
    "8 experts": "with 8 experts",
    "8 experts, more bits": "with 8 experts, in the first and last eighth of the layers, and every third between",
    "falcon": "in Falcon",
    "falcon, first sixteenth": "in Falcon, in the first sixteenth of the layers",
    "falcon, more bits": "in Falcon, in the first and last eighth of the layers, and every third between",
    "statistics, first eighth": "with --imatrix, in the first eighth of the layers",
    "no statistics": "without --imatrix",
    "no statistics, first eighth": "without --imatrix, in the first eighth of the layers",
}
"""Condition -> its words in a description; "always" has none."""


def described(name: str) -> dict[str, str]:
    """Return kind of tensor -> its type in a preset, in words."""
    preset = PRESETS[ALIASES.get(name, name)]
    if preset.type in FLOATS:
        return {"matrices": preset.type}
    if preset.matrices:
        return {"stacks of experts": preset.type, "other matrices": preset.matrices, "vectors": "f32"}
    kinds = {
        "output.weight": preset.head,
        **{kind: _in_words(choice, preset) for kind, choice in preset.choices.items()},
    }
    return {"matrices": preset.type, **kinds, "vectors": "f32"}


def _in_words(choice: Choice, preset: Preset) -> str:
    """Return the types of a kind of tensor, each with its condition."""
    cases = [f"{kind or preset.type} {IN_WORDS[condition]}" for condition, kind in choice if condition != "always"]
    last = dict(choice).get("always", preset.type)
    return "; ".join([*cases, f"otherwise {last}" if cases else last])


def fits(kind: str, columns: int) -> bool:
    """Return whether the blocks of a type divide a row."""
    return columns % ELEMENTS[kind] == 0


def fallback_type(kind: str, columns: int) -> str:
    """Return the type, or llama.cpp's fallback if its blocks do not divide the rows; CodecError if it has none."""
    if fits(kind, columns):
        return kind
    if kind not in FALLBACKS and ELEMENTS[kind] > 32:
        raise CodecError(
            f"{kind} has no fallback in llama.cpp",
            found=f"rows of {columns}",
            code=ErrorCode.PARAMS,
            expected=f"a multiple of {ELEMENTS[kind]}",
            hint="Choose another preset; q4_0 has blocks of 32.",
        )
    fallback = FALLBACKS.get(kind, kind)
    return fallback if fits(fallback, columns) else "f16"


def other_type(shape: tuple[int, ...], codec: CodecSpec) -> CodecSpec | None:
    """Return the codec of the fallback for a matrix whose rows a block codec does not divide."""
    kind = codec.id.removeprefix("ggml.")
    if len(shape) < 2 or kind not in FALLBACKS or fits(kind, shape[-1]):
        return None
    other = fallback_type(kind, shape[-1])
    if other in FLOATS:
        return CodecSpec(DENSE.id, {"dtype": other})
    params = {key: codec.params[key] for key in ("search",) if key in codec.params and other != "q8_0"}
    return CodecSpec(f"ggml.{other}", params)


def read_as_f32(specs: Sequence[TensorSpec], codec: CodecSpec) -> dict[str, str]:
    """Return the vectors and other tensors of a model that llama.cpp runs only in f32, with the reason; none if the
    codec is not a narrower float."""
    if (
        codec.id != DENSE.id
        or codec.params.get("dtype") == "f32"
        or all(kind_of(spec.name) == "other" for spec in specs)
    ):
        return {}
    return {
        spec.name: "llama.cpp runs it in f32"
        for spec in specs
        if spec.name.endswith(("weight", "bias")) and not quantizable(spec.name, spec.shape)
    }
