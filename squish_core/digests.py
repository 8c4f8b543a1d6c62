"""Digests of stored bytes: `<algorithm>:<hex>` strings, checked without ever calling an unknown kind right."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from attrs import frozen


@frozen
class Verdict:
    """`state` is "ok", "wrong" or "unverified" (an algorithm that is not known here)."""

    state: str
    expected: str = ""
    found: str = ""


def check(text: str, chunks: Iterable[Any]) -> Verdict:
    """Compare a digest string with the bytes; hex is compared without regard to case or a leading 0x."""
    algorithm, _, value = text.partition(":")
    expected = value.lower().removeprefix("0x")
    if algorithm.lower() != "sha256":
        return Verdict("unverified")
    hasher = hashlib.sha256()
    for chunk in chunks:
        hasher.update(chunk)
    found = hasher.hexdigest()
    return Verdict("ok" if found == expected else "wrong", expected, found)
