"""Tables of the Neural Engine's weight compression: one cell per form and generation.

Source: S. H. Bryngelson, "Apple Neural Engine: Architecture, Programming, and Performance", arXiv 2606.22283, chapter
25 and its references. Generations are the compiler's names (H13 is the M1), not chip names. Evidence: "measured" on
silicon (only M1, M2 Pro, M5), "stated" by the book from the compiler's code, "predicted" from a gate, "unstated" if the
book leaves it open.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

GENERATIONS = ("H13", "H14", "H15", "H16", "H17", "H18")
FAMILIES = {f"A{generation[1:]}": generation for generation in GENERATIONS}
"""The book's names of the generations (A14 is H14, the M2); phone chips of the same names differ."""
DEVICES = {"M1": "H13", "M2": "H14", "M3": "H15", "M4": "H16", "M5": "H17", **FAMILIES}
CORES = {"": 4, "g": 8, "s": 16, "c": 32, "d": 64}
"""Cores by suffix of the target name (H13g)."""


@frozen
class Cell:
    """A generation's handling of a form. `mode`: "stream" (stays packed), "fold" (dequantized) or "illegal"."""

    mode: str
    evidence: str
    note: str = ""


@frozen
class FormRow:
    """A form of weights: title, rule, source, one cell per generation in order, and the bytes of the hardware
    description that streaming needs."""

    title: str
    rule: str
    source: str
    cells: tuple[Cell, ...]
    gates: tuple[int, ...] = ()


MASTER, PALETTE_GATE, INT8_GATE, BLOCK_GATE, FP8_GATE = 0x48F, 0x529, 0x528, 0x520, 0x52D


def _row(title: str, rule: str, source: str, *cells: Cell, gates: tuple[int, ...] = ()) -> FormRow:
    """Build a row; the last cell applies to all later generations."""
    return FormRow(title, rule, source, cells + cells[-1:] * (len(GENERATIONS) - len(cells)), gates)


_MEASURED, _STATED, _PREDICTED = "measured", "stated", "predicted"
_NO_ENCODER = "descriptor version five has no encoder for it"

