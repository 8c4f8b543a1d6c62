"""GGML's blocks as data: which bits are the codes, and where scales lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from squish_core.api import BLOCK_TYPES

Places = tuple[int, ...]
"""For each number its first bit, counted from the start of the block."""


class Bits(NamedTuple):
    """Numbers made of pieces of bytes, lowest bits first: (width, place of each number). `minus` is subtracted."""

    dtype: str
    pieces: tuple[tuple[int, Places], ...]
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
    codes: tuple[tuple[int, Places], ...]
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
NBYTES = {name: BLOCK_TYPES[name].nbytes for name in BLOCKS}
