"""Metadata arrays: checked when the file is opened, decoded when somebody looks."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from squish_core.api import dtypes

if TYPE_CHECKING:
    import numpy as np

_LENGTH = struct.Struct("<Q")


class StoredSequence(Sequence[Any]):
    """A metadata array of numbers, bools or strings, over the bytes it is stored as.

    `type` is the element's type name. Strings that are not UTF-8 are given as bytes.
    """

    def __init__(self, type: str, count: int, data: bytes) -> None:  # noqa: A002
        self.type, self.size, self.data = type, count, data
        self._items: list[Any] | None = None

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        return self._decoded()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._decoded())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StoredSequence):
            return (self.type, self.data) == (other.type, other.data)
        return isinstance(other, Sequence) and self._decoded() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        import numpy as np

        if self.type == "str":
            return np.array(self._decoded(), dtype)
        return np.array(np.frombuffer(self.data, dtypes.to_numpy(self.type)), dtype, copy=copy)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_items": None}

    def __repr__(self) -> str:
        return f"<{self.size} x {self.type}>"

    def _decoded(self) -> list[Any]:
        if self._items is None:
            if self.type == "str":
                self._items = [text(raw) for raw in strings(self.data, self.size)]
            else:
                self._items = self.__array__().tolist()
        return self._items


def strings(data: bytes, count: int) -> Iterator[bytes]:
    """The stored strings of a block that was walked before."""
    position = 0
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(data, position)
        position += 8 + length
        yield data[position - length : position]


def text(raw: bytes) -> str | bytes:
    """A stored string, or its bytes where they are not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw
