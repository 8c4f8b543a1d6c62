"""Deterministic CBOR (RFC 8949, 4.2.1), required by v2: one form for each item, sorted keys, no tags.

`v1.cbor` decodes it; the scan here only refuses long forms and unsorted keys, in data that is well-formed.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import cbor2
from attrs import evolve

from squish_core.api import FormatError, Limits

from ..v1 import cbor

DEPTH = 32
"""Maximum nesting depth in v2, including the root (wires 6.2), even if `Limits.depth` is larger."""
_FLOATS = {25: (2, ">e"), 26: (4, ">f"), 27: (8, ">d")}


def encode(value: Any) -> bytes:
    """Encode a value whose maps have text keys."""
    return cbor2.dumps(value, canonical=True)


def decode(data: bytes, offset: int, limits: Limits) -> Any:
    """Decode `data`, which is at `offset` in the file; FormatError with the offset of the first violation."""
    root = cbor.decode(data, offset, evolve(limits, depth=min(limits.depth, DEPTH)), tags=False)
    _Scan(data, offset).item(0)
    return root


class _Scan:
    """Scans well-formed CBOR and refuses items that are not deterministic."""

    def __init__(self, data: bytes, base: int) -> None:
        self._data, self._base = data, base

    def item(self, at: int) -> int:
        """Return the end of the item at `at`."""
        major, low = self._data[at] >> 5, self._data[at] & 31
        if low < 24 and major < 4:
            return at + 1 + (low if major > 1 else 0)
        if low == 31:
            raise self._error("item of indefinite length", at)
        if major == 7:
            return self._simple(at, low)
        value, after = self._head(at, low)
        if major in (2, 3):
            return after + value
        if major == 4:
            for _ in range(value):
                after = self.item(after)
        if major == 5:
            after = self._map(value, after)
        return after

    def _map(self, pairs: int, at: int) -> int:
        last = b""
        for _ in range(pairs):
            after = self.item(at)
            key = self._data[at:after]
            if key <= last:
                raise self._error("the keys of a map are not sorted", at)
            last, at = key, self.item(after)
        return at

    def _head(self, at: int, low: int) -> tuple[int, int]:
        if low < 24:
            return low, at + 1
        width = 1 << low - 24
        value = int.from_bytes(self._data[at + 1 : at + 1 + width], "big")
        if value < (24, 1 << 8, 1 << 16, 1 << 32)[low - 24]:
            raise self._error("a number is not in its shortest form", at)
        return value, at + 1 + width

    def _simple(self, at: int, low: int) -> int:
        if low not in _FLOATS:
            return at + (2 if low == 24 else 1)
        width, code = _FLOATS[low]
        stored = self._data[at : at + 1 + width]
        value = struct.unpack(code, stored[1:])[0]
        if (math.isnan(value) and stored != b"\xf9\x7e\x00") or stored != encode(value):
            raise self._error("a float is not in its shortest form", at)
        return at + 1 + width

    def _error(self, fault: str, at: int) -> FormatError:
        return FormatError(
            f"the manifest is not deterministic CBOR: {fault}",
            offset=self._base + at,
            found=f"byte 0x{self._data[at]:02x}",
            code="cbor",
        )
