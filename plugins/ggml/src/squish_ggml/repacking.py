"""Exact repacking of the plain blocks: their codes out of the bytes and back, never through values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from squish_codecs import repacking
from squish_codecs.families import GGML
from squish_codecs.packing import in_rows
from squish_codecs.scheme import Scheme

from squish_core.api import Codes

ELEMENTS = 32
Array = np.ndarray[Any, Any]


class Plain(NamedTuple):
    """Where a plain block has what: bytes of the fifth bits and of the codes; scale first, then the bias."""

    fifth: int | None
    codes: int
    nbytes: int


PLAIN = {
    "ggml.q4_0": Plain(None, 2, 18),
    "ggml.q4_1": Plain(None, 4, 20),
    "ggml.q5_0": Plain(2, 6, 22),
    "ggml.q5_1": Plain(4, 8, 24),
    "ggml.q8_0": Plain(None, 2, 34),
}


def codes(name: str, stored: Array) -> Codes:
    """The codes of blocks u8 [..., blocks * nbytes]; scales and biases as float32 [..., blocks]."""
    plain, form = PLAIN[name], GGML[name]
    blocks = stored.reshape(*stored.shape[:-1], -1, plain.nbytes)
    scale = _half(blocks, 0)
    kind, offset = "none", None
    if form.get("offset") == "bias":
        kind, offset = "bias", _half(blocks, 2)
    elif "zero" in form:
        kind, offset = "zero_point", np.full(scale.shape, form["zero"], np.float32)
    shape = (*stored.shape[:-1], blocks.shape[-2] * ELEMENTS)
    return Codes(
        bits=form["bits"], signed=bool(form.get("signed", False)), shape=shape, scale=scale, offset=offset,
        offset_kind=kind, group=(*(1 for _ in stored.shape[:-1]), ELEMENTS),
        unpack=lambda: _values(blocks, plain).reshape(shape), pack=lambda: _rows(blocks, plain),
    )  # fmt: skip


def holds(name: str, codes: Codes) -> bool:
    """Whether `blocks` would give any."""
    return repacking.holds(Scheme.of(GGML[name]), codes)


def blocks(name: str, codes: Codes) -> Array | None:
    """Blocks u8 [..., blocks * nbytes] that hold exactly these codes, or None."""
    plain, scheme = PLAIN[name], Scheme.of(GGML[name])
    made = repacking.parts(scheme, codes)
    if made is None:
        return None
    *lead, columns = codes.shape
    out = np.empty((*lead, columns // ELEMENTS, plain.nbytes), np.uint8)
    _store(out, 0, made["scale"])
    if "offset" in made:
        _store(out, 2, made["offset"])
    stored = in_rows(made["data"]).reshape(*out.shape[:-1], -1)
    if scheme.bits == 8:
        out[..., plain.codes :] = stored
    elif scheme.bits == 4:
        out[..., plain.codes :] = _halves(stored)
    else:
        values = scheme.packing.unpack(stored, ELEMENTS)
        out[..., plain.codes :] = (values[..., :16] & 15) | values[..., 16:] << 4
        out[..., plain.fifth : plain.codes] = np.packbits(values >> 4, axis=-1, bitorder="little")
    return out.reshape(*lead, -1)


def _values(blocks: Array, plain: Plain) -> Array:
    """One byte a code; signed where the block has whole bytes."""
    stored = blocks[..., plain.codes :]
    if stored.shape[-1] == ELEMENTS:
        return np.ascontiguousarray(stored).view(np.int8)
    values = np.concatenate([stored & 15, stored >> 4], axis=-1)
    if plain.fifth is not None:
        values |= np.unpackbits(blocks[..., plain.fifth : plain.fifth + 4], axis=-1, bitorder="little") << 4
    return values


def _rows(blocks: Array, plain: Plain) -> Array | None:
    """Rows of packed codes, where those of a block are whole bytes or halves of bytes."""
    if plain.fifth is not None:
        return None
    stored = np.ascontiguousarray(blocks[..., plain.codes :])
    if stored.shape[-1] != ELEMENTS:
        stored = _neighbours(stored)
    return stored.reshape(*blocks.shape[:-2], -1)


def _neighbours(stored: Array) -> Array:
    """Half bytes i and i + 16 of a byte, as bytes of the codes 2i and 2i + 1."""
    pairs = stored.view("<u2")
    out = np.empty(stored.shape, np.uint8)
    out[..., :8] = pairs & 0x0F | pairs >> 4 & 0xF0
    out[..., 8:] = pairs >> 4 & 0x0F | pairs >> 8 & 0xF0
    return out


def _halves(stored: Array) -> Array:
    """The inverse."""
    low, high = stored[..., :8].astype("<u2"), stored[..., 8:].astype("<u2")
    pairs = low & 0x0F | (low & 0xF0) << 4 | (high & 0x0F) << 4 | (high & 0xF0) << 8
    return pairs.view(np.uint8)


def _half(blocks: Array, at: int) -> Array:
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0].astype(np.float32)


def _store(out: Array, at: int, halves: Array) -> None:
    out[..., at : at + 2] = np.ascontiguousarray(halves, "<f2")[..., None].view(np.uint8)
