"""Exact repacking of the simple block types: codes are extracted and stored without decoding to values."""

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
BLOCK_DTYPES = {
    "ggml.q4_0": _block(16),
    "ggml.q4_1": _block(16, BIAS),
    "ggml.q5_0": _block(16, FIFTH),
    "ggml.q5_1": _block(16, BIAS, FIFTH),
    "ggml.q8_0": _block(32),
}
"""Block types with one scale; NumPy copies opaque (V) fields as units."""


FORMS: dict[str, Mapping[str, Any]] = {
    "ggml.q4_0": {"bits": 4, "group_size": 32, "zero": 8, "scale_dtype": "f16"},
    "ggml.q4_1": {"bits": 4, "group_size": 32, "offset": "bias", "scale_dtype": "f16"},
    "ggml.q5_0": {"bits": 5, "group_size": 32, "zero": 16, "scale_dtype": "f16"},
    "ggml.q5_1": {"bits": 5, "group_size": 32, "offset": "bias", "scale_dtype": "f16"},
    "ggml.q8_0": {"bits": 8, "group_size": 32, "signed": True, "scale_dtype": "f16"},
}
"""Parameters of `affine` with the same codes, scales and biases."""


def layout(name: str, shape: tuple[int, ...]) -> CodeLayout:
    """Return the code layout of a tensor."""
    return affine_layout(Scheme.of(FORMS[name]), shape)


def codes(name: str, data: Array) -> Codes:
    """Return the codes of blocks u8 [..., blocks * nbytes]; scales and biases are f16 [..., blocks]."""
    blocks = np.ascontiguousarray(data).view(BLOCK_DTYPES[name])
    shape = (*data.shape[:-1], blocks.shape[-1] * ELEMENTS)
    code_layout = layout(name, shape)
    return Codes(
        layout=code_layout,
        shape=shape,
        scale=np.ascontiguousarray(blocks["scale"]),
        offset=np.ascontiguousarray(blocks["bias"]) if code_layout.offset_kind == "bias" else None,
        unpack=lambda: _values(blocks).reshape(shape),
        pack=lambda: _rows(blocks),
    )


def holds(name: str, codes: Codes) -> bool:
    """Return whether `blocks` can store these codes."""
    return affine_holds(Scheme.of(FORMS[name]), codes)


def blocks(name: str, codes: Codes) -> Array | None:
    """Return blocks u8 [..., blocks * nbytes] with exactly these codes, or None."""
    scheme = Scheme.of(FORMS[name])
    parts = affine_parts(scheme, codes)
    if parts is None:
        return None
    *lead, columns = codes.shape
    out = np.empty((*lead, columns // ELEMENTS), BLOCK_DTYPES[name])
    out["scale"] = parts["scale"]
    if "offset" in parts:
        out["bias"] = parts["offset"]
    packed = row_major(parts["data"]).reshape(*out.shape, ELEMENTS * scheme.bits // 8)
    if scheme.bits == 4:
        packed = split_halves(packed)
    elif scheme.bits == 5:
        values = scheme.packing.unpack(packed, ELEMENTS)
        packed = (values[..., :16] & 15) | values[..., 16:] << 4
        out["fifth"] = _opaque(np.packbits(values >> 4, axis=-1, bitorder="little"))
    out["codes"] = _opaque(packed)
    return out.view(np.uint8)


def _values(blocks: Array) -> Array:
    """Unpack to one byte per code, signed for 8-bit codes."""
    packed = _bytes(blocks["codes"])
    if packed.shape[-1] == ELEMENTS:
        return packed.view(np.int8)
    values = np.concatenate([packed & 15, packed >> 4], axis=-1)
    if FIFTH[0] in (blocks.dtype.names or ()):
        values |= np.unpackbits(_bytes(blocks["fifth"]), axis=-1, bitorder="little") << 4
    return values


def _rows(blocks: Array) -> Array | None:
    """Return rows of packed 4- or 8-bit codes, else None."""
    if FIFTH[0] in (blocks.dtype.names or ()):
        return None
    packed = _bytes(blocks["codes"])
    if packed.shape[-1] != ELEMENTS:
        packed = interleave(packed)
    return packed.reshape(*blocks.shape[:-1], blocks.shape[-1] * packed.shape[-1])


def interleave(packed: Array) -> Array:
    """Repack bytes [..., n] from code pairs (i, i + n) to pairs (2i, 2i + 1); n is 8 or 16."""
    pairs, word = packed.view("<u2"), f"u{packed.shape[-1] // 2}"
    first, second = pairs & 0x0F | pairs >> 4 & 0xF0, pairs >> 4 & 0x0F | pairs >> 8 & 0xF0
    halves = [half.astype(np.uint8).view(word) for half in (first, second)]
    return np.concatenate(halves, axis=-1).view(np.uint8)


def split_halves(packed: Array) -> Array:
    """Inverse of `interleave`."""
    words = np.ascontiguousarray(packed).view(f"u{packed.shape[-1] // 2}")
    first, second = (np.ascontiguousarray(words[..., half : half + 1]).view(np.uint8).astype("<u2") for half in (0, 1))
    pairs = first & 0x0F | (first & 0xF0) << 4 | (second & 0x0F) << 4 | (second & 0xF0) << 8
    return pairs.view(np.uint8)


def _bytes(opaque: Array) -> Array:
    return np.ascontiguousarray(opaque)[..., None].view(np.uint8)


def _opaque(items: Array) -> Array:
    return np.ascontiguousarray(items).view(f"V{items.shape[-1]}")[..., 0]
