"""GGML's blocks as data: which bits are the codes, and where scales lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from squish_core.api import BLOCK_TYPES

Places = tuple[int, ...]
"""For each number its first bit, counted from the start of the block."""
Pieces = tuple[tuple[int, Places], ...]
"""Pieces of numbers, lowest bits first: (width, place of each number)."""


class Bits(NamedTuple):
    """Numbers made of pieces of bytes. `minus` is subtracted."""

    dtype: str
    pieces: Pieces
    minus: int = 0


class Float(NamedTuple):
    """A float of a block, at a byte."""

    dtype: str
    start: int


def fields(start: int, size: int, run: int, shifts: Sequence[int]) -> Places:
    """All bytes of a run at the first shift, then all at the next, run after run."""
    return tuple(
        8 * (start + first + byte) + shift for first in range(0, size, run) for shift in shifts for byte in range(run)
    )


def _nibbles(start: int, size: int, run: int = 16) -> tuple[int, Places]:
    return 4, fields(start, size, run, (0, 4))


def _fifth_bits(start: int) -> tuple[int, Places]:
    return 1, tuple(range(8 * start, 8 * start + 32))


def _bytes(dtype: str, start: int, size: int) -> Bits:
    return Bits(dtype, ((8, fields(start, size, size, (0,))),))


_SIX = tuple(range(4))
_SCALES = Bits(
    "u8",
    (
        (4, (*(8 * (4 + n) for n in _SIX), *(8 * (12 + n) for n in _SIX))),
        (2, (*(8 * (4 + n) + 4 for n in _SIX), *(8 * (4 + n) + 6 for n in _SIX))),
    ),
)
"""The eight scales of six bits of Q4_K and Q5_K."""
_MINIMA = Bits(
    "u8",
    (
        (4, (*(8 * (8 + n) for n in _SIX), *(8 * (12 + n) + 4 for n in _SIX))),
        (2, (*(8 * (8 + n) + 4 for n in _SIX), *(8 * (8 + n) + 6 for n in _SIX))),
    ),
)
_Q3_K = Bits("i8", ((4, (*fields(96, 8, 8, (0, 4)),)), (2, fields(104, 4, 4, (0, 2, 4, 6)))), minus=32)
_IQ4_XS = Bits("i8", ((4, fields(4, 4, 1, (0, 4))), (2, fields(2, 2, 1, (0, 2, 4, 6)))), minus=32)
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""The values of f4_e2m1, doubled; ggml's scales are halved to match."""
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


class Block(NamedTuple):
    """A type of block.

    `codes`: pieces of a code, lowest bits first. `scale` of `group` neighbors, times `factor` of the block; a `bias` is
    added; a `minimum`, times `offset_factor`, is subtracted.
    """

    elements: int
    codes: Pieces
    group: int
    scale: Float | Bits
    zero: int = 0
    signed: bool = False
    factor: Float | None = None
    offset_kind: str = "none"
    offset: Float | Bits | None = None
    offset_factor: Float | None = None
    table: tuple[int, ...] | None = None

    @property
    def bits(self) -> int:
        """Width of a code."""
        return sum(width for width, _ in self.codes)


