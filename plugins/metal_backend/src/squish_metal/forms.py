"""MLX's quantized forms for a codec's tensor, from declarations alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from squish_core.api import Codec, CodecError, CodecSpec, Params, TensorSpec, dtypes

WIDTHS, GROUPS = (2, 3, 4, 5, 6, 8), (128, 64, 32)
"""Bits and group sizes of MLX's affine mode (1-bit codes use 2 bits, 7-bit codes 8)."""


@frozen(kw_only=True)
class Form:
    """A quantized form of MLX. `exact`: biases are exact for any scales."""

    mode: str
    bits: int
    group_size: int
    exact: bool = True

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Return the size in bytes: codes, and per group a float32 pair in affine mode or one byte."""
        elements = dtypes.count(shape)
        return elements * self.bits // 8 + elements // self.group_size * (8 if self.mode == "affine" else 1)

    def __str__(self) -> str:
        return f"mx.quantized_matmul, mode {self.mode}, {self.bits} bits, groups of {self.group_size}"


def microscaled(codec: CodecSpec, spec: TensorSpec) -> Form | None:
    """Return the floating-point mode with the codec's own bytes."""
    params = codec.params
    if codec.id == "mx" and params.get("global_scale", "none") == "none":
        element, scale = params.get("element", "f4_e2m1"), params.get("scale_dtype", "f8_e8m0")
        return _MODES.get((element, params.get("block_size", 32), scale))
    if codec.id == "zt.mx" and params["axis"] == len(spec.shape) - 1:
        return _MODES.get((params["dtype"], params["block_size"], "f8_e8m0"))
    return None


_MODES: Mapping[tuple[Any, ...], Form] = {
    ("f4_e2m1", 32, "f8_e8m0"): Form(mode="mxfp4", bits=4, group_size=32),
    ("f4_e2m1", 16, "f8_e4m3"): Form(mode="nvfp4", bits=4, group_size=16),
    ("f8_e4m3", 32, "f8_e8m0"): Form(mode="mxfp8", bits=8, group_size=32),
}


def affine(codec: Codec, params: Params, spec: TensorSpec) -> Form | None:
    """Return the affine form of a codec's codes; None if there is none or groups do not divide rows."""
    try:
        layout = codec.code_layout(spec, params)
    except CodecError:
        return None  # parameters do not divide the shape
    if layout is None or layout.table is not None or not spec.shape:
        return None
    columns = layout.group_sizes(spec.shape)[-1]
    group = next((size for size in GROUPS if columns % size == 0), None)
    width = next((bits for bits in WIDTHS if bits >= layout.bits), None)
    if group is None or width is None:
        return None
    # q * scale + bias: a power of two times the scale is exact, and a stored bias is only copied.
    no_bias = layout.offset_kind == "none" and not layout.zero
    exact = no_bias or (layout.offset_kind == "bias" and not layout.signed)
    return Form(mode="affine", bits=width, group_size=group, exact=exact)
