"""The interleaving of rows of several tensors in a larger one: shapes, regions and arrays of both."""

from __future__ import annotations

from collections.abc import Sequence
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

    The first axis of `folded` pieces counts the groups, the second one the rows of a group.
    """

    rows: tuple[int, ...]
    axis: int
    folded: bool

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of a codec for these groups."""
        return {"rows": self.rows, "axis": self.axis, "folded": self.folded}

    @property
    def total(self) -> int:
        """Rows of a group of the larger tensor."""
        return sum(self.rows)

    def piece(self, whole: Shape, number: int) -> Shape:
        """Return the shape of a piece; CodecError if the larger tensor has no groups of this size."""
        if not 0 <= self.axis < len(whole) or whole[self.axis] % self.total or (self.folded and self.axis):
            raise _params_error(f"a multiple of {self.total} rows on axis {self.axis}", f"shape {list(whole)}")
        count = whole[self.axis] // self.total
        if self.folded:
            return (count, self.rows[number], *whole[1:])
        return (*whole[: self.axis], count * self.rows[number], *whole[self.axis + 1 :])

    def whole(self, piece: Shape, number: int) -> Shape:
        """Return the shape of the larger tensor; CodecError if the piece has no groups of this size."""
        rows = self.rows[number]
        if self.folded:
            if len(piece) < 2 or piece[1] != rows:
                raise _params_error(f"[groups, {rows}, ...]", f"shape {list(piece)}")
            return (piece[0] * self.total, *piece[2:])
        if not 0 <= self.axis < len(piece) or piece[self.axis] % rows:
            raise _params_error(f"a multiple of {rows} rows on axis {self.axis}", f"shape {list(piece)}")
        return (*piece[: self.axis], piece[self.axis] // rows * self.total, *piece[self.axis + 1 :])

    def piece_region(self, region: Region, number: int) -> Region:
        """Return the region of a piece in a region of whole groups."""
        part, rows = region[self.axis], self.rows[number]
        first, last = part.start // self.total, part.stop // self.total
        if self.folded:
            return (slice(first, last), slice(0, rows), *region[1:])
        return (*region[: self.axis], slice(first * rows, last * rows), *region[self.axis + 1 :])

    def whole_region(self, region: Region, number: int) -> Region:
        """Return the region of whole groups that contains a region of a piece."""
        part, rows = region[self.axis], self.rows[number]
        first, last = (part.start, part.stop) if self.folded else (part.start // rows, part.stop // rows)
        whole_groups = slice(first * self.total, last * self.total)
        return (*region[: self.axis], whole_groups, *region[self.axis + 1 + self.folded :])

    def grouped(self, array: np.ndarray) -> np.ndarray:
        """An array of the larger tensor's rows, reshaped to one axis for groups and one for the rows of a group."""
        shape = array.shape
        return array.reshape(*shape[: self.axis], -1, self.total, *shape[self.axis + 1 :])

    def pick(self, array: np.ndarray, number: int) -> np.ndarray:
        """Return a piece of an array of the larger tensor's rows."""
        start = sum(self.rows[:number])
        before = (slice(None),) * (self.axis + 1)
        picked = self.grouped(array)[(*before, slice(start, start + self.rows[number]))]
        if self.folded:
            return picked
        return picked.reshape(*array.shape[: self.axis], -1, *array.shape[self.axis + 1 :])

    def merge(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Return the larger tensor's rows from those of its pieces."""
        import numpy as np

        axis, whole = self.axis, arrays[0].shape[self.axis + 1 + self.folded :]
        shaped = [array.reshape(*array.shape[:axis], -1, rows, *whole) for array, rows in zip(arrays, self.rows)]
        return np.concatenate(shaped, axis + 1).reshape(*arrays[0].shape[:axis], -1, *whole)


def groups_of(params: Params) -> Groups:
    """Return the groups in a codec's parameters; CodecError if these are invalid."""
    rows, axis, folded = params.get("rows"), params.get("axis"), params.get("folded")
    number = params.get("number", 0)
    legal = isinstance(rows, (list, tuple)) and len(rows) > 1 and all(type(size) is int and size > 0 for size in rows)
    if not legal or type(axis) is not int or type(folded) is not bool or type(number) is not int:
        raise _params_error("rows, axis, folded and number", str(dict(params))[:120])
    assert isinstance(rows, (list, tuple))
    if not 0 <= number < len(rows):
        raise _params_error(f"a number below {len(rows)}", str(number))
    return Groups(tuple(rows), axis, folded)


def _params_error(expected: str, found: str) -> CodecError:
    return CodecError("rows cannot be interleaved like this", code=ErrorCode.PARAMS, expected=expected, found=found)
