"""Affine encoding: the minimum and maximum of a group give its scale; codes round half to even.

Scales round up to their stored dtype, biases round down, so that no value is clipped: the error is at most half a step
of the group's scale. A zero scale becomes 1. With `search=mse` a group may use a narrower range if that lowers its
squared error; values outside are clipped. With `search=activations` errors are weighted by the activations of their
columns.

MLX's layout gets the same codes, scales and biases as MLX's `quantize`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from squish_core.api import CodecError, ErrorCode, dtypes

from .scheme import Scheme

Array = np.ndarray
FLOATS = ("f32", "f16", "bf16")
SHARES = tuple(share / 20 for share in range(19, 8, -1))
"""Fractions of a group's range tried by `search=mse`: 0.95, 0.9, ... 0.45; below 0.7 only helps 2-bit codes."""

Fit = tuple[Array, Array, Array | None]


def check_encodable(scheme: Scheme) -> None:
    """Check that a scheme has an encoder; some can only be decoded.

    Parameters
    ----------
    scheme : Scheme
        The parameters to check.

    Raises
    ------
    CodecError
        `params` if there is no encoder.

    Examples
    --------
    >>> check_encodable(Scheme.of({"bits": 4, "group_size": 32}))
    >>> check_encodable(Scheme.of({"bits": 4, "group_size": 32, "scale_dtype": "f8_e8m0"}))
    Traceback (most recent call last):
    ...
    squish_core.errors.CodecError: no encoder for this scale_dtype ...
    """
    constants = (0, 1)[: scheme.bits]  # 1-bit codes only allow the stored zero point
    holds_zeros = "packed", "i8" if scheme.signed else "u8", "i16", "i32", *FLOATS
    rules = [
        (scheme.scale_dtype in FLOATS, "scale_dtype", FLOATS),
        (scheme.offset != "bias" or scheme.offset_dtype in FLOATS, "offset_dtype", FLOATS),
        (scheme.offset != "zero_point" or scheme.offset_dtype in holds_zeros, "offset_dtype", holds_zeros),
        (scheme.offset != "zero_point" or scheme.zero in constants, "zero", [str(zero) for zero in constants]),
        (scheme.offset != "bias" or scheme.high > 0, "bits", ("2 or more for signed codes",)),
        (not scheme.symmetric or scheme.bits > 1, "bits", ("2 or more for symmetric codes",)),
        (not scheme.symmetric or scheme.offset != "bias", "offset", ("zero_point, for symmetric codes",)),
        (scheme.offset != "none" or scheme.bits > 1, "offset", ("bias", "zero_point, for 1-bit codes")),
        (scheme.offset != "none" or _reach(scheme) > 0, "zero", (f"{scheme.low + scheme.high + 1 >> 1}, midpoint",)),
    ]  # fmt: skip
    for holds, name, expected in rules:
        if not holds:
            raise CodecError(
                f"no encoder for this {name}",
                expected=" or ".join(expected),
                found=repr(getattr(scheme, name)),
                code=ErrorCode.PARAMS,
                hint="Such tensors can be read.",
            )


def encode(scheme: Scheme, panel: Array, activations: Array | None = None) -> dict[str, Array]:
    """Encode a panel of float32 values to parts; `search=activations` needs `activations` [columns]."""
    check_encodable(scheme)
    layouts = scheme.parts(panel.shape)
    if scheme.transposed:
        return {role: part.swapaxes(-1, -2) for role, part in encode(scheme.upright, panel, activations).items()}
    values = panel.reshape(-1) if scheme.flat else panel
    blocks, axis = blocks_of(scheme, np.ascontiguousarray(values, np.float32))
    with np.errstate(all="ignore"):
        low, high = _reduce(np.minimum, blocks, axis), _reduce(np.maximum, blocks, axis)
        check_finite(panel, low, high)
        ranges = low.astype(np.float64) + 0, high.astype(np.float64) + 0  # turns -0 into 0
        codes, scale, offset = _fit(scheme, blocks, axis, *ranges)
        if scheme.search != "none":
            weights = _weights(scheme, panel, activations)
            codes, scale, offset = _search(scheme, blocks, axis, ranges, (codes, scale, offset), values.size, weights)
    codes = codes.reshape(-1)[: values.size].reshape(values.shape)
    parts = {"data": scheme.packing.pack(codes, scheme.pack_axis), "scale": scale}
    if offset is not None and scheme.packed_zeros:
        parts["offset"] = scheme.packing.pack(offset.astype(np.int16).astype(np.uint8), scheme.zero_axis)
    elif offset is not None:
        parts["offset"] = offset.astype(dtypes.to_numpy(scheme.offset_dtype))
    assert all(parts[role].shape == shape for role, (_, shape) in layouts.items())
    return parts


