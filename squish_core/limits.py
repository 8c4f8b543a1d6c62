"""Limits on the resources that a malicious file can consume."""

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
    """Limits checked before memory is allocated, in bytes unless noted.

    `header`: header, manifest or key/value section. `tensors`: number of tensors. `name`: UTF-8 bytes of a tensor
    name. `rank`: number of dimensions. `depth`: nesting depth of metadata. `decoded`: a decoded tensor or part.
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
    """Return the default limits, changed by the variable SQUISH_LIMITS (`tensors=2000000,header=...`).

    UsageError if the variable is invalid.
    """
    names, settings = [field.name for field in fields(Limits)], {}
    for item in filter(None, os.environ.get(VARIABLE, "").split(",")):
        name, _, value = (word.strip() for word in item.partition("="))
        if name not in names or not (value.isdecimal() and len(value) < 20):
            expected = f"NAME=NUMBER[,...] of {', '.join(names)}"
            raise UsageError(f"{VARIABLE} is invalid", expected=expected, found=repr(item), code=ErrorCode.USAGE)
        settings[name] = int(value)
    return Limits(**settings) if settings else DEFAULT
