"""Microscaling: float4 or float8 values in blocks, each with a small float as its scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from squish_core.api import (
    Codec,
    CodecError,
    CodeLayout,
    Codes,
    ErrorCode,
    Exactness,
    Params,
    Parts,
    Region,
    TensorSpec,
    dtypes,
)

from ..float8 import float8_table
from . import float4

_LEGAL: dict[str, tuple[Any, ...]] = {
    "element": ("f4_e2m1", "f8_e4m3", "f8_e5m2"),
    "block_size": (32, 16),
    "scale_dtype": ("f8_e8m0", "f8_e4m3"),
    "global_scale": ("none", "multiply", "divide"),
    "scaling": ("ocp", "saturating"),
}
_TINY = 2**-10
"""Up to this, the nearest f8_e4m3 is 0."""
_MOST = {"f4_e2m1": 6.0, "f8_e4m3": 448.0, "f8_e5m2": 57344.0}


class Form(NamedTuple):
    """The parameters, all of them, in the order of `_LEGAL`."""

    element: str
    block_size: int
    scale_dtype: str
    global_scale: str
    scaling: str

    def stated(self) -> dict[str, Any]:
        """Those that are not the defaults."""
        return {name: value for name, value in self._asdict().items() if value != _LEGAL[name][0]}


class Mx(Codec):
    """`element * scale` in float32, one scale for each block of `block_size` along the last axis.

    Parts: `data`, u8 [..., in / 2] with the even element in the low nibble for f4_e2m1, else [..., in]; `scale`
    [..., in / block_size]; `global_scale` f32 [], which multiplies or divides the scales first. Parameters:

    element       f4_e2m1  f4_e2m1 f8_e4m3 f8_e5m2
    block_size    32       32 16
    scale_dtype   f8_e8m0  f8_e8m0 (a power of two; 255 is NaN), f8_e4m3
    global_scale  none     none; multiply (ModelOpt's NVFP4); divide (that of compressed-tensors)
    scaling       ocp      for encoding powers of two. ocp: that of the largest magnitude over that of the element
                           type's largest value; saturating, for f4_e2m1: half of that where the magnitude lies below
                           1.5 times its power of two, and halves away from zero (mistral.rs)

    Sources: OCP Microscaling Formats 1.0, section 6.3; uqff-formats, section 4; MLX, compressed-tensors and ModelOpt.
    """

    encoder_only_params = ("scaling",)

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        element, block, scale, factor, _ = _checked(params)
        if not spec.shape or spec.shape[-1] % block:
            raise CodecError(
                "the blocks do not divide the rows", code="shape",
                expected=f"a last dimension divisible by {block}", found=f"shape {list(spec.shape)}",
            )  # fmt: skip
        *lead, last = spec.shape
        made = {"data": ("u8", (*lead, last // 2)) if element == "f4_e2m1" else (element, spec.shape)}
        made["scale"] = (scale, (*lead, last // block))
        return made if factor == "none" else {**made, "global_scale": ("f32", ())}

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        return (*(1 for _ in spec.shape[1:]), _checked(params).block_size)

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        element, block, _, factor, _ = _checked(params)
        table = _pairs() if element == "f4_e2m1" else float8_table(element)
        width = table.ndim  # elements of a byte
        *lead, last = region
        packed = parts["data"][(*lead, slice(last.start // width, last.stop // width))].view(np.uint8)
        scale = parts["scale"][(*lead, slice(last.start // block, last.stop // block))].astype(np.float32)
        np.take(table, packed, axis=0, out=out.reshape(*packed.shape, 2) if width == 2 else out, mode="clip")
        blocks = out.reshape(*scale.shape, block)
        with np.errstate(all="ignore"):
            if factor != "none":
                whole = np.float32(parts["global_scale"][...])
                scale = scale * whole if factor == "multiply" else scale / whole
            blocks *= scale[..., None]

    def encode_grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        if _checked(params).global_scale == "none":
            return self.grain(spec, params)
        return (None,) * len(spec.shape)  # one scale for all

    def encode(
        self, panel: np.ndarray, params: Params, *, stats: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """The nearest codes, ties to even, saturating. Powers of two by `scaling`; scales of f8_e4m3 are the nearest
        to the block's maximum over the largest element, a global scale takes the largest of them to 448."""
        element, block, dtype, factor, scaling = _checked(params)
        blocks = np.ascontiguousarray(panel, np.float32).reshape(*panel.shape[:-1], panel.shape[-1] // block, block)
        largest = np.abs(np.maximum(blocks.max(axis=-1), -blocks.min(axis=-1)))  # abs: no -0
        if not np.isfinite(largest).all():
            raise CodecError("infinities and NaN have no microscaled form", code=ErrorCode.RANGE)
        made = {}
        if dtype == "f8_e8m0":
            made["scale"], steps = _powers(largest, element, scaling)
        else:
            made["scale"], steps, whole = _fractions(largest, element, factor)
            if factor != "none":
                made["global_scale"] = whole
        with np.errstate(divide="ignore", invalid="ignore"):
            levels = np.where(steps[..., None] > 0, blocks / steps[..., None], np.float32(0)).reshape(panel.shape)
        return {"data": _nearest(levels, element, away=scaling == "saturating"), **made}

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        form = _checked(params)
        element, _, dtype, factor, scaling = form
        if dtype == "f8_e8m0" and factor != "none":
            raise CodecError("a global scale goes with scales of f8_e4m3", found=factor, code=ErrorCode.PARAMS)
        if scaling != "ocp" and (element, dtype) != ("f4_e2m1", "f8_e8m0"):
            raise CodecError(
                "this scaling is for f4_e2m1 under f8_e8m0", found=f"{element}, {dtype}", code=ErrorCode.PARAMS
            )
        self.parts(spec, params)
        return form.stated()

    def code_layout(self, spec: TensorSpec, params: Params) -> CodeLayout | None:
        """That of float4 without a global scale, which others have no place for."""
        element, block, scale, factor, _ = _checked(params)
        if element != "f4_e2m1" or factor != "none":
            return None
        return float4.float4_layout(len(spec.shape), block, scale)

    def codes(self, parts: Parts, spec: TensorSpec, params: Params, region: Region) -> Codes | None:
        if self.code_layout(spec, params) is None:
            return None
        block = _checked(params).block_size
        *lead, last = region
        scale = parts["scale"][(*lead, slice(last.start // block, last.stop // block))]
        packed = (*lead, slice(last.start // 2, last.stop // 2))
        return float4.float4_codes(scale, block, lambda: parts["data"][packed])

    def from_codes(
        self, codes: Codes, spec: TensorSpec, params: Params
    ) -> tuple[dict[str, np.ndarray], Exactness] | None:
        """Float4 codes in the same blocks with scales of the same kind; a global scale is 1."""
        element, block, dtype, factor, _ = _checked(params)
        if element != "f4_e2m1" or not float4.is_float4(codes, block, dtype):
            return None
        made = {"data": float4.float4_pairs(codes), "scale": codes.scale}
        if factor != "none":
            made["global_scale"] = np.array(1, np.float32)
        return made, Exactness("values", "f32")

    def canonical(self, params: Params) -> Params:
        return _checked(params).stated()


def _powers(largest: np.ndarray, element: str, scaling: str) -> tuple[np.ndarray, np.ndarray]:
    """Scales as stored, and in float32."""
    if scaling == "ocp":
        top = np.frexp(_MOST[element])[1]
        exponent = np.where(largest > 0, np.frexp(largest)[1] - top, -127)
    else:
        exponent = np.where(largest > 0, np.frexp(largest / np.float32(_MOST[element]))[1] - 1, 0)
    stored = np.clip(exponent + 127, 0, 254).astype(np.uint8).view(dtypes.to_numpy("f8_e8m0"))
    return stored, stored.astype(np.float32)


def _fractions(largest: np.ndarray, element: str, factor: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scales of f8_e4m3 as stored, what they are with the global scale in float32, and that one.

    Each step is in the order in which the package does it whose form it is: its bytes depend on that.
    """
    most, finest = np.float32(_MOST["f8_e4m3"]), np.float32(2**-9)
    top = np.float32(_MOST[element])
    # Numbers so small that a factor for them would be none stay what they are.
    peak = np.float32(max(largest.max(initial=0), 2**-100)) if largest.any() else most * top
    whole = np.float32(1)
    if factor == "multiply":
        whole = peak / (most * top)
        scale = np.maximum(largest / (top * whole), finest)
    elif factor == "divide":
        whole = most * top * (np.float32(1) / peak)
        scale = whole * (largest / top)
        scale = np.where(scale <= _TINY, np.float32(0.125), scale)
    else:
        scale = largest / top
    stored = np.minimum(scale, most).astype(dtypes.to_numpy("f8_e4m3"))
    wide = stored.astype(np.float32)
    return stored, wide / whole if factor == "divide" else wide * whole, np.array(whole, np.float32)


def _nearest(levels: np.ndarray, element: str, *, away: bool) -> np.ndarray:
    """Levels as elements; float4 as pairs in bytes. Halves go to even codes, or `away` from zero."""
    if element != "f4_e2m1":
        most = np.float32(_MOST[element])
        return np.clip(levels, -most, most).astype(dtypes.to_numpy(element))
    codes = np.signbit(levels).astype(np.uint8) << 3
    sizes = np.abs(levels, out=levels)
    for code, bound in enumerate(_BOUNDS):
        # The bound lies between `code` and the next one, which is even where `code` is odd.
        codes += sizes >= bound if away or code % 2 else sizes > bound
    return codes[..., 0::2] | codes[..., 1::2] << 4


def _checked(params: Params) -> Form:
    """The parameters with the defaults filled in; CodecError where one is none of the legal ones."""
    chosen = {name: legal[0] for name, legal in _LEGAL.items()} | dict(params)
    for name, value in chosen.items():
        if value not in _LEGAL.get(name, ()):
            legal = " or ".join(map(str, _LEGAL.get(name, _LEGAL)))
            raise CodecError(
                f"mx cannot take this {name}", expected=legal, found=repr(value)[:80], code=ErrorCode.PARAMS
            )
    return Form(**chosen)


_BOUNDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def _pairs() -> np.ndarray:
    """The two values of each byte, f32 [256, 2]."""
    codes = np.arange(256)
    return np.stack([float4.VALUES[codes & 15], float4.VALUES[codes >> 4]], axis=-1)
