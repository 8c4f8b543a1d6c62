"""Permutes the rows or columns of heads on reading, for codecs whose parts cannot be permuted."""

from __future__ import annotations

from functools import lru_cache
from math import lcm
from typing import TYPE_CHECKING

from attrs import asdict, evolve, frozen

from squish_core.codecs.base import Parts, Region, Wrapper
from squish_core.codecs.code_layout import CodeLayout, Codes
from squish_core.codes import ErrorCode
from squish_core.errors import CodecError
from squish_core.model import CodecSpec, TensorSpec

if TYPE_CHECKING:
    import numpy as np


@frozen
class Order:
    """An order of rows, within each of `heads`: the first part of every group, then the second of every group, ...

    `parts` are the rows of each part of a group. `inverse`: from that order back to groups. The `first` rows stay.
    """

    heads: int
    groups: int
    parts: tuple[int, ...]
    inverse: bool = False
    first: int = 0

    @property
    def head(self) -> int:
        """Rows of a head."""
        return self.groups * sum(self.parts)

    @property
    def rows(self) -> int:
        """All rows."""
        return self.first + self.heads * self.head


@lru_cache(maxsize=16)
def source_rows(order: Order) -> np.ndarray:
    """Source row of each row.

    Examples
    --------
    >>> source_rows(Order(2, 2, (1, 1), True)).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    >>> source_rows(Order(1, 2, (1, 2))).tolist()
    [0, 3, 1, 2, 4, 5]
    """
    import numpy as np

    grid = np.arange(order.head).reshape(order.groups, -1)
    edges = np.cumsum(order.parts)[:-1]
    rows = np.concatenate([part.reshape(-1) for part in np.split(grid, edges, axis=1)])
    rows = np.argsort(rows) if order.inverse else rows
    moved = np.arange(order.heads)[:, None] * order.head + rows
    return np.concatenate([np.arange(order.first), order.first + moved.reshape(-1)])


HEADS = "heads"
"""Id of the codec."""


def reordered(codec: CodecSpec, order: Order, columns: bool) -> CodecSpec:
    """The codec that reads another one's rows or columns in an order; what one order moved, its inverse moves back."""
    back = {**asdict(evolve(order, inverse=not order.inverse)), "columns": columns}
    if codec.id == HEADS and codec.inner is not None and dict(codec.params) == back:
        return codec.inner
    return CodecSpec(HEADS, {**asdict(order), "columns": columns}, codec)


class Heads(Wrapper):
    """A wrapping codec that only decodes.

    Its parameters are the fields of `Order`, and `columns`, which says whether it is that of the columns.
    """

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        """Whole heads: the rows of a head come from the same rows of the wrapped codec."""
        order, axis = self._order(spec)
        grains = list(self.inner.grain(spec))
        inner = grains[axis]
        step = None if inner is None or order.first else lcm(inner, order.head)
        grains[axis] = step if step is not None and step < spec.shape[axis] else None
        return tuple(grains)

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        import numpy as np

        values = np.empty_like(out)
        self.inner.decode(parts, spec, region=region, out=values)
        order, axis = self._order(spec)
        out[...] = values.take(self._sources(order, out.shape[axis]), axis)

    def code_layout(self, spec: TensorSpec) -> CodeLayout | None:
        layout = self.inner.code_layout(spec) if self._order(spec)[1] == 0 else None
        return None if layout is None or layout.run or layout.group[0] not in (0, 1) else layout

    def codes(self, parts: Parts, spec: TensorSpec, region: Region) -> Codes | None:
        codes = self.inner.codes(parts, spec, region) if self._order(spec)[1] == 0 else None
        if codes is None:
            return None
        order = self._sources(self._order(spec)[0], codes.shape[0])

        def permute(array: np.ndarray | None) -> np.ndarray | None:
            return array if array is None or array.shape[0] != len(order) else array[order]

        scale = codes.scale
        if scale.shape[0] not in (1, len(order)):
            return None
        return Codes(
            layout=codes.layout,
            shape=codes.shape,
            group=codes.group,
            scale=scale if scale.shape[0] == 1 else scale[order],
            offset=permute(codes.offset),
            table=codes.table,
            global_scale=codes.global_scale,
            unpack=lambda: codes.values[order],
            pack=lambda: permute(codes.words),
        )

    def _order(self, spec: TensorSpec) -> tuple[Order, int]:
        """Return the order and its axis; CodecError if the rows or columns are not as many."""
        fields = {name: value for name, value in self.params.items() if name != "columns"}
        columns, parts = self.params.get("columns"), fields.get("parts")
        sizes = [fields.get("heads"), fields.get("groups"), *(parts if isinstance(parts, (list, tuple)) else [None])]
        is_valid = all(type(size) is int and size > 0 for size in sizes) and type(fields.get("first")) is int
        if is_valid and type(fields.get("inverse")) is bool and type(columns) is bool and len(fields) == 5:
            order = Order(**{**fields, "parts": tuple(sizes[2:])})
            axis = -1 if columns else 0
            if order.first >= 0 and spec.shape and spec.shape[axis] == order.rows:
                return order, axis
        raise CodecError(
            "is not an order of these rows or columns",
            code=ErrorCode.PARAMS,
            expected=f"heads=, groups=, parts=, inverse=, first= and columns= for shape {list(spec.shape)}",
            found=str(dict(self.params))[:120],
        )

    def _sources(self, order: Order, size: int) -> np.ndarray:
        """Source of each row of a region of whole heads."""
        return source_rows(evolve(order, heads=(size - order.first) // order.head))
