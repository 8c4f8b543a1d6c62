"""The usual manifest (raw dense tensors only), parsed as columns by one expression in a fifth of the time.

This accepts only what the general way would accept, with the same meaning; whatever is unusual, and all that is wrong,
goes the general way, which also gives the errors.
"""

from __future__ import annotations

import re
from functools import reduce
from itertools import repeat
from operator import add, lt, or_
from typing import Any

import cbor2
from attrs import frozen

from squish_core.api import DenseFields, Limits, SquishError, check_shape, dtypes

from .names import ELEMENTS
from .records import METADATA, Extent, Record
from .v1 import cbor
from .v2 import deterministic

_UINT = rb"(?:[\x00-\x17]|\x18[\x18-\xff]|\x19(?!\0)..|\x1a(?!\0\0).{4}|\x1b(?!\0{4}).{8})"
_MAP = re.compile(rb"[\xa0-\xb7]|\xb8[\x18-\xff]|\xb9(?!\0)..|\xba(?!\0\0).{4}", re.DOTALL)
_NUMBERS = re.compile(_UINT, re.DOTALL)
_OBJECTS = b"\x67objects"


class _UnusualError(Exception):
    """Not a usual manifest: the general parser decides."""


@frozen
class Columns:
    """A checked manifest: the root's other keys, its tensors in the order of their data, and where they lie."""

    others: dict[str, Any]
    records: dict[str, DenseFields]
    extents: list[Extent]


def read(data: bytes, wire: str, limits: Limits, *, alignment: int, end: int) -> Columns | None:
    """The manifest in `data`, whose blobs end at `end` at most; None where the general way must decide."""
    try:
        return _read(data, 2 if wire == "2" else 1, limits, alignment, end)
    except (_UnusualError, SquishError, UnicodeDecodeError):
        return None


def record(entry: DenseFields) -> Record:
    """The object as 1.1 writes it."""
    dtype, shape, _, offset, digest = entry
    length = dtypes.nbytes(dtype, shape)
    data = {"dtype": dtype, "offset": offset, "length": length, **({"digest": digest} if digest else {})}
    return {"shape": list(shape), "format": "dense", "components": {"data": data}}


def _read(data: bytes, generation: int, limits: Limits, alignment: int, end: int) -> Columns:
    at = data.find(_OBJECTS)
    head = _MAP.match(data, at + len(_OBJECTS))
    if head is None or not (0xA1 <= data[0] <= 0xB7 and at > 0):
        raise _UnusualError
    pattern = _PATTERNS[generation]
    pairs = pattern.findall(data, head.end())
    rest = pairs.pop()[-1] if pairs and pairs[-1][-1] else b""
    _demand(bool(pairs) and len(pairs) <= limits.tensors and _shortest(len(pairs)) == head[0])
    # Objects last in 1.x, first in v2: whole pairs before or behind them, so that they are no other key's value.
    _demand(not rest if generation == 1 else at == 1)
    others = _others(bytes([data[0] - 1]) + data[1:at] + rest, generation, limits)
    column = dict(zip(pattern.groupindex, zip(*pairs)))
    names = _names(column["head"], column["name"], generation, limits)
    elements, shapes, lengths = _sizes(column, generation, limits)
    offsets = list(map(_uint, column["offset"]))
    _demand(min(offsets) >= alignment and not reduce(or_, offsets) % alignment)
    _demand(max(map(add, offsets, lengths)) <= end)
    columns = zip(elements, shapes, repeat(0), offsets, _digests(column["digest"]))
    entries = dict(zip(names, columns))
    _demand(len(entries) == len(names) and METADATA not in entries)
    extents = sorted(zip(repeat(0), offsets, lengths, names))
    records = {name: entries[name] for _, _, _, name in extents}
    return Columns(others, records, extents)


def _others(data: bytes, generation: int, limits: Limits) -> dict[str, Any]:
    """The root without its objects."""
    decode = cbor.decode if generation == 1 else deterministic.decode
    root: dict[str, Any] = decode(data, 0, limits)
    _demand(root.keys() <= ({"version", "attributes"} if generation == 1 else {"attributes"}))
    return root


def _names(heads: tuple[bytes, ...], stored: tuple[bytes, ...], generation: int, limits: Limits) -> list[str]:
    """Text of the length that its head says, without NUL; in v2 sorted."""
    for head, length in set(zip(heads, map(len, stored))):
        _demand((head[0] - 0x60 if len(head) == 1 else head[1]) == length <= limits.name)
    joined = b"".join(stored)
    _demand(b"\0" not in joined)
    if generation == 2:
        keys = list(map(add, heads, stored))
        _demand(all(map(lt, keys, keys[1:])))
    return [name.decode() for name in stored]


