"""Which affine scheme holds the codes of a tensor of another family: what exact repacking asks for first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from squish_core.api import CodecSpec

# GGML's plain blocks: 32 codes and one or two f16. Q4_0 and Q5_0 have a constant zero in the middle.
GGML_AFFINE: dict[str, Mapping[str, Any]] = {
    "ggml.q4_0": {"bits": 4, "group_size": 32, "zero": 8, "scale_dtype": "f16"},
    "ggml.q4_1": {"bits": 4, "group_size": 32, "offset": "bias", "scale_dtype": "f16"},
    "ggml.q5_0": {"bits": 5, "group_size": 32, "zero": 16, "scale_dtype": "f16"},
    "ggml.q5_1": {"bits": 5, "group_size": 32, "offset": "bias", "scale_dtype": "f16"},
    "ggml.q8_0": {"bits": 8, "group_size": 32, "signed": True, "scale_dtype": "f16"},
}

GGML_MX: dict[str, Mapping[str, Any]] = {
    "ggml.mxfp4": {},
    "ggml.nvfp4": {"block_size": 16, "scale_dtype": "f8_e4m3"},
}
"""GGML's blocks of float4 -> parameters of `mx` with the same codes and scales."""

SQUIZD_AFFINE: dict[str, Mapping[str, Any]] = {
    "squizd.int4": {"bits": 4, "axis": "flat", "signed": True, "offset": "bias"},
    "squizd.int2": {"bits": 2, "axis": "flat", "offset": "bias"},
}


def affine_form(codec: CodecSpec) -> Mapping[str, Any] | None:
    """Parameters of `affine` under which this codec's codes, scales and offsets are understood; None where it has none.

    A wrapping codec is asked for what it wraps: whether its codes can be had alone, its data show.
    """
    if codec.inner is not None:
        return affine_form(codec.inner)
    if codec.id in SQUIZD_AFFINE:
        return {**SQUIZD_AFFINE[codec.id], "group_size": codec.params.get("group_size", 0)}
    return codec.params if codec.id == "affine" else GGML_AFFINE.get(codec.id)
