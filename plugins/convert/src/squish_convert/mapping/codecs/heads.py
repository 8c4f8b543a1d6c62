"""Permutes the rows of heads on reading, for codecs whose parts cannot be permuted."""

from __future__ import annotations

from functools import lru_cache
from math import lcm
from typing import TYPE_CHECKING

from squish_core.codecs.base import Parts, Region, Wrapper
from squish_core.codecs.code_layout import CodeLayout, Codes
from squish_core.codes import ErrorCode
from squish_core.errors import CodecError
from squish_core.model import TensorSpec

if TYPE_CHECKING:
    import numpy as np


@lru_cache(maxsize=16)
def head_order(rows: int, heads: int, inverse: bool) -> np.ndarray:
    """Source row of each row when the halves of every head are interleaved, or (`inverse`) de-interleaved.

    Examples
    --------
    >>> head_order(8, 2, False).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    import numpy as np

    half = rows // heads // 2
    grid = (heads, half, 2) if inverse else (heads, 2, half)
    return np.arange(rows).reshape(grid).swapaxes(1, 2).reshape(-1)


class Heads(Wrapper):
    """A wrapping codec that only decodes.

    `heads`: number of heads. `inverse`: de-interleave the halves of each head instead of interleaving them.
    """

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        """Whole heads: the rows of a head come from the same rows of the wrapped codec."""
        first, *rest = self.inner.grain(spec)
        step = None if first is None else lcm(first, self._rows(spec))
        return (step if step is not None and step < spec.shape[0] else None, *rest)

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        import numpy as np

        values = np.empty_like(out)
        self.inner.decode(parts, spec, region=region, out=values)
        out[...] = values[self._order(spec, out.shape[0])]

    def code_layout(self, spec: TensorSpec) -> CodeLayout | None:
        layout = self.inner.code_layout(spec)
        return None if layout is None or layout.run or layout.group[0] not in (0, 1) else layout

    def codes(self, parts: Parts, spec: TensorSpec, region: Region) -> Codes | None:
        codes = self.inner.codes(parts, spec, region)
        if codes is None:
            return None
        order = self._order(spec, codes.shape[0])

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

    def _rows(self, spec: TensorSpec) -> int:
        """Rows per head; CodecError if the rows do not divide into heads with two halves."""
        heads, rows = self.params.get("heads"), spec.shape[0] if spec.shape else 0
        if type(heads) is not int or heads < 1 or rows % (2 * heads) or type(self.params.get("inverse")) is not bool:
            raise CodecError(
                "cannot be divided into heads with an even number of rows",
                code=ErrorCode.PARAMS,
                expected=f"heads= that divides {rows} rows, inverse=",
                found=str(dict(self.params))[:120],
            )
        return rows // heads

    def _order(self, spec: TensorSpec, rows: int) -> np.ndarray:
        return head_order(rows, rows // self._rows(spec), bool(self.params["inverse"]))
