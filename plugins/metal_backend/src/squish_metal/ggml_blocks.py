"""Metal code for GGML blocks: the body of `unpack` for each type."""

from __future__ import annotations

from collections.abc import Mapping

from squish_core.api import BLOCK_TYPES


def _blocks(name: str, body: str) -> str:
    """Return the body of `unpack`: `b` is the block of the first value, `i` its index in the block."""
    elements, nbytes = BLOCK_TYPES[name].elements, BLOCK_TYPES[name].nbytes
    pointer = f"""
    const device uint8_t* b = data + (size_t(row) * (columns / {elements}) + at / {elements}) * {nbytes};
    uint i = at % {elements};
    """
    return pointer + body


_SIX_BITS = """
    uint g = i / 32;
    const device uint8_t* s = b + 4;
    uint scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | ((s[g - 4] >> 6) << 4);
    uint least = g < 4 ? s[g + 4] & 63 : (s[g + 4] >> 4) | ((s[g] >> 6) << 4);
    float d = half_at(b) * float(scale), m = half_at(b + 2) * float(least);
"""

# Layouts: ggml-common.h; the order of operations is that of squish-ggml's decoders.
GGML: Mapping[str, str] = {
    "ggml.q4_0": _blocks("q4_0", """
    float d = half_at(b);
    for (uint j = 0; j < 8; ++j) out[j] = d * (float((b[2 + i % 16 + j] >> (i / 16 * 4)) & 15) - 8.0f);
    """),
    "ggml.q4_1": _blocks("q4_1", """
    float d = half_at(b), m = half_at(b + 2);
    for (uint j = 0; j < 8; ++j) out[j] = d * float((b[4 + i % 16 + j] >> (i / 16 * 4)) & 15) + m;
    """),
    "ggml.q8_0": _blocks("q8_0", """
    float d = half_at(b);
    for (uint j = 0; j < 8; ++j) out[j] = d * float(as_type<int8_t>(b[2 + i + j]));
    """),
    "ggml.q4_k": _blocks("q4_k", _SIX_BITS + """
    for (uint j = 0; j < 8; ++j) {
        uint q = (b[16 + g / 2 * 32 + i % 32 + j] >> (g % 2 * 4)) & 15;
        out[j] = d * float(q) - m;
    }
    """),
    "ggml.q5_k": _blocks("q5_k", _SIX_BITS + """
    for (uint j = 0; j < 8; ++j) {
        uint low = (b[48 + g / 2 * 32 + i % 32 + j] >> (g % 2 * 4)) & 15;
        uint q = low | (((b[16 + i % 32 + j] >> g) & 1) << 4);
        out[j] = d * float(q) - m;
    }
    """),
    "ggml.q6_k": _blocks("q6_k", """
    uint h = i / 128, quarter = i / 32 % 4;
    float d = half_at(b + 208) * float(as_type<int8_t>(b[192 + i / 16]));
    for (uint j = 0; j < 8; ++j) {
        uint low = (b[h * 64 + quarter % 2 * 32 + i % 32 + j] >> (quarter / 2 * 4)) & 15;
        uint high = (b[128 + h * 32 + i % 32 + j] >> (quarter * 2)) & 3;
        out[j] = d * (float(low | (high << 4)) - 32.0f);
    }
    """),
}  # fmt: skip
