"""CBOR as zTensor 1.x has it: any well-formed item; no duplicate keys or trailing bytes, tags in attributes only."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

import cbor2

from squish_core.api import FormatError, LimitError, Limits

_SPARE, _APART = 1 << 17, 8
"""Maps and arrays allowed whatever the size, and bytes for each further one; usual manifests have one in 25."""
_HEADS = bytes(range(0x80, 0xC0))


def decode(data: bytes, offset: int, limits: Limits, *, tags: bool = True) -> Any:
    """The item in `data`, which lies at `offset` of the file. Tags are kept as `CBORTag`, never interpreted.

    They may stand in attributes; with `tags=False` nowhere.
    """
    _check_density(data, offset)
    stream, seen = BytesIO(data), _Tags()
    try:
        decoder = cbor2.CBORDecoder(stream, max_depth=limits.depth, allow_duplicate_keys=False, semantic_decoders=seen)
        root = decoder.decode()
    except (cbor2.CBORError, ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
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


def _check_density(data: bytes, offset: int) -> None:
    """Few maps and arrays for so many bytes: an empty one is a byte here and seventy in memory."""
    allowed = _SPARE + len(data) // _APART
    if len(data) - len(data.translate(None, _HEADS)) <= allowed:
        return
    # Text that is not ASCII has such bytes, too, so look at the items themselves.
    count = at = 0
    while at < len(data):
        major, low = data[at] >> 5, data[at] & 31
        width = 1 << low - 24 if 24 <= low < 28 else 0
        if major in (2, 3):
            at += int.from_bytes(data[at + 1 : at + 1 + width], "big") if width else low if low < 24 else 0
        count += major in (4, 5)
        at += 1 + width
        if count > _SPARE + at // _APART:
            raise LimitError(
                "the manifest has too many maps and arrays for its size", offset=offset + min(at, len(data)),
                expected=f"at most {_SPARE} and one in {_APART} bytes", found=count, code="count",
            )  # fmt: skip


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
    """Decoders of all tags at once: each keeps its tag and content as they are."""

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
