"""Declares the GGML block codecs; imports none of them."""

from __future__ import annotations

from squish_core.api import BLOCK_TYPES, CodecInfo, hookimpl

SHORT = (
    "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q1_0", "q2_0", "tq1_0", "tq2_0",
    "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s",
)  # fmt: skip
"""Block types with an encoder whose short name no other codec has (unlike `mxfp4`)."""


@hookimpl
def squish_codecs() -> list[CodecInfo]:
    """One codec per block type; in GGUF every block type has its short name."""
    blocks = [
        CodecInfo(
            id=f"ggml.{name}",
            title=f"GGML {name.upper()} blocks",
            factory="squish_ggml.codec:GgmlBlocks",
            aliases={name: f"ggml.{name}"} if name in SHORT else {},
        )
        for name in BLOCK_TYPES
    ]
    big_endian = CodecInfo(
        id="ggml.big_endian", title="GGML blocks of big-endian files", factory="squish_ggml.endian:BigEndian"
    )
    scaled = CodecInfo(
        id="ggml.scaled_nvfp4", title="GGML NVFP4 blocks with a global scale", factory="squish_ggml.scaled:ScaledNvfp4"
    )
    return [*blocks, big_endian, scaled]
