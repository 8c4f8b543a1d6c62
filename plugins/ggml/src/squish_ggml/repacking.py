"""Exact repacking of the plain blocks: their codes out of the bytes and back, never through values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from squish_codecs import repacking
from squish_codecs.families import GGML
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
    values = _values(blocks, plain).reshape(*stored.shape[:-1], -1)
    return Codes(
        bits=form["bits"], signed=bool(form.get("signed", False)), values=values, scale=scale, offset=offset,
        offset_kind=kind, group=(*(1 for _ in stored.shape[:-1]), ELEMENTS),
    )  # fmt: skip


def blocks(name: str, codes: Codes) -> Array | None:
    """Blocks u8 [..., blocks * nbytes] that hold exactly these codes, or None."""
    plain, scheme = PLAIN[name], Scheme.of(GGML[name])
    made = repacking.parts(scheme, codes)
    if made is None:
        return None
    shape = codes.values.shape
    values = scheme.packing.unpack(made["data"], shape[-1]).reshape(*shape[:-1], -1, ELEMENTS)
    out = np.empty((*values.shape[:-1], plain.nbytes), np.uint8)
    _store(out, 0, made["scale"])
    if "offset" in made:
        _store(out, 2, made["offset"])
    if scheme.bits == 8:
        out[..., plain.codes :] = values
    else:
        out[..., plain.codes :] = (values[..., :16] & 15) | values[..., 16:] << 4
    if plain.fifth is not None:
        out[..., plain.fifth : plain.fifth + 4] = np.packbits(values >> 4 & 1, axis=-1, bitorder="little")
    return out.reshape(*shape[:-1], -1)


def _values(blocks: Array, plain: Plain) -> Array:
    """One byte a code; signed where the block has whole bytes."""
    stored = blocks[..., plain.codes :]
    if stored.shape[-1] == ELEMENTS:
        return np.ascontiguousarray(stored).view(np.int8)
    values = np.concatenate([stored & 15, stored >> 4], axis=-1)
    if plain.fifth is not None:
        values |= np.unpackbits(blocks[..., plain.fifth : plain.fifth + 4], axis=-1, bitorder="little") << 4
    return values


def _half(blocks: Array, at: int) -> Array:
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0].astype(np.float32)


def _store(out: Array, at: int, halves: Array) -> None:
    out[..., at : at + 2] = np.ascontiguousarray(halves, "<f2")[..., None].view(np.uint8)
