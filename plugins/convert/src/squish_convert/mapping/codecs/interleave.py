"""Interleaves groups of rows of several tensors on reading, or extracts one of the tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, lcm
from typing import TYPE_CHECKING, Any

from attrs import evolve

from squish_core.codecs.base import Codec, Parts, Region, Wrapper
from squish_core.codecs.code_layout import CodeLayout, Codes
from squish_core.codecs.regions import sizes
from squish_core.model import TensorSpec

from .groups import Groups, Shape, groups_of
from .stack import member_role
from .transpose import Transpose

if TYPE_CHECKING:
    import numpy as np

Grain = tuple[int | None, ...]


class Interleave(Wrapper):
    """A wrapping codec that only decodes. Every piece has parts of its own: `0.data`, `1.data`.

    `rows`, `axis`, `axes`: as in `Groups`. `transposed`: numbers of the pieces stored transposed.
    """

    def bind(self) -> None:
        self.groups = groups_of(self.params)

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, Shape]]:
        return {
            member_role(number, role): form
            for number, (codec, piece) in enumerate(self._pieces(spec))
            for role, form in codec.parts(piece).items()
        }

    def grain(self, spec: TensorSpec) -> Grain:
        groups = self.groups
        grains = [codec.grain(piece) for codec, piece in self._pieces(spec)]
        axis, axes = groups.axis, groups.axes
        counts = [
            _groups_of_grain(grain[axis] if axes else 1, rows if axes == 1 else 1)
            for grain, rows in zip(grains, groups.rows)
        ]
        count = _common(counts)
        rest = [(*grain[:axis], *grain[axis + axes :]) for grain in grains]
        others = [_common(values) for values in zip(*rest)]
        return (*others[:axis], None if count is None else count * groups.total, *others[axis:])

    def value_dtype(self, spec: TensorSpec) -> str:
        codec, piece = self._pieces(spec)[0]
        return codec.value_dtype(piece)

    def check_parts(self, parts: Parts, spec: TensorSpec) -> None:
        for number, (codec, piece) in enumerate(self._pieces(spec)):
            codec.check_parts(self._of(parts, codec, piece, number), piece)

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        import numpy as np

        groups, arrays = self.groups, []
        for number, (codec, piece) in enumerate(self._pieces(spec)):
            own = groups.piece_region(region, number)
            values = np.empty(sizes(own), out.dtype)
            codec.decode(self._of(parts, codec, piece, number), piece, region=own, out=values)
            arrays.append(values)
        out[...] = groups.merge(arrays)

    def code_layout(self, spec: TensorSpec) -> CodeLayout | None:
        return None if self.params.get("transposed") else _row_layout(*self._pieces(spec)[0], self.groups)

    def codes(self, parts: Parts, spec: TensorSpec, region: Region) -> Codes | None:
        groups, pieces = self.groups, []
        for number, (codec, piece) in enumerate(self._pieces(spec)):
            own = groups.piece_region(region, number)
            codes = codec.codes(self._of(parts, codec, piece, number), piece, own)
            if codes is None:
                return None
            pieces.append(codes)
        return _merged(pieces, groups, sizes(region))

    def _of(self, parts: Parts, codec: Codec, piece: TensorSpec, number: int) -> Parts:
        return {role: parts[member_role(number, role)] for role in codec.parts(piece)}

    def _pieces(self, spec: TensorSpec) -> list[tuple[Codec, TensorSpec]]:
        """Codec and spec of each piece."""
        transposed = self.params.get("transposed", ())
        return [
            (
                Transpose.from_params({}, self.inner) if number in transposed else self.inner,
                evolve(spec, shape=self.groups.piece(spec.shape, number)),
            )
            for number in range(len(self.groups.rows))
        ]


class Deinterleave(Wrapper):
    """A wrapping codec that only decodes. `number`: the piece to extract. Other parameters: as in `Groups`."""

    def bind(self) -> None:
        self.groups = groups_of(self.params)

    def wrapped(self, spec: TensorSpec) -> TensorSpec:
        return evolve(spec, shape=self.groups.whole(spec.shape, self.params["number"]))

    def grain(self, spec: TensorSpec) -> Grain:
        groups = self.groups
        grain, rows = self.inner.grain(self.wrapped(spec)), groups.rows[self.params["number"]]
        count = _groups_of_grain(grain[groups.axis], groups.total)
        before, after = grain[: groups.axis], grain[groups.axis + 1 :]
        if groups.axes != 1:
            return (*before, *(count, None)[: groups.axes], *after)
        return (*before, None if count is None else count * rows, *after)

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        import numpy as np

        groups, number = self.groups, self.params["number"]
        whole_groups = groups.whole_region(region, number)
        values = np.empty(sizes(whole_groups), out.dtype)
        self.inner.decode(parts, self.wrapped(spec), region=whole_groups, out=values)
        out[...] = groups.pick(values, number)

    def code_layout(self, spec: TensorSpec) -> CodeLayout | None:
        return _row_layout(self.inner, self.wrapped(spec), self.groups)

    def codes(self, parts: Parts, spec: TensorSpec, region: Region) -> Codes | None:
        groups, number = self.groups, self.params["number"]
        codes = self.inner.codes(parts, self.wrapped(spec), groups.whole_region(region, number))
        if codes is None or groups.axes != 1:
            return None
        return _rearranged(codes, sizes(region), lambda array: groups.pick(array, number))


def _groups_of_grain(grain: int | None, rows: int) -> int | None:
    """Return the smallest number of groups of `rows` rows that is a multiple of the grain."""
    return None if grain is None else grain // gcd(grain, rows)


def _common(grains: Sequence[int | None]) -> int | None:
    steps = [grain for grain in grains if grain is not None]
    return lcm(*steps) if len(steps) == len(grains) else None


def _row_layout(codec: Codec, spec: TensorSpec, groups: Groups) -> CodeLayout | None:
    """Return the wrapped codec's layout, if each row has codes of its own."""
    layout = codec.code_layout(spec)
    if layout is None or layout.run or groups.axes != 1 or layout.group[groups.axis] != 1:
        return None
    return layout


def _rearranged(codes: Codes, shape: Shape, move: Callable[[Any], Any]) -> Codes:
    """Codes with rearranged rows."""

    def moved(array: np.ndarray | None) -> np.ndarray | None:
        return None if array is None else move(array)

    return Codes(
        layout=codes.layout,
        shape=shape,
        group=codes.group,
        scale=move(codes.scale),
        offset=moved(codes.offset),
        table=codes.table,
        global_scale=codes.global_scale,
        unpack=lambda: move(codes.values),
        pack=lambda: moved(codes.words),
    )


def _merged(pieces: Sequence[Codes], groups: Groups, shape: Shape) -> Codes | None:
    """Return the codes of the larger tensor; None if the layouts of its pieces differ."""
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
        layout=first.layout,
        shape=shape,
        group=first.group,
        scale=scale,
        offset=merge([codes.offset for codes in pieces]),
        table=first.table,
        unpack=lambda: groups.merge([codes.values for codes in pieces]),
        pack=lambda: merge([codes.words for codes in pieces]),
    )
