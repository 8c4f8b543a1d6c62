"""CBOR as zTensor 1.x has it: any well-formed item; no duplicate keys or trailing bytes, tags in attributes only."""

from __future__ import annotations

import sys
from collections.abc import Callable
from io import BytesIO
from typing import Any

import cbor2

from squish_core.api import FormatError, LimitError, Limits

_SPARE, _EACH = 4 << 20, 32
"""Bytes of memory that items may weigh whatever the size, and for each byte of it. The shortest honest manifests weigh
28 (and take 21), usual ones take 11."""
_SMALL = 1 << 18
"""Bytes up to which a manifest may be anything."""
_BLOCKS, _APART = 1 << 16, 4
"""Python objects that are no reason to look closer, and bytes for each further one; usual manifests have one in 5."""


def decode(data: bytes, offset: int, limits: Limits, *, tags: bool = True) -> Any:
    """The item in `data`, which lies at `offset` of the file. Tags are kept as `CBORTag`, never interpreted.

    They may stand in attributes; with `tags=False` nowhere.
    """
    stream = _Watched(data, offset) if len(data) > _SMALL else BytesIO(data)
    seen = _Tags()
    try:
        decoder = cbor2.CBORDecoder(stream, max_depth=limits.depth, allow_duplicate_keys=False, semantic_decoders=seen)
        root = decoder.decode()
    except (cbor2.CBORError, ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        if isinstance(error.__cause__, LimitError):  # of our stream
            raise error.__cause__ from None
        raise FormatError(
            f"the manifest is not valid CBOR: {error}", offset=offset + min(stream.tell(), len(data)), code="cbor"
        ) from None
    if stream.tell() != len(data):
        raise FormatError(
            "bytes follow the manifest", offset=offset + stream.tell(), expected="none",
            found=f"{len(data) - stream.tell()} bytes", code="trailing",
        )  # fmt: skip
    if seen.seen:
        _refuse_tags(root, offset, "attributes" if tags else None)
    return root


class _Watched(BytesIO):
    """Weighs the items one by one as soon as the decoder makes more objects than it does of a usual manifest."""

    def __init__(self, data: bytes, offset: int) -> None:
        super().__init__(data)
        self._data, self._offset, self._before = data, offset, sys.getallocatedblocks()

    def read(self, size: int | None = -1) -> bytes:
        if self._data and sys.getallocatedblocks() - self._before > _BLOCKS + self.tell() // _APART:
            _weigh(self._data, self._offset)
            self._data = b""  # only once: other threads create objects at the same time
        return super().read(size)


def _weigh(data: bytes, offset: int) -> None:
    """LimitError where items are so small that they take far more memory than bytes: an empty map is a byte here."""
    at = weight = 0
    while at < len(data):
        head = data[at]
        weight += _WEIGHTS[head]
        if weight > _SPARE + _EACH * at:
            raise LimitError(
                "the manifest has too many items for its size", offset=offset + at,
                expected=f"at most {_SPARE} bytes in memory and {_EACH} for each byte", found=weight, code="count",
            )  # fmt: skip
        at += _SIZES[head] + (int.from_bytes(data[at + 1 : at + _SIZES[head]], "big") if head in _LONG else 0)


def _size(head: int) -> int:
    """Bytes of an item with this head, without nested items or a text whose length follows."""
    major, low = head >> 5, head & 31
    return 1 + (1 << low - 24 if 24 <= low < 28 else low if major in (2, 3) and low < 24 else 0)


def _weight(head: int) -> int:
    """Bytes of memory of an item that begins so, its place in a list or map included."""
    major, low = head >> 5, head & 31
    shared = (major == 0 and low < 25) or 0x20 <= head < 0x25 or (major in (2, 3) and low < 2) or 0xF4 <= head < 0xF8
    return 8 if shared else (40, 40, 48, 72, 96, 232, 64, 56)[major]


_SIZES, _WEIGHTS = [_size(head) for head in range(256)], [_weight(head) for head in range(256)]
_LONG = frozenset(head for head in range(256) if head >> 5 in (2, 3) and 24 <= head & 31 < 28)


def plain(value: Any) -> Any:
    """An attribute's value without CBOR's own types: tags give their content, undefined None, simple values numbers."""
    if isinstance(value, cbor2.CBORTag):
        return plain(value.value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, cbor2.CBORSimpleValue):
        return value.value
    return None if value is cbor2.undefined else value


class _Tags(dict[int, Callable[[Any, bool], Any]]):
    """Decoders for every tag: each keeps tag and content unchanged."""

    seen = False

    def __missing__(self, tag: int) -> Callable[[Any, bool], Any]:
        self.seen = True
        return lambda value, _immutable: cbor2.CBORTag(tag, value)


def _refuse_tags(value: Any, offset: int, allowed: str | None) -> None:
    if isinstance(value, cbor2.CBORTag):
        where = "outside the attributes" if allowed else "in the manifest"
        raise FormatError(
            f"a CBOR tag stands {where}", offset=offset, expected="no tag", found=f"tag {value.tag}", code="tag"
        )
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_tags(key, offset, allowed)
            if key != allowed:
                _refuse_tags(item, offset, allowed)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _refuse_tags(item, offset, allowed)
