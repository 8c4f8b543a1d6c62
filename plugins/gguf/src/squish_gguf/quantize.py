"""llama.cpp's presets as an allocator: the type that its quantizer gives each tensor, fallbacks included."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from attrs import field, frozen

from squish_core.api import (
    AliasResolver,
    Allocator,
    CodecError,
    CodecSpec,
    ErrorCode,
    ModelFacts,
    PanelReader,
    Params,
    SquishError,
    TensorSpec,
)

from .presets import (
    CONDITIONS,
    EMBEDDINGS,
    FALLBACKS,
    NAMED,
    PRESETS,
    SEVENTY_B,
    Place,
    Preset,
    kind_of,
    quantizable,
)  # fmt: skip
from .types import TYPES

ELEMENTS = {kind.name.lower(): kind.elements for kind in TYPES.values()}
DENSE = ("f32", "f16", "bf16")
WEIGHED = ("iq4_nl", "iq4_xs", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
"""Types whose encoders weigh errors by activations."""
LAYER = re.compile(r"blk\.(\d+)\.")
GENERIC = "llama-quantize"


class LlamaQuantize(Allocator):
    """The types of a preset of llama.cpp's quantizer for the matrices of a GGUF model.

    type       the preset, where the id does not name it
    output     the type of output.weight, or of the embeddings where they are tied to it
    embedding  the type of the token embeddings
    pure       yes: the preset's own type for all
    PATTERN    any other name is a regular expression: tensors whose names it matches anywhere get that type; characters
               that parameters are made of are written as in URLs, %2C for a comma

    Source: `llama_tensor_get_type` and `tensor_type_fallback` in llama-quant.cpp.
    """

    def choose(
        self, specs: Sequence[TensorSpec], params: Params, values: PanelReader, short: AliasResolver, model: ModelFacts
    ) -> Mapping[str, CodecSpec | str]:
        request = Request.of(self.id, params)
        if not any(kind_of(name) != "other" for name in model.names):
            raise CodecError(
                f"{self.id} chooses by GGUF's names of tensors, and this model has none of them", code=ErrorCode.PARAMS,
                found=", ".join(model.names[:3]), hint="Write a GGUF, or give the names with --names gguf.",
            )  # fmt: skip
        types = preset_types(request, {spec.name: spec.shape for spec in specs}, model)
        request.check_statistics(types, model)
        chosen: dict[str, CodecSpec | str] = {}
        for spec in specs:
            if spec.name not in types:
                chosen[spec.name] = "llama.cpp does not quantize it"
            else:
                chosen[spec.name] = _encoding(types[spec.name], spec.name, short, model)
        return chosen


@frozen
class Request:
    """A preset and what overrides it."""

    name: str
    preset: Preset
    output: str = ""
    embedding: str = ""
    pure: bool = False
    patterns: tuple[tuple[re.Pattern[str], str], ...] = field(default=())

    @classmethod
    def of(cls, allocator: str, params: Params) -> Request:
        """What an allocator's id and parameters ask for; CodecError where they cannot be."""
        texts = {key: str(value).lower() for key, value in params.items()}
        name = texts.pop("type", "") if allocator == GENERIC else allocator
        if name not in PRESETS:
            raise CodecError(
                "no such preset of llama.cpp", found=f"type={name}", expected=", ".join(PRESETS), code=ErrorCode.PARAMS
            )
        pure = texts.pop("pure", "no")
        if pure not in ("yes", "no"):
            raise CodecError("pure is yes or no", found=repr(pure), code=ErrorCode.PARAMS)
        output, embedding = texts.pop("output", ""), texts.pop("embedding", "")
        for kind in (output, embedding, *texts.values()):
            if kind and kind not in ELEMENTS:
                raise CodecError("no such type", found=repr(kind), expected=", ".join(ELEMENTS), code=ErrorCode.PARAMS)
        try:
            patterns = tuple((re.compile(unquote(pattern).lower()), kind) for pattern, kind in texts.items())
        except re.error as error:
            raise CodecError(
                f"not a regular expression: {error}", found=str(error.pattern), code=ErrorCode.PARAMS
            ) from None
        return cls(name, PRESETS[name], output, embedding, pure == "yes", patterns)

    def check_statistics(self, types: Mapping[str, str], model: ModelFacts) -> None:
        """CodecError where llama.cpp refuses the preset without an importance matrix."""
        needy = [
            name for name, kind in types.items() if kind == "q2_k" and kind_of(name) not in ("output", "token_embd")
        ]
        lacking = [name for name in needy if name not in (model.statistics or ())]
        if self.name == "q2_k_s" and lacking:
            raise CodecError(
                "q2_k_s needs activation statistics, as in llama.cpp", code=ErrorCode.PARAMS, tensor=lacking[0],
                hint="Give a file of them with --imatrix FILE, or take llama-quantize:type=q2_k.",
            )  # fmt: skip


def preset_types(request: Request, shapes: Mapping[str, tuple[int, ...]], model: ModelFacts) -> dict[str, str]:
    """Tensor -> type, for tensors that llama.cpp quantizes. `shapes` are those to choose for, `model` has all names."""
    names = sorted(shapes, key=lambda name: (_layer(name), name))
    state = _State(request, model)
    types = {}
    for name in names:
        if quantizable(name, shapes[name]):
            types[name] = state.type_of(name, shapes[name][-1])
    return types