def _fit(scheme: Scheme, blocks: Array, axis: int, low: Array, high: Array) -> Fit:
    """Return codes (bytes), scales and offsets for these ranges; values outside are clipped."""
    scale, offset = _grid(scheme)(scheme, low, high)
    codes = _quantize(scheme, blocks, _wide(scale, axis), None if offset is None else _wide(offset, axis))
    scale = scale.astype(dtypes.to_numpy(scheme.scale_dtype))
    if offset is not None and scheme.offset == "bias":
        offset = offset.astype(dtypes.to_numpy(scheme.offset_dtype))
    _check_range(scheme, scale, offset)
    return codes, scale, offset


def _weights(scheme: Scheme, panel: Array, activations: Array | None) -> Array | None:
    """Return the error weights, split into groups; None for equal weights."""
    if scheme.search == "mse":
        return None
    if activations is None:
        raise CodecError("search=activations needs activation statistics", code=ErrorCode.ENCODE)
    spread = np.broadcast_to(activations.astype(np.float32), panel.shape)
    return blocks_of(scheme, spread.reshape(-1) if scheme.flat else spread)[0]


def _search(
    scheme: Scheme, blocks: Array, axis: int, ranges: tuple[Array, Array], best: Fit, count: int, weights: Array | None
) -> Fit:
    """Return the best fit per group among its full range and narrower ranges with the same center."""
    middle, half = (ranges[0] + ranges[1]) / 2, (ranges[1] - ranges[0]) / 2
    codes, scale, offset = best
    least = _squared_error(scheme, blocks, axis, best, count, weights)
    for share in SHARES:
        other = _fit(scheme, blocks, axis, middle - share * half, middle + share * half)
        error = _squared_error(scheme, blocks, axis, other, count, weights)
        better = error < least
        least = np.where(better, error, least)
        codes = np.where(np.expand_dims(better, axis), other[0], codes)
        scale = np.where(better, other[1], scale)
        offset = None if offset is None or other[2] is None else np.where(better, other[2], offset)
    return codes, scale, offset


def _squared_error(scheme: Scheme, blocks: Array, axis: int, fit: Fit, count: int, weights: Array | None) -> Array:
    """Return the squared error per group; values after the first `count` are padding."""
    codes, scale, offset = fit
    gap = codes.view(np.int8 if scheme.signed else np.uint8).astype(np.float32)
    if scheme.offset != "bias":
        gap -= scheme.zero if offset is None else scheme.zero + _wide(offset, axis)
    gap *= _wide(scale, axis)
    if offset is not None and scheme.offset == "bias":
        gap += _wide(offset, axis)
    gap -= blocks
    gap.reshape(-1)[count:] = 0
    if weights is not None:
        gap *= weights
    return _reduce(np.add, np.square(gap, out=gap), axis)


def _wide(grid: Array, axis: int) -> Array:
    """Convert a grid to float32 and broadcast it along the group."""
    wide: Array = np.expand_dims(grid.astype(np.float32), axis)
    return wide


def check_finite(panel: Array, *extremes: Array) -> None:
    """Raise CodecError if a minimum or maximum is not finite."""
    if not all(np.isfinite(extreme).all() for extreme in extremes):
        raise CodecError(
            "cannot encode non-finite values",
            expected="finite values",
            found=f"{np.count_nonzero(~np.isfinite(panel))} of {panel.size}",
            code=ErrorCode.RANGE,
            hint="Keep this tensor unquantized, or fix its values first.",
        )


