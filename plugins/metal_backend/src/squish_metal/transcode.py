"""Repacks stored codes for MLX without decoding them."""

from __future__ import annotations

import numpy as np
from attrs import frozen
from squish_codecs.api import Packing

from squish_core.api import Codec, CodecError, CodecSpec, Codes, ErrorCode, Params, Parts, TensorSpec, panels

from .forms import Form

Array = np.ndarray


@frozen(kw_only=True, eq=False)
class Packed:
    """Arrays for `mx.quantized_matmul`: `weight` u32 [..., in * bits / 32], `scales` and (affine) `biases`
    [..., in / group_size].

    Source: MLX quantize; a row is a bit stream, first code in the lowest bits.
    """

    form: Form
    weight: Array
    scales: Array
    biases: Array | None = None


def pack_affine(form: Form, codec: Codec, params: Params, parts: Parts, spec: TensorSpec) -> Packed:
    """Repack codes to MLX's affine form by panels, with float32 scales and biases.

    CodecError if zero points are inexact or a bias exceeds the range of float32.
    """
    *lead, columns = spec.shape
    packing = Packing(form.bits, "u32", "lsb")
    weight = np.empty((*lead, columns * form.bits // 32), np.uint32)
    scales, biases = (np.empty((*lead, columns // form.group_size), np.float32) for _ in range(2))
    for region in panels(spec.shape, codec.grain(spec, params), 4, whole_rows=True):
        try:
            codes = codec.codes(parts, spec, params, region)
        except CodecError as error:  # depends on the data, such as act-order columns
            raise _uncovered(error.message, spec) from error
        if codes is None:
            raise _uncovered("inexact zero points", spec)
        if codes.group[-1] % form.group_size:
            raise _uncovered("group sizes differ from the declaration", spec)
        rows = region[:-1]
        weight[rows] = packing.pack(_unsigned(codes))
        scale, bias = _affine(codes)
        repeats = (*codes.group[:-1], codes.group[-1] // form.group_size)
        scales[rows], biases[rows] = (_repeat(grid, repeats, scales[rows].shape) for grid in (scale, bias))
    if not np.isfinite(biases[np.isfinite(scales)]).all():
        raise _uncovered("a bias exceeds float32", spec)
    return Packed(form=form, weight=weight, scales=scales, biases=biases)


def pack_microscaled(form: Form, codec: CodecSpec, parts: Parts, spec: TensorSpec) -> Packed:
    """Return the stored bytes; CodecError if a block's scale is NaN, which MLX decodes as infinity."""
    weight = np.ascontiguousarray(parts["data"][...]).view(np.uint8)
    scales = np.ascontiguousarray(parts["scale" if codec.id == "mx" else "scales"][...]).view(np.uint8)
    if form.mode != "nvfp4" and (scales == 255).any():
        raise _uncovered("a block's scale is NaN", spec)
    return Packed(form=form, weight=weight.view(np.uint32), scales=scales)


def _uncovered(reason: str, spec: TensorSpec) -> CodecError:
    """Return the error for data without an MLX form; the next backend is tried."""
    return CodecError(reason, tensor=spec.name, code=ErrorCode.UNCOVERED, hint="The NumPy backend runs this tensor.")


def _unsigned(codes: Codes) -> Array:
    """Shift codes to start at 0; for two's complement this flips the sign bit."""
    if not codes.layout.signed:
        return codes.values
    return codes.values.view(np.uint8) + np.uint8(-codes.layout.low)


def _repeat(grid: Array, repeats: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """Repeat a grid along each axis and crop it to a shape."""
    for axis, count in enumerate(repeats):
        grid = np.repeat(grid, count, axis=axis) if count > 1 else grid
    return grid[tuple(slice(0, size) for size in shape)]


def _affine(codes: Codes) -> tuple[Array, Array]:
    """Return scale and bias of `q * scale + bias` for codes starting at 0, rounded once to float32."""
    scale = codes.scale.astype(np.float64)
    low = codes.layout.low
    offset = np.zeros(scale.shape) if codes.offsets is None else codes.offsets.astype(np.float64)
    with np.errstate(all="ignore"):
        bias = offset + low * scale if codes.layout.offset_kind == "bias" else (low - offset) * scale
        return codes.scale.astype(np.float32), bias.astype(np.float32)
