"""tokenizer.json. Its vocabulary and merges are hundreds of thousands of Python objects, except with squish-cpu: its
compiled library reads and writes them as texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

from squish_core.api import SquishError, check_json_size, parse_object

_EMPTY, _WRITTEN = b'"vocab": {}, "merges": []', b'%s"vocab": %s, "merges": %s%s'


class TokenIds(Mapping[str, int]):
    """Ids of different tokens, counted from 0.

    Parameters
    ----------
    tokens
        Text by id.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens = tokens

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
    text
        A line for each merge, as in merges.txt: two tokens, and a space between.

    Examples
    --------
    >>> list(Merges("a b\\nab c"))
    [('a', 'b'), ('ab', 'c')]
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._count = text.count("\n") + 1

    @cached_property
    def lines(self) -> list[str]:
        """The merges as GGUF has them."""
        return self.text.split("\n")

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return map(_pair, self.lines)

    @overload
    def __getitem__(self, index: int) -> tuple[str, str]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, str]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        lines = self.lines[index]
        return _pair(lines) if isinstance(lines, str) else [*map(_pair, lines)]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Merges):
            return self.text == other.text
        return [*self] == [*other] if isinstance(other, Sequence) else NotImplemented


def _pair(line: str) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    return left, right


def parse_tokenizer(data: bytes, name: str) -> dict[str, Any]:
    """Parse a tokenizer.json like `parse_object`, with `TokenIds` and `Merges` where the compiled library reads it."""
    check_json_size(data, name)
    try:
        from squish_cpu.api import read_vocabulary

        scanned = read_vocabulary(data)
        parsed = None if scanned is None else parse_object(scanned.rest, name)
    except (ImportError, SquishError):  # not installed, not usable, or an error that has another place in the file
        scanned = parsed = None
    if scanned is None or parsed is None:
        return parse_object(data, name)
    parsed["model"]["vocab"] = TokenIds(scanned.tokens)
    if scanned.merges:
        parsed["model"]["merges"] = Merges(scanned.merges)
    return parsed


def merges_of_lines(lines: Sequence[str], tokens: Sequence[str]) -> Merges | None:
    """Merges as GGUF has them, if the compiled library can check them and finds nothing wrong."""
    try:
        from squish_cpu.api import check_vocabulary

        text = "\n".join(lines)
        is_valid = text != "" and text.count("\n") + 1 == len(lines) and check_vocabulary(tokens, text)
    except (ImportError, SquishError, TypeError):  # the last for texts that are not UTF-8, which are bytes
        return None
    return Merges(text) if is_valid else None


def dump_tokenizer(content: Mapping[str, Any]) -> bytes:
    """A tokenizer.json on one line, whose vocabulary and merges come last; with an indent, Python's json takes twenty
    times as long."""
    model = content["model"]
    vocab, merges = model["vocab"], model["merges"]
    if isinstance(vocab, TokenIds) and isinstance(merges, Merges) and "\0" not in "".join(vocab.tokens):
        from squish_cpu.api import write_vocabulary

        before, after = _dump({**content, "model": {**model, "vocab": {}, "merges": []}}).rsplit(_EMPTY, 1)
        return _WRITTEN % (before, *write_vocabulary(vocab.tokens, merges.text), after)
    return _dump(content)


def _dump(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, check_circular=False, default=_builtin).encode()


def _builtin(value: Any) -> Any:
    return value.by_token if isinstance(value, TokenIds) else [*value]
