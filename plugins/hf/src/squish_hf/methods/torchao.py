"""torchao: the arrays of a tensor class; the metadata of the file states its name and block size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from squish_codecs.api import FLOAT8_DTYPES, Affine, Float8
from squish_safetensors.api import CheckpointFiles, StoredParts, build_tensor, require_part, view_part

from squish_core.api import Codec, CodecSpec, ErrorCode, FormatError, Part, TensorSpec, load_json
from squish_hf.declaration import Declared, refuse
from squish_hf.methods.fp8 import other_parts
from squish_hf.methods.method import Method
from squish_hf.methods.unsupported import SAVE

CODES, SCALE, ZEROS = "_weight_qdata", "_weight_scale", "_weight_zero_point"
OTHERS = ("_weight_per_tensor_scale", "_weight_act_per_tensor_scale", "_weight_scale_and_zero", "_weight_act_pre_scale")
SUFFIXES = tuple(f".{field}" for field in (CODES, SCALE, ZEROS, *OTHERS))
FLOATS = ("f32", "f16", "bf16")


def read(declared: Declared, files: CheckpointFiles) -> Method:
    """Read what `flatten_tensor_state_dict` of torchao writes: `<layer>._weight_qdata` and others."""

    def make(layer: str, parts: StoredParts) -> TensorSpec:
        fields = _fields(layer, files)
        kind = fields.get("_type")
        if not isinstance(kind, str) or kind not in BUILDERS:
            raise FormatError(
                f"unsupported tensor class {str(kind)[:40]!r} of torchao",
                part=CODES,
                code="torchao",
                expected=" or ".join(BUILDERS),
                hint=SAVE.format("torchao"),
            )
        return BUILDERS[kind](layer, parts, fields.get("_data"))

    return Method(dialect="torchao", suffixes=SUFFIXES, make=make)


def _fields(layer: str, files: CheckpointFiles) -> Mapping[str, Any]:
    """Return the metadata of a layer's weight."""
    text = files.index.meta.get(f"{layer}.weight")
    if not isinstance(text, str):
        raise FormatError(
            "no metadata of this tensor", part=CODES, code=ErrorCode.MISSING, expected=f"{layer}.weight in it"
        )
    return load_json(text.encode(), f"metadata of {layer}.weight", files.limits)


def _integers(layer: str, parts: StoredParts, data: Any) -> TensorSpec:
    """Build a weight of one code a byte, in groups along the rows."""
    codes, scale = require_part(parts, f".{CODES}", ("i8",), rank=2), require_part(parts, f".{SCALE}", FLOATS, rank=2)
    rows, group = _block(data)
    if rows != 1 or not group:
        raise refuse("block_size", "[1, columns]", [rows, group], part=CODES)
    size = 0 if group == codes.shape[1] else group
    params: dict[str, Any] = {"bits": 8, "group_size": size, "word": "i8", "signed": True}
    if scale.dtype != "f32":
        params["scale_dtype"] = scale.dtype
    fields = {"data": (CODES, codes), "scale": (SCALE, scale)}
    if f".{ZEROS}" in parts:
        params.update(offset="zero_point", offset_dtype="i8")
        fields["offset"] = (ZEROS, require_part(parts, f".{ZEROS}", ("i8",), rank=2))
    return _built(layer, codes.shape, CodecSpec("affine", params), Affine, fields, parts)


def _float8(layer: str, parts: StoredParts, data: Any) -> TensorSpec:
    """Build a float8 weight with a scale for each row, for each block, or one."""
    codes = require_part(parts, f".{CODES}", FLOAT8_DTYPES, rank=2)
    scale, block = require_part(parts, f".{SCALE}", FLOATS), _block(data)
    params: dict[str, Any] = {} if codes.dtype == FLOAT8_DTYPES[0] else {"element": codes.dtype}
    if scale.dtype != "f32":
        params["scale_dtype"] = scale.dtype
    if block == codes.shape:
        scale = view_part(scale, scale.dtype, ())
    else:
        params["block"] = [step if step != size else 0 for step, size in zip(block, codes.shape)]
    fields = {"data": (CODES, codes), "scale": (SCALE, scale)}
    return _built(layer, codes.shape, CodecSpec("float8", params), Float8, fields, parts)


def _built(
    layer: str,
    shape: tuple[int, ...],
    spec: CodecSpec,
    codec: type[Codec],
    fields: dict[str, tuple[str, Part]],
    parts: StoredParts,
) -> TensorSpec:
    extras = other_parts(parts, *(name for name, _ in fields.values()))
    return build_tensor(f"{layer}.weight", shape, spec, codec, fields, extras)


def _block(data: Any) -> tuple[int, int]:
    """Return the declared rows and columns of a block."""
    block = data.get("block_size") if isinstance(data, dict) else None
    legal = (
        isinstance(block, list) and len(block) == 2 and all(type(size) is int and 0 < size < 1 << 40 for size in block)
    )
    if not legal:
        raise refuse("block_size", "[rows, columns]", block, part=CODES)
    assert block is not None
    return block[0], block[1]


BUILDERS: dict[str, Callable[[str, StoredParts, Any], TensorSpec]] = {
    "Int8Tensor": _integers, "IntxUnpackedToInt8Tensor": _integers, "Float8Tensor": _float8,
}  # fmt: skip
"""Tensor class -> builder of a weight."""
