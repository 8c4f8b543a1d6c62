"""Vocabularies as arrays of GGUF."""

from __future__ import annotations

from collections.abc import Sequence

from .texts import join
from .values import GgufArray


def text_array(texts: Sequence[str]) -> GgufArray:
    """Return texts as an array, packed once: a vocabulary is measured, hashed and written.

    Parameters
    ----------
    texts
        The texts, which must not be changed.

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
    >>> text_array(["a", "b"])[1]
    'b'
    """
    packed = GgufArray("str", len(texts), join(texts))
    packed._decoded = texts
    return packed
