"""Keys and values as 2-, 4- or 8-bit codes with a scale and zero point per group (KIVI, 2024)."""

from __future__ import annotations

import numpy as np
from attrs import frozen

from squish_core.api import CodecError, ErrorCode

from ..packing.bits import Packing

Array = np.ndarray
KEYS, VALUES = -2, -1
"""Group axis: keys are grouped over tokens, values over channels."""
BITS = (2, 4, 8)


@frozen(eq=False)
class Groups:
    """Codes in groups along `axis`; a value is `code * scale + zero` in f32.

    Parameters
    ----------
    bits
        Bits of a code: 2, 4 or 8.
    axis
        KEYS (-2, tokens) or VALUES (-1, channels).
    codes
        u8 [..., tokens, channels * bits / 8]; the first code of a byte is in its lowest bits.
    scale, zero
        f16, the shape of the values with the grouped axis divided by the group size.
    """

    bits: int
    axis: int
    codes: Array
    scale: Array
    zero: Array

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and zero points."""
        return self.codes.nbytes + self.scale.nbytes + self.zero.nbytes

    def dequantize(self) -> Array:
        """Return the values, f32 [..., tokens, channels]."""
        channels = self.codes.shape[-1] * 8 // self.bits
        codes = Packing(self.bits, "u8", "lsb").unpack(self.codes, channels)
        grouped = _split_groups(codes.astype(np.float32), self.scale.shape[self.axis], self.axis)
        scale, zero = (np.expand_dims(array.astype(np.float32), self.axis) for array in (self.scale, self.zero))
        return (grouped * scale + zero).reshape(codes.shape)


def quantize(values: Array, axis: int, bits: int = 8, group_size: int = 32) -> Groups:
    """Quantize keys or values in groups, with the smallest scale that covers each group.

    Parameters
    ----------
    values
        Floats [..., tokens, channels]; a multiple of `group_size` long along `axis`.
    axis
        KEYS (-2): a group is `group_size` tokens of one channel. VALUES (-1): `group_size` channels of one token.
    bits
        Bits of a code: 2, 4 or 8.
    group_size
        Values per scale and zero point.

    Returns
    -------
    Groups
        The error is at most half a scale, up to f32 rounding.

    Raises
    ------
    CodecError
        `shape` if groups do not divide the axis or codes do not fill bytes; `range` if a value is not finite or a
        group does not fit f16.

    Notes
    -----
    KIVI (2024), section 3.2: keys per channel, since few channels have outliers; values per token.

    Examples
    --------
    >>> import numpy as np
    >>> from squish_codecs.kv import KEYS, quantize
    >>> keys = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 32, 2)
    >>> groups = quantize(keys, KEYS, bits=4)
    >>> groups.codes.shape, groups.scale.shape, groups.nbytes
    ((1, 32, 1), (1, 1, 2), 40)
    >>> bool((abs(groups.dequantize() - keys) <= groups.scale.max() / 2 * 1.001).all())
    True
    """
    if bits not in BITS or group_size < 1 or values.ndim < 2 or values.shape[axis] % group_size:
        raise CodecError(
            "keys and values need complete groups of 2-, 4- or 8-bit codes",
            code="shape",
            expected=f"a multiple of {group_size} along axis {axis}",
            found=f"{list(values.shape)}, {bits} bits",
        )
    if values.shape[-1] * bits % 8:
        raise CodecError(
            "the codes of a token do not fill whole bytes",
            code="shape",
            expected=f"a multiple of {8 // bits} channels",
            found=values.shape[-1],
        )
    grouped = _split_groups(values.astype(np.float32), values.shape[axis] // group_size, axis)
    low, high = grouped.min(axis=axis, initial=np.inf), grouped.max(axis=axis, initial=-np.inf)
    levels = np.float32(2**bits - 1)
    with np.errstate(over="ignore", invalid="ignore"):
        zero = _round_f16(low, -np.inf)
        scale = _round_f16((high - zero.astype(np.float32)) / levels, np.inf)
    if not (np.isfinite(scale).all() and np.isfinite(zero).all()):
        raise CodecError(
            "a scale or zero point does not fit f16",
            code=ErrorCode.RANGE,
            expected="finite values in the range of f16",
            found=f"{float(low.min(initial=np.inf))}..{float(high.max(initial=-np.inf))}",
        )
    step = np.where(scale > 0, scale, 1).astype(np.float32)
    codes = np.rint((grouped - np.expand_dims(zero.astype(np.float32), axis)) / np.expand_dims(step, axis))
    packed = Packing(bits, "u8", "lsb").pack(codes.clip(0, levels).astype(np.uint8).reshape(values.shape))
    return Groups(bits, axis, packed, scale, zero)


def _split_groups(values: Array, count: int, axis: int) -> Array:
    """Split `axis` into `count` groups; values within a group are again along `axis`."""
    shape = list(values.shape)
    size = shape[axis] // count if count else 0
    shape[axis : axis + 1 or None] = [count, size]
    return values.reshape(shape)


def _round_f16(values: Array, towards: float) -> Array:
    """Round to f16 in the direction of `towards`."""
    nearest = values.astype(np.float16)
    short = nearest < values if towards > 0 else nearest > values
    return np.where(short, np.nextafter(nearest, np.float16(towards)), nearest)
