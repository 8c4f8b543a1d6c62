"""Tensors whose groups of rows alternate in a larger one: the larger tensor of its pieces, and a piece of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, lcm
from typing import TYPE_CHECKING, Any

from attrs import evolve

from squish_core.codecs.base import Codec, Params, Parts, Region
from squish_core.codecs.code_layout import CodeLayout, Codes
from squish_core.codecs.regions import sizes
from squish_core.model import Exactness, TensorSpec

from .groups import Groups, Shape, groups_of
from .stack import member_role
from .transpose import Transpose
from .wrapping import Wrapping

if TYPE_CHECKING:
    import numpy as np

Grain = tuple[int | None, ...]


class Interleave(Wrapping):
    """A wrapping codec; decodes only. Every piece has parts of its own: `0.data`, `1.data`.

    `rows`, `axis`, `folded`: as in `Groups`. `transposed`: numbers of the pieces that are stored transposed.
    """

    id = "interleave"

    def wrap(self, inner: Codec, params: Params) -> Codec:
        return _Whole(inner, params)


class Deinterleave(Wrapping):
    """A wrapping codec; decodes only. `number`: the piece of the wrapped tensor; the others as in `Groups`."""

    id = "deinterleave"

    def wrap(self, inner: Codec, params: Params) -> Codec:
        return _Piece(inner, params)


class _Whole(Codec):
    """`Interleave` bound to the codec of its pieces."""

    id = "interleave"

    def __init__(self, inner: Codec, params: Params) -> None:
        self.inner, self.own = inner, params

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, Shape]]:
        return {
            member_role(number, role): form
            for number, (codec, piece) in enumerate(self._pieces(spec, params))
            for role, form in codec.parts(piece, self.own).items()
        }

    def grain(self, spec: TensorSpec, params: Params) -> Grain:
        groups = groups_of(params)
        grains = [codec.grain(piece, self.own) for codec, piece in self._pieces(spec, params)]
        axis, folded = groups.axis, groups.folded
        counts = [_groups_of_grain(grain[axis], 1 if folded else rows) for grain, rows in zip(grains, groups.rows)]
        count = _common(counts)
        rest = [(*grain[:axis], *grain[axis + 1 + folded :]) for grain in grains]
        others = [_common(values) for values in zip(*rest)]
        return (*others[:axis], None if count is None else count * groups.total, *others[axis:])

    def value_dtype(self, spec: TensorSpec, params: Params) -> str:
        codec, piece = self._pieces(spec, params)[0]
        return codec.value_dtype(piece, self.own)

    def check_parts(self, parts: Parts, spec: TensorSpec, params: Params) -> None:
        for number, (codec, piece) in enumerate(self._pieces(spec, params)):
            codec.check_parts(self._of(parts, codec, piece, number), piece, self.own)

    def error_bound(self, params: Params) -> Exactness:
        return self.inner.error_bound(self.own)

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        import numpy as np

        groups, arrays = groups_of(params), []
        for number, (codec, piece) in enumerate(self._pieces(spec, params)):
            own = groups.piece_region(region, number)
            values = np.empty(sizes(own), out.dtype)
            codec.decode(self._of(parts, codec, piece, number), piece, self.own, region=own, out=values)
            arrays.append(values)
        out[...] = groups.merge(arrays)

    def code_layout(self, spec: TensorSpec, params: Params) -> CodeLayout | None:
        return None if params.get("transposed") else _row_layout(self._pieces(spec, params)[0], self.own, params)

    def codes(self, parts: Parts, spec: TensorSpec, params: Params, region: Region) -> Codes | None:
        groups, pieces = groups_of(params), []
        for number, (codec, piece) in enumerate(self._pieces(spec, params)):
            own = groups.piece_region(region, number)
            codes = codec.codes(self._of(parts, codec, piece, number), piece, self.own, own)
            if codes is None:
                return None
            pieces.append(codes)
        return _merged(pieces, groups, sizes(region))

    def _of(self, parts: Parts, codec: Codec, piece: TensorSpec, number: int) -> Parts:
        return {role: parts[member_role(number, role)] for role in codec.parts(piece, self.own)}

    def _pieces(self, spec: TensorSpec, params: Params) -> list[tuple[Codec, TensorSpec]]:
        """Codec and spec of each piece."""
        groups, transposed = groups_of(params), params.get("transposed", ())
        return [
            (
                Transpose().wrap(self.inner, self.own) if number in transposed else self.inner,
                evolve(spec, shape=groups.piece(spec.shape, number)),
            )
            for number in range(len(groups.rows))
        ]  # fmt: skip


class _Piece(Codec):
    """`Deinterleave` bound to the codec of the larger tensor."""

    id = "deinterleave"

    def __init__(self, inner: Codec, params: Params) -> None:
        self.inner, self.own = inner, params
        self.unsliced_parts = inner.unsliced_parts

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, Shape]]:
        return self.inner.parts(_whole(spec, params), self.own)

    def grain(self, spec: TensorSpec, params: Params) -> Grain:
        groups = groups_of(params)
        grain, rows = self.inner.grain(_whole(spec, params), self.own), groups.rows[params["number"]]
        count = _groups_of_grain(grain[groups.axis], groups.total)
        before, after = grain[: groups.axis], grain[groups.axis + 1 :]
        if groups.folded:
            return (count, None, *after)
        return (*before, None if count is None else count * rows, *after)

    def value_dtype(self, spec: TensorSpec, params: Params) -> str:
        return self.inner.value_dtype(_whole(spec, params), self.own)

    def check_parts(self, parts: Parts, spec: TensorSpec, params: Params) -> None:
        self.inner.check_parts(parts, _whole(spec, params), self.own)

    def error_bound(self, params: Params) -> Exactness:
        return self.inner.error_bound(self.own)

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        import numpy as np

        groups, number = groups_of(params), params["number"]
        whole_groups = groups.whole_region(region, number)
        values = np.empty(sizes(whole_groups), out.dtype)
        self.inner.decode(parts, _whole(spec, params), self.own, region=whole_groups, out=values)
        out[...] = groups.pick(values, number)

    def code_layout(self, spec: TensorSpec, params: Params) -> CodeLayout | None:
        return _row_layout((self.inner, _whole(spec, params)), self.own, params)

    def codes(self, parts: Parts, spec: TensorSpec, params: Params, region: Region) -> Codes | None:
        groups, number = groups_of(params), params["number"]
        codes = self.inner.codes(parts, _whole(spec, params), self.own, groups.whole_region(region, number))
        if codes is None or groups.folded:
            return None
        return _rearranged(codes, sizes(region), lambda array: groups.pick(array, number))


def _whole(spec: TensorSpec, params: Params) -> TensorSpec:
    return evolve(spec, shape=groups_of(params).whole(spec.shape, params["number"]))


def _groups_of_grain(grain: int | None, rows: int) -> int | None:
    """The fewest groups of `rows` rows that end on the grain."""
    return None if grain is None else grain // gcd(grain, rows)


def _common(grains: Sequence[int | None]) -> int | None:
    steps = [grain for grain in grains if grain is not None]
    return lcm(*steps) if len(steps) == len(grains) else None


def _row_layout(wrapped: tuple[Codec, TensorSpec], own: Params, params: Params) -> CodeLayout | None:
    """The wrapped codec's layout, if each row has codes of its own."""
    codec, spec = wrapped
    layout, groups = codec.code_layout(spec, own), groups_of(params)
    if layout is None or layout.run or groups.folded or layout.group[groups.axis] != 1:
        return None
    return layout


