"""`weight.bin`: typed blobs, each after a 64-byte record (MIL blob storage, version 2)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from attrs import frozen

from squish_core.api import FormatError, Sink, Source

ALIGNMENT, VERSION, SENTINEL = 64, 2, 0xDEADBEEF
_HEADER, _RECORD = struct.Struct("<II56x"), struct.Struct("<IIQQQ32x")


class Type(NamedTuple):
    """A Core ML type: number in the program, code in a blob, width in bits."""

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
    """Return the size of a packed array in bytes: a bit stream, least significant bit first."""
    return -(-count * TYPES[dtype].bits // 8)


@frozen
class Blob:
    """The byte range of a blob's data."""

    dtype: str
    offset: int
    length: int


def read_blob(source: Source, at: int, dtype: str, count: int) -> Blob:
    """Read the blob record at `at`; FormatError unless it has `count` elements of this dtype."""
    if at % ALIGNMENT:
        raise _invalid(source, "unaligned blob record", at, f"a multiple of {ALIGNMENT}", at)
    sentinel, code, length, offset, padding = _RECORD.unpack(source.read(at, _RECORD.size, "a blob's record"))
    if sentinel != SENTINEL:
        raise _invalid(source, "bad blob sentinel", at, hex(SENTINEL), hex(sentinel))
    if BY_CODE.get(code) != dtype:
        raise _invalid(source, "blob dtype mismatch", at, dtype, BY_CODE.get(code, code))
    bits = TYPES[dtype].bits
    if length != nbytes(dtype, count) or padding != 8 * length - bits * count:
        actual = f"{length} bytes with {padding} spare bits"
        raise _invalid(source, "blob size mismatch", at, f"{nbytes(dtype, count)} bytes", actual)
    if offset % ALIGNMENT or offset + length > source.size:
        raise _invalid(source, "blob data out of bounds", at, f"inside {source.size} bytes, aligned", offset)
    return Blob(dtype, offset, length)


def check_header(source: Source) -> None:
    """Raise FormatError unless the file is blob storage version 2."""
    _, version = _HEADER.unpack(source.read(0, _HEADER.size, "the header of the weights"))
    if version != VERSION:
        raise _invalid(source, "unsupported version of the weights", 0, VERSION, version)


@frozen
class PlannedBlob:
    """An outgoing blob: its record is at `at`, the data 64 bytes later."""

    dtype: str
    count: int
    at: int


def plan(blobs: Sequence[tuple[str, int]]) -> tuple[list[PlannedBlob], int]:
    """Lay out blobs of (dtype, elements); return them and the size of the file."""
    planned, at = [], _HEADER.size
    for dtype, count in blobs:
        planned.append(PlannedBlob(dtype, count, at))
        at += _RECORD.size + -(-nbytes(dtype, count) // ALIGNMENT) * ALIGNMENT
    return planned, at


def write_header(sink: Sink, count: int) -> None:
    """Write the header of a file with `count` blobs."""
    sink.write(_HEADER.pack(count, VERSION))


def write_record(sink: Sink, blob: PlannedBlob) -> None:
    """Write the record of a blob."""
    length = nbytes(blob.dtype, blob.count)
    kind = TYPES[blob.dtype]
    padding = 8 * length - kind.bits * blob.count
    sink.write(_RECORD.pack(SENTINEL, kind.code, length, blob.at + _RECORD.size, padding))


def _invalid(source: Source, what: str, at: int, expected: object, found: object) -> FormatError:
    return FormatError(what, file=source.name, offset=at, expected=expected, found=found, code="blob")
