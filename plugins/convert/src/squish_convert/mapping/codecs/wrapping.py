"""The base of codecs that give a tensor other rows than the codec they wrap."""

from __future__ import annotations

from typing import Self

from squish_core.codecs.base import Codec, Params, Parts
from squish_core.model import Exactness, TensorSpec


class Wrapping(Codec):
    """A codec that reads the parts of another one."""

    wraps = True
    inner: Codec

    @classmethod
    def from_params(cls, params: Params, inner: Codec | None = None) -> Self:
        codec = super().from_params(params, inner)
        codec.unsliced_parts = codec.inner.unsliced_parts
        return codec

    def wrapped(self, spec: TensorSpec) -> TensorSpec:
        """The wrapped tensor; CodecError if the parameters do not fit the shape."""
        return spec

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        return self.inner.parts(self.wrapped(spec))

    def value_dtype(self, spec: TensorSpec) -> str:
        return self.inner.value_dtype(self.wrapped(spec))

    def check_parts(self, parts: Parts, spec: TensorSpec) -> None:
        self.inner.check_parts(parts, self.wrapped(spec))

    @property
    def error_bound(self) -> Exactness:
        return self.inner.error_bound
