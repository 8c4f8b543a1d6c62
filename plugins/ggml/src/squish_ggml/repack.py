"""Exact repacking of the plain blocks: their codes out of the bytes and back, never through values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from squish_codecs.api import Scheme, affine_holds, affine_layout, affine_parts, row_major

from squish_core.api import CodeLayout, Codes

ELEMENTS = 32
Array = np.ndarray[Any, Any]


def _block(codes: int, *before: tuple[str, str]) -> np.dtype[np.void]:
    return np.dtype([("scale", "<f2"), *before, ("codes", f"V{codes}")])


BIAS, FIFTH = ("bias", "<f2"), ("fifth", "V4")
PLAIN = {
    "ggml.q4_0": _block(16),
    "ggml.q4_1": _block(16, BIAS),
    "ggml.q5_0": _block(16, FIFTH),
    "ggml.q5_1": _block(16, BIAS, FIFTH),
    "ggml.q8_0": _block(32),
}
"""Blocks with one scale; as opaque fields NumPy moves their bytes whole."""


FORMS: dict[str, Mapping[str, Any]] = {
    "ggml.q4_0": {"bits": 4, "group_size": 32, "zero": 8, "scale_dtype": "f16"},
    "ggml.q4_1": {"bits": 4, "group_size": 32, "offset": "bias", "scale_dtype": "f16"},
    "ggml.q5_0": {"bits": 5, "group_size": 32, "zero": 16, "scale_dtype": "f16"},
    "ggml.q5_1": {"bits": 5, "group_size": 32, "offset": "bias", "scale_dtype": "f16"},
    "ggml.q8_0": {"bits": 8, "group_size": 32, "signed": True, "scale_dtype": "f16"},
}
"""Parameters of `affine` with the same codes, scales and biases."""


def layout(name: str, shape: tuple[int, ...]) -> CodeLayout:
    """What the codes of a tensor of this shape look like."""
    return affine_layout(Scheme.of(FORMS[name]), shape)


def codes(name: str, stored: Array) -> Codes:
    """The codes of blocks u8 [..., blocks * nbytes]; scales and biases f16 [..., blocks]."""
    blocks = np.ascontiguousarray(stored).view(PLAIN[name])
    shape = (*stored.shape[:-1], blocks.shape[-1] * ELEMENTS)
    declared = layout(name, shape)
    return Codes(
        layout=declared, shape=shape, scale=np.ascontiguousarray(blocks["scale"]),
        offset=np.ascontiguousarray(blocks["bias"]) if declared.offset_kind == "bias" else None,
        unpack=lambda: _values(blocks).reshape(shape), pack=lambda: _rows(blocks),
    )  # fmt: skip


def holds(name: str, codes: Codes) -> bool:
    """Whether `blocks` would give any."""
    return affine_holds(Scheme.of(FORMS[name]), codes)


def blocks(name: str, codes: Codes) -> Array | None:
    """Blocks u8 [..., blocks * nbytes] that hold exactly these codes, or None."""
    scheme = Scheme.of(FORMS[name])
    made = affine_parts(scheme, codes)
    if made is None:
        return None
    *lead, columns = codes.shape
    out = np.empty((*lead, columns // ELEMENTS), PLAIN[name])
    out["scale"] = made["scale"]
    if "offset" in made:
        out["bias"] = made["offset"]
    stored = row_major(made["data"]).reshape(*out.shape, ELEMENTS * scheme.bits // 8)
    if scheme.bits == 4:
        stored = halved(stored)
    elif scheme.bits == 5:
        values = scheme.packing.unpack(stored, ELEMENTS)
        stored = (values[..., :16] & 15) | values[..., 16:] << 4
        out["fifth"] = _whole(np.packbits(values >> 4, axis=-1, bitorder="little"))
    out["codes"] = _whole(stored)
    return out.view(np.uint8)


def _values(blocks: Array) -> Array:
    """One byte a code; signed where the block has whole bytes."""
    stored = _bytes(blocks["codes"])
    if stored.shape[-1] == ELEMENTS:
        return stored.view(np.int8)
    values = np.concatenate([stored & 15, stored >> 4], axis=-1)
    if FIFTH[0] in (blocks.dtype.names or ()):
        values |= np.unpackbits(_bytes(blocks["fifth"]), axis=-1, bitorder="little") << 4
    return values


def _rows(blocks: Array) -> Array | None:
    """Rows of packed codes, where those of a block are whole bytes or halves of bytes."""
    if FIFTH[0] in (blocks.dtype.names or ()):
        return None
    stored = _bytes(blocks["codes"])
    if stored.shape[-1] != ELEMENTS:
        stored = neighbors(stored)
    return stored.reshape(*blocks.shape[:-1], blocks.shape[-1] * stored.shape[-1])


def neighbors(stored: Array) -> Array:
    """Bytes [..., n] of the codes i and i + n, as bytes of the codes 2i and 2i + 1; n is 8 or 16."""
    pairs, word = stored.view("<u2"), f"u{stored.shape[-1] // 2}"
    first, second = pairs & 0x0F | pairs >> 4 & 0xF0, pairs >> 4 & 0x0F | pairs >> 8 & 0xF0
    halves = [half.astype(np.uint8).view(word) for half in (first, second)]
    return np.concatenate(halves, axis=-1).view(np.uint8)


def halved(stored: Array) -> Array:
    """The inverse."""
    words = np.ascontiguousarray(stored).view(f"u{stored.shape[-1] // 2}")
    first, second = (np.ascontiguousarray(words[..., half : half + 1]).view(np.uint8).astype("<u2") for half in (0, 1))
    pairs = first & 0x0F | (first & 0xF0) << 4 | (second & 0x0F) << 4 | (second & 0xF0) << 8
    return pairs.view(np.uint8)


def _bytes(opaque: Array) -> Array:
    return np.ascontiguousarray(opaque)[..., None].view(np.uint8)


def _whole(stored: Array) -> Array:
    return np.ascontiguousarray(stored).view(f"V{stored.shape[-1]}")[..., 0]
