"""Slices rows, or one tensor of a stack, on reading, for codecs whose parts cannot be sliced.

Each codec has its own module, which is imported when a tensor is read through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from squish_core.codecs.base import Parts, Region, Wrapper
from squish_core.codecs.code_layout import CodeLayout, Codes
from squish_core.codes import ErrorCode
from squish_core.errors import CodecError
from squish_core.model import TensorSpec

if TYPE_CHECKING:
    import numpy as np


class Slice(Wrapper):
    """A wrapping codec that only decodes.

    `start`: the first row. `rows`: rows of the wrapped tensor. `single`: the slice is tensor `start` of a
    stack of `rows` tensors, without the first axis.
    """

    def wrapped(self, spec: TensorSpec) -> TensorSpec:
        """Return the wrapped tensor; CodecError if the slice exceeds it."""
        start, rows, single = map(self.params.get, ("start", "rows", "single"))
        size = 1 if single else next(iter(spec.shape), None)
        if (
            not (isinstance(start, int) and isinstance(rows, int) and isinstance(single, bool))
            or size is None
            or not 0 <= start <= rows - size
        ):
            raise CodecError(
                "is not a slice of a tensor",
                code=ErrorCode.PARAMS,
                found=str(dict(self.params))[:120],
                expected=f"start, rows and single, with start + {size} at most rows",
            )
        return evolve(spec, shape=(rows, *spec.shape) if single else (rows, *spec.shape[1:]))

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        """Return the wrapped codec's; CodecError for a slice that begins within a block of rows."""
        first, *rest = self.inner.grain(self.wrapped(spec))
        if self.params["single"]:
            return tuple(rest)
        edges = (self.params["start"], self.params["start"] + spec.shape[0])
        if edges != (0, self.params["rows"]) and (first is None or edges[0] % first or self._cuts(edges[1], first)):
            raise CodecError(
                "a slice cannot begin or end within a block of rows",
                code=ErrorCode.PARAMS,
                expected=f"multiples of {first or self.params['rows']}",
                found=f"{edges[0]} to {edges[1]}",
            )
        return (first, *rest)

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        whole, single = self.wrapped(spec), self.params["single"]
        self.inner.decode(parts, whole, region=self._moved(region), out=out[None] if single else out)

    def code_layout(self, spec: TensorSpec) -> CodeLayout | None:
        layout = self.inner.code_layout(self.wrapped(spec))
        if layout is None or not self.params["single"]:
            return layout
        return None if layout.run or layout.group[0] not in (0, 1) else evolve(layout, group=layout.group[1:])

    def codes(self, parts: Parts, spec: TensorSpec, region: Region) -> Codes | None:
        codes = self.inner.codes(parts, self.wrapped(spec), self._moved(region))
        if codes is None or not self.params["single"]:
            return codes

        def first(array: np.ndarray | None) -> np.ndarray | None:
            return array[0] if array is not None and array.shape[:1] == (1,) else array

        return Codes(
            layout=evolve(codes.layout, group=codes.layout.group[1:]),
            shape=codes.shape[1:],
            group=codes.group[1:],
            scale=codes.scale[0],
            offset=first(codes.offset),
            table=codes.table,
            global_scale=first(codes.global_scale),
            unpack=lambda: codes.values[0],
            pack=lambda: first(codes.words),
        )

    def _cuts(self, stop: int, step: int) -> bool:
        """Return whether a block of rows reaches beyond the end."""
        return bool(stop % step) and stop != self.params["rows"]

    def _moved(self, region: Region) -> Region:
        """Return the region in the wrapped tensor."""
        start = self.params["start"]
        if self.params["single"]:
            return (slice(start, start + 1), *region)
        return (slice(region[0].start + start, region[0].stop + start), *region[1:])
