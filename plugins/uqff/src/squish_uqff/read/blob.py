"""UQFF 0.x: a layer is one blob. Only its fields are read; its arrays stay ranges of the file."""

from __future__ import annotations

import struct
from typing import Any

from squish_core.api import (
    BLOCK_TYPES,
    FormatError,
    LimitError,
    Limits,
    Part,
    Problem,
    Segment,
    Source,
    SquishError,
    TruncatedError,
    dtypes,
)

from .. import tables
from ..layers import Layer, make_bias, make_weight, number_problems, refuse

WRAP = 1 << 32
Version = tuple[int, int, int]


class Blob:
    """A bounded range of a file, read in order; every error names the field and its file offset.

    Fields have their UQFF 1.x names if there is one; `places` maps each field to its offset.
    """

    def __init__(self, source: Source, segment: Segment, limits: Limits) -> None:
        self.source, self.file, self.limits = source, segment.file, limits
        self.at, self.end = segment.offset, segment.offset + segment.length
        self.places: dict[str, int] = {}
        self.version = self._version()

    def skip(self, length: int, field: str) -> Segment:
        """Skip bytes of the blob."""
        if length > self.end - self.at:
            raise TruncatedError(
                "runs past the end of the blob",
                part=field,
                offset=self.at,
                expected=f"{length} bytes",
                found=f"{self.end - self.at} bytes",
                code="bounds",
            )
        self.places.setdefault(field, self.at)
        self.at += length
        return Segment(self.file, self.at - length, length)

    def number(self, kind: str, field: str) -> int:
        """Read a little-endian number: "B" or "I"."""
        segment = self.skip(struct.calcsize(f"<{kind}"), field)
        return int(struct.unpack(f"<{kind}", self.source.read(segment.offset, segment.length, field))[0])

    def flag(self, field: str) -> bool:
        """Read a byte that must be 0 or 1."""
        value = self.number("B", field)
        if value > 1:
            raise refuse(field, "0 or 1", value, "flag", offset=self.at - 1)
        return value == 1

    def dims(self, field: str) -> tuple[int, ...]:
        """Read a rank, then one u32 per dimension."""
        rank = self.number("I", f"{field} rank")
        if rank > self.limits.rank:
            raise LimitError(
                "has too many dimensions",
                part=field,
                offset=self.at - 4,
                expected=f"at most {self.limits.rank}",
                found=rank,
                code="rank",
                limit="rank",
            )
        segment = self.skip(4 * rank, field)
        return struct.unpack(f"<{rank}I", self.source.read(segment.offset, segment.length, field))

    def scalar(self, field: str) -> Part:
        """Return an f32 scalar without reading it."""
        return Part(dtype="f32", shape=(), segments=(self.skip(4, field),))

    def array(self, field: str) -> Part:
        """Read a TENSOR: length, dtype code, dimensions, data."""
        start = self.at
        length, code = self.number("I", f"{field} length"), self.number("I", f"{field} dtype")
        if code not in tables.DTYPES:
            raise refuse(
                f"{field} dtype", f"a code of {', '.join(map(str, tables.DTYPES))}", code, "dtype", offset=start + 4
            )
        shape, dtype = self.dims(field), tables.DTYPES[code]
        size = dtypes.nbytes(dtype, shape)
        self.check_length(length, size, f"{dtype} {list(shape)}", field, start)
        return Part(dtype=dtype, shape=shape, segments=(self.skip(size, field),))

    def check_length(self, length: int, size: int, what: str, field: str, offset: int) -> None:
        """Check a u32 length against the shape; before 0.2.0 it is modulo 2**32."""
        if length != (size % WRAP if self.version < tables.CHECKED_LENGTHS else size):
            raise refuse(f"{field} length", f"{size} bytes for {what}", f"{length} bytes", "length", offset=offset)

    def _version(self) -> Version:
        """Read the version; its top byte is unspecified."""
        word = self.number("I", "version")
        version = (word >> 16 & 0xFF, word >> 8 & 0xFF, word & 0xFF)
        if not tables.OLDEST_LEGACY <= version[:2] <= tables.NEWEST_LEGACY:
            swapped = tables.OLDEST_LEGACY <= (word >> 8 & 0xFF, word >> 16 & 0xFF) <= tables.NEWEST_LEGACY
            raise refuse(
                "version",
                "0.1 or 0.2",
                ".".join(map(str, version)),
                "version",
                offset=self.at - 4,
                hint="Byte order is swapped: a big-endian file?" if swapped else "Look for a newer squish-uqff.",
            )
        return version


def begins(source: Source, segment: Segment, limits: Limits) -> bool:
    """Return whether the bytes start with a version and a type; an unsupported version is an error."""
    return Blob(source, segment, limits).number("B", "ISQ type") < len(tables.ISQ_NAMES)


