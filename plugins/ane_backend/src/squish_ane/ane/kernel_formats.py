"""Kernel formats: the enum that names a weight's storage, its ranges, and the five helpers keyed on it.

Source: chapter 25, table 25.1. The chapter gives the ranges of the enum, not the number of each format, so a format
here is its kind, width and type, with the numbers that it may have. The range of palettes has as many numbers as there
are palettes (`PALETTE_FORMATS`).
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from squish_core.api import SquishError

FORMATS, PALETTES, UNITIES = range(1, 32), range(7, 28), range(28, 31)
"""Numbers of the enum; those of palettes; those of identity and scale-only weights, which skip the multiply array."""
E4M3 = 6
"""The only number that the book states (chapter 36)."""

TYPE_NUMBERS: Mapping[str, int] = {"i8": 2, "u8": 3, "f16": 5, "lut": 8, "u4": 9, "f8_e4m3": 16, "i4": 23}
"""Element types that descriptors write; other parts of the system number types differently."""
UNDERLYING_TYPES = ("i8", "u8", "f8_e4m3", "f16")
QUANTIZED = UNDERLYING_TYPES[:3]
"""Types of codebooks other than half precision, which have fewer than 256 entries."""
PALETTE_BITS = (1, 2, 3, 4, 6, 8)

HELPERS: Mapping[str, str] = {
    "_ZinKernelFormatGetBitDepth": "bit_depth",
    "_ZinKernelFormatGetPaletteFormat": "palette_format",
    "_ZinKernelFormatGetUnderlyingType": "underlying_type",
    "_ZinKernelGetPaletteLUTSize": "palette_lut_size",
    "ZinKernelFormatGetTypeno": "type_number",
}
"""The compiler's helper -> the property or method of `KernelFormat`."""


def is_palette(number: int) -> bool:
    """Return whether a number of the enum is a palette: the guard `f - 7 < 0x15` in unsigned arithmetic."""
    return (number - 7) & 0xFFFFFFFF < 0x15


def is_unity(number: int) -> bool:
    """Return whether a number of the enum is a unity format: the guard `f - 0x1c < 3` in unsigned arithmetic."""
    return (number - 0x1C) & 0xFFFFFFFF < 3


def kind_of(number: int) -> str:
    """Return "palette", "unity" or "plain" for a number of the enum; SquishError outside 1 to 31."""
    if number not in FORMATS:
        raise SquishError("unknown kernel format", expected="1 to 31", found=number, code="kernel-format")
    return "palette" if is_palette(number) else "unity" if is_unity(number) else "plain"


def is_quantized_palette(entries: int) -> bool:
    """Return whether a codebook of integers may have this many entries (fewer than 256)."""
    return 0 < entries < 256


def codebook_bytes(bits: int, vector_size: int = 1, count: int = 1) -> int:
    """Return the size of float16 codebooks: 32 bytes for 4 bits, 512 for 8."""
    return (1 << bits) * vector_size * 2 * count


@frozen
class KernelFormat:
    """A storage encoding of weights. `kind` as of `kind_of`; `bits` of an element or index; `type` of the values."""

    kind: str
    bits: int
    type: str

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the enum that this format may have."""
        if self.type == "f8_e4m3" and self.kind == "plain":
            return (E4M3,)
        return tuple(number for number in FORMATS if kind_of(number) == self.kind and number != E4M3)

    @property
    def bit_depth(self) -> int:
        """Bits of an element, or of a palette's index."""
        return self.bits

    @property
    def palette_format(self) -> str:
        """The palette sub-format; SquishError for other kinds."""
        self._check_palette()
        return f"lut{self.bits}_{self.type}"

    @property
    def underlying_type(self) -> str:
        """Type of the values: "i8", "u8", "f8_e4m3" or "f16"."""
        return self.type

    @property
    def type_number(self) -> int:
        """Number of the type that a descriptor writes for the weights: that of lookup tables for palettes."""
        return TYPE_NUMBERS["lut" if self.kind == "palette" else self.type]

    def palette_lut_size(self, count: int, vector_size: int = 1) -> int:
        """Return the bytes of a codebook times the number of codebooks; SquishError for other kinds."""
        self._check_palette()
        return codebook_bytes(self.bits, vector_size, count)

    def _check_palette(self) -> None:
        if self.kind != "palette":
            raise SquishError(
                "not a palette",
                expected=f"a kernel format of {PALETTES[0]} to {PALETTES[-1]}",
                found=f"{self.kind}, {self.bits} bits of {self.type}",
                code="kernel-format",
            )


PALETTE_FORMATS = tuple(
    KernelFormat("palette", bits, kind)
    for kind in UNDERLYING_TYPES
    for bits in PALETTE_BITS
    if kind not in QUANTIZED or is_quantized_palette(1 << bits)
)
"""Every palette: half precision of all widths, and the other types below 8 bits."""
DENSE, UNITY = KernelFormat("plain", 16, "f16"), KernelFormat("unity", 16, "f16")
