"""The subset of the Protocol Buffers wire format for Core ML specifications, for untrusted input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from squish_core.api import FormatError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}
_LONGEST = 10  # maximum bytes of a varint


class Field(NamedTuple):
    """A field of a message: its number, and an integer or bytes."""

    number: int
    value: int | memoryview
    offset: int

    @property
    def bytes(self) -> memoryview:
        """The bytes of a message, a string or a packed list."""
        if isinstance(self.value, int):
            raise _corrupt("wrong wire type of a field", self.offset, "bytes", "a number")
        return self.value

    @property
    def text(self) -> str:
        """The field as a string."""
        try:
            return str(self.bytes, "utf-8")
        except UnicodeDecodeError:
            raise _corrupt("a string is not UTF-8", self.offset) from None

    @property
    def integer(self) -> int:
        """The field as a non-negative integer."""
        if not isinstance(self.value, int):
            raise _corrupt("wrong wire type of a field", self.offset, "a number", "bytes")
        return self.value


def fields(data: memoryview, start: int = 0) -> Iterator[Field]:
    """Yield the fields of a message in order; FormatError gives the offset (`start` is the message's offset)."""
    at = 0
    while at < len(data):
        offset = start + at
        key, at = _varint(data, at, start)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise _corrupt("field number 0", offset)
        if wire == VARINT:
            value, at = _varint(data, at, start)
            yield Field(number, value, offset)
            continue
        if wire == BYTES:
            length, at = _varint(data, at, start)
        elif wire in _FIXED:
            length = _FIXED[wire]
        else:
            raise _corrupt("unknown wire type", offset, "0, 1, 2 or 5", wire)
        if length > len(data) - at:
            raise _corrupt("field exceeds its message", offset, f"at most {len(data) - at} bytes", length)
        yield Field(number, data[at : at + length], start + at)
        at += length


def varints(data: memoryview, start: int) -> Iterator[int]:
    """Yield the numbers of a packed list."""
    at = 0
    while at < len(data):
        value, at = _varint(data, at, start)
        yield value


def _varint(data: memoryview, at: int, start: int) -> tuple[int, int]:
    value = 0
    for count in range(_LONGEST):
        if at + count >= len(data):
            raise _corrupt("number exceeds its message", start + at)
        byte = data[at + count]
        value |= (byte & 127) << 7 * count
        if byte < 128:
            return value, at + count + 1
    raise _corrupt("number too long", start + at, f"at most {_LONGEST} bytes")


def number(tag: int, value: int) -> bytes:
    """Encode a number field."""
    return _varint_bytes(tag << 3 | VARINT) + _varint_bytes(value % (1 << 64))


def message(tag: int, *parts: bytes | str) -> bytes:
    """Encode a field with a message of these fields, or a string."""
    body = b"".join(part.encode() if isinstance(part, str) else part for part in parts)
    return _varint_bytes(tag << 3 | BYTES) + _varint_bytes(len(body)) + body


def packed_list(tag: int, *values: int) -> bytes:
    """Encode a field with a packed list of numbers."""
    return message(tag, b"".join(_varint_bytes(value % (1 << 64)) for value in values))


def _varint_bytes(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _corrupt(what: str, offset: int, expected: object = None, found: object = None) -> FormatError:
    return FormatError(f"corrupt model specification: {what}", offset=offset, expected=expected, found=found,
                       code="protobuf")  # fmt: skip
