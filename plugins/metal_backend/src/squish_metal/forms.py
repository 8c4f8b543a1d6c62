"""What `mx.quantized_matmul` can hold of a codec's tensor, found without reading any of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import evolve, frozen

from squish_core.api import Codec, CodecError, CodecSpec, Codes, Params, TensorSpec, dtypes, full

WIDTHS, GROUPS = (2, 3, 4, 5, 6, 8), (128, 64, 32)
"""Bits and group sizes of MLX's affine mode (one bit is held in two, seven in eight)."""
BLANK = 1 << 22
"""Most elements of a blank tensor that a codec is asked about."""


@frozen(kw_only=True)
class Form:
    """A quantised form of MLX. `exact`: whether its biases come out without rounding whatever the scales are."""

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
    """The affine form of a codec that gives codes; what they look like is seen on a blank row of the same width."""
    if type(codec).codes is Codec.codes:  # none; params that count what the whole tensor holds fit no blank row either
        return None
    codes = _blank_codes(codec, params, spec)
    if codes is None or codes.table is not None or any(size != 1 for size in codes.group[:-1]):
        return None
    group = next((size for size in GROUPS if codes.group[-1] % size == 0), None)
    width = next((bits for bits in WIDTHS if bits >= codes.bits), None)
    if group is None or width is None:
        return None
    # q * scale + bias: a power of two times the scale never rounds, and a bias that is stored is only copied.
    exact = codes.offset_kind == "none" or (codes.offset_kind == "bias" and not codes.signed)
    return Form(mode="affine", bits=width, group_size=group, exact=exact)


def _blank_codes(codec: Codec, params: Params, spec: TensorSpec) -> Codes | None:
    grain = codec.grain(spec, params)
    rows = tuple(size if step is None else min(step, size) for step, size in zip(grain[:-1], spec.shape))
    small = evolve(spec, shape=(*rows, *spec.shape[-1:]))
    if not small.shape or not 0 < small.elements <= BLANK:
        return None
    try:
        declared = codec.parts(small, params)
        parts: dict[str, Any] = {
            role: np.zeros(shape, dtypes.to_numpy(dtype)) for role, (dtype, shape) in declared.items()
        }
        return codec.codes(parts, small, params, full(small.shape))
    except CodecError:
        return None
