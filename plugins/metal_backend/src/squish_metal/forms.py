"""What `mx.quantized_matmul` can hold of a codec's tensor, found without reading any of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from squish_core.api import Codec, CodecError, CodecSpec, Params, TensorSpec, dtypes

WIDTHS, GROUPS = (2, 3, 4, 5, 6, 8), (128, 64, 32)
"""Bits and group sizes of MLX's affine mode (one bit is held in two, seven in eight)."""


@frozen(kw_only=True)
class Form:
    """A quantized form of MLX. `exact`: whether its biases come out without rounding whatever the scales are."""

    mode: str
    bits: int
    group_size: int
    exact: bool = True

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of codes, scales and biases: float32 pairs in affine mode, a byte a group in the others."""
        elements = dtypes.count(shape)
        return elements * self.bits // 8 + elements // self.group_size * (8 if self.mode == "affine" else 1)

    def __str__(self) -> str:
        return f"mx.quantized_matmul, mode {self.mode}, {self.bits} bits, groups of {self.group_size}"


def microscaled(codec: CodecSpec, spec: TensorSpec) -> Form | None:
    """The floating-point mode whose bytes are the codec's own."""
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
    """The affine form of the codes that a codec declares; None where it has none, or not in whole rows of groups."""
    try:
        layout = codec.code_layout(spec, params)
    except CodecError:
        return None  # a shape that the parameters do not divide
    if layout is None or layout.table is not None or not spec.shape:
        return None
    columns = layout.group_sizes(spec.shape)[-1]
    group = next((size for size in GROUPS if columns % size == 0), None)
    width = next((bits for bits in WIDTHS if bits >= layout.bits), None)
    if group is None or width is None:
        return None
    # q * scale + bias: a power of two times the scale never rounds, and a bias that is stored is only copied.
    plain = layout.offset_kind == "none" and not layout.zero
    return Form(
        mode="affine", bits=width, group_size=group, exact=plain or (layout.offset_kind == "bias" and not layout.signed)
    )
