"""The Protocol Buffers wire format for untrusted files: fields are listed without reading their values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from squish_core.errors import FormatError
from squish_core.io.source import BytesSource, Source

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}
_LONGEST = 10  # maximum bytes of a varint
_WINDOW = 4096


class _Window:
    """Buffered bytes of a source around the last position: all of a mapping, else a small piece."""

    def __init__(self, source: Source) -> None:
        self.source, self._start, self._data = source, 0, memoryview(b"")
        if source.cheap_views and source.size:
            self._data = source.view(0, source.size)

    def byte(self, offset: int) -> int:
        """Return the byte at an offset inside the source."""
        at = offset - self._start
        if not 0 <= at < len(self._data):
            self._start, at = offset, 0
            self._data = self.source.view(offset, min(_WINDOW, self.source.size - offset))
        return self._data[at]

    def view(self, offset: int, length: int) -> memoryview:
        """Return a range of the source, from the buffer if it contains the range."""
        at = offset - self._start
        if length <= _WINDOW and 0 <= at <= len(self._data) - length:
            return self._data[at : at + length]
        return self.source.view(offset, length)

    def varint(self, offset: int, end: int) -> tuple[int, int]:
        """Return a number and the offset after it."""
        at = offset - self._start
        if offset < end and 0 <= at < len(self._data) and (byte := self._data[at]) < 128:
            return byte, offset + 1
        value = 0
        for count in range(_LONGEST):
            if offset + count >= end:
                raise self.error("number exceeds its message", offset)
            byte = self.byte(offset + count)
            value |= (byte & 127) << 7 * count
            if byte < 128:
                return value, offset + count + 1
        raise self.error("number too long", offset, f"at most {_LONGEST} bytes")

    def error(self, what: str, offset: int, expected: object = None, found: object = None) -> FormatError:
        return FormatError(
            f"corrupt protobuf message: {what}",
            file=self.source.name or None,
            offset=offset,
            expected=expected,
            found=found,
            code="protobuf",
        )


class Message:
    """A message in a file. Iterating yields its fields in order and reads their keys and lengths only."""

    __slots__ = ("_window", "length", "offset")

    def __init__(self, window: _Window, offset: int, length: int) -> None:
        self._window, self.offset, self.length = window, offset, length

    @classmethod
    def of(cls, data: Source | bytes | memoryview) -> Message:
        """Return the message that a whole file consists of.

        Parameters
        ----------
        data
            A source, or the bytes of a message.

        Returns
        -------
        Message
            Its fields.

        Examples
        --------
        >>> [field.text for field in Message.of(message(1, "embed") + message(1, "head"))]
        ['embed', 'head']
        """
        source = data if isinstance(data, Source) else BytesSource(data)
        return cls(_Window(source), 0, source.size)

    def __iter__(self) -> Iterator[Field]:
        at, end = self.offset, self.offset + self.length
        while at < end:
            field = self.field(at)
            yield field
            at = field.end

    def field(self, offset: int) -> Field:
        """Return the field whose key is at an offset of the file, inside the message."""
        window, end = self._window, self.offset + self.length
        key, at = window.varint(offset, end)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise window.error("field number 0", offset)
        if wire == VARINT:
            value, at = window.varint(at, end)
            return Field(number, wire, offset, at, value, window)
        if wire == BYTES:
            length, at = window.varint(at, end)
        elif wire in _FIXED:
            length = _FIXED[wire]
        else:
            raise window.error("unknown wire type", offset, "0, 1, 2 or 5", wire)
        if length > end - at:
            raise window.error("field exceeds its message", offset, f"at most {end - at} bytes", length)
        return Field(number, wire, offset, at, length, window)

    def varints(self) -> Iterator[int]:
        """Yield the numbers of a packed list."""
        at, end = self.offset, self.offset + self.length
        while at < end:
            value, at = self._window.varint(at, end)
            yield value


class Field(NamedTuple):
    """A field of a message.

    `offset` is where its key starts and `start` where its value does; `size` is the value's length in bytes, or the
    value itself if it is a number.
    """

    number: int
    wire: int
    offset: int
    start: int
    size: int
    window: _Window

    @property
    def end(self) -> int:
        """The offset after the field."""
        return self.start if self.wire == VARINT else self.start + self.size

    @property
    def encoded(self) -> memoryview:
        """The field as stored, with its key."""
        return self.window.source.view(self.offset, self.end - self.offset)

    @property
    def bytes(self) -> memoryview:
        """The bytes of a string, a fixed-size number or a packed list."""
        message = self.message
        return self.window.view(message.offset, message.length)

    @property
    def text(self) -> str:
        """The field as a string."""
        try:
            return str(self.bytes, "utf-8")
        except UnicodeDecodeError:
            raise self.window.error("a string is not UTF-8", self.offset) from None

    @property
    def integer(self) -> int:
        """The field as a non-negative integer."""
        if self.wire != VARINT:
            raise self.window.error("wrong wire type of a field", self.offset, "a number", "bytes")
        return self.size

    @property
    def integers(self) -> Iterator[int]:
        """The numbers of a list, which may be packed."""
        return iter((self.size,)) if self.wire == VARINT else self.message.varints()

    @property
    def message(self) -> Message:
        """The field as a message."""
        if self.wire == VARINT:
            raise self.window.error("wrong wire type of a field", self.offset, "bytes", "a number")
        return Message(self.window, self.start, self.size)


def number(tag: int, value: int) -> bytes:
    """Encode a number field."""
    return _varint(tag << 3 | VARINT) + _varint(value % (1 << 64))


def message(tag: int, *parts: bytes | str) -> bytes:
    """Encode a field with a message of these fields, or a string."""
    body = b"".join(part.encode() if isinstance(part, str) else part for part in parts)
    return header(tag, len(body)) + body


def header(tag: int, length: int) -> bytes:
    """Encode the key and the length of a field; its bytes follow."""
    return _varint(tag << 3 | BYTES) + _varint(length)


def fixed32(tag: int, data: bytes) -> bytes:
    """Encode a field of four bytes, such as a float."""
    return _varint(tag << 3 | FIXED32) + data


def packed_list(tag: int, *values: int) -> bytes:
    """Encode a field with a packed list of numbers."""
    return message(tag, b"".join(_varint(value % (1 << 64)) for value in values))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
