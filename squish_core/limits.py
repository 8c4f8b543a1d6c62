"""Limits that bound what a hostile file can cost."""

from __future__ import annotations

import os

from attrs import fields, frozen

from squish_core.codes import ErrorCode
from squish_core.errors import UsageError

VARIABLE = "SQUISH_LIMITS"
MIB = 1 << 20
GIB = 1 << 30


@frozen(kw_only=True)
class Limits:
    """Caps applied before memory is taken; bytes unless said otherwise.

    `header`: header, manifest or key/value section. `tensors`: number of tensors. `name`: UTF-8 bytes of a
    tensor name. `rank`: dimensions. `depth`: nesting of metadata. `decoded`: one decoded tensor or part.
    `ratio`: decoded bytes per stored byte of a byte codec.
    """

    header: int = 100 * MIB
    tensors: int = 1_000_000
    name: int = 1024
    rank: int = 64
    depth: int = 32
    decoded: int = 64 * GIB
    ratio: int = 4096


DEFAULT = Limits()


def default() -> Limits:
    """The limits where a call names none: those of the variable SQUISH_LIMITS (`tensors=2000000,header=...`) over the
    usual ones. SquishError for a value that cannot be read."""
    names, raised = [field.name for field in fields(Limits)], {}
    for item in filter(None, os.environ.get(VARIABLE, "").split(",")):
        name, _, value = (word.strip() for word in item.partition("="))
        if name not in names or not (value.isdecimal() and len(value) < 20):
            raise UsageError(
                f"{VARIABLE} cannot be read", expected=f"NAME=NUMBER[,...] of {', '.join(names)}", found=repr(item),
                code=ErrorCode.USAGE,
            )  # fmt: skip
        raised[name] = int(value)
    return Limits(**raised) if raised else DEFAULT
