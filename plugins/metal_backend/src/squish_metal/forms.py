"""MLX's quantized forms for a codec's tensor, from its declared code layout alone."""

from __future__ import annotations

from attrs import frozen
from squish_codecs.api import mx_layout

from squish_core.api import Codec, CodecError, CodeLayout, TensorSpec, dtypes

WIDTHS, GROUPS = (2, 3, 4, 5, 6, 8), (128, 64, 32)
"""Bits and group sizes of MLX's affine mode (1-bit codes use 2 bits, 7-bit codes 8)."""


@frozen(kw_only=True)
class Form:
    """A quantized form of MLX. `exact`: biases are exact for any scales; `transposed`: groups run down columns, so the
    transposed matrix is quantized along its rows."""

    mode: str
    bits: int
    group_size: int
    exact: bool = True
    transposed: bool = False

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Return the size in bytes: codes, and per group a float32 pair in affine mode or one byte."""
        elements = dtypes.count(shape)
        return elements * self.bits // 8 + elements // self.group_size * (8 if self.mode == "affine" else 1)

    def __str__(self) -> str:
        down = " down columns" if self.transposed else ""
        return f"mx.quantized_matmul, mode {self.mode}, {self.bits} bits, groups of {self.group_size}{down}"


def form_of(codec: Codec, spec: TensorSpec) -> Form | None:
    """Return the form for a codec's codes; None if there is none, and for vectors and empty tensors."""
    if len(spec.shape) < 2 or not spec.elements:
        return None
    try:
        layout = codec.code_layout(spec)
    except CodecError:
        return None  # parameters do not divide the shape
    if layout is None:
        return None
    return _affine(layout, spec) if layout.table is None else _microscaled(layout)


def _microscaled(layout: CodeLayout) -> Form | None:
    """Return the floating-point mode with the same codes and scales."""
    rank = len(layout.group)
    return next((form for form, floats in _MODES.items() if layout == mx_layout(rank, *floats)), None)


_MODES = {
    Form(mode="mxfp4", bits=4, group_size=32): ("f4_e2m1", 32, "f8_e8m0"),
    Form(mode="nvfp4", bits=4, group_size=16): ("f4_e2m1", 16, "f8_e4m3"),
    Form(mode="mxfp8", bits=8, group_size=32): ("f8_e4m3", 32, "f8_e8m0"),
}
"""Form -> element, group size and scale dtype of its codes."""


def _affine(layout: CodeLayout, spec: TensorSpec) -> Form | None:
    """Return the affine form of integer codes; None if groups divide neither rows nor columns."""
    along = [
        (size, is_down)
        for is_down, extent in enumerate(reversed(layout.group_sizes(spec.shape)[-2:]))
        for size in GROUPS
        if extent % size == 0 and spec.shape[-1 - is_down] % size == 0
    ]
    group, is_down = along[0] if along else (None, 0)
    width = next((bits for bits in WIDTHS if bits >= layout.bits), None)
    if group is None or width is None:
        return None
    # q * scale + bias: a power of two times the scale is exact, and a stored bias is only copied.
    no_bias = layout.offset_kind == "none" and not layout.zero
    exact = no_bias or (layout.offset_kind == "bias" and not layout.signed)
    return Form(mode="affine", bits=width, group_size=group, exact=exact, transposed=bool(is_down))
