"""Stored tensors of compile-time operations: checked operands, block scales, and codec parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen
from squish_codecs.api import Boxes

from squish_core.api import CodecSpec, FormatError, TensorSpec, dtypes

from .blobs import TYPES
from .program import Kind, Operation, Value

Shape = tuple[int, ...]
FLOATS = ("f16", "f32")


@frozen(kw_only=True)
class Constant:
    """A stored tensor in a codec: `values` are the constants of its parts, `shapes` their dtypes and shapes."""

    shape: Shape
    dtype: str
    codec: CodecSpec
    values: Mapping[str, Value]
    shapes: Mapping[str, tuple[str, Shape]]


class UnsupportedError(Exception):
    """A form without a codec; the message names it."""


@frozen(kw_only=True)
class Scales:
    """A grid of scales with optional zero points."""

    scale: Value
    offset: Value | None
    grid: Shape

    @property
    def count(self) -> int:
        """Number of boxes."""
        return dtypes.count(self.grid)

    def run(self, shape: Shape) -> int | None:
        """Return the size of boxes that are row-major runs (0: one box), else None."""
        axis = 0
        while axis < len(self.grid) and self.grid[axis] == shape[axis]:
            axis += 1
        if any(cells != 1 for cells in self.grid[axis + 1 :]):
            return None
        return dtypes.count(shape) // self.count if self.count > 1 else 0


def scales_of(operation: Operation, data: Kind) -> Scales:
    """Return the scales and zero points of iOS18's blocks."""
    scale, offset = operand(operation, "scale"), operation.values.get("offset")
    grid = scale.kind.shape
    if len(grid) != len(data.shape) or any(not cells or size % cells for size, cells in zip(data.shape, grid)):
        raise mismatch(operation, "scale", f"a divisor of {list(data.shape)} along each axis", scale.kind)
    if scale.kind.dtype not in FLOATS:
        raise UnsupportedError(f"scales of {scale.kind.dtype or 'an unknown type'}")
    if offset is not None:
        dtype = offset.kind.dtype if offset.kind.dtype in FLOATS else data.dtype
        expect(operation, "offset", offset.kind, Kind(dtype, grid))
    elif "offset" in operation.inputs:
        raise UnsupportedError("zero points from another operation")
    return Scales(scale=scale, offset=offset, grid=grid)


def in_boxes(
    operation: Operation,
    shape: Shape,
    codes: Value,
    *,
    scales: Scales | None = None,
    mask: Value | None = None,
    books: Shape | None = None,
    codebook: Value | None = None,
) -> Constant:
    """Return codes with scales or codebooks per box, optionally masked, as the codec `boxes`."""
    kind = TYPES[codes.kind.dtype]
    params: dict[str, Any] = {"bits": kind.bits, "signed": codebook is None and codes.kind.dtype[0] == "i"}
    values = {"data": codes}
    if scales is not None:
        params |= {"grid": list(scales.grid), "scale_dtype": scales.scale.kind.dtype}
        values["scale"] = scales.scale
        if scales.offset is not None:
            params["offset_dtype"] = offset_dtype(scales.offset)
            values["offset"] = scales.offset
    if codebook is not None and books is not None:
        params |= {"books": list(books), "codebook_dtype": codebook.kind.dtype}
        values["codebook"] = codebook
    if mask is not None:
        params["count"] = codes.kind.count
        values["mask"] = mask
    spec = TensorSpec(name=operation.name, shape=shape, dtype="f32")
    return Constant(
        shape=shape,
        dtype=result_dtype(operation),
        codec=CodecSpec("boxes", params),
        values=values,
        shapes=Boxes.from_params(params).parts(spec),
    )


def offset_dtype(offset: Value) -> str:
    """Return the codecs' name for the dtype of zero points."""
    return "packed" if TYPES[offset.kind.dtype].bits < 8 else offset.kind.dtype


def operand(operation: Operation, name: str) -> Value:
    """Return a constant operand of an operation."""
    value = operation.values.get(name)
    if value is None:
        if name in operation.inputs:
            raise UnsupportedError(f"{operation.type} with an operand from another operation")
        raise FormatError(
            f"{operation.type} has no {name}", tensor=operation.name, code="program", found=", ".join(operation.values)
        )
    return value


def result_dtype(operation: Operation) -> str:
    """Return the result dtype of an operation."""
    dtype = operation.outputs[0][1].dtype
    if dtype not in FLOATS:
        raise UnsupportedError(f"values of {dtype or 'an unknown type'}")
    return dtype


def integers(value: Value) -> tuple[int, ...]:
    """Return the numbers of a small integer constant, which may be stored as bytes."""
    if value.data is None:
        return value.numbers
    size = TYPES[value.kind.dtype].bits // 8 if value.kind.dtype in TYPES else 4
    return tuple(int.from_bytes(value.data[at : at + size], "little") for at in range(0, len(value.data), max(size, 1)))


def expect(operation: Operation, name: str, actual: Kind, expected: Kind) -> None:
    """Raise FormatError unless an operand has this dtype and shape."""
    if actual != expected:
        raise mismatch(operation, name, f"{expected.dtype} {list(expected.shape)}", actual)


def mismatch(operation: Operation, name: str, expected: str, actual: Kind) -> FormatError:
    """Return the error for an inconsistent operand."""
    return FormatError(
        f"{operation.type}: inconsistent {name}",
        tensor=operation.name,
        expected=expected,
        found=f"{actual.dtype} {list(actual.shape)}",
        code="shape",
    )
