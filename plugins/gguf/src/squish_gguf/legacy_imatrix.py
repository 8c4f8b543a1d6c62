"""llama.cpp's older imatrix file (.dat): i32 count, one record for each matrix, then what it was computed from.

A record is i32 length of the name, the name, i32 calls, i32 number of values, f32 mean squares times calls. The end,
which may be missing, is i32 number of chunks, i32 length of the text's name, the name. All little-endian.
"""

from __future__ import annotations

from typing import Any

from squish_core.api import (
    DENSE,
    Container,
    Encoding,
    FileRef,
    FormatError,
    Index,
    Limits,
    Part,
    Segment,
    Source,
    TensorSpec,
    Typed,
    check_name,
    check_shape,
)

SUMS, COUNTS = ".in_sum2", ".counts"
"""Suffixes of a GGUF imatrix, under which the values and the calls are read."""
LONGEST_NAME = 4096
RECORD = 12
"""Bytes of a record besides its name and values."""


class LegacyImatrix(Container):
    """Reads it as a GGUF imatrix is read: sums of squares, and how many were summed."""

    def read_index(self, source: Source, limits: Limits) -> Index:
        count, at, tensors = _number(source, 0, "the number of records"), 4, dict[str, TensorSpec]()
        if not 0 < count <= source.size // RECORD:
            raise FormatError(
                "is not an imatrix: impossible number of records", offset=0, found=count, code="magic",
                expected=f"1 to {source.size // RECORD}",
            )  # fmt: skip
        for _ in range(count):
            name, end = _text(source, at, limits)
            if f"{name}{SUMS}" in tensors:
                raise FormatError("a matrix appears twice", tensor=name, offset=at, code="record")
            values = _number(source, end + 4, "the number of values")
            if values < 1:
                raise FormatError("a matrix has no values", tensor=name, offset=end + 4, found=values, code="record")
            check_shape((1, values), limits, tensor=name)
            for suffix, dtype, shape, offset in (
                (SUMS, "f32", (1, values), end + 8), (COUNTS, "i32", (1, 1), end),
            ):  # fmt: skip
                part = Part(dtype=dtype, shape=shape, segments=(Segment(0, offset, 4 * shape[1]),))
                encodings = (Encoding(codec=DENSE, parts={"data": part}),)
                tensors[name + suffix] = TensorSpec(name=name + suffix, shape=shape, dtype=dtype, encodings=encodings)
            at = end + 8 + 4 * values
            if at > source.size:
                source.read(end + 8, 4 * values, "the values")  # raises the error of a truncated file
        files = (FileRef(source.filename, source.size),)
        meta = _meta(source, at, limits)
        return Index(format="imatrix", version="", kind="imatrix", files=files, tensors=tensors, meta=meta)


def _meta(source: Source, at: int, limits: Limits) -> dict[str, Any]:
    """Number of chunks and name of the text, under the keys of a GGUF imatrix; empty if the file ends before."""
    if at == source.size:
        return {}
    chunks = _number(source, at, "the number of chunks")
    if chunks < 0:
        raise FormatError("impossible number of chunks", offset=at, found=chunks, code="record")
    meta: dict[str, Any] = {"imatrix.chunk_count": Typed("u32", chunks)}
    if at + 4 < source.size:
        meta["imatrix.datasets"] = [_text(source, at + 4, limits)[0]]
    return meta


def _text(source: Source, at: int, limits: Limits) -> tuple[str, int]:
    """A name with its length before it, and the offset after it."""
    length = _number(source, at, "the length of a name")
    if not 0 < length <= LONGEST_NAME:
        raise FormatError(
            "impossible length of a name", offset=at, expected=f"1 to {LONGEST_NAME}", found=length, code="record"
        )
    raw = source.read(at + 4, length, "a name")
    try:
        return check_name(bytes(raw).decode(), limits, offset=at + 4), at + 4 + length
    except UnicodeDecodeError:
        raise FormatError("a name is not UTF-8", offset=at + 4, code="record") from None


def _number(source: Source, at: int, what: str) -> int:
    return int.from_bytes(source.read(at, 4, what), "little", signed=True)
