"""GGML blocks as a codec: one part `data`, each row a run of blocks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from squish_codecs.api import GGML_AFFINE, GGML_MX

from squish_core.api import (
    Codec,
    CodecError,
    CodecSpec,
    Codes,
    ErrorCode,
    Exactness,
    Params,
    Parts,
    Region,
    TensorSpec,
    dtypes,
)

from . import float4, repack
from .blocks import BLOCKS, LONG_TAIL, Block

_CODES = {**dict.fromkeys(repack.PLAIN, repack), **dict.fromkeys(GGML_MX, float4)}
"""Block types whose codes other formats have, and the module that moves them."""


class GgmlBlocks(Codec):
    """Blocks along the last axis; `data` is u8 of shape (*leading, blocks per row * block bytes).

    Values are f32. Source: the block layouts of ggml (ggml-common.h), bit for bit as gguf-py decodes them.
    """

    encoder_only_params = ("search",)  # which encoders of other plugins take

    @property
    def block(self) -> Block:
        """The block type that this codec's id names."""
        name = self.id.removeprefix("ggml.")
        return BLOCKS.get(name) or LONG_TAIL[name]

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        block = self.block
        if not spec.shape or spec.shape[-1] % block.elements:
            raise CodecError(
                f"rows do not divide into {block.name.upper()} blocks", tensor=spec.name, code="shape",
                expected=f"a last dimension that is a multiple of {block.elements}", found=f"shape {list(spec.shape)}",
                hint="Take a type with smaller blocks (q8_0, q4_0), or keep the tensor.",
            )  # fmt: skip
        return {"data": ("u8", (*spec.shape[:-1], spec.shape[-1] // block.elements * block.nbytes))}

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        return (*(1,) * (len(spec.shape) - 1), self.block.elements)

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        block, columns, width = self.block, region[-1], out.shape[-1]
        first, last = columns.start // block.elements, columns.stop // block.elements
        stored = parts["data"][(*region[:-1], slice(first * block.nbytes, last * block.nbytes))]
        rows = out.size // max(width, 1)
        block.decode(stored.reshape(rows, last - first, block.nbytes), out.reshape(rows, width))

    def encode(
        self, panel: np.ndarray, params: Params, *, stats: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        block = self.block
        if block.encode is None:
            raise self._cannot_encode()
        values = np.ascontiguousarray(panel, np.float32).reshape(dtypes.count(panel.shape[:-1]), panel.shape[-1])
        blocks = values.shape[1] // block.elements
        out = np.empty((len(values), blocks, block.nbytes), np.uint8)
        block.encode(values, out)
        return {"data": out.reshape(*panel.shape[:-1], blocks * block.nbytes)}

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        if self.block.encode is None:
            raise self._cannot_encode()
        if params:
            raise CodecError(f"{self.id} takes no parameters", found=", ".join(params), code=ErrorCode.PARAMS)
        self.parts(spec, params)
        return params

    def needs_activations(self, params: Params) -> bool:
        return params.get("search") == "activations"

    def codes(self, parts: Parts, spec: TensorSpec, params: Params, region: Region) -> Codes | None:
        home = _CODES.get(self.id)
        if home is None:
            return None
        size, nbytes = self.block.elements, self.block.nbytes
        blocks = slice(region[-1].start // size * nbytes, region[-1].stop // size * nbytes)
        return home.codes(self.id, parts["data"][(*region[:-1], blocks)])

    def restated(self, spec: TensorSpec, params: Params) -> CodecSpec | None:
        """As integers with scales along rows, those with a zero in the middle as signed ones; float4 as `mx`."""
        if self.id in GGML_MX:
            return CodecSpec("mx", GGML_MX[self.id])
        form = dict(GGML_AFFINE.get(self.id, {}))
        if form.pop("zero", 0):
            form["signed"] = True
        return CodecSpec("affine", form) if form else None

    def from_codes(
        self, codes: Codes, spec: TensorSpec, params: Params
    ) -> tuple[dict[str, np.ndarray], Exactness] | None:
        home = _CODES.get(self.id)
        made = home.blocks(self.id, codes) if home else None
        return None if made is None else ({"data": made}, Exactness("values", "f32"))

    def holds(self, codes: Codes, spec: TensorSpec, params: Params) -> Exactness | None:
        home = _CODES.get(self.id)
        return Exactness("values", "f32") if home and home.holds(self.id, codes) else None

    def _cannot_encode(self) -> CodecError:
        can = ", ".join(name for name, block in BLOCKS.items() if block.encode)
        return CodecError(f"{self.id} is decoded only", code=ErrorCode.ENCODE, hint=f"Encoders here: {can}.")
