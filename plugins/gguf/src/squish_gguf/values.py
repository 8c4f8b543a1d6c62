"""Metadata values: lazy arrays, stored types for Python values, and packing."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, overload

from squish_core.api import FormatError, Typed, dtypes

from .texts import join, split, text_starts
from .types import ARRAY_HEAD, MAX_DEPTH, MAX_KEY, SCALARS, VALUES

if TYPE_CHECKING:
    import numpy as np

_U32, _U64 = SCALARS["u32"], SCALARS["u64"]
_CODES = {name: code for code, name in enumerate(VALUES)}


class GgufArray(Sequence[Any]):
    """A metadata array over its stored bytes; items are decoded on access.

    `kind` is the element type ("f32", "str", "array:i32"). Strings that are not UTF-8 decode to bytes.
    """

    # `ndarray == array` must reach `__eq__`, which returns one bool.
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, kind: str, count: int, raw: bytes) -> None:
        self.kind, self._count, self.raw = kind, count, raw
        self._starts: array[int] | None = None
        self._decoded: Sequence[str | bytes] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        indices = range(self._count)[index]
        if isinstance(indices, range):
            return [self._item(number) for number in indices]
        return self._item(indices)

    def __iter__(self) -> Iterator[Any]:
        if self.kind in SCALARS:
            return (unpack(self.kind, self.raw, at) for at in range(0, len(self.raw), SCALARS[self.kind].size))
        return iter(self._texts()) if self.kind == "str" else map(self._item, range(self._count))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, GgufArray):
            return self.kind == other.kind and self._count == other._count and self.raw == other.raw
        if isinstance(other, (str, bytes)) or not hasattr(other, "__len__"):
            return NotImplemented
        return self._count == len(other) and all(mine == theirs for mine, theirs in zip(self, other))  # type: ignore[call-overload]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        import numpy as np

        numeric = self.kind in SCALARS
        values = np.frombuffer(self.raw, dtypes.to_numpy(self.kind)) if numeric else np.array(list(self), object)
        return values.astype(dtype or values.dtype, copy=bool(copy))

    def __repr__(self) -> str:
        return f"<{self._count} x {self.kind}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_starts": None, "_decoded": None}

    def _item(self, index: int) -> Any:
        if self.kind in SCALARS:
            return unpack(self.kind, self.raw, index * SCALARS[self.kind].size)
        if self._decoded is not None:
            return self._decoded[index]
        starts = self._offsets()
        item = self.raw[starts[index] : starts[index + 1]]
        if self.kind == "str":
            return text(item[8:])
        return GgufArray(_inner(self.kind), ARRAY_HEAD.unpack_from(item)[1], item[12:])

    def _texts(self) -> Sequence[str | bytes]:
        """Decode all texts once: a vocabulary is read several times."""
        if self._decoded is None and self._count:
            starts = self._offsets()
            at_once = split(self.raw, starts)
            self._decoded = at_once or [text(self.raw[start + 8 : end]) for start, end in pairwise(starts)]
        return self._decoded or []

    def _offsets(self) -> array[int]:
        """Return the start of each element, and the end of the last one."""
        if self._starts is None:
            self._starts = text_starts(self.raw, self._count) if self.kind == "str" else None
        if self._starts is None:
            starts, at = array("Q", [0]), 0
            for _ in range(self._count):
                at = _end(self.raw, at, self.kind)
                starts.append(at)
            self._starts = starts
        return self._starts


def _inner(kind: str) -> str:
    """Return the inner element type of kind `array:...`."""
    return kind.removeprefix("array:")


def _end(raw: bytes, at: int, kind: str, *, big: bool = False) -> int:
    """Return the end of the element at `at`."""
    length, head = (big_endian(_U64), big_endian(ARRAY_HEAD)) if big else (_U64, ARRAY_HEAD)
    if kind in SCALARS:
        return at + SCALARS[kind].size
    if kind == "str":
        return at + 8 + int(length.unpack_from(raw, at)[0])
    count, at = head.unpack_from(raw, at)[1], at + 12
    if _inner(kind) in SCALARS:
        return at + int(count) * SCALARS[_inner(kind)].size
    for _ in range(count):
        at = _end(raw, at, _inner(kind), big=big)
    return at


@cache
def big_endian(form: struct.Struct) -> struct.Struct:
    """Return the big-endian form of a little-endian struct."""
    return struct.Struct(">" + form.format[1:])


def little_endian(kind: str, count: int, raw: bytes) -> bytes:
    """Convert the stored bytes of a big-endian array to little-endian."""
    if kind in SCALARS:
        size = SCALARS[kind].size
        swapped = bytearray(len(raw))
        for byte in range(size):
            swapped[byte::size] = raw[size - 1 - byte :: size]
        return bytes(swapped)
    at, pieces = 0, []
    for _ in range(count):
        if kind == "str":
            (length,) = big_endian(_U64).unpack_from(raw, at)
            pieces.append(_U64.pack(length) + raw[at + 8 : at + 8 + length])
            at += 8 + length
            continue
        code, inner = big_endian(ARRAY_HEAD).unpack_from(raw, at)
        end = _end(raw, at, kind, big=True)
        pieces.append(ARRAY_HEAD.pack(code, inner) + little_endian(_inner(kind), inner, raw[at + 12 : end]))
        at = end
    return b"".join(pieces)


def text(raw: bytes) -> str | bytes:
    """Decode UTF-8; return invalid bytes unchanged."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def unpack(kind: str, data: bytes | memoryview, at: int) -> Any:
    """Unpack a fixed-size value. An f32 NaN is widened bit by bit: a conversion would quiet a signaling NaN."""
    value = SCALARS[kind].unpack_from(data, at)[0]
    if kind == "f32" and value != value:
        bits = _U32.unpack_from(data, at)[0]
        wide = (bits >> 31) << 63 | 0x7FF << 52 | (bits & 0x7FFFFF) << 29
        value = SCALARS["f64"].unpack(_U64.pack(wide))[0]
    return value


