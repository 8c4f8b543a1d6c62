"""Squish's 3-bit weights of one byte per code, with scales and biases per group of columns."""

from __future__ import annotations

import numpy as np
from squish_codecs.api import Affine

from squish_core.api import Codec, CodeLayout, Codes, Parts, Region, TensorSpec

CODES = {"bits": 8, "offset": "bias"}
"""The affine form of the codes: their bytes may hold more than three bits."""


class Int3(Codec):
    """`code * scale + offset` in float32, one byte per code.

    Parts: `data` u8, `scale` and `offset` f32. Parameters: `group_size`, columns per scale (0: whole rows), and `axis`
    "flat" for a scalar. Source: observed behavior of Squish; docs/formats/npydir.md.
    """

    def bind(self) -> None:
        self.affine = Affine.from_params({**self.params, **CODES})  # the equivalent codec

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        return self.affine.parts(spec)

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        return self.affine.grain(spec)

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        self.affine.decode(parts, spec, region=region, out=out)

    def code_layout(self, spec: TensorSpec) -> CodeLayout | None:
        return self.affine.code_layout(spec)

    def codes(self, parts: Parts, spec: TensorSpec, region: Region) -> Codes | None:
        return self.affine.codes(parts, spec, region)
