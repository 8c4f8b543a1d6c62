"""JSON from a file that may be hostile: one reading only, bounded nesting, typed errors."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from squish_core.api import FormatError, LimitError, Limits

# The closing quote is optional, so that an unterminated string costs one pass and not one per quote.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
_NO_SYNTAX = bytes(set(_NO_BRACKET) - set(b'"\\'))


def loads(raw: bytes, what: str, limits: Limits, *, start: int = 0) -> dict[str, Any]:
    """The object that `raw` is; `start` is its offset in the file, `what` its name in errors.

    FormatError on another encoding than UTF-8, duplicate keys, NaN and infinities, half surrogate pairs, trailing
    bytes; LimitError on nesting deeper than `limits.depth`.
    """
    if not raw.startswith(b"{"):
        raise FormatError(
            f"the {what} is no JSON object", offset=start, expected="'{'", found=repr(raw[:4]), code="json"
        )
    if not _shallow(_brackets(raw), limits.depth):
        raise LimitError(
            f"the {what} is nested too deeply, or its brackets do not match", offset=start,
            expected=f"at most {limits.depth} levels", code="depth",
        )  # fmt: skip
    try:
        found = json.loads(raw.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
        if b"\\u" in raw:
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise FormatError(f"the {what} is not UTF-8", offset=start + error.start, code="utf-8") from None
    except UnicodeEncodeError:
        raise FormatError(f"the {what} holds half a surrogate pair", offset=start, code="utf-8") from None
    except json.JSONDecodeError as error:
        offset = start + len(error.doc[: error.pos].encode())
        raise FormatError(f"the {what} is not JSON: {error.msg}", offset=offset, code="json") from None
    except ValueError as error:
        raise FormatError(f"the {what} is not JSON: {error}", offset=start, code="json") from None
    except FormatError as error:
        raise error.within(offset=start) from None
    return found


def _brackets(raw: bytes) -> bytes:
    """The brackets outside strings, at memory speed when no string holds a bracket or a backslash."""
    # A string without either leaves just its two quotes. One with a bracket leaves a quote that has no neighbour.
    left = raw.translate(None, _NO_SYNTAX).replace(b'""', b"")
    if b'"' in left or b"\\" in left:
        left = _STRING.sub(b"", raw).translate(None, _NO_BRACKET)
    return left


def _shallow(brackets: bytes, depth: int) -> bool:
    """Whether all pairs match and vanish within `depth` rounds."""
    for _ in range(depth):
        left = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if not left or len(left) == len(brackets):
            return not left
        brackets = left
    return False


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise FormatError("a key appears twice", found=repr(twice[:80]), code="duplicate")
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON value")
