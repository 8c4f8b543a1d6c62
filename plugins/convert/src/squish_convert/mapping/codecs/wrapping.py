"""Codecs around other codecs, before `wrap` binds them to one."""

from __future__ import annotations

from squish_core.codecs.base import Codec, Params
from squish_core.codes import ErrorCode
from squish_core.errors import CodecError
from squish_core.model import TensorSpec


class Wrapping(Codec):
    """A codec without the one that it wraps: `wrap` returns a codec that can decode."""

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        raise CodecError(f"{self.id} must wrap another codec", code=ErrorCode.PARAMS, expected=f"{self.id}(CODEC)")

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        self.parts(spec, params)
        return params
