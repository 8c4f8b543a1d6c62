"""Declares the GGML block codecs; imports none of them."""

from __future__ import annotations

from squish_core.api import CodecInfo, hookimpl

NAMES = (
    "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q8_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q8_k", "q1_0",
    "q2_0", "tq1_0", "tq2_0", "mxfp4", "nvfp4", "iq4_nl", "iq4_xs", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s",
    "iq3_xxs", "iq3_s",
)  # fmt: skip
SHORT = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q1_0", "tq1_0", "tq2_0")
"""Those that are encoded, and whose names are not also those of other codecs (`mxfp4`)."""


@hookimpl
def squish_codecs() -> list[CodecInfo]:
    """One codec per block type; GGUF knows all of them by their short names."""
    blocks = [
        CodecInfo(
            id=f"ggml.{name}",
            title=f"GGML {name.upper()} blocks",
            factory="squish_ggml.codec:GgmlBlocks",
            aliases={name: f"ggml.{name}"} if name in SHORT else {},
        )
        for name in NAMES
    ]
    turned = CodecInfo(
        id="ggml.big_endian", title="GGML blocks of big-endian files", factory="squish_ggml.endian:BigEndian"
    )
    return [*blocks, turned]