def read_blob(name: str, source: Source, segment: Segment, limits: Limits) -> tuple[Version, Layer]:
    """Read the version and the layer `<name>.weight` of a blob; FormatError names the field and offset."""
    blob = Blob(source, segment, limits)
    isq = blob.number("B", "ISQ type")
    if isq >= len(_READERS):
        raise refuse("ISQ type", f"0..{len(_READERS) - 1}", isq, "isq-type", offset=blob.at - 1)
    parts, numbers, has_bias = _READERS[isq](blob)
    try:
        weight = make_weight(f"{name}.weight", isq, parts, numbers, limits)
    except SquishError as error:
        raise error.within(offset=blob.places.get((error.part or "").removeprefix("weight."), segment.offset)) from None
    bias = make_bias(f"{name}.bias", blob.array("bias")) if has_bias else None
    if blob.at != blob.end:
        raise FormatError(
            "bytes follow the last field",
            offset=blob.at,
            expected="the end of the blob",
            found=f"{blob.end - blob.at} bytes",
            code="trailing",
        )
    problems = number_problems(weight.name, isq, numbers)
    if blob.version < tables.SINCE.get(isq, blob.version):
        message = f"type {tables.ISQ_NAMES[isq]} does not exist in UQFF {'.'.join(map(str, blob.version))}"
        problems.append(Problem(code="isq-type", severity="warning", where=weight.name, message=message))
    return blob.version, Layer(weight, bias, tuple(problems))


Fields = tuple[dict[str, Part], dict[str, Any], bool]


def _gguf(blob: Blob) -> Fields:
    start = blob.at
    length, has_bias = blob.number("I", "weight length"), blob.flag("has_bias")
    code, shape = blob.number("I", "dtype"), blob.dims("shape")
    size = _ggml_size(code, shape)
    if size is not None:
        blob.check_length(length, size, f"{list(shape)}", "weight", start)
        length = size
    data = Part(dtype="u8", shape=(length,), segments=(blob.skip(length, "weight"),))
    return {"weight": data}, {"dtype": code, "shape": shape}, has_bias


def _ggml_size(code: int, shape: tuple[int, ...]) -> int | None:
    """Return the size of a GGML array in bytes; None if type or shape are illegal (`make_weight` raises)."""
    if code in tables.GGML_DENSE:
        return dtypes.nbytes(tables.GGML_DENSE[code], shape)
    block = BLOCK_TYPES.get(tables.GGML_BLOCKS.get(code, ""))
    if block is None or not shape or shape[-1] % block.elements:
        return None
    return dtypes.count(shape) // block.elements * block.nbytes


def _unquant(blob: Blob) -> Fields:
    has_bias = blob.flag("has_bias")
    return {"weight": blob.array("weight")}, {}, has_bias


def _hqq(blob: Blob) -> Fields:
    has_bias = blob.flag("has_bias")
    parts = {role: blob.array(role) for role in ("weight", "scales", "zeros")}
    fields = (
        ("bits", "B"), ("group_size", "I"), ("axis", "B"), ("optimization_steps", "I"), ("round_zeros", "B"),
        ("channel_wise", "B"),
    )  # fmt: skip
    return parts, {"shape": blob.dims("shape"), **{field: blob.number(kind, field) for field, kind in fields}}, has_bias


def _fp8(blob: Blob) -> Fields:
    has_bias = blob.flag("has_bias")
    parts = {"weight": blob.array("weight")}
    parts |= {role: blob.scalar(role) for role in ("dequant_w_scale", "dequant_x_scale", "quant_scale")}
    return parts, {"dtype": blob.number("I", "dtype")}, has_bias


def _afq(blob: Blob) -> Fields:
    has_bias = blob.flag("has_bias")
    parts = {role: blob.array(role) for role in ("weight", "scales", "biases")}
    return parts, {field: blob.number("B", field) for field in ("bits", "group_size")}, has_bias


def _f8q8(blob: Blob) -> Fields:
    has_bias = blob.flag("has_bias")
    blocks, shape = blob.number("I", "num_blocks"), blob.dims("shape")
    data = Part(dtype="u8", shape=(33 * blocks,), segments=(blob.skip(33 * blocks, "weight"),))
    return {"weight": data}, {"num_blocks": blocks, "shape": shape}, has_bias


def _mxfp4(blob: Blob) -> Fields:
    has_bias = blob.flag("has_bias")
    return {role: blob.array(role) for role in ("weight", "scales")}, {}, has_bias


_READERS = (_gguf, _unquant, _hqq, _fp8, _afq, _f8q8, _mxfp4)
