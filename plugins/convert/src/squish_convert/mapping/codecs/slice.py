"""Reads a range of rows, or one tensor of a stack, for codecs whose parts cannot be cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from squish_core.codecs.base import Codec, Params, Parts, Region
from squish_core.codecs.code_layout import CodeLayout, Codes
from squish_core.codes import ErrorCode
from squish_core.errors import CodecError
from squish_core.model import Exactness, TensorSpec

from .wrapping import Wrapping

if TYPE_CHECKING:
    import numpy as np


class Slice(Wrapping):
    """A wrapping codec; decodes only.

    `start`: the first row. `rows`: rows of the wrapped tensor. `single`: the slice is the one tensor at `start` of a
    stack of `rows` tensors, and has no axis for it.
    """

    id = "slice"

    def wrap(self, inner: Codec, params: Params) -> Codec:
        return _Bound(inner, params)


class _Bound(Codec):
    """`Slice` bound to the codec it wraps."""

    id = "slice"

    def __init__(self, inner: Codec, params: Params) -> None:
        self.inner, self.own = inner, params
        self.unsliced_parts = inner.unsliced_parts

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        return self.inner.parts(_whole(spec, params), self.own)

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        """The wrapped codec's; CodecError for a slice that begins within a block of rows."""
        first, *rest = self.inner.grain(_whole(spec, params), self.own)
        if params["single"]:
            return tuple(rest)
        edges = (params["start"], params["start"] + spec.shape[0])
        if edges != (0, params["rows"]) and (first is None or edges[0] % first or _cuts(edges[1], first, params)):
            raise CodecError(
                "a slice cannot begin or end within a block of rows", code=ErrorCode.PARAMS,
                expected=f"multiples of {first or params['rows']}", found=f"{edges[0]} to {edges[1]}",
            )  # fmt: skip
        return (first, *rest)

    def value_dtype(self, spec: TensorSpec, params: Params) -> str:
        return self.inner.value_dtype(_whole(spec, params), self.own)

    def check_parts(self, parts: Parts, spec: TensorSpec, params: Params) -> None:
        self.inner.check_parts(parts, _whole(spec, params), self.own)

    def error_bound(self, params: Params) -> Exactness:
        return self.inner.error_bound(self.own)

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        whole, single = _whole(spec, params), params["single"]
        self.inner.decode(parts, whole, self.own, region=_moved(region, params), out=out[None] if single else out)

    def code_layout(self, spec: TensorSpec, params: Params) -> CodeLayout | None:
        layout = self.inner.code_layout(_whole(spec, params), self.own)
        if layout is None or not params["single"]:
            return layout
        return None if layout.run or layout.group[0] not in (0, 1) else evolve(layout, group=layout.group[1:])

    def codes(self, parts: Parts, spec: TensorSpec, params: Params, region: Region) -> Codes | None:
        codes = self.inner.codes(parts, _whole(spec, params), self.own, _moved(region, params))
        if codes is None or not params["single"]:
            return codes

        def first(array: np.ndarray | None) -> np.ndarray | None:
            return array[0] if array is not None and array.shape[:1] == (1,) else array

        return Codes(
            layout=evolve(codes.layout, group=codes.layout.group[1:]), shape=codes.shape[1:], group=codes.group[1:],
            scale=codes.scale[0], offset=first(codes.offset), table=codes.table,
            global_scale=first(codes.global_scale), unpack=lambda: codes.values[0], pack=lambda: first(codes.words),
        )  # fmt: skip


def _whole(spec: TensorSpec, params: Params) -> TensorSpec:
    """The wrapped tensor; CodecError if the slice is not within it."""
    start, rows, single = params.get("start"), params.get("rows"), params.get("single")
    size = 1 if single else next(iter(spec.shape), None)
    if (
        not (isinstance(start, int) and isinstance(rows, int) and isinstance(single, bool))
        or size is None
        or not 0 <= start <= rows - size
    ):
        raise CodecError(
            "is not a slice of a tensor", code=ErrorCode.PARAMS, found=str(dict(params))[:120],
            expected=f"start, rows and single, with start + {size} at most rows",
        )  # fmt: skip
    return evolve(spec, shape=(rows, *spec.shape) if single else (rows, *spec.shape[1:]))


def _cuts(stop: int, step: int, params: Params) -> bool:
    """Whether a block of rows reaches beyond the end."""
    return bool(stop % step) and stop != params["rows"]


def _moved(region: Region, params: Params) -> Region:
    """The region in the wrapped tensor."""
    start = params["start"]
    if params["single"]:
        return (slice(start, start + 1), *region)
    return (slice(region[0].start + start, region[0].stop + start), *region[1:])
