"""tokenizer.model: the part of SentencePiece's ModelProto that a vocabulary needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import frozen

from squish_core.api import BytesSource, FormatError, LimitError, protobuf

from .vocabulary import MAX_TOKENS, Kind, Tokenizer, check_charsmap, piece_texts

_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_TEXT, _SCORE, _KIND = 1, 2, 3
"""Fields of a piece."""
_CHARSMAP, _PREFIX = 2, 3
"""Fields of the normalizer: the table of replacements, and whether a space is added before the text."""
_MODEL, _BYTE_FALLBACK = 3, 35
"""Fields of the trainer: the kind of the model, and whether bytes replace unknown letters."""
_UNIGRAM, _BPE = 1, 2
_PIECE_KEY, _TEXT_KEY, _SCORE_KEY, _KIND_KEY = 0x0A, 0x0A, 0x15, 0x18
"""Keys of a piece and of its fields."""


@frozen(eq=False)
class Pieces:
    """The vocabulary of a ModelProto.

    Parameters
    ----------
    tokens, scores, kinds
        Text, score and kind by id.
    space_prefix
        Whether a space is added before the text.
    charsmap
        The table of replacements; empty: none.
    unigram
        Whether the model is a unigram model, not one that merges.
    byte_fallback
        Whether bytes replace unknown letters.
    """

    tokens: tuple[str, ...]
    scores: np.ndarray
    kinds: np.ndarray
    space_prefix: bool
    charsmap: bytes = b""
    unigram: bool = False
    byte_fallback: bool = False


def parse(data: bytes) -> Pieces:
    """Read a ModelProto.

    Raises
    ------
    FormatError
        `protobuf` if the file is truncated or not a ModelProto.
    """
    message = protobuf.Message.of(BytesSource(data, ""))  # the caller names the file in errors
    tokens: list[str] = []
    scores: list[bytes] = []
    kinds: list[int] = []
    settings: dict[str, Any] = {"space_prefix": True}
    at = 0
    while at < len(data):
        if fast := _short_piece(data, at):
            text, score, kind, at = fast
        else:
            field = message.field(at)
            at = field.end
            settings |= _settings(field)
            if field.number != _PIECES:
                continue
            text, score, kind = _piece(field)
        tokens.append(_text(data, text))
        scores.append(score)
        kinds.append(kind)
        if len(tokens) > MAX_TOKENS:
            raise LimitError("too many tokens", expected=f"at most {MAX_TOKENS}", code="count")
    return Pieces(
        tuple(tokens), np.frombuffer(b"".join(scores), "<f4"), np.array(kinds, np.uint32).view(np.int32), **settings
    )


def _settings(field: protobuf.Field) -> dict[str, Any]:
    """Return what the message of the trainer or of the normalizer states."""
    if field.number not in (_TRAINER, _NORMALIZER):
        return {}
    stated = {part.number: part for part in field.message}
    if field.number == _NORMALIZER:
        charsmap = bytes(stated[_CHARSMAP].bytes) if _CHARSMAP in stated else b""
        return {"space_prefix": _flag(stated, _PREFIX, True), "charsmap": check_charsmap(charsmap)}
    model = stated[_MODEL].integer if _MODEL in stated else _UNIGRAM
    return {"unigram": model == _UNIGRAM, "byte_fallback": _flag(stated, _BYTE_FALLBACK, False)}


def _flag(stated: Mapping[int, protobuf.Field], number: int, default: bool) -> bool:
    return bool(stated[number].integer) if number in stated else default


def _short_piece(data: bytes, at: int) -> tuple[tuple[int, int], bytes, int, int] | None:
    """Return text range, score, kind and end of a piece of less than 128 bytes with the usual order of fields.

    A fast path for hundreds of thousands of pieces; None if `_piece` has to read the field.
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


def _piece(field: protobuf.Field) -> tuple[tuple[int, int], bytes, int]:
    """Return text range, score and kind of a piece in any form."""
    text, score, kind = (0, 0), bytes(4), int(Kind.NORMAL)
    for part in field.message:
        if part.number == _TEXT:
            text = part.message.offset, part.end
        elif part.number == _SCORE:
            score = bytes(part.bytes)
        elif part.number == _KIND:
            kind = part.integer & 0xFFFFFFFF
    if len(score) != 4:
        raise FormatError(
            "a score of tokenizer.model is not a float",
            offset=field.offset,
            expected="4 bytes",
            found=len(score),
            code="protobuf",
        )
    return text, score, kind


def _text(data: bytes, extent: tuple[int, int]) -> str:
    try:
        return data[slice(*extent)].decode()
    except UnicodeDecodeError:
        raise FormatError("a piece of tokenizer.model is not UTF-8", offset=extent[0], code="encoding") from None


def write(tokenizer: Tokenizer) -> bytes:
    """Return a ModelProto with the pieces, scores and kinds of a SentencePiece-style tokenizer."""
    assert tokenizer.scores is not None
    scores, kinds = tokenizer.scores.astype("<f4").tobytes(), tokenizer.kinds.tolist()
    tails = {kind: b"" if kind == Kind.NORMAL else protobuf.number(_KIND, kind) for kind in set(kinds)}
    heads = [protobuf.header(_PIECES, size) for size in range(128)]  # of a piece, and of its text
    score_key = bytes((_SCORE_KEY,))
    out: list[bytes] = []
    for number, (token, kind) in enumerate(zip(piece_texts(tokenizer), kinds)):
        text = token.encode()
        head = heads[len(text)] if len(text) < 128 else protobuf.header(_TEXT, len(text))
        piece = b"".join((head, text, score_key, scores[4 * number : 4 * number + 4], tails[kind]))
        out += (heads[len(piece)] if len(piece) < 128 else protobuf.header(_PIECES, len(piece)), piece)
    ids = {40: "unk", 41: "bos", 42: "eos", 43: "pad"}
    trainer = [protobuf.number(3, _BPE), protobuf.number(4, len(tokenizer.tokens)), protobuf.number(35, 1)]
    trainer += [protobuf.number(tag, tokenizer.special[role]) for tag, role in ids.items() if role in tokenizer.special]
    normalizer = (
        protobuf.message(1, "identity"), protobuf.number(_PREFIX, bool(tokenizer.space_prefix)), protobuf.number(4, 0),
        protobuf.number(5, 1),
    )  # fmt: skip
    return b"".join((*out, protobuf.message(_TRAINER, *trainer), protobuf.message(_NORMALIZER, *normalizer)))
