"""Microscaling: float4 or float8 values in blocks with a small float scale."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from attrs import evolve

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
from .global_scale import split_global_scale
from .layout import LEGAL, float8_codes, mx_layout, non_defaults

_TINY = 2**-10
"""The largest value that rounds to 0 in f8_e4m3."""
_MOST = {"f4_e2m1": 6.0, "f8_e4m3": 448.0, "f8_e5m2": 57344.0}


class Form(NamedTuple):
    """The complete parameters, in the order of `LEGAL`."""

    element: str
    block_size: int
    scale_dtype: str
    global_scale: str
    scaling: str

    def non_defaults(self) -> dict[str, Any]:
        """Return the parameters that differ from their default."""
        return non_defaults(**self._asdict())


class Mx(Codec):
    """`element * scale` in float32, with one scale per `block_size` elements along the last axis.

    Parts: `data`, u8 [..., in / 2] with the even element in the low nibble for f4_e2m1, else [..., in]; `scale`
    [..., in / block_size]; `global_scale` f32 [], multiplied with or divided into the scales. Parameters:

    element       f4_e2m1  f4_e2m1 f8_e4m3 f8_e5m2
    block_size    32       32 16
    scale_dtype   f8_e8m0  f8_e8m0 (a power of two; 255 is NaN), f8_e4m3
    global_scale  none     none; multiply (ModelOpt's NVFP4); divide (compressed-tensors' NVFP4)
    scaling       ocp      encoder's power-of-two scales. ocp: the exponent of the largest magnitude minus the
                           element type's largest; saturating, for f4_e2m1: one less if the magnitude is below 1.5
                           times its power of two, and codes round half away from zero (mistral.rs)

    Sources: OCP Microscaling Formats 1.0, section 6.3; uqff-formats, section 4; MLX, compressed-tensors and ModelOpt.
    """

    encoder_only_params = ("scaling",)

    def bind(self) -> None:
        self.form = _check_params(self.params)

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        element, block, scale, factor, _ = self.form
        if not spec.shape or spec.shape[-1] % block:
            raise CodecError(
                "the blocks do not divide the rows",
                code="shape",
                expected=f"a last dimension divisible by {block}",
                found=f"shape {list(spec.shape)}",
            )
        *lead, last = spec.shape
        parts = {"data": ("u8", (*lead, last // 2)) if element == "f4_e2m1" else (element, spec.shape)}
        parts["scale"] = (scale, (*lead, last // block))
        return parts if factor == "none" else {**parts, "global_scale": ("f32", ())}

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        return (*(1 for _ in spec.shape[1:]), self.form.block_size)

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        element, block, _, factor, _ = self.form
        table = _pairs() if element == "f4_e2m1" else float8_table(element)
        width = table.ndim  # elements per byte
        *lead, last = region
        packed = parts["data"][(*lead, slice(last.start // width, last.stop // width))].view(np.uint8)
        scale = parts["scale"][(*lead, slice(last.start // block, last.stop // block))].astype(np.float32)
        np.take(table, packed, axis=0, out=out.reshape(*packed.shape, 2) if width == 2 else out, mode="clip")
        blocks = out.reshape(*scale.shape, block)
        with np.errstate(all="ignore"):
            if factor != "none":
                global_scale = np.float32(parts["global_scale"][...])
                scale = scale * global_scale if factor == "multiply" else scale / global_scale
            blocks *= scale[..., None]

    def encode_grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        if self.form.global_scale == "none":
            return self.grain(spec)
        return (None,) * len(spec.shape)  # one global scale per tensor

    def encode(self, panel: np.ndarray, *, activations: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Round to the nearest codes, ties to even, saturating. `scaling` chooses power-of-two scales; f8_e4m3 scales
        are the block's maximum over the largest element, and a global scale maps the largest scale to 448."""
        element, block, dtype, factor, scaling = self.form
        blocks = np.ascontiguousarray(panel, np.float32).reshape(*panel.shape[:-1], panel.shape[-1] // block, block)
        largest = self.largest(blocks)
        if not np.isfinite(largest).all():
            raise CodecError("microscaling cannot encode infinity and NaN", code=ErrorCode.RANGE)
        scales = {}
        if dtype == "f8_e8m0":
            scales["scale"], steps = _powers(largest, element, scaling)
        else:
            scales["scale"], steps, global_scale = _fractions(largest, element, factor)
            if factor != "none":
                scales["global_scale"] = global_scale
        return {"data": self.elements(blocks, steps), **scales}

    def largest(self, blocks: np.ndarray) -> np.ndarray:
        """Return the largest magnitude of each block; not finite if one of its values is not."""
        return np.abs(np.maximum(blocks.max(axis=-1), -blocks.min(axis=-1)))  # abs avoids -0

    def elements(self, blocks: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Return the part `data` of blocks with these scales."""
        with np.errstate(divide="ignore", invalid="ignore"):
            levels = np.where(steps[..., None] > 0, blocks / steps[..., None], np.float32(0))
        levels = levels.reshape(*blocks.shape[:-2], blocks.shape[-2] * blocks.shape[-1])
        return _nearest(levels, self.form.element, away=self.form.scaling == "saturating")

    @classmethod
    def params_for(cls, spec: TensorSpec, options: Params) -> Params:
        form = _check_params(options)
        element, _, dtype, factor, scaling = form
        if dtype == "f8_e8m0" and factor != "none":
            raise CodecError("a global scale needs f8_e4m3 scales", found=factor, code=ErrorCode.PARAMS)
        if scaling != "ocp" and (element, dtype) != ("f4_e2m1", "f8_e8m0"):
            raise CodecError(
                "this scaling needs f4_e2m1 with f8_e8m0 scales", found=f"{element}, {dtype}", code=ErrorCode.PARAMS
            )
        cls.from_params(options).parts(spec)
        return form.non_defaults()

    def code_layout(self, spec: TensorSpec) -> CodeLayout | None:
        """Return the layout of the floats; None for float8 with a global scale, which other formats lack."""
        element, block, scale, factor, _ = self.form
        layout = mx_layout(len(spec.shape), element, block, scale)
        if factor == "none":
            return layout
        return evolve(layout, global_scale=factor) if layout.bits == 4 else None

    def codes(self, parts: Parts, spec: TensorSpec, region: Region) -> Codes | None:
        layout, block = self.code_layout(spec), self.form.block_size
        if layout is None:
            return None
        *lead, last = region
        scale = parts["scale"][(*lead, slice(last.start // block, last.stop // block))]
        if layout.bits == 8:
            return float8_codes(layout, scale, lambda: parts["data"][region])
        packed = (*lead, slice(last.start // 2, last.stop // 2))
        codes = float4.float4_codes(scale, block, lambda: parts["data"][packed])
        if layout.global_scale is None:
            return codes
        factor = np.asarray(parts["global_scale"][...], np.float32)
        return evolve(codes, layout=layout, global_scale=factor)

    def from_codes(self, codes: Codes, spec: TensorSpec) -> tuple[dict[str, np.ndarray], Exactness] | None:
        """Store floats of the same dtype, block size and scale dtype; without a global scale it is 1."""
        element, block, dtype, factor, _ = self.form
        if codes.layout.global_scale not in (None, factor):
            return None
        codes, global_scale = split_global_scale(codes)
        if element == "f4_e2m1" and float4.is_float4(codes, block, dtype):
            parts = {"data": float4.float4_pairs(codes), "scale": codes.scale}
        elif codes.layout == mx_layout(len(spec.shape), element, block, dtype) and codes.group == codes.layout.group:
            parts = {"data": codes.values.view(dtypes.to_numpy(element)), "scale": codes.scale}
        else:
            return None
        if factor != "none":
            parts["global_scale"] = np.array(1, np.float32) if global_scale is None else global_scale
            if parts["global_scale"].ndim:
                return None
        return parts, Exactness("values", "f32")

    @property
    def canonical(self) -> Params:
        return self.form.non_defaults()


def _powers(largest: np.ndarray, element: str, scaling: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the stored scales and their float32 values."""
    if scaling == "ocp":
        top = np.frexp(_MOST[element])[1]
        exponent = np.where(largest > 0, np.frexp(largest)[1] - top, -127)
    else:
        exponent = np.where(largest > 0, np.frexp(largest / np.float32(_MOST[element]))[1] - 1, 0)
    scale = np.clip(exponent + 127, 0, 254).astype(np.uint8).view(dtypes.to_numpy("f8_e8m0"))
    return scale, scale.astype(np.float32)


def _fractions(largest: np.ndarray, element: str, factor: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return f8_e4m3 scales, their float32 values including the global scale, and the global scale.

    The order of operations is that of the respective package, for identical bytes.
    """
    most, finest = np.float32(_MOST["f8_e4m3"]), np.float32(2**-9)
    top = np.float32(_MOST[element])
    # The reciprocal of smaller peaks would overflow.
    peak = np.float32(max(largest.max(initial=0), 2**-100)) if largest.any() else most * top
    global_scale = np.float32(1)
    if factor == "multiply":
        global_scale = peak / (most * top)
        scale = np.maximum(largest / (top * global_scale), finest)
    elif factor == "divide":
        global_scale = most * top * (np.float32(1) / peak)
        scale = global_scale * (largest / top)
        scale = np.where(scale <= _TINY, np.float32(0.125), scale)
    else:
        scale = largest / top
    rounded = np.minimum(scale, most).astype(dtypes.to_numpy("f8_e4m3"))
    wide = rounded.astype(np.float32)
    steps = wide / global_scale if factor == "divide" else wide * global_scale
    return rounded, steps, np.array(global_scale, np.float32)


def _nearest(levels: np.ndarray, element: str, *, away: bool) -> np.ndarray:
    """Round levels to elements; float4 codes are packed in pairs. Ties go to even codes, or `away` from zero."""
    if element != "f4_e2m1":
        most = np.float32(_MOST[element])
        return np.clip(levels, -most, most).astype(dtypes.to_numpy(element))
    codes = np.signbit(levels).astype(np.uint8) << 3
    sizes = np.abs(levels, out=levels)
    for code, bound in enumerate(_BOUNDS):
        # The bound is between `code` and `code + 1`; ties go to the even one.
        codes += sizes >= bound if away or code % 2 else sizes > bound
    return codes[..., 0::2] | codes[..., 1::2] << 4


def _check_params(params: Params) -> Form:
    """Return the parameters with defaults; CodecError if one is invalid."""
    complete = {name: legal[0] for name, legal in LEGAL.items()} | dict(params)
    for name, value in complete.items():
        if value not in LEGAL.get(name, ()):
            legal = " or ".join(map(str, LEGAL.get(name, LEGAL)))
            raise CodecError(f"invalid mx {name}", expected=legal, found=repr(value)[:80], code=ErrorCode.PARAMS)
    return Form(**complete)


_BOUNDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def _pairs() -> np.ndarray:
    """Return the two values of each byte, f32 [256, 2]."""
    codes = np.arange(256)
    return np.stack([float4.VALUES[codes & 15], float4.VALUES[codes >> 4]], axis=-1)
