"""A whole Core ML package inside another file (SQUIZD's appendix)."""

from __future__ import annotations

from squish_core.api import Codec, CodecError, Params, TensorSpec


class Archive(Codec):
    """A zip of an .mlpackage folder, in one part `archive`: for Core ML, and nothing here decodes it."""

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        raise CodecError("a whole model is no tensor", tensor=spec.name, code="whole")
