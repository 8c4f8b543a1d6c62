"""ACME rows: int8 codes and one f32 scale for each row."""

from __future__ import annotations

import numpy as np

from squish_core import api


class Rows(api.Codec):
    """A value is code * scale; matrices only."""

    def bind(self) -> None:
        if self.params:
            raise api.CodecError("acme.rows has no parameters", found=", ".join(self.params), code="params")

    def parts(self, spec: api.TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        if len(spec.shape) != 2:
            raise api.CodecError("rows need a matrix", found=f"shape {list(spec.shape)}", code="rank")
        return {"codes": ("i8", spec.shape), "scale": ("f32", spec.shape[:1])}

    def grain(self, spec: api.TensorSpec) -> tuple[int | None, ...]:
        return (1, 1)

    def decode(self, parts: api.Parts, spec: api.TensorSpec, *, region: api.Region, out: np.ndarray) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # a damaged scale is a value like any other
            np.multiply(parts["codes"][region], parts["scale"][region[0]][:, None], out=out)

    def encode(self, panel: np.ndarray, *, activations: np.ndarray | None = None) -> dict[str, np.ndarray]:
        scale = (np.abs(panel).max(axis=1, initial=0) / 127).astype(np.float32)
        codes = np.rint(panel / np.where(scale, scale, 1)[:, None])
        return {"codes": codes.astype(np.int8), "scale": scale}

    def code_layout(self, spec: api.TensorSpec) -> api.CodeLayout:
        return api.CodeLayout(bits=8, signed=True, group=(1, 0), scale_dtype="f32")

    def codes(self, parts: api.Parts, spec: api.TensorSpec, region: api.Region) -> api.Codes:
        values, scale = parts["codes"][region], parts["scale"][region[0]][:, None]
        return api.Codes(layout=self.code_layout(spec), shape=values.shape, scale=scale, unpack=lambda: values)
