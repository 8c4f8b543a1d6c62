"""CBOR of the SQXT section: definite lengths, no tags, no duplicate keys, bounded depth (profile P9).

Longer forms of an item and any order of keys are valid. docs/architecture.md compares the checks of other formats.
"""

from __future__ import annotations

from typing import Any

import cbor2

DEPTH = 16


def loads(data: bytes) -> Any:
    """Decode `data`, exactly one item; raises ValueError with the reason."""
    end = _scan(data)
    if end != len(data):
        raise ValueError(f"{len(data) - end} unexpected bytes after the CBOR item")
    try:
        return cbor2.loads(data, max_depth=DEPTH + 1, allow_duplicate_keys=False)
    except (cbor2.CBORError, TypeError, RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from None


def _scan(data: bytes) -> int:
    """Check the first item without building it; returns its end."""
    position, open_items = 0, [1]
    while open_items:
        if open_items[-1] == 0:
            open_items.pop()
            continue
        open_items[-1] -= 1
        if position >= len(data):
            raise ValueError("truncated CBOR")
        major, info = data[position] >> 5, data[position] & 31
        position += 1
        if info > 27:
            raise ValueError("CBOR item of indefinite length" if info == 31 else "reserved CBOR length code")
        width = 1 << info - 24 if info > 23 else 0
        if position + width > len(data):
            raise ValueError("truncated CBOR")
        argument = int.from_bytes(data[position : position + width], "big") if width else info
        position += width
        if major == 6:
            raise ValueError(f"CBOR tag {argument} is not allowed")
        if major in (2, 3):
            position += argument
        elif major in (4, 5):
            if argument > len(data) - position:
                raise ValueError("CBOR count larger than the section")
            open_items.append(argument * (major - 3))
            if len(open_items) > DEPTH + 1:
                raise ValueError(f"CBOR nested deeper than {DEPTH} levels")
        if position > len(data):
            raise ValueError("truncated CBOR")
    return position
