"""Sizes and type codes of GGML's block types, shared by formats and backends. Source: ggml.h, ggml-common.h.

For plugins: facts of a format that is not in the core, which several of them need.
"""

from __future__ import annotations

from typing import NamedTuple


class BlockType(NamedTuple):
    """A block type: a block of `elements` weights takes `nbytes` bytes; `code` is the `ggml_type` in files."""

    name: str
    code: int
    elements: int
    nbytes: int


BLOCK_TYPES: dict[str, BlockType] = {
    block.name: block
    for block in (
        BlockType("q4_0", 2, 32, 18),
        BlockType("q4_1", 3, 32, 20),
        BlockType("q5_0", 6, 32, 22),
        BlockType("q5_1", 7, 32, 24),
        BlockType("q8_0", 8, 32, 34),
        BlockType("q8_1", 9, 32, 36),  # two f16 and 32 bytes; gguf-py still assumes two f32
        BlockType("q2_k", 10, 256, 84),
        BlockType("q3_k", 11, 256, 110),
        BlockType("q4_k", 12, 256, 144),
        BlockType("q5_k", 13, 256, 176),
        BlockType("q6_k", 14, 256, 210),
        BlockType("q8_k", 15, 256, 292),
        BlockType("q1_0", 41, 128, 18),
        BlockType("q2_0", 42, 64, 18),
        BlockType("tq1_0", 34, 256, 54),
        BlockType("tq2_0", 35, 256, 66),
        BlockType("mxfp4", 39, 32, 17),
        BlockType("nvfp4", 40, 64, 36),
        BlockType("iq4_nl", 20, 32, 18),
        BlockType("iq4_xs", 23, 256, 136),
        BlockType("iq1_s", 19, 256, 50),
        BlockType("iq1_m", 29, 256, 56),
        BlockType("iq2_xxs", 16, 256, 66),
        BlockType("iq2_xs", 17, 256, 74),
        BlockType("iq2_s", 22, 256, 82),
        BlockType("iq3_xxs", 18, 256, 98),
        BlockType("iq3_s", 21, 256, 110),
    )
}
"""Name -> block type, of all types in GGUF files."""
