"""The vocabulary and the merges of a tokenizer.json, read and written by the compiled library."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

import numpy as np
from attrs import frozen

from .library import Vocabulary, library


@frozen
class ScannedVocabulary:
    """The tokens and merges of a tokenizer.json.

    Parameters
    ----------
    tokens
        Text by id; none appears twice.
    merges
        Two tokens with a space between, in UTF-8, and a zero after each merge. Both, and what they make, are among the
        tokens.
    rest
        The file with an empty object and an empty list in their places.
    """

    tokens: list[str]
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
    (['a', 'b', 'ab'], b'a b\\x00', b'{"model": {"vocab": {}, "merges": []}}')
    """
    out, found = np.empty(len(data), np.uint8), Vocabulary()
    if not library().read_vocabulary(data, len(data), _seed(), out.ctypes.data, ctypes.byref(found)):
        return None
    size = found.tokens_size
    try:
        tokens = out[:size].tobytes().decode().split("\0")[:-1]
    except UnicodeDecodeError:
        return None
    merges = out[size : size + found.merges_size].tobytes()
    rest = b"{}".join((data[: found.vocab_start], data[found.vocab_end : found.merges_start]))
    return ScannedVocabulary(tokens, merges, rest + b"[]" + data[found.merges_end :])


def check_vocabulary(tokens: Sequence[str], merges: bytes) -> bool:
    """Whether tokens are different, and merges join and make tokens.

    Parameters
    ----------
    tokens
        Text by id.
    merges
        As in `ScannedVocabulary`.

    Returns
    -------
    bool
        False also for tokens that contain a zero.

    Raises
    ------
    UnicodeEncodeError
        A token contains half a character.
    SquishError
        The library cannot be loaded (code `library`).

    Examples
    --------
    >>> check_vocabulary(["a", "b", "ab"], b"a b\\0"), check_vocabulary(["a", "b", "ab"], b"b a\\0")
    (True, False)
    """
    texts = _encode(tokens)
    are_texts = texts.count(0) == len(tokens) and merges[-1:] in (b"", b"\0")
    return are_texts and bool(library().check_vocabulary(texts, len(texts), merges, len(merges), _seed()))


def write_vocabulary(tokens: Sequence[str], merges: bytes) -> tuple[bytes, bytes]:
    """The JSON of tokens and merges, as `json.dumps` writes it without ASCII escapes.

    Parameters
    ----------
    tokens
        Text by id.
    merges
        As in `ScannedVocabulary`.

    Returns
    -------
    vocab, merges
        An object of ids by token, and a list of pairs.

    Raises
    ------
    ValueError
        A token contains a zero or half a character.
    SquishError
        The library cannot be loaded (code `library`).

    Examples
    --------
    >>> write_vocabulary(["a", "b", "ab"], b"a b\\0")
    (b'{"a": 0, "b": 1, "ab": 2}', b'[["a", "b"]]')
    """
    texts = _encode(tokens)
    if texts.count(0) != len(tokens):
        raise ValueError("a token contains a zero")
    out = np.empty(6 * (len(texts) + len(merges)) + 16 * (len(tokens) + merges.count(0) + 1), np.uint8)
    size = ctypes.c_int64()
    first = library().write_vocabulary(texts, len(texts), merges, len(merges), out.ctypes.data, ctypes.byref(size))
    return out[:first].tobytes(), out[first : size.value].tobytes()


def _encode(tokens: Sequence[str]) -> bytes:
    """The tokens as the library takes them: a zero after each."""
    return "\0".join((*tokens, "")).encode()


def _seed() -> int:
    return int.from_bytes(os.urandom(8))
