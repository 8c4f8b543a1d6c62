"""Results as data for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def to_json(value: Any) -> Any:
    """Data of a result for JSON: dicts of objects, lists of arrays, the length of bytes, null for NaN and infinities.

    >>> to_json({"shape": (2, 3), "error": float("inf"), "blob": b"abc"})
    {'shape': [2, 3], 'error': None, 'blob': {'bytes': 3}}
    """
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytes": len(value)}
    if isinstance(value, (Sequence, set, frozenset)):
        return [to_json(item) for item in value]
    if hasattr(value, "__attrs_attrs__"):
        return {field.name: to_json(getattr(value, field.name)) for field in value.__attrs_attrs__}
    return to_json(value.tolist()) if hasattr(value, "tolist") else str(value)
