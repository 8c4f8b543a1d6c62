"""Repacks stored codes for MLX without decoding them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attrs import frozen
from squish_codecs.api import Packing, float4_pairs

from squish_core.api import BoundEncoding, CodecError, Codes, ErrorCode, Region, TensorSpec

from .forms import Form

Array = np.ndarray


@frozen(kw_only=True, eq=False)
class Packed:
    """Arrays for `mx.quantized_matmul`: `weight` u32 [..., in * bits / 32], `scales` and (affine) `biases`
    [..., in / group_size]; for a transposed form [..., in, out * bits / 32] and [..., in, out / group_size].

    Source: MLX quantize; a row is a bit stream, first code in the lowest bits.
    """

    form: Form
    weight: Array
    scales: Array
    biases: Array | None = None


def pack(form: Form, bound: BoundEncoding) -> Packed:
    """Repack codes to one of MLX's forms by panels; CodecError if MLX has no such form for the data."""
    return _pack_affine(form, bound) if form.mode == "affine" else _pack_microscaled(form, bound)


def _pack_affine(form: Form, bound: BoundEncoding) -> Packed:
    """Pack integers with float32 scales and biases; zero points must be exact, and biases in the range of float32."""
    spec, packing = bound.spec, Packing(form.bits, "u32", "lsb")
    *lead, extent = _turned(spec.shape) if form.transposed else spec.shape
    weight = np.empty((*lead, extent * form.bits // 32), np.uint32)
    scales, biases = (np.empty((*lead, extent // form.group_size), np.float32) for _ in range(2))
    for rows, codes in _codes(bound, "inexact zero points"):
        values, (scale, bias), group = _unsigned(codes), _affine(codes), codes.group
        at = words = rows
        if form.transposed:
            values, scale, bias = (array.swapaxes(-1, -2) for array in (values, scale, bias))
            group = _turned(group)
            at, words = (_columns(rows, unit) for unit in (form.group_size, 32 / form.bits))
        if group[-1] % form.group_size:
            raise _uncovered("group sizes differ from the declaration", spec)
        weight[words] = packing.pack(np.ascontiguousarray(values))
        repeats = (*group[:-1], group[-1] // form.group_size)
        scales[at], biases[at] = (_repeat(grid, repeats, scales[at].shape) for grid in (scale, bias))
    if not np.isfinite(biases[np.isfinite(scales)]).all():
        raise _uncovered("a bias exceeds float32", spec)
    return Packed(form=form, weight=weight, scales=scales, biases=biases)


def _turned(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Swap the last two sizes."""
    return (*shape[:-2], shape[-1], shape[-2])


def _columns(rows: Region, unit: float) -> tuple[slice, ...]:
    """Return the place of rows in the transposed matrix, whose last axis has `unit` of them per element."""
    *lead, last = rows
    return (*lead, slice(None), slice(int(last.start / unit), int(last.stop / unit)))


def _pack_microscaled(form: Form, bound: BoundEncoding) -> Packed:
    """Pack floats with their scales; no scale may be NaN, which MLX decodes as infinity."""
    *lead, columns = bound.spec.shape
    weight = np.empty((*lead, columns * form.bits // 8), np.uint8)
    scales = np.empty((*lead, columns // form.group_size), np.uint8)
    for rows, codes in _codes(bound, "a block's scale has no such meaning in MLX"):
        weight[rows] = float4_pairs(codes) if form.bits == 4 else codes.values
        scales[rows] = codes.scale.view(np.uint8)
    if form.mode != "nvfp4" and (scales == 255).any():
        raise _uncovered("a block's scale is NaN", bound.spec)
    return Packed(form=form, weight=weight.view(np.uint32), scales=scales)


def _codes(bound: BoundEncoding, reason: str) -> Iterator[tuple[Region, Codes]]:
    """Iterate over panels of rows: their place without the last axis, and their codes.

    `reason`: why a codec with a code layout has no codes for the data.
    """
    for region in bound.panels(whole_rows=True):
        try:
            codes = bound.codes(region)
        except CodecError as error:  # depends on the data, such as act-order columns
            raise _uncovered(error.message, bound.spec) from error
        if codes is None:
            raise _uncovered(reason, bound.spec)
        yield region[:-1], codes


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
