"""Vocabularies as arrays of GGUF, and as texts in UTF-8 with a zero after each."""

from __future__ import annotations

from collections.abc import Sequence

from .texts import join, join_encoded, zero_ended
from .values import GgufArray


def text_array(texts: Sequence[str] | bytes, decoded: Sequence[str] | None = None) -> GgufArray:
    """Return texts as an array, packed once: a vocabulary is measured, hashed and written.

    Parameters
    ----------
    texts
        The texts, which must not be changed; or their UTF-8, with a zero after each.
    decoded
        The texts, if they are available besides their UTF-8.

    Returns
    -------
    GgufArray
        The array.

    Raises
    ------
    UnicodeEncodeError
        A text contains half a character.

    Examples
    --------
    >>> text_array(["a", "b"])[1], text_array(b"a\\0b\\0")[1]
    ('b', 'b')
    """
    if isinstance(texts, bytes):
        packed = GgufArray("str", texts.count(0), join_encoded(texts))
    else:
        packed, decoded = GgufArray("str", len(texts), join(texts)), texts
    packed._decoded = decoded
    return packed


def encode_texts(texts: Sequence[str]) -> bytes | None:
    """Return texts in UTF-8 with a zero after each, as `text_array` takes them.

    Parameters
    ----------
    texts
        The texts. Those of an array that was read are not decoded, nor checked to be UTF-8.

    Returns
    -------
    bytes or None
        None if a text contains a zero.

    Raises
    ------
    TypeError, UnicodeEncodeError
        A text is bytes, or contains half a character.

    Examples
    --------
    >>> encode_texts(["a", "b"]), encode_texts(text_array(["a", "b"])), encode_texts(["a\\0b"])
    (b'a\\x00b\\x00', b'a\\x00b\\x00', None)
    """
    if isinstance(texts, GgufArray) and texts.kind == "str" and len(texts):
        return zero_ended(texts.raw, texts._offsets())
    encoded = "\0".join((*texts, "")).encode()
    return encoded if encoded.count(0) == len(texts) else None