def blocks_of(scheme: Scheme, values: Array) -> tuple[Array, int]:
    """Split the group axis in two; returns the blocks and the axis (from the end) within a group."""
    axis = scheme.group_axis
    along = values.shape[axis]
    size = scheme.group_size or max(along, 1)
    if scheme.flat and along % size:
        values = np.pad(values, (0, -along % size), mode="edge")
    shape = list(values.shape)
    position = len(shape) + axis
    return values.reshape(*shape[:position], shape[position] // size, size, *shape[position + 1 :]), axis


def _reduce(function: np.ufunc, blocks: Array, axis: int) -> Array:
    """Reduce each group to one value; NaN propagates."""
    if axis != -1:
        return np.asarray(function.reduce(blocks, axis=axis))
    # For short runs `reduceat` is twice as fast as reducing the last axis.
    starts = np.arange(0, blocks.size, blocks.shape[-1])
    return np.asarray(function.reduceat(blocks.reshape(-1), starts)).reshape(blocks.shape[:-1])


def _reach(scheme: Scheme) -> int:
    """Return the largest magnitude available on both sides of the constant zero point."""
    return min(scheme.high - scheme.zero, scheme.zero - scheme.low)


def _symmetric(scheme: Scheme, low: Array, high: Array) -> tuple[Array, None]:
    return step_of(np.maximum(-low, high) / _reach(scheme), scheme.scale_dtype), None


def _zero_points(scheme: Scheme, low: Array, high: Array) -> tuple[Array, Array]:
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    span = scheme.high - scheme.low
    if scheme.zero:  # the stored zero point cannot be the lowest code: widen the range by a step
        low = np.minimum(low, -high * scheme.zero / (span - scheme.zero))
    scale = step_of((high - low) / span, scheme.scale_dtype)
    first = scheme.low + scheme.zero
    return scale, np.clip(scheme.low - np.rint(low / scale.astype(np.float64)), first, scheme.high) - scheme.zero


def _middles(scheme: Scheme, low: Array, high: Array) -> tuple[Array, Array]:
    scale = step_of(np.maximum(-low, high) / (scheme.high - scheme.middle), scheme.scale_dtype)
    return scale, np.full(scale.shape, scheme.middle - scheme.zero, np.float64)


def _biases(scheme: Scheme, low: Array, high: Array) -> tuple[Array, Array]:
    ideal = low - scheme.low * ((high - low) / (scheme.high - scheme.low))
    bias = ideal.astype(dtypes.to_numpy(scheme.offset_dtype))
    bias = np.where(bias.astype(np.float64) > ideal, np.nextafter(bias, bias.dtype.type(-np.inf)), bias)
    wide = bias.astype(np.float64)
    step = (high - wide) / scheme.high
    if scheme.low:
        step = np.maximum(step, (wide - low) / -scheme.low)
    return step_of(step, scheme.scale_dtype), bias


def _edges(scheme: Scheme, low: Array, high: Array) -> tuple[Array, Array]:
    """MLX's grid: the extreme of larger magnitude is exact and a multiple of the step, so scales may be negative.

    In float32; codes are computed before scales and biases are rounded to their dtype.
    """
    low, high = low.astype(np.float32), high.astype(np.float32)
    below = np.abs(low) > np.abs(high)
    step = np.maximum((high - low) / np.float32(scheme.high), np.float32(1e-7))
    edge, step = np.where(below, low, high), np.where(below, step, -step)
    count = np.rint(edge / step)
    return np.where(count == 0, step, edge / np.where(count == 0, 1, count)), np.where(count == 0, 0, edge)


_GRIDS = {"none": _symmetric, "zero_point": _zero_points, "bias": _biases}


def _grid(scheme: Scheme) -> Callable[[Scheme, Array, Array], tuple[Array, Array | None]]:
    """Return the function for scales and offsets."""
    if scheme.symmetric:
        return _middles
    return _edges if is_mlx_layout(scheme) else _GRIDS[scheme.offset]


def is_mlx_layout(scheme: Scheme) -> bool:
    """Return whether the scheme is MLX's layout.

    Parameters
    ----------
    scheme : Scheme
        The parameters to compare.

    Returns
    -------
    bool

    Examples
    --------
    >>> is_mlx_layout(Scheme.of({"bits": 4, "group_size": 64, "word": "u32", "offset": "bias"}))
    True
    >>> is_mlx_layout(Scheme.of({"bits": 4, "group_size": 64}))
    False
    """
    mlx = {"bits": scheme.bits, "group_size": scheme.group_size, "word": "u32", "offset": "bias"}
    return {**mlx, "scale_dtype": scheme.scale_dtype} == {"scale_dtype": scheme.scale_dtype, **scheme.params()}


def step_of(ideal: Array, dtype: str) -> Array:
    """Round scales up to a stored dtype; 0 becomes 1."""
    scale = ideal.astype(dtypes.to_numpy(dtype))
    one = scale.dtype.type(1)
    scale = np.where(scale.astype(np.float64) < ideal, np.nextafter(scale, scale.dtype.type(np.inf)), scale)
    return np.where(scale == 0, one, scale)


def _check_range(scheme: Scheme, scale: Array, offset: Array | None) -> None:
    """Raise CodecError if a bias or the product of a code and its scale is not finite."""
    reach = np.float32(max(scheme.high, -scheme.low))
    bad = ~np.isfinite(scale.astype(np.float32) * reach)
    if offset is not None:
        bad |= ~np.isfinite(offset.astype(np.float32))
    if bad.any():
        raise CodecError(
            "values too large for the dtype of the scale or offset",
            expected=f"scale {scheme.scale_dtype}",
            found=f"{np.count_nonzero(bad)} groups",
            code=ErrorCode.RANGE,
            hint="Use scale_dtype=f32 (and offset_dtype=f32).",
        )


def _quantize(scheme: Scheme, blocks: Array, scale: Array, offset: Array | None) -> Array:
    """Quantize grouped values to codes (two's complement bytes)."""
    low, high, zero = scheme.low, scheme.high, np.float32(scheme.zero)
    if offset is None:
        low, high = scheme.zero - _reach(scheme), scheme.zero + _reach(scheme)
    steps = (blocks - offset) / scale if scheme.offset == "bias" else blocks / scale
    np.rint(steps, out=steps)
    if scheme.offset == "zero_point":
        steps += offset
    if zero:
        steps += zero
    np.clip(steps, low, high, out=steps)
    return steps.astype(np.int16).astype(np.uint8)
