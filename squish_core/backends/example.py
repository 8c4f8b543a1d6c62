"""The tensor that stands for a format's tensors where a question comes without a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from attrs import evolve

from squish_core import dtypes
from squish_core.codecs.base import Codec
from squish_core.model import CodecSpec, Encoding, Filter, Part, Segment, TensorSpec

if TYPE_CHECKING:
    import numpy as np

SHAPE = (256, 256)
"""Large enough for the blocks and groups that formats use by default, and quickly made."""
EXPERTS = 4


class Codecs(Protocol):
    """What an example needs of the registry."""

    def codec(self, wanted: CodecSpec) -> Codec: ...


def example(codecs: Codecs, encoding: Encoding, op: str) -> TensorSpec:
    """A matrix (for `experts` a stack of matrices) in an encoding that a format names, with all its parts.

    Parameters that follow from the values (the exponents of TCA-TBE) are those of a tensor of ones. CodecError where
    the codec has no tensor of this shape.
    """
    stored = encoding.parts.get("data" if encoding.codec.id == "dense" else "values")
    dtype = "f32" if stored is None else stored.dtype
    spec = TensorSpec(name="", shape=(EXPERTS, *SHAPE) if op == "experts" else SHAPE, dtype=dtype)
    spec = evolve(spec, dtype=codecs.codec(encoding.codec).value_dtype(spec, encoding.codec.params))
    codec = _fitted(codecs, encoding.codec, spec)
    parts = codecs.codec(codec).parts(spec, codec.params)
    filters = {role: part.filters for role, part in encoding.parts.items()}
    complete = {role: _part(kind, shape, filters.get(role, ())) for role, (kind, shape) in parts.items()}
    return evolve(spec, encodings=(evolve(encoding, codec=codec, parts=complete),))


def _fitted(codecs: Codecs, codec: CodecSpec, spec: TensorSpec) -> CodecSpec:
    """The codec, and those that it wraps, with the parameters that values decide."""
    inner = None if codec.inner is None else _fitted(codecs, codec.inner, spec)
    fitted = evolve(codec, inner=inner)
    return evolve(fitted, params=codecs.codec(fitted).fit_params(_panels(spec), spec, codec.params))


def _panels(spec: TensorSpec) -> Callable[[], Iterator[np.ndarray]]:
    def panels() -> Iterator[np.ndarray]:
        import numpy as np

        yield np.ones(spec.shape, dtypes.to_numpy(spec.dtype))

    return panels


def _part(dtype: str, shape: tuple[int, ...], filters: tuple[Filter, ...]) -> Part:
    segment = Segment(0, 0, dtypes.nbytes(dtype, shape))
    return Part(dtype=dtype, shape=shape, segments=(segment,), filters=filters)
