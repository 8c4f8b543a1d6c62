"""Checks of single parameters; a command line gives text where a file gives numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from squish_core.api import CodecError, ErrorCode


def refuse(name: str, expected: str, found: Any) -> CodecError:
    """The error for one parameter."""
    return CodecError(
        f"the codec cannot take this {name}", expected=expected, found=repr(found), code=ErrorCode.PARAMS,
        hint="The parameters are described in docs/codecs.",
    )  # fmt: skip


def integer(low: int, high: int) -> Callable[[str, Any], int]:
    """A check for integers of a range."""

    def check(name: str, value: Any) -> int:
        if isinstance(value, str) and value.lstrip("-").isascii() and value.lstrip("-").isdigit() and len(value) < 12:
            value = int(value)
        if type(value) is not int or not low <= value <= high:
            raise refuse(name, f"an integer from {low} to {high}", value)
        return value

    return check


def choice(*allowed: str) -> Callable[[str, Any], str]:
    """A check for one of some words."""

    def check(name: str, value: Any) -> str:
        if value not in allowed:
            raise refuse(name, " or ".join(allowed), value)
        return str(value)

    return check
