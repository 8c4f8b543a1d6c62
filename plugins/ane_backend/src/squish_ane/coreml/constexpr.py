"""Maps Core ML's compile-time operations to the shared codecs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from attrs import evolve

from squish_core.api import DENSE, CodecSpec, dtypes

from .blobs import TYPES
from .constants import (
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
from .lookup import lut, sparse_lut
from .program import Kind, Operation, Value

COMPRESSED = "constexpr_"
JOINT = ("constexpr_lut_to_sparse", "constexpr_sparse_blockwise_shift_scale")
INTEGERS = ("i4", "u4", "i8", "u8")


def tensor_of(operation: Operation) -> Constant | None:
    """Return the stored tensor of an operation, or None.

    Raises UnsupportedError, or FormatError if its operands are inconsistent.
    """
    reader = _OPERATIONS.get(operation.type)
    if reader is not None:
        return reader(operation)
    if operation.type.startswith(COMPRESSED):
        raise UnsupportedError(f"no codec for {operation.type}")
    return None


def join(operations: Iterable[Operation]) -> Iterator[Operation]:
    """Yield the operations that produce tensors, linked to the compressed operations of their operands.

    A joint form (compressed values under a mask) becomes one operation with the dense result.
    """
    producers: dict[str, Operation] = {}
    consumed: set[str] = set()
    tensors = []
    for operation in operations:
        if operation.type.startswith(COMPRESSED):
            operands = {key: producers[name] for key, name in operation.inputs.items() if name in producers}
            consumed.update(operation.inputs[key] for key in operands)
            values = operands.get("nonzero_data")
            if values is not None and values.type in JOINT:
                operation = evolve(values, outputs=operation.outputs)
            elif operation.type in JOINT:
                producers.update((name, evolve(operation, producers=operands)) for name, _ in operation.outputs)
                continue
            else:
                operation = evolve(operation, producers=operands)
            producers.update((name, operation) for name, _ in operation.outputs)
        tensors.append(operation)
    yield from (operation for operation in tensors if operation.outputs[0][0] not in consumed)


def _const(operation: Operation) -> Constant | None:
    value = operation.values.get("val")
    if value is None or (value.at < 0 and value.data is None) or TYPES.get(value.kind.dtype, TYPES["u4"]).bits < 8:
        return None
    kind = value.kind
    return Constant(
        shape=kind.shape,
        dtype=kind.dtype,
        codec=DENSE,
        values={"data": value},
        shapes={"data": (kind.dtype, kind.shape)},
    )


def _affine_dequantize(operation: Operation) -> Constant:
    """Read iOS16's `(quantized_data - zero_point) * scale`; both are scalars or vectors along `axis`."""
    data, scale, zero = (operand(operation, name) for name in ("quantized_data", "scale", "zero_point"))
    shape = data.kind.shape
    axis = (operand(operation, "axis").numbers or (0,))[0]
    _check_integers(data)
    grid = [1] * len(shape)
    if scale.kind.shape:
        if not 0 <= axis < len(shape) or scale.kind.shape != (shape[axis],):
            raise mismatch(operation, "scale", f"a scalar or [{shape[axis] if axis < len(shape) else '?'}]", scale.kind)
        grid[axis] = shape[axis]
    expect(operation, "zero_point", zero.kind, Kind(data.kind.dtype, zero.kind.shape))
    if zero.kind.shape not in ((), scale.kind.shape):
        raise mismatch(operation, "zero_point", f"shape {scale.kind.shape}", zero.kind)
    if zero.kind.shape != scale.kind.shape:
        raise UnsupportedError("one zero point for several scales")
    return _scaled(operation, data, Scales(scale=scale, offset=zero, grid=tuple(grid)))


def _blockwise(operation: Operation) -> Constant:
    """Read iOS18's `(data - offset) * scale`, with blocks along every axis."""
    producer = operation.producers.get("data")
    if producer is not None:
        reader = _SCALABLE.get(producer.type)
        if reader is None:
            raise UnsupportedError(f"scales over the result of {producer.type}")
        tensor = reader(producer, scales_of(operation, producer.outputs[0][1]))
        return evolve(tensor, dtype=result_dtype(operation))
    data = operand(operation, "data")
    _check_integers(data)
    return _scaled(operation, data, scales_of(operation, data.kind))


