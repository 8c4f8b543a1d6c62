"""Lookup operations: palettes, with scales and under masks."""

from __future__ import annotations

from typing import Any

from squish_core.api import CodecSpec, dtypes

from .blobs import TYPES
from .constants import (
    FLOATS,
    Constant,
    Scales,
    Shape,
    UnsupportedError,
    expect,
    in_boxes,
    integers,
    mismatch,
    offset_dtype,
    operand,
    result_dtype,
    scales_of,
)
from .program import Kind, Operation, Value

ENTRIES = (*FLOATS, "i8", "u8")


def lut(operation: Operation, scales: Scales | None = None) -> Constant:
    """Read indices into tables. iOS16: one table and a flat stream; iOS18: [groups..., entries, vector]."""
    indices = operand(operation, "indices")
    table, scales = _table(operation, scales)
    if "shape" in operation.values:
        shape = tuple(integers(operand(operation, "shape")))
        bits = (table.kind.count - 1).bit_length()
        if table.kind.shape != (1 << bits,) or indices.kind.shape != (-(-dtypes.count(shape) * bits // 8),):
            raise mismatch(operation, "indices", f"a stream for {list(shape)} at {bits} bits", indices.kind)
        return _palette(operation, indices, table, shape, bits, books=1, vector=1, axis=-1, scales=scales)
    rank = len(indices.kind.shape)
    bits = _check_table(operation, table, indices, indices.kind.shape)
    books, vector = table.kind.shape[:rank], table.kind.shape[-1]
    axis = 0
    if "vector_axis" in operation.values:
        axis = (operand(operation, "vector_axis").numbers or (0,))[0]
    if vector > 1 and not 0 <= axis < rank:
        raise mismatch(operation, "vector_axis", f"below {rank}", indices.kind)
    shape = tuple(size * vector if at == axis else size for at, size in enumerate(indices.kind.shape))
    rows = all(count == 1 for count in books[1:])
    if not rows or (scales is not None and scales.run(shape) is None):
        if vector > 1:
            raise UnsupportedError("vectors with codebooks or scales along axes other than the first")
        return in_boxes(operation, shape, indices, scales=scales, books=books, codebook=table)
    return _palette(
        operation,
        indices,
        table,
        shape,
        bits,
        books=books[0] if books else 1,
        vector=vector,
        axis=axis - rank,
        scales=scales,
    )


def sparse_lut(operation: Operation, scales: Scales | None = None) -> Constant:
    """Read indices under a mask: `bitmask` for one table of the tensor's dtype without scales, else `boxes`."""
    indices, mask = operand(operation, "indices_nonzero_data"), operand(operation, "indices_mask")
    shape, dtype = mask.kind.shape, result_dtype(operation)
    expect(operation, "indices_mask", mask.kind, Kind("u1", shape))
    if scales is not None and scales.offset is not None:
        raise UnsupportedError("zero points over masked zeros")
    table, scales = _table(operation, scales)
    bits = _check_table(operation, table, indices, shape)
    if table.kind.shape[-1] != 1:
        raise UnsupportedError("vectors under a mask")
    if scales is not None or table.kind.count != 1 << bits or table.kind.dtype != dtype:
        books = table.kind.shape[: len(shape)]
        return in_boxes(operation, shape, indices, scales=scales, mask=mask, books=books, codebook=table)
    count = indices.kind.count
    return Constant(
        shape=shape,
        dtype=dtype,
        codec=CodecSpec("bitmask", {"dtype": dtype, "kept": "run", "count": count, "bits": bits}),
        values={"data": indices, "mask": mask, "codebook": table},
        shapes={
            "data": ("u8", (-(-count * bits // 8),)),
            "mask": ("u8", (-(-dtypes.count(shape) // 8),)),
            "codebook": (dtype, (1 << bits,)),
        },
    )


def _table(operation: Operation, scales: Scales | None) -> tuple[Value, Scales | None]:
    """Return the table and the scales of its entries, which equal the scales of the elements."""
    producer = operation.producers.get("lut")
    table = operand(operation, "lut") if producer is None else operand(producer, "data")
    if table.kind.dtype not in ENTRIES:
        raise UnsupportedError(f"tables of {table.kind.dtype or 'an unknown type'}")
    if producer is None:
        return table, scales
    if scales is not None or producer.type != "constexpr_blockwise_shift_scale":
        raise UnsupportedError(f"a table from {producer.type}")
    scales = scales_of(producer, table.kind)
    if scales.grid[-2:] != (1, 1):
        raise UnsupportedError("tables with scales for single entries")
    return table, Scales(scale=scales.scale, offset=scales.offset, grid=scales.grid[:-2])


def _check_table(operation: Operation, table: Value, indices: Value, shape: Shape) -> int:
    """Return the index width; FormatError unless the table has 2**bits entries and its groups divide the tensor."""
    bits = TYPES[indices.kind.dtype].bits if indices.kind.dtype in TYPES else 0
    sizes, rank = table.kind.shape, len(shape)
    if not 1 <= bits <= 8 or len(sizes) != rank + 2 or sizes[-2] != 1 << bits or not sizes[-1]:
        raise mismatch(operation, "lut", f"[{rank} groups, {1 << bits}, vector]", table.kind)
    if any(not books or size % books for size, books in zip(shape, sizes)):
        raise mismatch(operation, "lut", f"groups that divide {list(shape)}", table.kind)
    return bits


def _palette(
    operation: Operation,
    indices: Value,
    table: Value,
    shape: Shape,
    bits: int,
    *,
    books: int,
    vector: int,
    axis: int,
    scales: Scales | None,
) -> Constant:
    params: dict[str, Any] = {"bits": bits, "axis": "flat", "codebook_dtype": table.kind.dtype}
    count = dtypes.count(shape)
    if books > 1:
        params["codebook_size"] = count // books
    if vector > 1:
        params |= {"vector": vector, "vector_axis": axis}
    entries = ((books,) if books > 1 else ()) + (1 << bits,) + ((vector,) if vector > 1 else ())
    values = {"data": indices, "codebook": table}
    shapes: dict[str, tuple[str, Shape]] = {
        "data": ("u8", (-(-count // vector * bits // 8),)), "codebook": (table.kind.dtype, entries),
    }  # fmt: skip
    if scales is not None:
        params |= {"scale_dtype": scales.scale.kind.dtype, "group_size": scales.run(shape)}
        values["scale"], shapes["scale"] = scales.scale, (scales.scale.kind.dtype, (scales.count,))
        if scales.offset is not None:
            dtype = offset_dtype(scales.offset)
            params |= {"offset": "zero_point", "offset_dtype": dtype}
            values["offset"], shapes["offset"] = scales.offset, (dtype, (scales.count,))
    return Constant(
        shape=shape, dtype=result_dtype(operation), codec=CodecSpec("palette", params), values=values, shapes=shapes
    )
