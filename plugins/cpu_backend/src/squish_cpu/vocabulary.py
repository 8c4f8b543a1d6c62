"""The vocabulary and the merges of a tokenizer.json, read and written by the compiled library. Both are texts in UTF-8
with a zero after each."""

from __future__ import annotations

import ctypes
import os

import numpy as np
from attrs import frozen

from .library import Vocabulary, library


@frozen
class ScannedVocabulary:
    """The tokens and merges of a tokenizer.json.

    Parameters
    ----------
    tokens
        The tokens in order of their ids; none appears twice. That they are UTF-8 is not checked.
    merges
        The merges by rank: two tokens with a space between. Both, and what they make, are among the tokens.
    rest
        The file with an empty object and an empty list in their places.
    """

    tokens: bytes
    merges: bytes
    rest: bytes


def read_vocabulary(data: bytes) -> ScannedVocabulary | None:
    """Scan a tokenizer.json for the tokens and merges of a BPE, and check them.

    Parameters
    ----------
    data
        Content of the file. It may be anything.

    Returns
    -------
    ScannedVocabulary or None
        None where they are not as `tokenizers` writes them (ids from 0 on in order, no `\\u`, no spaces in merged
        tokens) or contradict each other: Python's parser then reads the file, or says what is wrong.

    Raises
    ------
    SquishError
        The library cannot be loaded (code `library`).

    Examples
    --------
    >>> data = b'{"model": {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}}'
    >>> scanned = read_vocabulary(data)
    >>> scanned.tokens, scanned.merges, scanned.rest
    (b'a\\x00b\\x00ab\\x00', b'a b\\x00', b'{"model": {"vocab": {}, "merges": []}}')
    """
    out, found = np.empty(len(data), np.uint8), Vocabulary()
    if not library().read_vocabulary(data, len(data), _seed(), out.ctypes.data, ctypes.byref(found)):
        return None
    size = found.tokens_size
    tokens, merges = out[:size].tobytes(), out[size : size + found.merges_size].tobytes()
    rest = b"{}".join((data[: found.vocab_start], data[found.vocab_end : found.merges_start]))
    return ScannedVocabulary(tokens, merges, rest + b"[]" + data[found.merges_end :])


def check_vocabulary(tokens: bytes, merges: bytes) -> bool:
    """Whether tokens are different, and merges join and make tokens.

    Parameters
    ----------
    tokens, merges
        As in `ScannedVocabulary`.

    Returns
    -------
    bool
        False if a token appears twice, or a merge is not two tokens with a space between that make a third.

    Raises
    ------
    SquishError
        The library cannot be loaded (code `library`).

    Examples
    --------
    >>> check_vocabulary(b"a\\0b\\0ab\\0", b"a b\\0"), check_vocabulary(b"a\\0b\\0ab\\0", b"b a\\0")
    (True, False)
    """
    return bool(library().check_vocabulary(tokens, len(tokens), merges, len(merges), _seed()))


def write_vocabulary(tokens: bytes, merges: bytes) -> tuple[bytes, bytes]:
    """The JSON of tokens and merges, as `json.dumps` writes it without ASCII escapes.

    Parameters
    ----------
    tokens, merges
        As in `ScannedVocabulary`.

    Returns
    -------
    vocab, merges
        An object of ids by token, and a list of pairs.

    Raises
    ------
    SquishError
        The library cannot be loaded (code `library`).

    Examples
    --------
    >>> write_vocabulary(b"a\\0b\\0ab\\0", b"a b\\0")
    (b'{"a": 0, "b": 1, "ab": 2}', b'[["a", "b"]]')
    """
    out = np.empty(6 * (len(tokens) + len(merges)) + 16 * (tokens.count(0) + merges.count(0) + 3), np.uint8)
    size = ctypes.c_int64()
    first = library().write_vocabulary(tokens, len(tokens), merges, len(merges), out.ctypes.data, ctypes.byref(size))
    return out[:first].tobytes(), out[first : size.value].tobytes()


def _seed() -> int:
    return int.from_bytes(os.urandom(8))