def _check_integers(data: Value) -> None:
    if data.kind.dtype not in INTEGERS:
        raise UnsupportedError(f"blocks of {data.kind.dtype or 'an unknown type'}")


def _scaled(operation: Operation, data: Value, scales: Scales) -> Constant:
    """Return `affine` for integers with scales per run, else `boxes`."""
    group = scales.run(data.kind.shape)
    if group is None:
        return in_boxes(operation, data.kind.shape, data, scales=scales)
    kind, scale, offset = TYPES[data.kind.dtype], scales.scale, scales.offset
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
        dtype = offset_dtype(offset)
        params |= {"offset": "zero_point", "offset_dtype": dtype}
        shapes["offset"] = ("u8", (-(-cells * kind.bits // 8),)) if dtype == "packed" else (dtype, (cells,))
        values["offset"] = offset
    return Constant(
        shape=data.kind.shape,
        dtype=result_dtype(operation),
        codec=CodecSpec("affine", params),
        values=values,
        shapes=shapes,
    )


def _sparse(operation: Operation) -> Constant:
    """Read a bitmask and the contiguous nonzero values."""
    values, mask = operand(operation, "nonzero_data"), operand(operation, "mask")
    shape = mask.kind.shape
    if "shape" in operation.values:
        shape = tuple(integers(operand(operation, "shape")))
        expect(operation, "mask", mask.kind, Kind("u8", (-(-dtypes.count(shape) // 8),)))
    else:
        expect(operation, "mask", mask.kind, Kind("u1", shape))
    dtype = result_dtype(operation)
    expect(operation, "nonzero_data", values.kind, Kind(dtype, (values.kind.count,)))
    params = {"dtype": dtype, "kept": "run", "count": values.kind.count}
    return Constant(
        shape=shape,
        dtype=dtype,
        codec=CodecSpec("bitmask", params),
        values={"data": values, "mask": mask},
        shapes={"data": (dtype, values.kind.shape), "mask": ("u8", (-(-dtypes.count(shape) // 8),))},
    )


def _sparse_scaled(operation: Operation) -> Constant:
    """Read integers under a mask: `bitmask` for int8 with row scales, else `boxes`."""
    values, mask = operand(operation, "nonzero_data"), operand(operation, "data_mask")
    shape = mask.kind.shape
    expect(operation, "data_mask", mask.kind, Kind("u1", shape))
    _check_integers(values)
    scales = scales_of(operation, Kind(values.kind.dtype, shape))
    rows = (*shape[:1], *(1,) * (len(shape) - 1))
    if values.kind.dtype != "i8" or scales.offset is not None or scales.grid != rows or not shape:
        return in_boxes(operation, shape, values, scales=scales, mask=mask)
    scale = scales.scale
    params = {"dtype": "i8", "kept": "run", "count": values.kind.count, "scale": scale.kind.dtype}
    return Constant(
        shape=shape,
        dtype=result_dtype(operation),
        codec=CodecSpec("bitmask", params),
        values={"data": values, "mask": mask, "scale": scale},
        shapes={
            "data": ("i8", (values.kind.count,)),
            "mask": ("u8", (-(-dtypes.count(shape) // 8),)),
            "scale": (scale.kind.dtype, (shape[0], 1)),
        },
    )


_SCALABLE: Mapping[str, Callable[[Operation, Scales], Constant]] = {
    "constexpr_lut_to_dense": lut, "constexpr_lut_to_sparse": sparse_lut,
}  # fmt: skip
_OPERATIONS: Mapping[str, Callable[[Operation], Constant | None]] = {
    "const": _const,
    "constexpr_affine_dequantize": _affine_dequantize,
    "constexpr_blockwise_shift_scale": _blockwise,
    "constexpr_lut_to_dense": lut,
    "constexpr_sparse_to_dense": _sparse,
    "constexpr_sparse_blockwise_shift_scale": _sparse_scaled,
    "constexpr_lut_to_sparse": sparse_lut,
}