_D = Float("f16", 0)
BLOCKS = {
    "q4_0": Block(32, (_nibbles(2, 16),), 32, _D, zero=8),
    "q4_1": Block(32, (_nibbles(4, 16),), 32, _D, offset_kind="bias", offset=Float("f16", 2)),
    "q5_0": Block(32, (_nibbles(6, 16), _fifth_bits(2)), 32, _D, zero=16),
    "q5_1": Block(32, (_nibbles(8, 16), _fifth_bits(4)), 32, _D, offset_kind="bias", offset=Float("f16", 2)),
    "q8_0": Block(32, ((8, fields(2, 32, 32, (0,))),), 32, _D, zero=128, signed=True),
    "q8_1": Block(32, ((8, fields(4, 32, 32, (0,))),), 32, _D, zero=128, signed=True),
    "q8_k": Block(256, ((8, fields(4, 256, 256, (0,))),), 256, Float("f32", 0), zero=128, signed=True),
    "q2_k": Block(
        256,
        ((2, fields(16, 64, 32, (0, 2, 4, 6))),),
        16,
        _bytes("low4", 0, 16),
        factor=Float("f16", 80),
        offset_kind="minimum",
        offset=_bytes("high4", 0, 16),
        offset_factor=Float("f16", 82),
    ),
    "q3_k": Block(
        256,
        ((2, fields(32, 64, 32, (0, 2, 4, 6))), (1, fields(0, 32, 32, range(8)))),
        16,
        _Q3_K,
        zero=4,
        factor=Float("f16", 108),
    ),
    "q4_k": Block(
        256,
        (_nibbles(16, 128, 32),),
        32,
        _SCALES,
        factor=_D,
        offset_kind="minimum",
        offset=_MINIMA,
        offset_factor=Float("f16", 2),
    ),
    "q5_k": Block(
        256,
        (_nibbles(48, 128, 32), (1, fields(16, 32, 32, range(8)))),
        32,
        _SCALES,
        factor=_D,
        offset_kind="minimum",
        offset=_MINIMA,
        offset_factor=Float("f16", 2),
    ),
    "q6_k": Block(
        256,
        (_nibbles(0, 128, 64), (2, fields(128, 64, 32, (0, 2, 4, 6)))),
        16,
        _bytes("i8", 192, 16),
        zero=32,
        factor=Float("f16", 208),
    ),
    "q1_0": Block(128, ((1, fields(2, 16, 1, range(8))),), 128, _D, table=(-1, 1)),
    "q2_0": Block(64, ((2, fields(2, 16, 1, (0, 2, 4, 6))),), 64, _D, zero=1),
    "tq2_0": Block(256, ((2, fields(0, 64, 32, (0, 2, 4, 6))),), 256, Float("f16", 64), zero=1),
    "mxfp4": Block(32, (_nibbles(1, 16),), 32, _bytes("half_e8m0", 0, 1), table=E2M1),
    "nvfp4": Block(64, (_nibbles(4, 32, 8),), 16, _bytes("half_e4m3", 0, 4), table=E2M1),
    "iq4_nl": Block(32, (_nibbles(2, 16),), 32, _D, table=IQ4),
    "iq4_xs": Block(256, (_nibbles(8, 128),), 32, _IQ4_XS, factor=_D, table=IQ4),
}
"""Block type -> its data, bit for bit as in ggml-common.h."""


