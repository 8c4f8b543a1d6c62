"""The grammar of specifications: `ID[:key=value[,key=value]]`, and `ID(SPEC)` for wrapping."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve

from squish_core.codes import ErrorCode
from squish_core.errors import UsageError
from squish_core.model import CodecSpec


def parse_spec(text: str) -> CodecSpec:
    """Parse the specification of an encoding.

    Parameters
    ----------
    text
        `ID[:key=value,...]`, or with an inner encoding in brackets. Numeric values become numbers.

    Returns
    -------
    CodecSpec
        The codec and its parameters.

    Raises
    ------
    UsageError
        It is not a specification (code `spec`).

    Examples
    --------
    >>> parse_spec("lowrank:rank=8(int3)").params
    {'rank': 8}
    """
    outer, bracket, inner = text.partition("(")
    if bracket and text.endswith(")"):
        return evolve(parse_spec(outer), inner=parse_spec(inner[:-1]))
    if bracket or ")" in text:
        raise _syntax_error(text)
    return _flat(text)


def _flat(text: str) -> CodecSpec:
    """Parse an id and parameters without brackets; each key may occur once."""
    name, colon, rest = text.partition(":")
    pairs = [item.partition("=") for item in rest.split(",")] if colon else []
    params = {key.strip(): _number(value.strip()) for key, _, value in pairs}
    if not name.strip() or not all(key and value for key, _, value in pairs) or len(params) < len(pairs):
        raise _syntax_error(text)
    return CodecSpec(name.strip(), params)


def _syntax_error(text: str) -> UsageError:
    expected = "ID[:key=value[,key=value]], each key once, or ID[:key=value](SPEC)"
    return UsageError("invalid specification", found=repr(text), code=ErrorCode.SPEC, expected=expected)


def parse_format(text: str, options_of: Callable[[str], Mapping[str, str] | None]) -> tuple[str, dict[str, str]]:
    """Parse a format id with options; UsageError for an option that `options_of(id)` does not list.

    `options_of` returns None for a format that is not installed.
    """
    spec = _flat(text)  # a path as an option may contain brackets
    legal = options_of(spec.id)
    unknown = sorted(set(spec.params) - set(legal or ()))
    if legal is not None and unknown:
        expected = ", ".join(sorted(legal)) or "no options"
        found = ", ".join(unknown)
        raise UsageError(f"{spec.id} has no such option", found=found, expected=expected, code=ErrorCode.OPTION)
    return spec.id, {key: str(value) for key, value in spec.params.items()}


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
