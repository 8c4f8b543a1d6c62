"""Checks for single parameters; the command line passes text instead of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from squish_core.api import CodecError, ErrorCode, site_page


def refuse(name: str, expected: str, value: Any) -> CodecError:
    """Return the error for one parameter."""
    return CodecError(
        f"invalid {name}",
        expected=expected,
        found=repr(value),
        code=ErrorCode.PARAMS,
        hint=f"{site_page('reference/codecs')} describes the parameters.",
    )


def integer(low: int, high: int) -> Callable[[str, Any], int]:
    """Return a check for integers in a range."""

    def check(name: str, value: Any) -> int:
        if isinstance(value, str) and value.lstrip("-").isascii() and value.lstrip("-").isdigit() and len(value) < 12:
            value = int(value)
        if type(value) is not int or not low <= value <= high:
            raise refuse(name, f"an integer from {low} to {high}", value)
        return value

    return check


def choice(*allowed: str) -> Callable[[str, Any], str]:
    """Return a check for one of several words."""

    def check(name: str, value: Any) -> str:
        if value not in allowed:
            raise refuse(name, " or ".join(allowed), value)
        return str(value)

    return check
