"""CBOR of zTensor 1.x: any well-formed item without duplicate keys and trailing bytes, with tags only in attributes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from io import BytesIO
from typing import Any

import cbor2

from squish_core.api import FormatError, LimitError, Limits

_BASE_MEMORY, _MEMORY_PER_BYTE = 4 << 20, 32
"""Limit on the estimated memory of the items: a base, and more for each byte of the manifest. The densest valid
manifests are estimated at 28 (and take 21) bytes per byte, typical ones take 11."""
_SMALL = 1 << 18
"""Size in bytes of manifests that are never checked."""
_MIN_OBJECTS, _BYTES_PER_OBJECT = 1 << 16, 4
"""The check starts at this number of Python objects, plus one per so many bytes; typical manifests have one in 5."""


def decode(data: bytes, offset: int, limits: Limits, *, tags: bool = True) -> Any:
    """Decode `data`, which is at `offset` in the file. Tags become `CBORTag` and are never interpreted.

    They are allowed in attributes, or with `tags=False` nowhere.
    """
    stream = _LimitedStream(data, offset) if len(data) > _SMALL else BytesIO(data)
    seen = _Tags()
    try:
        decoder = cbor2.CBORDecoder(stream, max_depth=limits.depth, allow_duplicate_keys=False, semantic_decoders=seen)
        root = decoder.decode()
    except (cbor2.CBORError, ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        if isinstance(error.__cause__, LimitError):  # from the stream
            raise error.__cause__ from None
        raise FormatError(
            f"the manifest is not valid CBOR: {error}", offset=offset + min(stream.tell(), len(data)), code="cbor"
        ) from None
    if stream.tell() != len(data):
        raise FormatError(
            "unexpected bytes after the manifest",
            offset=offset + stream.tell(),
            expected="none",
            found=f"{len(data) - stream.tell()} bytes",
            code="trailing",
        )
    if seen.seen:
        _refuse_tags(root, offset, "attributes" if tags else None)
    return root


class _LimitedStream(BytesIO):
    """A stream that checks the memory of all items as soon as the decoder creates unusually many objects."""

    def __init__(self, data: bytes, offset: int) -> None:
        super().__init__(data)
        self._data, self._offset, self._before = data, offset, sys.getallocatedblocks()

    def read(self, size: int | None = -1) -> bytes:
        if self._data and sys.getallocatedblocks() - self._before > _MIN_OBJECTS + self.tell() // _BYTES_PER_OBJECT:
            _check_memory(self._data, self._offset)
            self._data = b""  # only once: other threads create objects at the same time
        return super().read(size)


def _check_memory(data: bytes, offset: int) -> None:
    """Raise LimitError if the items would take far more memory than bytes: an empty map is one byte."""
    at = memory = 0
    while at < len(data):
        head = data[at]
        memory += _MEMORY[head]
        if memory > _BASE_MEMORY + _MEMORY_PER_BYTE * at:
            raise LimitError(
                "the manifest has too many items for its size",
                offset=offset + at,
                expected=f"at most {_BASE_MEMORY} bytes in memory and {_MEMORY_PER_BYTE} per byte",
                found=memory,
                code="count",
            )
        at += _SIZES[head] + (int.from_bytes(data[at + 1 : at + _SIZES[head]], "big") if head in _LONG else 0)


def _size(head: int) -> int:
    """Return the size of an item with this head, without nested items or text whose length follows."""
    major, low = head >> 5, head & 31
    return 1 + (1 << low - 24 if 24 <= low < 28 else low if major in (2, 3) and low < 24 else 0)


def _memory(head: int) -> int:
    """Estimate the memory of an item with this head, including its place in a list or map."""
    major, low = head >> 5, head & 31
    shared = (major == 0 and low < 25) or 0x20 <= head < 0x25 or (major in (2, 3) and low < 2) or 0xF4 <= head < 0xF8
    return 8 if shared else (40, 40, 48, 72, 96, 232, 64, 56)[major]


_SIZES, _MEMORY = [_size(head) for head in range(256)], [_memory(head) for head in range(256)]
_LONG = frozenset(head for head in range(256) if head >> 5 in (2, 3) and 24 <= head & 31 < 28)


def native(value: Any) -> Any:
    """Return an attribute as Python types: the content of tags, None for undefined, numbers for simple values."""
    if isinstance(value, cbor2.CBORTag):
        return native(value.value)
    if isinstance(value, dict):
        return {key: native(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [native(item) for item in value]
    if isinstance(value, cbor2.CBORSimpleValue):
        return value.value
    return None if value is cbor2.undefined else value


class _Tags(dict[int, Callable[[Any, bool], Any]]):
    """Decoders of all tags: each keeps tag and content."""

    seen = False

    def __missing__(self, tag: int) -> Callable[[Any, bool], Any]:
        self.seen = True
        return lambda value, _immutable: cbor2.CBORTag(tag, value)


def _refuse_tags(value: Any, offset: int, allowed: str | None) -> None:
    if isinstance(value, cbor2.CBORTag):
        place = "outside the attributes" if allowed else "in the manifest"
        raise FormatError(f"CBOR tag {place}", offset=offset, expected="no tag", found=f"tag {value.tag}", code="tag")
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_tags(key, offset, allowed)
            if key != allowed:
                _refuse_tags(item, offset, allowed)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _refuse_tags(item, offset, allowed)
