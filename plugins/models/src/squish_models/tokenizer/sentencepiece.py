"""tokenizer.model: the part of SentencePiece's ModelProto that a vocabulary needs."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from attrs import frozen

from squish_core.api import FormatError, LimitError

from .base import MOST_TOKENS, Kind, Tokenizer, piece_texts

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_BPE = 2


@frozen(eq=False)
class Pieces:
    """The vocabulary of a ModelProto."""

    tokens: tuple[str, ...]
    scores: np.ndarray
    kinds: np.ndarray
    space_prefix: bool


def parse(data: bytes) -> Pieces:
    """Read a ModelProto.

    Raises
    ------
    FormatError
        `protobuf` if the file is truncated or not a ModelProto.
    """
    tokens: list[str] = []
    scores: list[float] = []
    kinds: list[int] = []
    prefix = True
    for number, value in _fields(data, 0, len(data)):
        if number == _PIECES and isinstance(value, tuple):
            piece = dict(_fields(data, *value))
            text = piece.get(1, (0, 0))
            tokens.append(_text(data, text))
            scores.append(float(struct.unpack("<f", struct.pack("<I", _number(piece.get(2, 0))))[0]))
            kinds.append(_number(piece.get(3, Kind.NORMAL)))
            if len(tokens) > MOST_TOKENS:
                raise LimitError("too many tokens", expected=f"at most {MOST_TOKENS}", code="count")
        elif number == _NORMALIZER and isinstance(value, tuple):
            prefix = bool(_number(dict(_fields(data, *value)).get(3, 1)))
    return Pieces(tuple(tokens), np.array(scores, np.float32), np.array(kinds, np.int32), prefix)


def write(tokenizer: Tokenizer) -> bytes:
    """A ModelProto with the pieces, scores and kinds of a SentencePiece-style tokenizer."""
    assert tokenizer.scores is not None
    out = bytearray()
    for token, score, kind in zip(piece_texts(tokenizer), tokenizer.scores.tolist(), tokenizer.kinds.tolist()):
        text = token.encode()
        piece = b"\x0a" + _varint(len(text)) + text + b"\x15" + struct.pack("<f", score)
        out += _message(_PIECES, piece + (b"" if kind == Kind.NORMAL else b"\x18" + _varint(kind)))
    ids = {40: "unk", 41: "bos", 42: "eos", 43: "pad"}
    trainer = _field(3, _BPE) + _field(4, len(tokenizer.tokens)) + _field(35, 1)
    trainer += b"".join(
        _field(number, tokenizer.special[role]) for number, role in ids.items() if role in tokenizer.special
    )
    normalizer = _message(1, b"identity") + _field(3, bool(tokenizer.space_prefix)) + _field(4, 0) + _field(5, 1)
    return bytes(out + _message(_TRAINER, trainer) + _message(_NORMALIZER, normalizer))


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int | tuple[int, int]]]:
    """(field number, value) pairs of a message; the value of a length-delimited field is its range."""
    while at < end:
        start = at
        key, at = _read_varint(data, at, end)
        number, wire = key >> 3, key & 7
        value: int | tuple[int, int]
        if wire == _VARINT:
            value, at = _read_varint(data, at, end)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
            value, at = int.from_bytes(data[at : at + size], "little"), at + size
        elif wire == _BYTES:
            size, at = _read_varint(data, at, end)
            value, at = (at, at + size), at + size
        else:
            raise FormatError(
                "tokenizer.model is not a ModelProto", offset=start, found=f"wire type {wire}", code="protobuf"
            )
        if at > end:
            raise FormatError(
                "tokenizer.model is truncated", offset=start, expected=f"{at - end} bytes more", code="protobuf"
            )
        yield number, value


def _read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            raise FormatError("tokenizer.model is truncated", offset=at, code="protobuf")
        byte, at = data[at], at + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise FormatError("tokenizer.model has a number of more than 64 bits", offset=at, code="protobuf")


def _number(value: int | tuple[int, int]) -> int:
    if isinstance(value, tuple):
        raise FormatError("tokenizer.model has text for a number", offset=value[0], code="protobuf")
    return value & 0xFFFFFFFF


def _text(data: bytes, extent: int | tuple[int, int]) -> str:
    if not isinstance(extent, tuple):
        raise FormatError("tokenizer.model has a number for text", found=extent, code="protobuf")
    try:
        return data[slice(*extent)].decode()
    except UnicodeDecodeError:
        raise FormatError("a piece of tokenizer.model is not UTF-8", offset=extent[0], code="encoding") from None


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(int(value))


def _message(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data
