"""tokenizer.model: the part of SentencePiece's ModelProto that a vocabulary needs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from attrs import frozen

from squish_core.api import FormatError, LimitError

from .base import MOST_TOKENS, Kind, Tokenizer, piece_texts

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_BPE = 2
_PIECE_KEY, _TEXT_KEY, _SCORE_KEY, _KIND_KEY = 0x0A, 0x0A, 0x15, 0x18
"""First bytes of the fields of a piece."""


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
    scores: list[bytes] = []
    kinds: list[int] = []
    prefix, at = True, 0
    while at < len(data):
        if fast := _short_piece(data, at):
            text, score, kind, at = fast
        else:
            number, value, at = _read_field(data, at, len(data))
            if number == _NORMALIZER and isinstance(value, tuple):
                prefix = bool(_number(dict(_fields(data, *value)).get(3, 1)))
            if number != _PIECES or not isinstance(value, tuple):
                continue
            piece = dict(_fields(data, *value))
            text, kind = _extent(piece.get(1, (0, 0))), _number(piece.get(3, Kind.NORMAL))
            score = _number(piece.get(2, 0)).to_bytes(4, "little")
        tokens.append(_text(data, text))
        scores.append(score)
        kinds.append(kind)
        if len(tokens) > MOST_TOKENS:
            raise LimitError("too many tokens", expected=f"at most {MOST_TOKENS}", code="count")
    return Pieces(
        tuple(tokens), np.frombuffer(b"".join(scores), "<f4"), np.array(kinds, np.uint32).view(np.int32), prefix
    )


def _short_piece(data: bytes, at: int) -> tuple[tuple[int, int], bytes, int, int] | None:
    """Range of the text, score, kind and end of a piece of less than 128 bytes in the usual order of fields.

    A vocabulary has hundreds of thousands; None where `_read_field` reads the field.
    """
    head = data[at : at + 4]
    if len(head) < 4 or head[0] != _PIECE_KEY or head[1] > 127 or head[2] != _TEXT_KEY or head[3] > 127:
        return None
    text, end = at + 4 + head[3], at + 2 + head[1]
    tail = data[text:end]
    if end > len(data) or len(tail) not in (5, 7) or tail[0] != _SCORE_KEY:
        return None
    if len(tail) == 5:
        return (at + 4, text), tail[1:], Kind.NORMAL, end
    return ((at + 4, text), tail[1:5], tail[6], end) if tail[5] == _KIND_KEY and tail[6] < 128 else None


def write(tokenizer: Tokenizer) -> bytes:
    """A ModelProto with the pieces, scores and kinds of a SentencePiece-style tokenizer."""
    assert tokenizer.scores is not None
    scores, kinds = tokenizer.scores.astype("<f4").tobytes(), tokenizer.kinds.tolist()
    tails = {kind: b"" if kind == Kind.NORMAL else b"\x18" + _varint(kind) for kind in set(kinds)}
    sizes = [_varint(size) for size in range(128)]
    out: list[bytes] = []
    for number, (token, kind) in enumerate(zip(piece_texts(tokenizer), kinds)):
        text = token.encode()
        size = sizes[len(text)] if len(text) < 128 else _varint(len(text))
        piece = b"".join((b"\x0a", size, text, b"\x15", scores[4 * number : 4 * number + 4], tails[kind]))
        out += (b"\x0a", sizes[len(piece)] if len(piece) < 128 else _varint(len(piece)), piece)
    ids = {40: "unk", 41: "bos", 42: "eos", 43: "pad"}
    trainer = _field(3, _BPE) + _field(4, len(tokenizer.tokens)) + _field(35, 1)
    trainer += b"".join(
        _field(number, tokenizer.special[role]) for number, role in ids.items() if role in tokenizer.special
    )
    normalizer = _message(1, b"identity") + _field(3, bool(tokenizer.space_prefix)) + _field(4, 0) + _field(5, 1)
    return b"".join((*out, _message(_TRAINER, trainer), _message(_NORMALIZER, normalizer)))


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int | tuple[int, int]]]:
    """(field number, value) pairs of a message; the value of a length-delimited field is its range."""
    while at < end:
        number, value, at = _read_field(data, at, end)
        yield number, value


def _read_field(data: bytes, at: int, end: int) -> tuple[int, int | tuple[int, int], int]:
    """Number, value and end of the field at an offset."""
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
    return number, value, at


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


def _extent(value: int | tuple[int, int]) -> tuple[int, int]:
    if not isinstance(value, tuple):
        raise FormatError("tokenizer.model has a number for text", found=value, code="protobuf")
    return value


def _text(data: bytes, extent: tuple[int, int]) -> str:
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
