"""llama.cpp's presets as an allocator: the same type for each tensor as its quantizer, fallbacks included."""

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
    ELEMENTS,
    EMBEDDINGS,
    FLOATS,
    NEED_STATISTICS,
    PRESETS,
    SEVENTY_B,
    Position,
    Preset,
    fallback_type,
    kind_of,
    quantizable,
)
from .types import PRESET_NAMES

WITH_ACTIVATIONS = ("q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "iq4_xs", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k",
                    *NEED_STATISTICS, "iq3_s")  # fmt: skip
"""Types whose encoders weight errors by activations."""
_ENDS, _FFN = ("output", "token_embd"), ("ffn_down", "ffn_gate", "ffn_up")
LAYER = re.compile(r"blk\.(\d+)\.")
GENERIC = "llama-quantize"


class LlamaQuantize(Allocator):
    """The tensor types of a llama.cpp preset for a GGUF model.

    type       the preset, if the id does not name it
    output     the type of output.weight, or of the embeddings if they are tied to it
    embedding  the type of the token embeddings
    pure       yes: the preset's default type for every tensor
    PATTERN    any other name is a regular expression, searched in tensor names; matching tensors get that type.
               Characters reserved in parameters are percent-encoded, %2C for a comma

    Source: `llama_tensor_get_type` and `tensor_type_fallback` in llama-quant.cpp.
    """

    def choose(
        self, specs: Sequence[TensorSpec], params: Params, values: PanelReader, short: AliasResolver, model: ModelFacts
    ) -> Mapping[str, CodecSpec | str]:
        request = PresetRequest.of(self.id, params)
        if not any(kind_of(name) != "other" for name in model.names):
            raise CodecError(
                f"{self.id} needs GGUF tensor names, and this model has none",
                code=ErrorCode.PARAMS,
                found=", ".join(model.names[:3]),
                hint="Write a GGUF; zTensor and other containers of any naming need --names gguf.",
            )
        request.check_patterns(model.names)
        types = preset_types(request, {spec.name: spec.shape for spec in specs}, model)
        request.check_statistics(types, model)
        choices: dict[str, CodecSpec | str] = {}
        for spec in specs:
            if spec.name not in types:
                choices[spec.name] = "llama.cpp does not quantize this tensor"
            else:
                choices[spec.name] = _encoding(types[spec.name], spec.name, short, model)
        return choices


@frozen
class PresetRequest:
    """A preset and its overrides."""

    name: str
    preset: Preset
    output: str = ""
    embedding: str = ""
    pure: bool = False
    patterns: tuple[tuple[re.Pattern[str], str], ...] = field(default=())

    @classmethod
    def of(cls, allocator: str, params: Params) -> PresetRequest:
        """Parse an allocator's id and parameters; CodecError if they are invalid."""
        texts = {key: str(value).lower() for key, value in params.items()}
        name = texts.pop("type", "") if allocator == GENERIC else allocator
        if name not in PRESETS:
            raise CodecError(
                "unknown llama.cpp preset", found=f"type={name}", expected=", ".join(PRESETS), code=ErrorCode.PARAMS
            )
        pure = texts.pop("pure", "no")
        if pure not in ("yes", "no"):
            raise CodecError("pure must be yes or no", found=repr(pure), code=ErrorCode.PARAMS)
        output, embedding = texts.pop("output", ""), texts.pop("embedding", "")
        for name_or_pattern, kind in (("output", output), ("embedding", embedding), *texts.items()):
            if kind and kind not in ELEMENTS:
                raise CodecError(
                    "unknown type",
                    found=f"{unquote(name_or_pattern)}={kind}",
                    expected=", ".join(ELEMENTS),
                    code=ErrorCode.PARAMS,
                )
        try:
            patterns = tuple((re.compile(unquote(pattern).lower()), kind) for pattern, kind in texts.items())
        except re.error as error:
            raise CodecError(
                f"not a regular expression: {error}", found=str(error.pattern), code=ErrorCode.PARAMS
            ) from None
        return cls(name, PRESETS[name], output, embedding, pure == "yes", patterns)

    def check_patterns(self, names: Sequence[str]) -> None:
        """Raise CodecError if a pattern matches no tensor."""
        for pattern, kind in self.patterns:
            if not any(pattern.search(name) for name in names):
                raise CodecError(
                    "no tensor matches",
                    found=f"{pattern.pattern}={kind}",
                    code=ErrorCode.PARAMS,
                    hint="`squish ls` lists the names of a GGUF.",
                )

    def check_statistics(self, types: Mapping[str, str], model: ModelFacts) -> None:
        """Raise CodecError if llama.cpp refuses the preset without an importance matrix."""
        needing = (*NEED_STATISTICS, *(("q2_k",) if self.name == "q2_k_s" else ()))
        weighted = [name for name, kind in types.items() if kind in needing and kind_of(name) not in _ENDS]
        if missing := [name for name in weighted if name not in (model.statistics or ())]:
            raise CodecError(
                f"{self.name} needs activation statistics, as in llama.cpp",
                code=ErrorCode.PARAMS,
                tensor=missing[0],
                found=types[missing[0]],
                hint="Pass them with --imatrix FILE, or use llama-quantize:type=q2_k.",
            )


