"""The interleaving of rows of several tensors in a larger one: shapes, regions and arrays of both."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from attrs import frozen

from squish_core.codecs.base import Params, Region
from squish_core.codes import ErrorCode
from squish_core.errors import CodecError

if TYPE_CHECKING:
    import numpy as np

Shape = tuple[int, ...]


@frozen
class Groups:
    """Groups of rows interleaved along `axis` of the larger tensor: `rows[i]` rows of piece i in turn.

    In the place of that axis, pieces have as many `axes`: 1 for all rows; 2, of which the first counts the groups and
    the second one the rows of a group; or 0, where a piece is one row of the only group.
    """

    rows: tuple[int, ...]
    axis: int
    axes: int = 1

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of a codec for these groups."""
        return {"rows": self.rows, "axis": self.axis, "axes": self.axes}

    @property
    def total(self) -> int:
        """Rows of a group of the larger tensor."""
        return sum(self.rows)

    def piece(self, whole: Shape, number: int) -> Shape:
        """Return the shape of a piece; CodecError if the larger tensor has no groups of this size."""
        if not 0 <= self.axis < len(whole) or whole[self.axis] % self.total:
            raise _params_error(f"a multiple of {self.total} rows on axis {self.axis}", f"shape {list(whole)}")
        count = whole[self.axis] // self.total
        if not self.axes and count != 1:
            raise _params_error(f"{self.total} rows on axis {self.axis}", f"shape {list(whole)}")
        return (*whole[: self.axis], *self._own(count, number), *whole[self.axis + 1 :])

    def _own(self, count: int, number: int) -> Shape:
        """Return the sizes of the axes of a piece that has rows of a number of groups."""
        rows = self.rows[number]
        return ((), (count * rows,), (count, rows))[self.axes]

    def whole(self, piece: Shape, number: int) -> Shape:
        """Return the shape of the larger tensor; CodecError if the piece has no groups of this size."""
        rows, own = self.rows[number], piece[self.axis : self.axis + self.axes]
        count = (1, prod(own) // rows, own[0] if own else 0)[self.axes]
        if self.axis + self.axes > len(piece) or own != self._own(count, number):
            raise _params_error(f"groups of {rows} rows on axis {self.axis}", f"shape {list(piece)}")
        return (*piece[: self.axis], count * self.total, *piece[self.axis + self.axes :])

    def piece_region(self, region: Region, number: int) -> Region:
        """Return the region of a piece in a region of whole groups."""
        part, rows = region[self.axis], self.rows[number]
        first, last = part.start // self.total, part.stop // self.total
        own = ((), (slice(first * rows, last * rows),), (slice(first, last), slice(0, rows)))[self.axes]
        return (*region[: self.axis], *own, *region[self.axis + 1 :])

    def whole_region(self, region: Region, number: int) -> Region:
        """Return the region of whole groups that contains a region of a piece."""
        part = region[self.axis] if self.axes else slice(0, 1)
        rows = self.rows[number] if self.axes == 1 else 1
        whole_groups = slice(part.start // rows * self.total, part.stop // rows * self.total)
        return (*region[: self.axis], whole_groups, *region[self.axis + self.axes :])

    def grouped(self, array: np.ndarray) -> np.ndarray:
        """An array of the larger tensor's rows, reshaped to one axis for groups and one for the rows of a group."""
        shape = array.shape
        return array.reshape(*shape[: self.axis], -1, self.total, *shape[self.axis + 1 :])

    def pick(self, array: np.ndarray, number: int) -> np.ndarray:
        """Return a piece of an array of the larger tensor's rows."""
        start = sum(self.rows[:number])
        before = (slice(None),) * (self.axis + 1)
        picked = self.grouped(array)[(*before, slice(start, start + self.rows[number]))]
        own = self._own(array.shape[self.axis] // self.total, number)
        return picked.reshape(*array.shape[: self.axis], *own, *array.shape[self.axis + 1 :])

    def merge(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Return the larger tensor's rows from those of its pieces."""
        import numpy as np

        axis, whole = self.axis, arrays[0].shape[self.axis + self.axes :]
        shaped = [array.reshape(*array.shape[:axis], -1, rows, *whole) for array, rows in zip(arrays, self.rows)]
        return np.concatenate(shaped, axis + 1).reshape(*arrays[0].shape[:axis], -1, *whole)


def groups_of(params: Params) -> Groups:
    """Return the groups in a codec's parameters; CodecError if these are invalid."""
    rows, axis, axes = params.get("rows"), params.get("axis"), params.get("axes")
    number = params.get("number", 0)
    legal = isinstance(rows, (list, tuple)) and len(rows) > 1 and all(type(size) is int and size > 0 for size in rows)
    if not legal or type(axis) is not int or type(axes) is not int or type(number) is not int:
        raise _params_error("rows, axis, axes and number", str(dict(params))[:120])
    assert isinstance(rows, (list, tuple))
    if not 0 <= number < len(rows):
        raise _params_error(f"a number below {len(rows)}", str(number))
    if axes not in (0, 1, 2) or (axes == 0 and {*rows} != {1}):
        raise _params_error("0, 1 or 2 axes, and rows of 1 with none", str(dict(params))[:120])
    return Groups(tuple(rows), axis, axes)


def _params_error(expected: str, found: str) -> CodecError:
    return CodecError("rows cannot be interleaved like this", code=ErrorCode.PARAMS, expected=expected, found=found)
