"""Permutes the rows of heads on reading, for codecs whose parts cannot be permuted."""

from __future__ import annotations

from functools import lru_cache
from math import lcm
from typing import TYPE_CHECKING

from squish_core.codecs.base import Codec, Params, Parts, Region
from squish_core.codecs.code_layout import CodeLayout, Codes
from squish_core.codes import ErrorCode
from squish_core.errors import CodecError
from squish_core.model import Exactness, TensorSpec

from .wrapping import Wrapping

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


class Heads(Wrapping):
    """A wrapping codec; decodes only.

    `heads`: number of heads. `inverse`: de-interleave the halves of each head instead of interleaving them.
    """

    id = "heads"

    def wrap(self, inner: Codec, params: Params) -> Codec:
        return _Bound(inner, params)


class _Bound(Codec):
    """`Heads` bound to the codec it wraps."""

    id = "heads"

    def __init__(self, inner: Codec, params: Params) -> None:
        self.inner, self.own = inner, params
        self.unsliced_parts = inner.unsliced_parts

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        return self.inner.parts(spec, self.own)

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        """Whole heads: the rows of a head come from the same rows of the wrapped codec."""
        first, *rest = self.inner.grain(spec, self.own)
        step = None if first is None else lcm(first, _rows(spec, params))
        return (step if step is not None and step < spec.shape[0] else None, *rest)

    def value_dtype(self, spec: TensorSpec, params: Params) -> str:
        return self.inner.value_dtype(spec, self.own)

    def check_parts(self, parts: Parts, spec: TensorSpec, params: Params) -> None:
        self.inner.check_parts(parts, spec, self.own)

    def error_bound(self, params: Params) -> Exactness:
        return self.inner.error_bound(self.own)

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        import numpy as np

        values = np.empty_like(out)
        self.inner.decode(parts, spec, self.own, region=region, out=values)
        out[...] = values[_order(spec, params, out.shape[0])]

    def code_layout(self, spec: TensorSpec, params: Params) -> CodeLayout | None:
        layout = self.inner.code_layout(spec, self.own)
        return None if layout is None or layout.run or layout.group[0] not in (0, 1) else layout

    def codes(self, parts: Parts, spec: TensorSpec, params: Params, region: Region) -> Codes | None:
        codes = self.inner.codes(parts, spec, self.own, region)
        if codes is None:
            return None
        order = _order(spec, params, codes.shape[0])

        def permute(array: np.ndarray | None) -> np.ndarray | None:
            return array if array is None or array.shape[0] != len(order) else array[order]

        scale = codes.scale
        if scale.shape[0] not in (1, len(order)):
            return None
        return Codes(
            layout=codes.layout, shape=codes.shape, group=codes.group,
            scale=scale if scale.shape[0] == 1 else scale[order], offset=permute(codes.offset), table=codes.table,
            global_scale=codes.global_scale,
            unpack=lambda: codes.values[order], pack=lambda: permute(codes.words),
        )  # fmt: skip


def _rows(spec: TensorSpec, params: Params) -> int:
    """Rows per head; CodecError if the rows do not divide into heads with two halves."""
    heads, rows = params.get("heads"), spec.shape[0] if spec.shape else 0
    if type(heads) is not int or heads < 1 or rows % (2 * heads) or type(params.get("inverse")) is not bool:
        raise CodecError(
            "cannot be divided into heads with an even number of rows", code=ErrorCode.PARAMS,
            expected=f"heads= that divides {rows} rows, inverse=", found=str(dict(params))[:120],
        )  # fmt: skip
    return rows // heads


def _order(spec: TensorSpec, params: Params, rows: int) -> np.ndarray:
    return head_order(rows, rows // _rows(spec, params), bool(params["inverse"]))