def preset_types(request: PresetRequest, shapes: Mapping[str, tuple[int, ...]], model: ModelFacts) -> dict[str, str]:
    """Return tensor -> type for the tensors llama.cpp quantizes, out of `shapes`; `model` has every name."""
    names = sorted(shapes, key=lambda name: (_layer(name), name))
    state = _State(request, model)
    types = {}
    for name in names:
        if quantizable(name, shapes[name]):
            try:
                types[name] = state.type_of(name, shapes[name])
            except CodecError as error:
                raise error.within(tensor=name) from None
    return types


class _State:
    """Counts the tensors of each kind so far, in the order of llama.cpp's quantizer."""

    def __init__(self, request: PresetRequest, model: ModelFacts) -> None:
        facts = _Facts.of(model)
        self.request, self.facts = request, facts
        kinds = [kind_of(name) for name in model.names]
        self.tied = "output" not in kinds
        self.counts = {"attn_v": kinds.count("attn_v"), **dict.fromkeys(_FFN, facts.layers)}
        self.n_typed = dict.fromkeys(self.counts, 0)

    def type_of(self, name: str, shape: tuple[int, ...]) -> str:
        """Return the type of the next tensor."""
        request, kind, columns = self.request, kind_of(name), shape[-1]
        if request.embedding and kind == "token_embd" and not (name == EMBEDDINGS[1] and self._pattern(name)):
            return request.embedding
        if request.output and kind == "output":
            return request.output
        if request.preset.type in FLOATS:
            return request.preset.type
        type_name = self._pattern(name)
        if not type_name:
            type_name = request.preset.type if request.pure else self._preset_type(name, kind, shape)
        return fallback_type(type_name, columns)

    def _pattern(self, name: str) -> str:
        return next((kind for pattern, kind in self.request.patterns if pattern.search(name)), "")

    def _preset_type(self, name: str, kind: str, shape: tuple[int, ...]) -> str:
        preset, facts = self.request.preset, self.facts
        if kind == "output" or (self.tied and kind == "token_embd"):
            return self.request.output or self._head(shape[-1])
        if preset.matrices and len(shape) < 3:
            return preset.matrices
        index = self.n_typed.get(kind, 0)
        if kind in self.n_typed:
            self.n_typed[kind] += 1
        if kind in _FFN and facts.experts > 1 and not preset.low:
            index = _layer(name)
        position = Position(
            index, self.counts.get(kind, 0), facts.heads_per_kv, facts.experts, facts.falcon, facts.statistics
        )
        choice = preset.choices.get(kind, ())
        type_name = next((kind for condition, kind in choice if CONDITIONS[condition](position)), "") or preset.type
        if preset.low:
            return type_name
        if kind == "attn_v" and facts.seventy_b and type_name in ("q3_k", "q4_k"):
            type_name = "q5_k"
        return "q8_0" if kind in ("attn_v", "attn_k") and facts.experts == 8 else type_name

    def _head(self, columns: int) -> str:
        kind = self.request.preset.type
        has_rows = columns % ELEMENTS[kind] == 0 and not self.facts.falcon
        return self.request.preset.head if kind != "q8_0" and has_rows else "q8_0"


@frozen
class _Facts:
    """The model settings that presets depend on, from GGUF metadata."""

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
            setting = model.metadata.get(f"{architecture}.{key}", default)
            setting = setting[0] if isinstance(setting, Sequence) and setting else setting
            return setting if isinstance(setting, int) else default

        heads = value("attention.head_count", 0)
        per_head = value("attention.head_count_kv", heads)
        layers = value("block_count", 1 + max(map(_layer, model.names), default=-1))
        large = layers == SEVENTY_B.get(str(architecture), -1) and (architecture != "llama" or heads != per_head)
        return cls(
            layers,
            value("expert_count", 0),
            heads // per_head if per_head else 0,
            architecture == "falcon",
            large,
            model.statistics is not None,
        )


def _layer(name: str) -> int:
    match = LAYER.match(name)
    return int(match[1]) if match else -1


def _encoding(kind: str, name: str, short: AliasResolver, model: ModelFacts) -> CodecSpec:
    try:
        spec = short(kind)
    except SquishError as error:
        raise CodecError(
            f"{kind} has no encoder installed",
            tensor=name,
            code=ErrorCode.PARAMS,
            found=error.message,
            hint="`squish codecs` lists the types with an encoder; --tensor-type sets another type for the tensor.",
        ) from None
    if kind in WITH_ACTIVATIONS and name in (model.statistics or ()):
        return CodecSpec(spec.id, {**spec.params, "search": "activations"})
    return spec


def matching_preset(
    shapes: Mapping[str, tuple[int, ...]], types: Mapping[str, str], metadata: Mapping[str, Any]
) -> int:
    """Return the file type of the preset with exactly these types, else -1."""
    for statistics in (None, frozenset[str]()):
        model = ModelFacts(tuple(shapes), metadata, statistics)
        for name in dict.fromkeys((*PRESET_NAMES, *PRESETS)):
            preset = PRESETS[name]
            if preset.type in types.values() and _gives(PresetRequest(name, preset), shapes, model, types):
                return preset.number
    return -1


def _gives(
    request: PresetRequest, shapes: Mapping[str, tuple[int, ...]], model: ModelFacts, types: Mapping[str, str]
) -> bool:
    """Return whether a preset gives these types; one that cannot store all shapes gives others."""
    try:
        expected = preset_types(request, shapes, model)
    except CodecError:
        return False
    return bool(expected) and all(types[name] == kind for name, kind in expected.items())
