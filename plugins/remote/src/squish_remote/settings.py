"""Validated options of a remote source."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from attrs import fields, frozen

from squish_core.api import ErrorCode, UsageError

PINS = ("match", "compare", "size")


@frozen(kw_only=True)
class Settings:
    """Settings for reading a remote file; the plugin's declaration documents each option."""

    deadline: float = 60.0
    pin: str = "match"
    piece: int = 8 << 20
    in_flight: int = 16
    memory: int = 96 << 20
    gap: int = 64 << 10
    cache: str = ""
    cache_size: int = 10 << 30

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Settings:
        """Parse options (text or numbers); raise UsageError for an invalid one."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            if field.name not in options:
                continue
            value = options[field.name]
            if field.name == "pin":
                if value not in PINS:
                    raise _invalid_option("pin", " or ".join(PINS), value)
                values["pin"] = value
                continue
            if field.name == "cache":
                values["cache"] = os.fspath(value)
                continue
            convert, lowest = type(field.default), 0 if field.name == "gap" else 1e-3
            try:
                values[field.name] = convert(value)
            except (TypeError, ValueError):
                values[field.name] = -1
            if not lowest <= values[field.name] < 2**40:
                raise _invalid_option(field.name, "a positive number", value)
        return cls(**values)


def _invalid_option(name: str, expected: str, value: Any) -> UsageError:
    return UsageError(f"invalid source option {name}", expected=expected, found=repr(value), code=ErrorCode.OPTION)
