"""CBOR of the SQXT section: definite lengths, no tags, no duplicate keys, bounded depth (profile P9).

The scan is not that of zTensor v2: longer forms of an item and any order of keys are valid here.
"""

from __future__ import annotations

from typing import Any

import cbor2

DEPTH = 16


def loads(data: bytes) -> Any:
    """Decode one item that fills `data`; ValueError says what is wrong."""
    end = _scan(data)
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes follow the item")
    try:
        return cbor2.loads(data, max_depth=DEPTH + 1, allow_duplicate_keys=False)
    except (cbor2.CBORError, TypeError, RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from None


def _scan(data: bytes) -> int:
    """Walk the items without building them; the position after the first one."""
    position, open_items = 0, [1]
    while open_items:
        if open_items[-1] == 0:
            open_items.pop()
            continue
        open_items[-1] -= 1
        if position >= len(data):
            raise ValueError("the item is cut off")
        major, info = data[position] >> 5, data[position] & 31
        position += 1
        if info > 27:
            raise ValueError("an indefinite length" if info == 31 else "a reserved length code")
        width = 1 << info - 24 if info > 23 else 0
        if position + width > len(data):
            raise ValueError("the item is cut off")
        argument = int.from_bytes(data[position : position + width], "big") if width else info
        position += width
        if major == 6:
            raise ValueError(f"tag {argument}")
        if major in (2, 3):
            position += argument
        elif major in (4, 5):
            if argument > len(data) - position:
                raise ValueError("a count is larger than the section")
            open_items.append(argument * (major - 3))
            if len(open_items) > DEPTH + 1:
                raise ValueError(f"nested deeper than {DEPTH}")
        if position > len(data):
            raise ValueError("the item is cut off")
    return position
