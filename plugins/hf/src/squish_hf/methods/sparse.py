"""Sparse weights of compressed-tensors before 0.12: values and a bitmask."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from squish_codecs.api import BITMASK_DTYPES, BITMASK_SCALES, Bitmask
from squish_safetensors.api import CheckpointFiles, StoredParts, build_tensor, require_part, view_part

from squish_core.api import CodecSpec, Part, TensorSpec, dtypes
from squish_hf.methods.compressed_formats import read_pair
from squish_hf.methods.fp8 import other_parts

SPARSE, SPARSE_24 = "sparse-bitmask", "sparse-24-bitmask"
FIELDS = ("shape", "compressed", "bitmask", "row_offsets")
SPARSE_SUFFIXES = (*(f".weight.{field}" for field in FIELDS), *(f".{field}" for field in FIELDS))


def read_sparse(layer: str, parts: StoredParts, form: str, files: CheckpointFiles) -> TensorSpec:
    """Read a weight with `shape`, `compressed` and `bitmask`.

    sparse-bitmask also has `row_offsets`; quantized values have a `weight_scale` per row.
    """
    prefix = ".weight." if ".weight.compressed" in parts else "."
    values, mask = (
        require_part(parts, f"{prefix}compressed", BITMASK_DTYPES),
        require_part(parts, f"{prefix}bitmask", ("u8",), rank=2),
    )
    shape = read_pair(parts, f"{prefix}shape", files, layer)
    params: dict[str, Any] = {"dtype": values.dtype}
    fields = {"data": ("compressed", values), "mask": ("bitmask", mask)}
    if form == SPARSE_24:
        params["kept"] = shape[1] // 2
    else:
        starts = require_part(parts, f"{prefix}row_offsets", ("i64",))
        params["count"] = dtypes.count(values.shape)
        fields["starts"] = ("row_offsets", _column(starts))
    dtype = values.dtype
    if ".weight_scale" in parts:
        scale = require_part(parts, ".weight_scale", BITMASK_SCALES[1:])
        params["scale"], dtype = scale.dtype, "f32"
        if scale.shape in ((), (1,)) and shape[0] != 1:
            params["scales"], scale = "all", view_part(scale, scale.dtype, (1, 1))
        fields["scale"] = ("weight_scale", scale)
    elif dtype not in ("f32", "f16", "bf16"):
        require_part(parts, ".weight_scale", BITMASK_SCALES[1:])
    extras = other_parts(parts, *(prefix.lstrip(".") + field for field in FIELDS[1:]), "weight_scale")
    return build_tensor(f"{layer}.weight", shape, CodecSpec("bitmask", params), Bitmask, fields, extras, dtype=dtype)


def _column(part: Part) -> Part:
    return evolve(part, shape=(dtypes.count(part.shape), 1))