def _sizes(column: dict[str, Any], generation: int, limits: Limits) -> tuple[list[str], list[Any], list[int]]:
    """Element types, shapes and lengths, which agree; as many keys in each component as its head says."""
    places, kinds = (2 if generation == 1 else 1), _KINDS[generation]
    for head, kind, digest in set(zip(column["keys"], column["kind"], map(bool, column["digest"]))):
        _demand(head[0] - 0xA0 == places + kind.count(b"type") + digest)
    shapes = {stored: check_shape(_array(stored), limits, tensor="") for stored in set(column["shape"])}
    lengths = {stored: _uint(stored) for stored in set(column["length"])}
    for kind, shape, length in set(zip(column["kind"], column["shape"], column["length"])):
        _demand(dtypes.nbytes(kinds[kind], shapes[shape]) == lengths[length])
    tables: tuple[tuple[str, dict[bytes, Any]], ...] = (("kind", kinds), ("shape", shapes), ("length", lengths))
    elements, tensor_shapes, sizes = (list(map(table.__getitem__, column[key])) for key, table in tables)
    return elements, tensor_shapes, sizes


def _demand(holds: bool) -> None:
    if not holds:
        raise _UnusualError


def _uint(item: bytes) -> int:
    return item[0] if len(item) == 1 else int.from_bytes(item[1:], "big")


def _array(stored: bytes) -> list[int]:
    """The numbers of an array of fewer than 24, which has as many as its head says."""
    numbers = list(map(_uint, _NUMBERS.findall(stored, 1)))
    _demand(len(numbers) == stored[0] - 0x80)
    return numbers


def _digests(column: tuple[bytes, ...]) -> list[str | None]:
    """The digests as text, decoded at once; None for those that are absent."""
    return [digest or None for digest in b",".join(column).decode().split(",")]


def _shortest(count: int) -> bytes:
    """The head of a map with this number of pairs."""
    return bytes([cbor2.dumps(count)[0] | 0xA0]) + cbor2.dumps(count)[1:]


def _text(text: str) -> bytes:
    return bytes(cbor2.dumps(text))


def _kinds(generation: int) -> dict[bytes, str]:
    """`dtype` and `type` as they stand in a component, in the order of the wire's writers."""
    order = ("dtype", "type") if generation == 1 else ("type", "dtype")
    return {
        b"".join(_text(key) + _text(value) for key in order if (value := {"dtype": dtype, "type": logical}[key])): name
        for (dtype, logical), name in ELEMENTS[generation].items()
    }


def _pattern(generation: int) -> re.Pattern[bytes]:
    name = rb"(?P<head>[\x61-\x77]|\x78[\x18-\xff])(?P<name>[^\xa3]{1,255})"
    kind = rb"(?P<kind>" + b"|".join(map(re.escape, sorted(_KINDS[generation], key=len, reverse=True))) + rb")"
    offset, length = (rb"(?P<%s>%s)" % (key, _UINT) for key in (b"offset", b"length"))
    shape = rb"\x65shape(?P<shape>[\x80-\x97]" + _UINT + rb"*)"
    digest = rb"(?:\x66digest" + _DIGESTS[generation] + rb")?"
    if generation == 1:
        data = rb"(?P<keys>[\xa3-\xa5])" + kind + rb"\x66offset" + offset + rb"\x66length" + length + digest
        value = rb"\xa3" + shape + rb"\x66format\x65dense\x6acomponents\xa1\x64data" + data
    else:
        data = rb"(?P<keys>[\xa2-\xa4])\x64blob\x82" + offset + length + kind + digest
        value = rb"\xa3\x65parts\xa1\x64data" + data + shape + rb"\x66layout\x65dense"
    return re.compile(name + value + rb"|(?P<rest>.+)", re.DOTALL)


_DIGESTS = {
    1: rb"(?:\x71(?=c)|\x78\x47(?=s))(?P<digest>crc32c:0x[0-9A-Fa-f]{8}|sha256:[0-9A-Fa-f]{64})",
    2: rb"(?:\x75(?=x)|\x78\x47(?=s))(?P<digest>xxh3:[0-9a-f]{16}|sha256:[0-9a-f]{64})",
}
_KINDS = {generation: _kinds(generation) for generation in (1, 2)}
_PATTERNS = {generation: _pattern(generation) for generation in (1, 2)}