ROWS: Mapping[str, FormRow] = {
    "dense": _row(
        "dense float16", "two bytes per element", "chapter 25", Cell("dense", _STATED),
    ),
    "unity": _row(
        "scale-only weight", "one factor a channel, which skips the multiply array", "chapter 25, kernel formats",
        Cell("dense", _STATED),
    ),
    "int8": _row(
        "int8, one scale per tensor or channel", "streams if byte 0x528 is set", "table 25.2",
        Cell("fold", _MEASURED, "through the path that dequantizes it"),
        Cell("stream", _MEASURED), Cell("stream", _PREDICTED), Cell("stream", _PREDICTED),
        Cell("stream", _MEASURED), Cell("stream", _PREDICTED), gates=(MASTER, INT8_GATE),
    ),
    "int8_asymmetric": _row(
        "int8 with zero points", "the zero point is forced to zero on H13", "table 25.5",
        Cell("illegal", _STATED, _NO_ENCODER), Cell("stream", "unstated", "legal; streaming is not stated"),
        gates=(MASTER, INT8_GATE),
    ),
    "palette4": _row(
        "4-bit palette, one codebook", "streams if bytes 0x48f and 0x529 are set", "tables 25.2 and 25.5",
        Cell("stream", _MEASURED, "2.37x"), Cell("stream", _MEASURED), Cell("stream", _PREDICTED),
        Cell("stream", _PREDICTED), Cell("stream", _MEASURED, "1.6-1.8x"), Cell("stream", _PREDICTED),
        gates=(MASTER, PALETTE_GATE),
    ),
    "palette8": _row(
        "8-bit palette", "streams if bytes 0x48f and 0x529 are set", "table 25.5", Cell("stream", _PREDICTED),
        gates=(MASTER, PALETTE_GATE),
    ),
    "palette_many": _row(
        "palette with several codebooks", "needs a later descriptor", "table 25.5",
        Cell("illegal", _STATED, _NO_ENCODER), Cell("stream", _STATED),
        gates=(MASTER, PALETTE_GATE),
    ),
    "palette3_6": _row(
        "3- or 6-bit palette", "needs a later descriptor", "table 25.5",
        Cell("illegal", _STATED, _NO_ENCODER), Cell("stream", _STATED, "the descriptor version is not stated"),
        gates=(MASTER, PALETTE_GATE),
    ),
    "palette1_2": _row(
        "1- or 2-bit palette", "rejected on the general path", "chapter 25, four codecs",
        Cell("illegal", _STATED, "rejected on the general path, although Apple documents these widths"),
    ),
    "sparse": _row(
        "mask and float16 values", "streams under the master byte 0x48f", "table 25.2, listing 25.3",
        Cell("stream", _MEASURED, "1.55-1.64x"), Cell("stream", _MEASURED, "0.54x of the time"),
        Cell("stream", _PREDICTED), Cell("stream", _PREDICTED), Cell("stream", _MEASURED), Cell("stream", _PREDICTED),
        gates=(MASTER,),
    ),
    "sparse_palette": _row(
        "mask and palette codes", "the sparse index plane needs a later descriptor", "table 25.5",
        Cell("illegal", _STATED, _NO_ENCODER), Cell("fold", "unstated"), Cell("stream", _STATED),
        gates=(MASTER, PALETTE_GATE),
    ),
    "sparse_int8": _row(
        "mask and int8 values with scales", "the book does not cover scales under a mask", "table 25.2",
        Cell("fold", "unstated"),
    ),
    "blockwise": _row(
        "int8 with block scales", "streams if byte 0x520 is set", "table 25.2",
        Cell("fold", _MEASURED), Cell("fold", _MEASURED, "0.985x"), Cell("stream", _PREDICTED),
        Cell("stream", _PREDICTED), Cell("stream", _MEASURED), Cell("stream", _PREDICTED), gates=(MASTER, BLOCK_GATE),
    ),
    "affine4": _row(
        "integers below 8 bits with scales", "4-bit weights have only a palette path, not an affine one",
        "chapter 25, four codecs", Cell("fold", _STATED, "the palette form of the same codes streams"),
    ),
    "f8_e4m3": _row(
        "float8 E4M3", "byte 0x52d, only set on H18", "chapter 25, fp8 datapath",
        Cell("illegal", _PREDICTED, "its format register has no code for it: compiling asserts"),
        *(Cell("illegal", _PREDICTED, "the encoder of its element code exists from H17 (family A17) only"),) * 3,
        Cell("illegal", _PREDICTED, "the encoder exists, the capability byte 0x52d is not set"),
        Cell("stream", _PREDICTED), gates=(MASTER, FP8_GATE),
    ),
    "f8_e5m2": _row(
        "float8 E5M2", "a conversion format: shifted left by eight bits to float16", "chapter 25, fp8 datapath",
        Cell("fold", _STATED),
    ),
}  # fmt: skip

GATES: Mapping[int, str] = {MASTER: "H13", PALETTE_GATE: "H13", INT8_GATE: "H14", BLOCK_GATE: "H15", FP8_GATE: "H18"}
"""Byte of the hardware description -> first generation that sets it."""

CAP_DENSE, CAP_STREAMED = 64 << 10, 16 << 20
"""Maximum bytes of a weight before splitting: folded or dense (field 0x200), streamed (field 0x210)."""


def is_set(gate: int, generation: str) -> bool:
    """Return whether a generation sets a byte of the hardware description."""
    return GENERATIONS.index(generation) >= GENERATIONS.index(GATES[gate])


def cell(form: str, generation: str) -> Cell:
    """Return a generation's handling of a form."""
    return ROWS[form].cells[GENERATIONS.index(generation)]
