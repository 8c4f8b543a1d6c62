"""TensorProto: dtype, shape, and the location of the values."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np
from attrs import evolve, frozen

from squish_core.api import FormatError, LimitError, Limits, check_name, check_shape, dtypes, protobuf

from .types import DTYPES, FIXED, STRING, VALUE_NAMES, VALUES

_SIGNED = 1 << 63


@frozen(kw_only=True)
class TensorProto:
    """A tensor as its message describes it; at most one of `raw`, `values` and `external` is set.

    `raw`: offset and size of its bytes in the model. `values`: bytes decoded from numeric fields. `value_fields`: the
    fields with values, if there are several.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    raw: tuple[int, int] | None = None
    values: bytes | None = None
    external: Mapping[str, str] | None = None
    problem: str | None = None
    value_fields: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Size of the values in bytes."""
        return dtypes.nbytes(self.dtype, self.shape)


def read_tensor(item: protobuf.Field, prefix: str, limits: Limits) -> TensorProto:
    """Read a TensorProto; raw and external values stay in their files.

    Parameters
    ----------
    item
        The field with the message.
    prefix
        Prefix of the name, for a tensor of a nested graph.
    limits
        Upper bounds for the name, the rank and values in numeric fields.

    Returns
    -------
    TensorProto
        A tensor whose values fill its shape.

    Raises
    ------
    FormatError
        The message is not a tensor.
    LimitError
        The tensor exceeds a limit.
    """
    name, code, raw, is_external = "", 0, None, False
    dims: list[int] = []
    numbers: dict[int, list[protobuf.Field]] = {}
    external: dict[str, str] = {}
    for entry in item.message:
        match entry.number:
            case 1:
                dims += _dims(entry, limits.rank + 1 - len(dims))
            case 2:
                code = entry.integer
            case 8:
                name = _name(entry, limits)
            case 9:
                raw = entry.message.offset, entry.message.length
            case 13:
                key, value = pair(entry, limits)
                external[key] = value
            case 14:
                is_external = entry.integer == 1
            case _ if entry.number in VALUES:
                numbers.setdefault(entry.number, []).append(entry)
    name = check_name(prefix + name, limits, offset=item.offset)
    shape = check_shape(dims, limits, tensor=name, offset=item.offset)
    if code not in DTYPES:
        problem = "its elements are strings" if code == STRING else f"unknown element type {code}"
        return TensorProto(name=name, dtype="u8", shape=shape, offset=item.offset, problem=problem)
    fields = (
        *(["external_data"] if is_external else []),
        *(["raw_data"] if raw else []),
        *map(VALUE_NAMES.get, numbers),
    )
    values: dict[str, Any] = {"external": external} if is_external else {"raw": raw}
    if len(fields) > 1:
        values["value_fields"] = fields
    tensor = TensorProto(name=name, dtype=DTYPES[code], shape=shape, offset=item.offset, **values)
    if is_external:
        return tensor
    if raw is None:
        return _with_values(tensor, numbers, limits)
    if raw[1] != tensor.nbytes:
        raise _wrong_size(tensor, raw[1])
    return tensor


def pair(item: protobuf.Field, limits: Limits) -> tuple[str, str]:
    """Return the key and value of a StringStringEntryProto."""
    entries = {entry.number: entry for entry in item.message}
    for entry in entries.values():
        if entry.size > limits.header:
            raise LimitError(
                "a string is too long",
                offset=entry.offset,
                expected=f"at most {limits.header} bytes",
                found=f"{entry.size} bytes",
                code="header",
                limit="header",
            )
    return (entries[1].text if 1 in entries else ""), (entries[2].text if 2 in entries else "")


def _name(item: protobuf.Field, limits: Limits) -> str:
    if item.size > limits.name:
        raise LimitError(
            "a tensor name is too long",
            offset=item.offset,
            expected=f"at most {limits.name} bytes",
            found=f"{item.size} bytes",
            code="name",
            limit="name",
        )
    return item.text


def _dims(item: protobuf.Field, limit: int) -> list[int]:
    """Return the sizes, at most `limit`; `check_shape` reports a rank above the maximum."""
    return [size - (1 << 64) if size >= _SIGNED else size for size in islice(item.integers, max(limit, 0))]


def _with_values(tensor: TensorProto, numbers: Mapping[int, list[protobuf.Field]], limits: Limits) -> TensorProto:
    """Return the tensor with values from a numeric field: packed f32 and f64 in place, others decoded."""
    if not numbers:
        if tensor.nbytes:
            raise _wrong_size(tensor, 0)
        return evolve(tensor, values=b"")
    (number, items), *other_fields = numbers.items()
    if other_fields or tensor.dtype not in VALUES[number]:
        raise FormatError(
            "the values are in a field for another dtype",
            tensor=tensor.name,
            offset=tensor.offset,
            expected=f"values of {tensor.dtype}",
            found=f"field {[number, *(key for key, _ in other_fields)]}",
            code="dtype",
        )
    if number in FIXED and len(items) == 1:
        message = items[0].message
        if message.length != tensor.nbytes:
            raise _wrong_size(tensor, message.length)
        return evolve(tensor, raw=(message.offset, message.length))
    size = sum(item.size if item.wire == protobuf.BYTES else 1 for item in items)
    if size > limits.header:
        raise LimitError(
            "too many values stored as numbers",
            tensor=tensor.name,
            offset=tensor.offset,
            expected=f"at most {limits.header} bytes",
            found=f"{size} bytes",
            code="header",
            limit="header",
        )
    values = b"".join(_bytes_of(tensor, number, item) for item in items)
    if len(values) != tensor.nbytes:
        raise _wrong_size(tensor, len(values))
    return evolve(tensor, values=values)


def _bytes_of(tensor: TensorProto, number: int, item: protobuf.Field) -> bytes:
    """Convert the numbers of a field to bytes of the tensor's dtype; sub-byte dtypes are already packed."""
    if number in FIXED:
        return bytes(item.bytes)
    width = max(dtypes.bits(tensor.dtype), 8) // 8
    integers = np.array([item.integer], np.uint64) if item.wire == protobuf.VARINT else _varints(item)
    return integers.astype(f"<u{width}").tobytes()


def _varints(item: protobuf.Field) -> np.ndarray:
    """Decode the varints of a packed list, vectorized: a tensor may have millions."""
    data = np.frombuffer(item.bytes, np.uint8)
    ends = np.flatnonzero(data < 128)
    if len(data) and (not len(ends) or ends[-1] != len(data) - 1):
        raise item.window.error("number exceeds its message", item.offset)
    starts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    lengths = ends - starts + 1
    if lengths.max(initial=0) > 10:
        raise item.window.error("number too long", item.offset, "at most 10 bytes")
    integers = np.zeros(len(ends), np.uint64)
    for index in range(int(lengths.max(initial=0))):
        longer = lengths > index
        low = (data[starts[longer] + index] & 127).astype(np.uint64)
        integers[longer] |= low << np.uint64(7 * index)
    return integers


def _wrong_size(tensor: TensorProto, found: int) -> FormatError:
    return FormatError(
        "the values do not fill the shape",
        tensor=tensor.name,
        offset=tensor.offset,
        expected=f"{tensor.nbytes} bytes for {tensor.dtype} {list(tensor.shape)}",
        found=f"{found} bytes",
        code="size",
    )