class Grid(NamedTuple):
    """A type of block of 256 elements whose codes are indices into a grid of 8 or 4 neighbors each (`size`).

    Its arrays are bytes in the order of the device: `codes`, the low bytes of indices as words of a run (4 neighbors:
    index `2 * byte + word`); `signs`, a word of each run, whose octets have `sign_bits` (7: an eighth makes the number
    of negative ones even); `high`, a number of 8 or 16 bits of each run with the high bits of indices, as HIGH says;
    `scale`, numbers of 4 bits of `group` neighbors, of which a byte has two. A scale is one and twice its number,
    times `unit`, times `factor`.
    """

    size: int
    codes: Pieces
    group: int
    unit: float
    scale_kind: str
    factor: Pieces
    signs: Pieces | None = None
    sign_bits: int = 0
    high: Pieces | None = None
    high_kind: str = "none"
    scale: Pieces | None = None

    @property
    def width(self) -> int:
        """Words of codes of a run."""
        return 8 // self.size

    @property
    def entries(self) -> int:
        """Entries of the grid."""
        return 256 << HIGH[self.high_kind].bits

    @property
    def nbytes(self) -> int:
        """Bytes of a block on the device."""
        arrays = (self.codes, self.signs, self.high, self.factor)
        return sum(len(pieces[0][1]) for pieces in arrays if pieces) + (len(self.scale[0][1]) // 2 if self.scale else 0)


class High(NamedTuple):
    """How the high bits of indices are stored: a number for kernels, and how many bits there are."""

    number: int
    bits: int


HIGH = {
    "none": High(0, 0),
    "quads": High(1, 1),
    "octets": High(2, 2),
    "threes": High(3, 4),
    "nibbles": High(4, 4),
    "signs": High(5, 1),
}
"""`quads`: a bit each. `octets`: two bits each. `threes`: three bits each, and the last bit of a run. `nibbles`: four
bits each. `signs`: a bit each, above the signs."""


def _array(start: int, size: int) -> Pieces:
    return ((8, fields(start, size, size, (0,))),)


def _of_runs(start: int, size: int, stride: int, count: int = 8) -> Pieces:
    """`size` bytes every `stride` bytes."""
    return ((8, tuple(8 * (start + run * stride + byte) for run in range(count) for byte in range(size))),)


def _nibbles_of(start: int, size: int) -> Pieces:
    return ((4, fields(start, size, 1, (0, 4))),)


def _of_bits(bits: Sequence[int]) -> Pieces:
    """Bytes made of single bits."""
    return tuple((1, tuple(bits[bit::8])) for bit in range(8))


_QUADS = ((8, tuple(8 * (2 + 8 * run + 2 * byte + word) for run in range(8) for word in (0, 1) for byte in range(4))),)
_XS_SIGNS = _of_bits(
    [
        8 * (2 + 8 * run) + place
        for run in range(8)
        for place in (*(16 * octet + 9 + bit for octet in range(4) for bit in range(7)), *range(8, 64, 16))
    ]
)
_M_SCALES = tuple(
    (1, tuple(8 * 48 + 16 * word + 3 * part + bit for word in range(4) for part in range(4))) for bit in range(3)
)
_M_FACTOR = ((4, (8 * 48 + 12, 8 * 52 + 12)), (4, (8 * 50 + 12, 8 * 54 + 12)))
GRIDS = {
    "iq1_s": Grid(8, _array(2, 32), 32, 0.125, "of_high", _array(0, 2), high=_array(34, 16), high_kind="threes"),
    "iq1_m": Grid(
        8, _array(0, 32), 16, 0.125, "nibbles", _M_FACTOR, high=_array(32, 16), high_kind="nibbles", scale=_M_SCALES
    ),
    "iq2_xxs": Grid(8, _of_runs(2, 4, 8), 32, 0.125, "of_signs", _array(0, 2), _of_runs(6, 4, 8), 7),
    "iq2_xs": Grid(
        8, _of_runs(2, 1, 2, 32), 16, 0.125, "nibbles", _array(0, 2), _XS_SIGNS, 7, None, "signs", _nibbles_of(66, 8)
    ),
    "iq2_s": Grid(
        8,
        _array(2, 32),
        16,
        0.125,
        "nibbles",
        _array(0, 2),
        _array(34, 32),
        8,
        _array(66, 8),
        "octets",
        _nibbles_of(74, 8),
    ),
    "iq3_xxs": Grid(4, _QUADS, 32, 0.25, "of_signs", _array(0, 2), _array(66, 32), 7),
    "iq3_s": Grid(
        4, _QUADS, 32, 1.0, "nibbles", _array(0, 2), _array(74, 32), 8, _array(66, 8), "quads", _nibbles_of(106, 4)
    ),
}
"""Types of blocks whose codes are indices."""
DIGITS = "tq1_0"
"""The type whose bytes have five digits to the base of 3 (the last four: four): 52 bytes, then a scale in f16."""
DIGIT_WORDS = 13
"""Words of digits of a block of 256."""
NBYTES = {name: BLOCK_TYPES[name].nbytes for name in (*BLOCKS, *GRIDS, DIGITS)}
