"""GPTQ: `qweight`, `qzeros`, `scales` and `g_idx` of a layer, stored transposed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import evolve
from squish_codecs.api import Affine
from squish_safetensors.api import CheckpointFiles, StoredParts, build_tensor, require_part, stored_part

from squish_core.api import CodecSpec, ErrorCode, FormatError, Problem, TensorSpec
from squish_hf.declaration import Declared, Patterns, refuse
from squish_hf.methods.act_order import ActOrder
from squish_hf.methods.fp8 import other_parts
from squish_hf.methods.method import CACHE, Method
from squish_hf.methods.unsupported import refuse_marlin

SUFFIXES = (".qweight", ".qzeros", ".scales", ".g_idx")
BITS, FLOATS = (2, 3, 4, 8), ("f16", "bf16", "f32")
EXCLUDED = "-:"
WORDS = {"int32": "i32", "int16": "i16", "int8": "i8", "int64": "i64"}
NOT_SUBTRACTED = (
    "sym is true and checkpoint_format is gptq, but zero points are stored without its subtraction of 1; "
    "they are read as those of gptq_v2"
)
FORMATS = {"gptq": (1, BITS), "gptq_v2": (0, BITS), "gptq_p": (0, range(2, 9))}
"""`checkpoint_format` -> amount subtracted from the stored zero points, and the legal bits."""


def read(declared: Declared, files: CheckpointFiles) -> Method:
    """Read GPTQ of AutoGPTQ and GPTQModel; without `checkpoint_format` it is version 1."""
    dialect = layout(declared, "gptq", "checkpoint_format", "format")
    if "marlin" in dialect or declared.get("is_marlin_format", bool, False):
        raise refuse_marlin(declared.where)
    if dialect not in FORMATS:
        raise refuse("checkpoint_format", " or ".join(FORMATS), dialect, part=declared.where)
    settings = Settings(declared)
    subtracted, legal = FORMATS[dialect]
    problems: tuple[Problem, ...] = ()
    if subtracted and declared.get("sym", bool, False) and _first_zeros_are_the_middle(declared, files):
        subtracted, problems = 0, (Problem(code=ErrorCode.CONTRADICTION, severity="warning", where=declared.where,
                                           message=NOT_SUBTRACTED),)  # fmt: skip

    def make(layer: str, parts: StoredParts) -> TensorSpec:
        return build_layer(layer, parts, settings.of(layer), subtracted, legal, dialect == "gptq_p")

    return Method(dialect=dialect, suffixes=SUFFIXES, beside=CACHE, make=make, idle=settings.idle, problems=problems)


def _first_zeros_are_the_middle(declared: Declared, files: CheckpointFiles) -> bool:
    """Return whether the first zero points are half the range of codes, without version 1's subtraction of 1.

    Engines ignore the zero points of a symmetric checkpoint, so such files, whose version is wrong, work there.
    """
    name = next((name for name in files.index.tensors if name.endswith(".qzeros")), None)
    bits, word = declared.number("bits", BITS), WORDS.get(declared.get("pack_dtype", str, "int32"))
    if name is None or word is None:
        return False
    part, size = stored_part(files.index.tensors[name]), int(word[1:]) // 8
    if part.dtype != word or part.nbytes < size or len(part.segments) != 1:
        return False
    segment = part.segments[0]
    stored = files.file(segment.file).read(segment.offset, size, "zero points")
    middles = sum(1 << bits - 1 + bits * number for number in range(8 * size // bits + 1))
    return int.from_bytes(stored, "little") == middles & (1 << 8 * size) - 1


class Settings:
    """The declared settings, with overrides per layer in `dynamic`."""

    def __init__(self, declared: Declared) -> None:
        self.declared = declared
        self.dynamic: Mapping[str, Any] = declared.get("dynamic", dict, {})
        self.patterns = Patterns(declared.where)

    def of(self, layer: str) -> Declared:
        """Return the settings of a layer; the first matching pattern applies."""
        for key, changes in self.dynamic.items():
            if self._names(key, layer):
                if key.startswith(EXCLUDED):
                    raise FormatError(
                        f"quantized, although {key[:80]!r} excludes it",
                        part=self.declared.where,
                        code=ErrorCode.CONTRADICTION,
                    )
                if not isinstance(changes, dict):
                    raise refuse(f"dynamic {key[:80]!r}", "an object", changes, part=self.declared.where)
                return evolve(self.declared, fields={**self.declared.fields, **changes})
        return self.declared

    def idle(self, layers: Iterable[str]) -> list[str]:
        """Return patterns without a matching layer, except exclusions."""
        changing = (key for key in self.dynamic if not key.startswith(EXCLUDED))
        return [key for key in changing if not any(self._names(key, layer) for layer in layers)]

    def _names(self, key: str, layer: str) -> bool:
        return self.patterns.matches(key.removeprefix(EXCLUDED if key.startswith(EXCLUDED) else "+:"), layer)


def build_layer(
    layer: str, parts: StoredParts, declared: Declared, subtracted: int, legal: Iterable[int], planar: bool
) -> TensorSpec:
    """Build the weight of a layer; `subtracted` from its stored zero points, and its codes may be `planar`."""
    bits = declared.number("bits", legal)
    group = group_size(declared)
    word = WORDS.get(declared.get("pack_dtype", str, "int32"))
    if word is None:
        raise refuse("pack_dtype", " or ".join(WORDS), declared.fields["pack_dtype"], part=declared.where)
    if ".weight" in parts:
        raise FormatError("stored both quantized and dense", part="weight", code=ErrorCode.CONTRADICTION)
    codes = require_part(parts, ".qweight", (word,), rank=2)
    zeros = require_part(parts, ".qzeros", (word,), rank=2)
    scales = require_part(parts, ".scales", FLOATS, rank=2)
    rows, columns = codes.shape[1], codes.shape[0] * int(word[1:]) // bits
    if group > columns:
        group = 0
    inner = {
        "bits": bits, "group_size": group, "axis": -2, "transposed": True, "word": word, "offset": "zero_point",
        "offset_dtype": "packed", "scale_dtype": scales.dtype,
    }  # fmt: skip
    if subtracted:
        inner["zero"] = subtracted
    if planar and bits not in (2, 4, 8):
        inner["order"] = "planes"
    spec = CodecSpec("affine", inner)
    fields = {"data": ("qweight", codes), "scale": ("scales", scales), "offset": ("qzeros", zeros)}
    extras = other_parts(parts, *(suffix.lstrip(".") for suffix in SUFFIXES))
    if ".g_idx" not in parts:
        if declared.get("desc_act", bool, False):
            require_part(parts, ".g_idx", ("i32",))
        return build_tensor(f"{layer}.weight", (rows, columns), spec, Affine, fields, extras)
    fields["g_idx"] = ("g_idx", require_part(parts, ".g_idx", ("i32",), rank=1))
    return build_tensor(
        f"{layer}.weight", (rows, columns), CodecSpec("hf.act_order", {}, spec), (ActOrder, Affine), fields, extras
    )


def layout(declared: Declared, default: str, *names: str) -> str:
    """Return the declared layout in lower case; GPTQModel has several fields for it, which must agree."""
    layouts = {value.lower() for name in names if (value := declared.get(name, str))}
    if len(layouts) > 1:
        raise FormatError(
            f"{' and '.join(names)} contradict each other",
            part=declared.where,
            found=" and ".join(sorted(layouts))[:80],
            code=ErrorCode.CONTRADICTION,
        )
    return layouts.pop() if layouts else default


def group_size(declared: Declared) -> int:
    """Return the declared group size; -1 (one group) becomes 0."""
    size = declared.get("group_size", int, -1)
    if size != -1 and not 0 < size < 1 << 31:
        raise refuse("group_size", "-1 or a positive number", size, part=declared.where)
    return max(int(size), 0)
