"""`weight.bin`: blobs of one dtype each, with a record of 64 bytes before them (MIL blob storage, version 2)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from attrs import frozen

from squish_core.api import FormatError, Sink, Source

ALIGNMENT, VERSION, SENTINEL = 64, 2, 0xDEADBEEF
_HEADER, _RECORD = struct.Struct("<II56x"), struct.Struct("<IIQQQ32x")


class Type(NamedTuple):
    """A type of Core ML: its number in the program, its code in a blob, and its width in bits."""

    number: int
    code: int
    bits: int


TYPES = {
    "f16": Type(10, 1, 16), "f32": Type(11, 2, 32), "bf16": Type(13, 5, 16),
    "f8_e4m3": Type(40, 16, 8), "f8_e5m2": Type(41, 17, 8),
    "i8": Type(21, 4, 8), "i16": Type(22, 6, 16), "i32": Type(23, 14, 32), "i4": Type(25, 8, 4),
    "u8": Type(31, 3, 8), "u16": Type(32, 7, 16), "u32": Type(33, 15, 32),
    "u1": Type(37, 9, 1), "u2": Type(36, 10, 2), "u3": Type(39, 12, 3), "u4": Type(35, 11, 4), "u6": Type(38, 13, 6),
}  # fmt: skip
BY_CODE = {kind.code: name for name, kind in TYPES.items()}
BY_NUMBER = {kind.number: name for name, kind in TYPES.items()}


def nbytes(dtype: str, count: int) -> int:
    """Bytes of so many elements: one bit stream, least significant bit first."""
    return -(-count * TYPES[dtype].bits // 8)


@frozen
class Blob:
    """Where the data of a blob lies."""

    dtype: str
    offset: int
    length: int


def read_blob(source: Source, at: int, dtype: str, count: int) -> Blob:
    """The blob whose record is at `at`, which must hold `count` elements of this dtype; FormatError if it does not."""
    if at % ALIGNMENT:
        raise _bad(source, "a blob's record is not aligned", at, f"a multiple of {ALIGNMENT}", at)
    sentinel, code, length, offset, padding = _RECORD.unpack(source.read(at, _RECORD.size, "a blob's record"))
    if sentinel != SENTINEL:
        raise _bad(source, "a blob has no sentinel", at, hex(SENTINEL), hex(sentinel))
    if BY_CODE.get(code) != dtype:
        raise _bad(source, "a blob has another type than the program says", at, dtype, BY_CODE.get(code, code))
    bits = TYPES[dtype].bits
    if length != nbytes(dtype, count) or padding != 8 * length - bits * count:
        found = f"{length} bytes with {padding} spare bits"
        raise _bad(source, "a blob has another size than its shape", at, f"{nbytes(dtype, count)} bytes", found)
    if offset % ALIGNMENT or offset + length > source.size:
        raise _bad(source, "a blob's data lies outside the file", at, f"inside {source.size} bytes, aligned", offset)
    return Blob(dtype, offset, length)


def check_header(source: Source) -> None:
    """The file is blob storage of the version that this reads."""
    _, version = _HEADER.unpack(source.read(0, _HEADER.size, "the header of the weights"))
    if version != VERSION:
        raise _bad(source, "the weights have another version", 0, VERSION, version)


@frozen
class Planned:
    """A blob to be written: its record goes to `at`, the data 64 bytes further."""

    dtype: str
    count: int
    at: int


def plan(blobs: Sequence[tuple[str, int]]) -> tuple[list[Planned], int]:
    """Places of blobs given as (dtype, elements), and the size of the file."""
    planned, at = [], _HEADER.size
    for dtype, count in blobs:
        planned.append(Planned(dtype, count, at))
        at += _RECORD.size + -(-nbytes(dtype, count) // ALIGNMENT) * ALIGNMENT
    return planned, at


def write_header(sink: Sink, count: int) -> None:
    """The head of a file of `count` blobs."""
    sink.write(_HEADER.pack(count, VERSION))


def write_record(sink: Sink, blob: Planned) -> None:
    """The record before a blob's data."""
    length = nbytes(blob.dtype, blob.count)
    kind = TYPES[blob.dtype]
    padding = 8 * length - kind.bits * blob.count
    sink.write(_RECORD.pack(SENTINEL, kind.code, length, blob.at + _RECORD.size, padding))


def _bad(source: Source, what: str, at: int, expected: object, found: object) -> FormatError:
    return FormatError(what, file=source.name, offset=at, expected=expected, found=found, code="blob")