def pack_scalar(kind: str, value: Any) -> bytes:
    """Inverse of `unpack`; struct.error if the value does not fit."""
    if kind == "f32" and value != value:
        wide = _U64.unpack(SCALARS["f64"].pack(value))[0]
        return _U32.pack((wide >> 63) << 31 | 0x7F800000 | (wide >> 29) & 0x7FFFFF)
    if kind == "bool" and not isinstance(value, bool):
        raise TypeError("not a bool")
    return SCALARS[kind].pack(value)


def pack_string(value: Any) -> bytes:
    """Pack a string: length and UTF-8 bytes."""
    raw = value if isinstance(value, bytes) else value.encode()
    return _U64.pack(len(raw)) + raw


def pack_pair(key: str, value: Any) -> bytes | None:
    """Pack a key and its value, as GGUF stores them.

    Parameters
    ----------
    key
        The key.
    value
        A `Typed` value, or a Python value, which gets the first type that holds it.

    Returns
    -------
    bytes or None
        The pair; None if GGUF has no type for the value.

    Raises
    ------
    FormatError
        The value does not fit its type (code `meta`).

    Examples
    --------
    >>> pack_pair("a", True)
    b'\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00a\\x07\\x00\\x00\\x00\\x01'
    """
    entry = typed(value)
    if entry is None or not _supported(entry.type):
        return None
    try:
        raw_key = pack_string(key)
        if not 0 < len(raw_key) - 8 <= MAX_KEY or "\0" in key:
            raise ValueError(f"a key has 1 to {MAX_KEY} bytes without NUL")
        return raw_key + _value(entry.type, entry.value)
    except (TypeError, ValueError, AttributeError, OverflowError, struct.error) as error:
        raise FormatError(
            f"the value of {key!r} cannot be written as {entry.type}: {error}",
            code="meta",
            hint="Change or remove this key in the source.",
        ) from None


def has_type(value: Any) -> bool:
    """Return whether GGUF has a type for a value, so that `pack_pair` packs it."""
    entry = typed(value)
    return entry is not None and _supported(entry.type)


def typed(value: Any) -> Typed | None:
    """Return a value with its stored type; docs/formats/gguf.md has the rule for Python values."""
    if isinstance(value, Typed):
        return value
    if isinstance(value, (list, tuple)):
        kind = _common(value)
        return Typed(f"array:{kind}", value) if kind and kind.count("array:") < MAX_DEPTH else None
    kind = _common([value])
    return Typed(kind, value) if kind else None


_INTEGERS = (("u32", 0, 1 << 32), ("i32", -(1 << 31), 1 << 31), ("i64", -(1 << 63), 1 << 63), ("u64", 0, 1 << 64))


def _common(values: Sequence[Any]) -> str | None:
    """Return the stored type that holds all values, if any."""
    if not values:
        return "u32"
    types = {type(value) for value in values}
    if types == {bool}:
        return "bool"
    if types == {str}:
        return "str"
    if types == {int}:
        low, high = min(values), max(values)
        return next((kind for kind, first, end in _INTEGERS if first <= low and high < end), None)
    if types <= {float, int} and all(abs(value) < 1 << 53 for value in values if type(value) is int):
        return "f32" if all(_is_f32(float(value)) for value in values) else "f64"
    if types <= {list, tuple}:
        # All inner lists share one element type.
        deeper = [item for value in values for item in value]
        kind = _common(deeper)
        return f"array:{kind}" if kind else None
    return None


def _is_f32(value: float) -> bool:
    try:
        return value != value or SCALARS["f32"].unpack(SCALARS["f32"].pack(value))[0] == value
    except OverflowError:
        return False


def _supported(kind: str) -> bool:
    depth = kind.count("array:")
    base = kind.rpartition(":")[2]
    return depth <= MAX_DEPTH and (base in SCALARS or base == "str")


def _value(kind: str, value: Any) -> bytes:
    """Pack a type code and a value."""
    if kind.startswith("array:"):
        return _U32.pack(_CODES["array"]) + _array(_inner(kind), value)
    return _U32.pack(_CODES[kind]) + (pack_string(value) if kind == "str" else pack_scalar(kind, value))


def _array(kind: str, values: Any) -> bytes:
    """Pack element type, count and elements."""
    code = _CODES["array" if kind.startswith("array:") else kind]
    return ARRAY_HEAD.pack(code, len(values)) + _elements(kind, values)


def _elements(kind: str, values: Any) -> bytes:
    if isinstance(values, GgufArray) and values.kind == kind:
        return values.raw
    if kind in SCALARS:
        if hasattr(values, "tobytes") and values.dtype == dtypes.to_numpy(kind) and values.ndim == 1:
            return bytes(values.tobytes())
        return b"".join(pack_scalar(kind, value) for value in values)
    if kind == "str":
        return join(list(values))
    return b"".join(_array(_inner(kind), inner) for inner in values)