class _State:
    """How many tensors of a kind have had their type, in the order of llama.cpp's quantizer."""

    def __init__(self, request: Request, model: ModelFacts) -> None:
        facts = _Facts.of(model)
        self.request, self.facts = request, facts
        kinds = [kind_of(name) for name in model.names]
        self.tied = "output" not in kinds
        self.counts = {"attn_v": kinds.count("attn_v"), "ffn_down": facts.layers}
        self.seen = {"attn_v": 0, "ffn_down": 0}

    def type_of(self, name: str, columns: int) -> str:
        """The type of the next tensor."""
        request, kind = self.request, kind_of(name)
        if request.embedding and kind == "token_embd" and not (name == EMBEDDINGS[1] and self._pattern(name)):
            return request.embedding
        if request.output and kind == "output":
            return request.output
        if request.preset.type in DENSE:
            return request.preset.type
        chosen = self._pattern(name)
        if not chosen:
            chosen = request.preset.type if request.pure else self._mixed(name, kind, columns)
        return _fitting(chosen, columns)

    def _pattern(self, name: str) -> str:
        return next((kind for pattern, kind in self.request.patterns if pattern.search(name)), "")

    def _mixed(self, name: str, kind: str, columns: int) -> str:
        preset, facts = self.request.preset, self.facts
        if kind == "output" or (self.tied and kind == "token_embd"):
            return self.request.output or self._head(columns)
        index = self.seen.get(kind, 0)
        if kind in self.seen:
            self.seen[kind] += 1
        if kind == "ffn_down" and facts.experts > 1:
            index = _layer(name)
        place = Place(
            index, self.counts.get(kind, 0), facts.heads_per_kv, facts.experts, facts.falcon, facts.statistics
        )
        choice = preset.choices.get(kind, ())
        chosen = next((kind for condition, kind in choice if CONDITIONS[condition](place)), "") or preset.type
        if kind == "attn_v" and facts.seventy_b and chosen in ("q3_k", "q4_k"):
            chosen = "q5_k"
        return "q8_0" if kind in ("attn_v", "attn_k") and facts.experts == 8 else chosen

    def _head(self, columns: int) -> str:
        kind = self.request.preset.type
        return "q8_0" if kind == "q8_0" or self.facts.falcon or columns % ELEMENTS[kind] else "q6_k"


@frozen
class _Facts:
    """What presets depend on, from GGUF's metadata."""

    layers: int
    experts: int
    heads_per_kv: int
    falcon: bool
    seventy_b: bool
    statistics: bool

    @classmethod
    def of(cls, model: ModelFacts) -> _Facts:
        architecture = model.metadata.get("general.architecture")

        def value(key: str, default: int) -> int:
            found = model.metadata.get(f"{architecture}.{key}", default)
            found = found[0] if isinstance(found, Sequence) and found else found
            return found if isinstance(found, int) else default

        heads = value("attention.head_count", 0)
        per_head = value("attention.head_count_kv", heads)
        layers = value("block_count", 1 + max(map(_layer, model.names), default=-1))
        large = layers == SEVENTY_B.get(str(architecture), -1) and (architecture != "llama" or heads != per_head)
        return cls(
            layers, value("expert_count", 0), heads // per_head if per_head else 0, architecture == "falcon", large,
            model.statistics is not None,
        )  # fmt: skip


def _fitting(kind: str, columns: int) -> str:
    """The type, or what llama.cpp takes where its blocks do not divide the rows."""
    if columns % ELEMENTS[kind] == 0:
        return kind
    fallback = FALLBACKS.get(kind, kind)
    return fallback if columns % ELEMENTS[fallback] == 0 else "f16"


def _layer(name: str) -> int:
    found = LAYER.match(name)
    return int(found[1]) if found else -1


def _encoding(kind: str, name: str, short: AliasResolver, model: ModelFacts) -> CodecSpec:
    try:
        spec = short(kind)
    except SquishError as error:
        raise CodecError(
            f"{kind} has no encoder here", tensor=name, code=ErrorCode.PARAMS, found=error.message,
            hint="`squish codecs` lists the types that are encoded; --tensor-type gives the tensor another one.",
        ) from None  # fmt: skip
    if kind in WEIGHED and name in (model.statistics or ()):
        return CodecSpec(spec.id, {**spec.params, "search": "activations"})
    return spec


def matching_preset(
    shapes: Mapping[str, tuple[int, ...]], types: Mapping[str, str], metadata: Mapping[str, Any]
) -> int:
    """The file type of the preset that gives exactly these types; -1 where none does."""
    for statistics in (None, frozenset[str]()):
        model = ModelFacts(tuple(shapes), metadata, statistics)
        for name in dict.fromkeys((*NAMED, *PRESETS)):
            preset = PRESETS[name]
            if preset.type in types.values() and _same(preset_types(Request(name, preset), shapes, model), types):
                return preset.number
    return -1


def _same(expected: Mapping[str, str], types: Mapping[str, str]) -> bool:
    return bool(expected) and all(types[name] == kind for name, kind in expected.items())
