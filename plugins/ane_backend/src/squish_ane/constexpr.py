"""From the compile-time operations of Core ML to codecs: each is one of the shared codecs with parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from attrs import evolve, frozen

from squish_core.api import DENSE, CodecSpec, FormatError, dtypes

from .blobs import TYPES
from .program import Kind, Operation, Value

Shape = tuple[int, ...]
JOINT = ("constexpr_lut_to_sparse", "constexpr_sparse_blockwise_shift_scale")
INTEGERS = ("i4", "u4", "i8", "u8")


@frozen(kw_only=True)
class Stored:
    """A tensor as a codec has it: `values` are the constants of its parts, `shapes` their dtypes and shapes."""

    shape: Shape
    dtype: str
    codec: CodecSpec
    values: Mapping[str, Value]
    shapes: Mapping[str, tuple[str, Shape]]


class UnsupportedError(Exception):
    """A form that no codec here has; the text says which."""


def read(operation: Operation) -> Stored | None:
    """The tensor that an operation makes of stored bytes; None for operations that make none.

    Raises UnsupportedError, or FormatError where its values contradict each other.
    """
    known = _OPERATIONS.get(operation.type)
    if known is not None:
        return known(operation)
    if operation.type.startswith("constexpr_"):
        raise UnsupportedError(f"no codec here reads {operation.type}")
    return None


def joined(operations: Iterable[Operation]) -> Iterator[Operation]:
    """The operations, each joint form (compressed values under a mask) as one that makes the dense tensor."""
    found = list(operations)
    makers = {name: operation for operation in found if operation.type in JOINT for name, _ in operation.outputs}
    for operation in found:
        if operation.type in JOINT:
            continue
        maker = makers.get(operation.inputs.get("nonzero_data", ""))
        yield evolve(maker, outputs=operation.outputs) if maker else operation


def _const(operation: Operation) -> Stored | None:
    value = operation.values.get("val")
    if value is None or (value.at < 0 and value.data is None) or TYPES.get(value.kind.dtype, TYPES["u4"]).bits < 8:
        return None
    kind = value.kind
    return Stored(
        shape=kind.shape, dtype=kind.dtype, codec=DENSE, values={"data": value},
        shapes={"data": (kind.dtype, kind.shape)},
    )  # fmt: skip


def _affine_dequantize(operation: Operation) -> Stored:
    """iOS16: `(quantized_data - zero_point) * scale`, both of the last a number, or one for each index of `axis`."""
    data, scale, zero = (_value(operation, name) for name in ("quantized_data", "scale", "zero_point"))
    shape = data.kind.shape
    axis = (_value(operation, "axis").numbers or (0,))[0]
    count = data.kind.count
    group = 0
    if scale.kind.shape:
        if not 0 <= axis < len(shape) or scale.kind.shape != (shape[axis],):
            raise _wrong(operation, "scale", f"a number or [{shape[axis] if axis < len(shape) else '?'}]", scale.kind)
        if dtypes.count(shape[:axis]) != 1:
            raise UnsupportedError(f"scales along axis {axis}")
        group = count // max(shape[axis], 1)
    _expect(operation, "zero_point", zero.kind, Kind(data.kind.dtype, zero.kind.shape))
    if zero.kind.shape not in ((), scale.kind.shape):
        raise _wrong(operation, "zero_point", f"shape {scale.kind.shape}", zero.kind)
    if zero.kind.shape != scale.kind.shape:
        raise UnsupportedError("one zero point for many scales")
    return _affine(operation, data, scale, group, offset=zero)


def _blockwise(operation: Operation) -> Stored:
    """iOS18: `(data - offset) * scale`, each of a block's size along every axis."""
    data, scale, offset = _value(operation, "data"), _value(operation, "scale"), operation.values.get("offset")
    shape, grid = data.kind.shape, scale.kind.shape
    if data.kind.dtype not in INTEGERS:
        raise UnsupportedError(f"blocks of {data.kind.dtype or 'no known type'}")
    if len(grid) != len(shape) or any(not cells or size % cells for size, cells in zip(shape, grid)):
        raise _wrong(operation, "scale", f"a divisor of {list(shape)} along each axis", scale.kind)
    if offset is not None:
        dtype = offset.kind.dtype if offset.kind.dtype in ("f16", "f32") else data.kind.dtype
        _expect(operation, "offset", offset.kind, Kind(dtype, grid))
    cells = dtypes.count(grid)
    whole = 0
    while whole < len(grid) and grid[whole] == shape[whole]:
        whole += 1
    if any(size != 1 for size in grid[whole + 1 :]):
        raise UnsupportedError(f"blocks of {[size // cells for size, cells in zip(shape, grid)]}")
    return _affine(operation, data, scale, data.kind.count // cells if cells > 1 else 0, offset=offset)


def _affine(operation: Operation, data: Value, scale: Value, group: int, *, offset: Value | None) -> Stored:
    kind = TYPES[data.kind.dtype]
    params: dict[str, Any] = {
        "bits": kind.bits, "group_size": group, "axis": "flat", "signed": data.kind.dtype[0] == "i",
        "scale_dtype": scale.kind.dtype,
    }  # fmt: skip
    cells = max(scale.kind.count, 1)
    shapes: dict[str, tuple[str, Shape]] = {
        "data": ("u8", (-(-data.kind.count * kind.bits // 8),)), "scale": (scale.kind.dtype, (cells,)),
    }  # fmt: skip
    values = {"data": data, "scale": scale}
    if offset is not None:
        packed = TYPES[offset.kind.dtype].bits < 8
        params |= {"offset": "zero_point", "offset_dtype": "packed" if packed else offset.kind.dtype}
        shapes["offset"] = ("u8", (-(-cells * kind.bits // 8),)) if packed else (offset.kind.dtype, (cells,))
        values["offset"] = offset
    return Stored(
        shape=data.kind.shape, dtype=_result(operation), codec=CodecSpec("affine", params), values=values, shapes=shapes
    )


def _lut(operation: Operation) -> Stored:
    """Indices into tables of values. iOS16: one table, a flat stream; iOS18: [groups..., entries, vector]."""
    indices, lut = _value(operation, "indices"), _value(operation, "lut")
    if "shape" in operation.values:
        shape = tuple(_integers(_value(operation, "shape")))
        bits = (lut.kind.count - 1).bit_length()
        if lut.kind.shape != (1 << bits,) or indices.kind.shape != (-(-dtypes.count(shape) * bits // 8),):
            raise _wrong(operation, "indices", f"the stream of {list(shape)} at {bits} bits", indices.kind)
        return _palette(operation, indices, lut, shape, bits, books=1, vector=1, axis=-1)
    bits, rank = TYPES[indices.kind.dtype].bits if indices.kind.dtype in TYPES else 0, len(indices.kind.shape)
    if lut.kind.shape[rank:][:1] != (1 << bits,) or len(lut.kind.shape) != rank + 2:
        raise _wrong(operation, "lut", f"[{rank} groups, {1 << bits}, vector]", lut.kind)
    groups, vector = lut.kind.shape[:rank], lut.kind.shape[-1]
    if any(not books or size % books for size, books in zip(indices.kind.shape, groups)):
        raise _wrong(operation, "lut", f"groups that divide {list(indices.kind.shape)}", lut.kind)
    if any(books != 1 for books in groups[1:]):
        raise UnsupportedError("codebooks along other axes than the first")
    axis = 0
    if "vector_axis" in operation.values:
        axis = (_value(operation, "vector_axis").numbers or (0,))[0]
    if vector > 1 and not 0 <= axis < rank:
        raise _wrong(operation, "vector_axis", f"below {rank}", indices.kind)
    shape = tuple(size * vector if at == axis else size for at, size in enumerate(indices.kind.shape))
    return _palette(
        operation, indices, lut, shape, bits, books=groups[0] if groups else 1, vector=vector, axis=axis - rank
    )


def _palette(
    operation: Operation, indices: Value, lut: Value, shape: Shape, bits: int, *, books: int, vector: int, axis: int
) -> Stored:
    params: dict[str, Any] = {"bits": bits, "axis": "flat", "codebook_dtype": lut.kind.dtype}
    count = dtypes.count(shape)
    if books > 1:
        params["codebook_size"] = count // books
    if vector > 1:
        params |= {"vector": vector, "vector_axis": axis}
    table = ((books,) if books > 1 else ()) + (1 << bits,) + ((vector,) if vector > 1 else ())
    return Stored(
        shape=shape, dtype=_result(operation), codec=CodecSpec("palette", params),
        values={"data": indices, "codebook": lut},
        shapes={"data": ("u8", (-(-count // vector * bits // 8),)), "codebook": (lut.kind.dtype, table)},
    )  # fmt: skip


def _sparse(operation: Operation) -> Stored:
    """A bit for each element and the values of those that are set, both one after the other."""
    values, mask = _value(operation, "nonzero_data"), _value(operation, "mask")
    shape = mask.kind.shape
    if "shape" in operation.values:
        shape = tuple(_integers(_value(operation, "shape")))
        _expect(operation, "mask", mask.kind, Kind("u8", (-(-dtypes.count(shape) // 8),)))
    else:
        _expect(operation, "mask", mask.kind, Kind("u1", shape))
    dtype = _result(operation)
    _expect(operation, "nonzero_data", values.kind, Kind(dtype, (values.kind.count,)))
    params = {"dtype": dtype, "kept": "run", "count": values.kind.count}
    return Stored(
        shape=shape, dtype=dtype, codec=CodecSpec("bitmask", params), values={"data": values, "mask": mask},
        shapes={"data": (dtype, values.kind.shape), "mask": ("u8", (-(-dtypes.count(shape) // 8),))},
    )  # fmt: skip


def _sparse_scaled(operation: Operation) -> Stored:
    """int8 values under a mask, with a scale for each row."""
    values, mask, scale = (_value(operation, name) for name in ("nonzero_data", "data_mask", "scale"))
    shape, dtype = mask.kind.shape, scale.kind.dtype
    _expect(operation, "data_mask", mask.kind, Kind("u1", shape))
    if values.kind.dtype != "i8" or "offset" in operation.values or dtype not in ("f16", "f32"):
        raise UnsupportedError("masked values other than int8 without offsets")
    if not shape or scale.kind.shape != (shape[0], *(1,) * (len(shape) - 1)):
        raise UnsupportedError("masked values with other scales than one for each row")
    params = {"dtype": "i8", "kept": "run", "count": values.kind.count, "scale": dtype}
    return Stored(
        shape=shape, dtype=_result(operation), codec=CodecSpec("bitmask", params),
        values={"data": values, "mask": mask, "scale": scale},
        shapes={
            "data": ("i8", (values.kind.count,)), "mask": ("u8", (-(-dtypes.count(shape) // 8),)),
            "scale": (dtype, (shape[0], 1)),
        },
    )  # fmt: skip


def _sparse_palette(operation: Operation) -> Stored:
    """Indices under a mask into one table."""
    indices, mask, lut = (_value(operation, name) for name in ("indices_nonzero_data", "indices_mask", "lut"))
    shape, dtype = mask.kind.shape, _result(operation)
    bits = TYPES[indices.kind.dtype].bits if indices.kind.dtype in TYPES else 0
    _expect(operation, "indices_mask", mask.kind, Kind("u1", shape))
    if len(lut.kind.shape) != len(shape) + 2 or lut.kind.shape[-2] != 1 << bits:
        raise _wrong(operation, "lut", f"[{len(shape)} groups, {1 << bits}, vector]", lut.kind)
    if lut.kind.count != 1 << bits or lut.kind.dtype != dtype:
        raise UnsupportedError("several codebooks, vectors or tables of integers under a mask")
    count = indices.kind.count
    params = {"dtype": dtype, "kept": "run", "count": count, "bits": bits}
    return Stored(
        shape=shape, dtype=dtype, codec=CodecSpec("bitmask", params),
        values={"data": indices, "mask": mask, "codebook": lut},
        shapes={
            "data": ("u8", (-(-count * bits // 8),)), "mask": ("u8", (-(-dtypes.count(shape) // 8),)),
            "codebook": (dtype, (1 << bits,)),
        },
    )  # fmt: skip


def _value(operation: Operation, name: str) -> Value:
    found = operation.values.get(name)
    if found is None:
        if name in operation.inputs:
            raise UnsupportedError(f"{operation.type} of another operation's result")
        raise FormatError(
            f"{operation.type} has no {name}", tensor=operation.name, code="program", found=", ".join(operation.values)
        )
    return found


def _result(operation: Operation) -> str:
    """Dtype of the values that it makes."""
    dtype = operation.outputs[0][1].dtype
    if dtype not in ("f16", "f32"):
        raise UnsupportedError(f"values of {dtype or 'no known type'}")
    return dtype


def _integers(value: Value) -> tuple[int, ...]:
    """The numbers of a small integer constant, which may be kept as bytes."""
    if value.data is None:
        return value.numbers
    size = TYPES[value.kind.dtype].bits // 8 if value.kind.dtype in TYPES else 4
    return tuple(int.from_bytes(value.data[at : at + size], "little") for at in range(0, len(value.data), size))


def _expect(operation: Operation, name: str, found: Kind, wanted: Kind) -> None:
    if found != wanted:
        raise _wrong(operation, name, f"{wanted.dtype} {list(wanted.shape)}", found)


def _wrong(operation: Operation, name: str, expected: str, found: Kind) -> FormatError:
    return FormatError(
        f"{operation.type}: {name} does not fit", tensor=operation.name, expected=expected,
        found=f"{found.dtype} {list(found.shape)}", code="shape",
    )  # fmt: skip


_OPERATIONS: Mapping[str, Callable[[Operation], Stored | None]] = {
    "const": _const,
    "constexpr_affine_dequantize": _affine_dequantize,
    "constexpr_blockwise_shift_scale": _blockwise,
    "constexpr_lut_to_dense": _lut,
    "constexpr_sparse_to_dense": _sparse,
    "constexpr_sparse_blockwise_shift_scale": _sparse_scaled,
    "constexpr_lut_to_sparse": _sparse_palette,
}
