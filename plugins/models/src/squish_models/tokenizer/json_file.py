"""tokenizer.json. Its vocabulary and merges are hundreds of thousands of Python objects, except with squish-cpu: its
compiled library reads and writes them as texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

from squish_gguf.api import encode_texts

from squish_core.api import SquishError, parse_object

_EMPTY, _WRITTEN = b'"vocab": {}, "merges": []', b'%s"vocab": %s, "merges": %s%s'


class TokenIds(Mapping[str, int]):
    """Ids of different tokens, counted from 0.

    Parameters
    ----------
    tokens
        Text by id.
    encoded
        The tokens in UTF-8, with a zero after each.
    """

    def __init__(self, tokens: Sequence[str], encoded: bytes) -> None:
        self.tokens, self.encoded = tokens, encoded

    @cached_property
    def by_token(self) -> dict[str, int]:
        """The ids as a dictionary."""
        return dict(zip(self.tokens, range(len(self.tokens))))

    def __getitem__(self, token: str) -> int:
        return self.by_token[token]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)


class Merges(Sequence[tuple[str, str]]):
    """Merges by rank, of tokens without spaces; they are checked.

    Parameters
    ----------
    encoded
        The merges in UTF-8, two tokens with a space between, with a zero after each merge.

    Examples
    --------
    >>> list(Merges(b"a b\\0ab c\\0"))
    [('a', 'b'), ('ab', 'c')]
    """

    def __init__(self, encoded: bytes) -> None:
        self.encoded = encoded

    @cached_property
    def _texts(self) -> list[str]:
        return _decode(self.encoded)

    def __len__(self) -> int:
        return self.encoded.count(0)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return map(_pair, self._texts)

    @overload
    def __getitem__(self, index: int) -> tuple[str, str]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, str]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        texts = self._texts[index]
        return _pair(texts) if isinstance(texts, str) else [*map(_pair, texts)]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Merges):
            return self.encoded == other.encoded
        return [*self] == [*other] if isinstance(other, Sequence) else NotImplemented


def _decode(encoded: bytes) -> list[str]:
    return encoded.decode().split("\0")[:-1]


def _pair(text: str) -> tuple[str, str]:
    left, _, right = text.partition(" ")
    return left, right


def parse_tokenizer(data: bytes, name: str) -> dict[str, Any]:
    """Parse a tokenizer.json like `parse_object`, with `TokenIds` and `Merges` where the compiled library reads it."""
    try:
        from squish_cpu.api import read_vocabulary

        if (scanned := read_vocabulary(data)) is not None:
            parsed = parse_object(scanned.rest, name)
            parsed["model"]["vocab"] = TokenIds(_decode(scanned.tokens), scanned.tokens)
            if scanned.merges:
                parsed["model"]["merges"] = Merges(scanned.merges)
            return parsed
    except (ImportError, SquishError, UnicodeDecodeError):
        pass  # not installed, not usable, or an error that has another place in the file
    return parse_object(data, name)


def merges_of_texts(texts: Sequence[str], tokens: Sequence[str]) -> Merges | None:
    """Merges as GGUF has them, if the compiled library can check them and finds nothing wrong."""
    try:
        from squish_cpu.api import check_vocabulary

        merges, vocabulary = encode_texts(texts), encode_texts(tokens)
        is_valid = merges and vocabulary and check_vocabulary(vocabulary, merges)
    except (ImportError, SquishError, TypeError, UnicodeEncodeError):  # the last two for what UTF-8 cannot hold
        return None
    return Merges(merges) if merges and is_valid else None


def dump_tokenizer(content: Mapping[str, Any]) -> bytes:
    """A tokenizer.json on one line, whose vocabulary and merges come last; with an indent, Python's json takes twenty
    times as long."""
    model = content["model"]
    vocab, merges = model["vocab"], model["merges"]
    if isinstance(vocab, TokenIds) and isinstance(merges, Merges):
        from squish_cpu.api import write_vocabulary

        before, after = _dump({**content, "model": {**model, "vocab": {}, "merges": []}}).rsplit(_EMPTY, 1)
        return _WRITTEN % (before, *write_vocabulary(vocab.encoded, merges.encoded), after)
    return _dump(content)


def _dump(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, check_circular=False, default=_builtin).encode()


def _builtin(value: Any) -> Any:
    return value.by_token if isinstance(value, TokenIds) else [*value]
