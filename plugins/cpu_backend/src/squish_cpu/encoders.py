"""Encoders of GGML blocks: the bytes of ggml's reference encoders, many groups at a time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from squish_core.api import CodecError, Params, TensorSpec

from .layouts import GGML, GGML_FIRST, Array
from .library import library, threads


class GgmlEncoder:
    """Q4_0 Q4_1 Q8_0 Q4_K Q5_K Q6_K from float32, as `ggml_quantize_chunk` gives them without importance weights.

    Equal bytes wherever ggml's own arithmetic is defined: scales that fit float16, steps below 2**22 of them.
    """

    id = ""

    def __init__(self) -> None:
        library()

    @property
    def name(self) -> str:
        """The block type that the codec's id names."""
        return self.id.removeprefix("ggml.")

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        if params:
            raise CodecError(f"{self.id} takes no parameters", found=", ".join(params), code="params")
        return params

    def encode(self, panel: Array, params: Params, *, stats: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Part `data`, u8 [..., blocks per row * bytes], of values whose last axis blocks divide."""
        elements, nbytes = GGML[self.name]
        if not panel.ndim or panel.shape[-1] % elements:
            raise CodecError(
                f"rows do not divide into {self.name.upper()} blocks", code="shape",
                expected=f"a last dimension that is a multiple of {elements}", found=f"shape {list(panel.shape)}",
            )  # fmt: skip
        values = np.require(panel, np.float32, ["C", "A"])
        blocks = values.size // elements
        out = np.empty((*panel.shape[:-1], panel.shape[-1] // elements * nbytes), np.uint8)
        kind = GGML_FIRST + list(GGML).index(self.name)
        if not library().encode(kind, values.ctypes.data, out.ctypes.data, blocks, elements, nbytes, threads()):
            raise CodecError(
                "values that are not finite cannot be encoded", expected="finite values",
                found=f"{np.count_nonzero(~np.isfinite(panel))} of {panel.size}", code="not-finite",
                hint="Keep this tensor, or repair it first.",
            )  # fmt: skip
        return {"data": out}
