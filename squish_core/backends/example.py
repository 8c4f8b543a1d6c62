"""An example tensor for resolving without a file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from attrs import evolve

from squish_core import dtypes
from squish_core.codecs.base import Codec
from squish_core.errors import CodecError
from squish_core.model import CodecSpec, Encoding, Filter, Part, Segment, TensorSpec

if TYPE_CHECKING:
    import numpy as np

SHAPES = ((256, 256), (1280, 256))
"""Large enough for the default blocks and groups of formats, small enough to compute quickly. The second is for codecs
that refuse the first: vectors of 5 divide no power of two."""
EXPERTS = 4


class Codecs(Protocol):
    """The part of the registry that an example needs."""

    def codec(self, spec: CodecSpec) -> Codec: ...


def example(codecs: Codecs, encoding: Encoding, op: str) -> TensorSpec:
    """Complete an encoding without parts for a matrix, or for `experts` a stack of matrices.

    Parameters that depend on the values, such as TCA-TBE's exponents, are computed for a tensor of ones. CodecError
    if the codec supports none of the shapes.
    """
    try:
        return _example(codecs, encoding, op, SHAPES[0])
    except CodecError as error:
        with contextlib.suppress(CodecError):
            return _example(codecs, encoding, op, SHAPES[1])
        raise error


def _example(codecs: Codecs, encoding: Encoding, op: str, shape: tuple[int, int]) -> TensorSpec:
    values = encoding.parts.get("data" if encoding.codec.id == "dense" else "values")
    dtype = "f32" if values is None else values.dtype
    spec = TensorSpec(name="", shape=(EXPERTS, *shape) if op == "experts" else shape, dtype=dtype)
    spec = evolve(spec, dtype=codecs.codec(encoding.codec).value_dtype(spec))
    codec = _fitted(codecs, encoding.codec, spec)
    parts = codecs.codec(codec).parts(spec)
    filters = {role: part.filters for role, part in encoding.parts.items()}
    complete = {role: _part(kind, shape, filters.get(role, ())) for role, (kind, shape) in parts.items()}
    return evolve(spec, encodings=(evolve(encoding, codec=codec, parts=complete),))


def _fitted(codecs: Codecs, codec: CodecSpec, spec: TensorSpec) -> CodecSpec:
    """A codec and the codecs it wraps, with the parameters that depend on values."""
    inner = None if codec.inner is None else _fitted(codecs, codec.inner, spec)
    fitted = evolve(codec, inner=inner)
    return evolve(fitted, params=codecs.codec(fitted).fit_params(_panels(spec), spec))


def _panels(spec: TensorSpec) -> Callable[[], Iterator[np.ndarray]]:
    def panels() -> Iterator[np.ndarray]:
        import numpy as np

        yield np.ones(spec.shape, dtypes.to_numpy(spec.dtype))

    return panels


def _part(dtype: str, shape: tuple[int, ...], filters: tuple[Filter, ...]) -> Part:
    segment = Segment(0, 0, dtypes.nbytes(dtype, shape))
    return Part(dtype=dtype, shape=shape, segments=(segment,), filters=filters)
