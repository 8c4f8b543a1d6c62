"""The half-quadratic optimizer: zero points that minimize the rounding error in a norm tolerant of outliers.

Source: Badri and Shaji, Half-Quadratic Quantization of Large Machine Learning Models (2023).
"""

from __future__ import annotations

import numpy as np

from squish_core.api import CodecError, ErrorCode

NORM, BETA, GROWTH, STEPS = 0.7, 10.0, 1.01, 20  # the defaults of the paper's code
PANEL = 1 << 16
"""Values per iteration; with temporaries they fit the cache."""


def quantize(groups: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return codes (u8 [size, groups]), scales and zero points (f32 [groups]) of a matrix; each column is a group."""
    size, count = groups.shape
    codes = np.empty((size, count), np.uint8)
    scale, zero = np.empty(count, np.float32), np.empty(count, np.float32)
    step = max(1, PANEL // size)
    for first in range(0, count, step):
        part = slice(first, first + step)
        values = np.ascontiguousarray(groups[:, part], np.float32)
        codes[:, part], scale[part], zero[part] = _columns(values, (1 << bits) - 1)
    return codes, scale, zero


def _columns(values: np.ndarray, highest: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    low = values.min(axis=0)
    span = values.max(axis=0) - low
    if not np.isfinite(span).all():
        raise CodecError(
            "HQQ cannot encode non-finite values or a range beyond float32",
            code=ErrorCode.RANGE,
            hint="Keep this tensor unquantized, or fix its values first.",
        )
    scale = np.where(span > 0, span / np.float32(highest), np.float32(1))
    scale = np.where(scale > 0, scale, np.float32(1))  # the division underflowed
    steps = values / scale
    zero = -low / scale
    best, least = zero, np.full(len(zero), np.inf, np.float32)
    beta = BETA
    for _ in range(STEPS + 1):
        shifted = steps + zero
        error = shifted - _round(shifted, highest)
        total = np.einsum("ij,ij->j", error, error)
        better = total < least
        if not better.any():
            break
        best, least = np.where(better, zero, best), np.where(better, total, least)
        zero = zero - (error - _shrink(error, scale, beta)).mean(axis=0)
        beta *= GROWTH
    return _round(steps + best, highest).astype(np.uint8), scale, best


def _round(shifted: np.ndarray, highest: int) -> np.ndarray:
    codes = np.rint(shifted)
    return np.clip(codes, 0, highest, out=codes)


def _shrink(error: np.ndarray, scale: np.ndarray, beta: float) -> np.ndarray | np.float32:
    """Return the outlier part of the errors, in steps; outliers are few, so the others are skipped."""
    far = np.abs(error) * scale > beta ** (1 / (NORM - 2))
    if not far.any():
        return np.float32(0)
    columns = np.broadcast_to(scale, error.shape)[far]
    size = np.abs(error[far]) * columns
    outliers = np.zeros_like(error)
    outliers[far] = np.copysign(size - size ** np.float32(NORM - 1) / np.float32(beta), error[far]) / columns
    return outliers