def _rearranged(codes: Codes, shape: Shape, move: Callable[[Any], Any]) -> Codes:
    """Codes with other rows."""

    def moved(array: np.ndarray | None) -> np.ndarray | None:
        return None if array is None else move(array)

    return Codes(
        layout=codes.layout, shape=shape, group=codes.group, scale=move(codes.scale), offset=moved(codes.offset),
        table=codes.table, global_scale=codes.global_scale, unpack=lambda: move(codes.values),
        pack=lambda: moved(codes.words),
    )  # fmt: skip


def _merged(pieces: Sequence[Codes], groups: Groups, shape: Shape) -> Codes | None:
    """The codes of the larger tensor; None if those of its pieces differ in form."""
    first = pieces[0]
    shared = first.global_scale is None and all(codes.global_scale is None for codes in pieces)
    if not shared or any(codes.group != first.group for codes in pieces):
        return None

    def merge(arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
        present = [array for array in arrays if array is not None]
        return groups.merge(present) if len(present) == len(arrays) else None

    scale = merge([codes.scale for codes in pieces])
    assert scale is not None
    return Codes(
        layout=first.layout, shape=shape, group=first.group, scale=scale,
        offset=merge([codes.offset for codes in pieces]), table=first.table,
        unpack=lambda: groups.merge([codes.values for codes in pieces]),
        pack=lambda: merge([codes.words for codes in pieces]),
    )  # fmt: skip
