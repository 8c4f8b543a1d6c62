"""Strict JSON for untrusted files: unambiguous, parsed in pieces, with typed errors."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NoReturn

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, LimitError, SquishError
from squish_core.limits import Limits

JSON_PIECE = 1 << 16
"""Bytes parsed at once: Python objects take up to thirty times the size of their JSON."""
SHALLOW = 2
"""Nesting that is tried first: the pattern of all legal nesting takes milliseconds to compile."""
_ALL = b"*+" if sys.version_info >= (3, 11, 5) else b"*"
"""Repeats a group without going back; before Python 3.11.5, that gives wrong matches (python/cpython#106052)."""
_SPACE, _STRING = rb"[ \t\n\r]*+", rb'"(?:[^"\\]++|\\.)' + _ALL + b'"'
_KEY = re.compile(_SPACE + _STRING + _SPACE + b":" + _SPACE, re.DOTALL)
_TEXT = re.compile(_STRING + _SPACE + rb"(?=[,}])", re.DOTALL)
_COMMA, _CLOSE, _END = (re.compile(_SPACE + mark) for mark in (b",", rb"\}", rb"\Z"))


class JsonMembers:
    """Iterate over the members of one JSON object in file order, with at most one piece of it in memory.

    Yields (offset in the file, {key: value}) for each piece. Raises FormatError for text that is not UTF-8,
    duplicate keys in a piece, NaN and infinities, lone surrogates and trailing bytes; LimitError for nesting deeper
    than `limits.depth` and for members longer than a piece, except long strings and objects that can be read in
    pieces. `what` names the text in errors, `start` is its offset. `constants` allows NaN and infinities, which
    Python's `json` writes.
    """

    def __init__(
        self,
        raw: bytes | memoryview,
        what: str,
        limits: Limits,
        *,
        start: int = 0,
        piece: int = 0,
        constants: bool = False,
    ) -> None:
        self.raw, self.what, self.limits, self.start = raw, what, limits, start
        self.at, self.piece = 0, piece or JSON_PIECE
        self.decoder = _LENIENT if constants else _DECODER

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        if self.raw[:1] != b"{":
            raise self._error("is not a JSON object", 0, "json", expected="'{'", found=repr(bytes(self.raw[:4])))
        yield from self._object(0)
        if not _END.match(self.raw, self.at):
            raise self._error("is not JSON: Extra data after the object", self.at, "json")

    def _object(self, level: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Read from the opening brace to past the closing one."""
        self.at += 1
        if self._skip(_CLOSE):
            return
        while True:
            begin = self.at
            depth = self.limits.depth - level
            match = self._match(min(depth, SHALLOW), begin) or (depth > SHALLOW and self._match(depth, begin))
            if match:
                self.at = match.end()
                yield self.start + begin, self._parse(match[0], begin)
            else:
                yield self.start + begin, self._long_member(begin, level)
            if self._skip(_CLOSE):
                return
            if not self._skip(_COMMA):
                raise self._error("is not JSON: Expecting ',' delimiter", self.at, "json")

    def _match(self, depth: int, begin: int) -> re.Match[bytes] | None:
        return _members(depth).match(self.raw, begin, begin + self.piece)

    def _long_member(self, begin: int, level: int) -> dict[str, Any]:
        """Parse a member longer than a piece: a long string, or an object, which is read in pieces."""
        key = _KEY.match(self.raw, begin, begin + self.piece)
        if key is None:
            raise self._syntax_error(begin)
        text = _TEXT.match(self.raw, key.end())
        if text:
            self.at = text.end()
            return self._parse(key[0] + text[0], begin)
        if level or self.raw[key.end() : key.end() + 1] != b"{":
            raise self._syntax_error(begin)
        (name,) = self._parse(key[0] + b"0", begin)
        self.at = key.end()
        members: dict[str, Any] = {}
        for at, piece in self._object(level + 1):
            merge_members(members, piece, at, self.limits)
        return {name: members}

    def _skip(self, mark: re.Pattern[bytes]) -> bool:
        match = mark.match(self.raw, self.at, self.at + self.piece)
        if match:
            self.at = match.end()
        return match is not None

    def _parse(self, piece: bytes, begin: int, close: str = "}") -> dict[str, Any]:
        try:
            text = "{" + piece.decode() + close
            members: dict[str, Any] = self.decoder.decode(text)
            if "\\u" in text:
                json.dumps(members, ensure_ascii=False).encode()
        except UnicodeDecodeError as error:
            raise self._error("is not UTF-8", begin + error.start, "utf-8") from None
        except UnicodeEncodeError:
            raise self._error("contains a lone surrogate", begin, "utf-8") from None
        except json.JSONDecodeError as error:
            position = begin + max(len(text[: error.pos].encode()) - 1, 0)
            raise self._error(f"is not JSON: {error.msg}", position, "json") from None
        except ValueError as error:
            raise self._error(f"is not JSON: {error}", begin, "json") from None
        except RecursionError:
            raise self._too_deep(begin) from None
        except FormatError as error:
            raise error.within(offset=self.start + begin) from None
        return members

    def _syntax_error(self, begin: int) -> SquishError:
        """Error for text that cannot be parsed from `begin` on."""
        piece = bytes(self.raw[begin : begin + self.piece])
        cut = begin + self.piece < len(self.raw)
        if _nesting(piece) > self.limits.depth:
            return self._too_deep(begin)
        try:
            self._parse(piece, begin, close="")
        except SquishError as error:
            # An error at the end of a truncated piece comes from the truncation.
            if not cut or not (
                "Unterminated" in error.message or (error.offset or 0) >= self.start + begin + self.piece - 8
            ):
                return error
        expected = f"at most {self.piece} bytes"
        return LimitError(
            f"the {self.what} has an entry that is too long", offset=self.start + begin, expected=expected, code="entry"
        )

    def _too_deep(self, begin: int) -> LimitError:
        return LimitError(
            f"the {self.what} is nested too deeply",
            offset=self.start + begin,
            expected=f"at most {self.limits.depth} levels",
            code="depth",
            limit="depth",
        )

    def _error(self, message: str, at: int, code: str, **numbers: Any) -> FormatError:
        return FormatError(f"the {self.what} {message}", offset=self.start + at, code=code, **numbers)


def load_json(
    raw: bytes | memoryview, what: str, limits: Limits, *, piece: int = 0, constants: bool = False
) -> dict[str, Any]:
    """Parse a whole JSON object strictly, in bounded memory.

    Parameters
    ----------
    raw
        UTF-8 text.
    what
        Name of the text in errors, without "the".
    limits
        Limits to check.
    piece
        Bytes to parse at a time; 0 for all.
    constants
        Accept NaN and Infinity.

    Returns
    -------
    dict
        The members.

    Raises
    ------
    FormatError
        It is not JSON, not an object, or a key appears twice; LimitError if it exceeds the limits.

    Examples
    --------
    >>> load_json(b'{"shape": [2, 3]}', "header", squish.Limits())
    {'shape': [2, 3]}
    """
    members_by_key: dict[str, Any] = {}
    for at, members in JsonMembers(raw, what, limits, piece=piece, constants=constants):
        merge_members(members_by_key, members, at, limits)
    return members_by_key


def merge_members(target: dict[str, Any], members: Mapping[str, Any], at: int, limits: Limits) -> None:
    """Add the members of one piece of a JSON object.

    Parameters
    ----------
    target
        Members so far; the new ones are added.
    members
        The members of the piece.
    at
        Offset of the piece in bytes, for errors.
    limits
        Limits to check.

    Raises
    ------
    FormatError
        A key appears twice (code `duplicate`); LimitError if there are too many (code `count`).

    Examples
    --------
    >>> members = {"a": 1}
    >>> merge_members(members, {"b": 2}, 8, squish.Limits())
    >>> members
    {'a': 1, 'b': 2}
    """
    if not target.keys().isdisjoint(members):
        raise duplicate_key_error(next(key for key in members if key in target), at)
    target.update(members)
    if len(target) > limits.tensors:
        raise LimitError(
            "too many entries", offset=at, expected=f"at most {limits.tensors}", code="count", limit="tensors"
        )


def has_keys(value: Any, keys: Sequence[str]) -> bool:
    """Return whether a path of keys exists in nested mappings."""
    for key in keys:
        if not isinstance(value, Mapping) or key not in value:
            return False
        value = value[key]
    return True


def without_keys(document: Mapping[str, Any], paths: Iterable[Sequence[str]]) -> dict[str, Any]:
    """Copy an object without some of its members.

    Parameters
    ----------
    document
        A JSON object.
    paths
        The keys that lead to each member; missing ones are ignored.

    Returns
    -------
    dict
        The copy; objects that lose nothing are shared.

    Examples
    --------
    >>> without_keys({"a": {"b": 1, "c": 2}}, [("a", "b")])
    {'a': {'c': 2}}
    """
    copy = dict(document)
    for key, *rest in paths:
        if not rest:
            copy.pop(key, None)
        elif isinstance(copy.get(key), dict):
            copy[key] = without_keys(copy[key], [rest])
    return copy


def duplicate_key_error(key: str, at: int | None = None) -> FormatError:
    """Make the error for a key that appears twice.

    Parameters
    ----------
    key
        The key.
    at
        Offset in bytes.

    Returns
    -------
    FormatError
        With code `duplicate`.

    Examples
    --------
    >>> str(duplicate_key_error("w", 12))
    "a key appears twice (at byte 12, found 'w')"
    """
    return FormatError("a key appears twice", offset=at, found=repr(key[:80]), code=ErrorCode.DUPLICATE)


@cache
def _members(depth: int) -> re.Pattern[bytes]:
    """Pattern of complete members whose values are nested at most `depth` deep."""
    nested = rb"(?!)"
    for _ in range(depth):
        nested = rb'[{[](?:[^][{}"]++|' + _STRING + b"|" + nested + b")" + _ALL + rb"[]}]"
    value = b"(?:" + nested + b"|" + _STRING + rb'|[^][{}",:]++)'
    member = _SPACE + _STRING + _SPACE + b":" + _SPACE + value + _SPACE + b"(?=[,}])"
    return re.compile(member + b"(?:," + member + b")" + _ALL, re.DOTALL)


def _nesting(piece: bytes) -> int:
    """Nesting depth of the brackets outside strings."""
    deepest = level = 0
    # The closing quote is optional, so that an unterminated string takes one pass rather than one per quote.
    for mark in re.sub(_STRING + b"?", b"", piece, flags=re.DOTALL):
        level += (mark in b"[{") - (mark in b"]}")
        deepest = max(deepest, level)
    return deepest


def unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of an object; FormatError for a key that appears twice."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise duplicate_key_error(next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1))
    return members


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON value")


_DECODER = json.JSONDecoder(object_pairs_hook=unique_members, parse_constant=_no_constant)
_LENIENT = json.JSONDecoder(object_pairs_hook=unique_members)
