"""NVFP4 blocks with a global scale: GGUF's `NAME.weight` and `NAME.scale`."""

from __future__ import annotations

from typing import Any

import numpy as np
from attrs import evolve
from squish_codecs.api import Mx, convert_global_scale, split_global_scale

from squish_core.api import CodeLayout, Codes, Exactness, Params, Parts, Region, TensorSpec, dtypes

from . import float4
from .blocks import BLOCKS, Block
from .codec import GgmlBlocks
from .small import E4M3

NVFP4 = "ggml.nvfp4"
SCALE = "global_scale"
GROUP = 16
_MX: Params = {"block_size": GROUP, "scale_dtype": "f8_e4m3", "global_scale": "multiply"}
"""Parameters of `mx` for the same codes and scales."""
_ONE = 0x38
"""1 as a scale of a block."""


class ScaledNvfp4(GgmlBlocks):
    """NVFP4 blocks in `data`, and `global_scale` f32, which is multiplied with the scales of the blocks: [], or one
    for each matrix of a stack. The encoder is that of `mx` with the same scales, as in ModelOpt's checkpoints.

    Source: llama.cpp's converter and loader, which keep the scale in a tensor `NAME.scale`, f32 [1] or [experts].
    """

    @classmethod
    def block_type(cls) -> Block:
        return BLOCKS["nvfp4"]

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {**super().parts(spec), SCALE: ("f32", spec.shape[:-2])}

    def encode_grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        """Whole matrices, each with one global scale."""
        return (*(1 for _ in spec.shape[:-2]), *(None for _ in spec.shape[-2:]))

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        """Multiply both scales first and round once, as `mx` does."""
        blocks = self._blocks(parts, region)
        groups = self.block.elements // GROUP
        with np.errstate(all="ignore"):
            steps = (2 * E4M3)[blocks[..., :groups]] * self._factor(parts, region)[..., None, None]
        blocks[..., :groups] = _ONE
        rows = dtypes.count(out.shape[:-1])
        self.block.decode(blocks.reshape(rows, -1, self.block.nbytes), out.reshape(rows, out.shape[-1]))
        values = out.reshape(*steps.shape, GROUP)
        with np.errstate(all="ignore"):
            values *= steps[..., None]

    def encode(self, panel: np.ndarray, *, activations: np.ndarray | None = None) -> dict[str, np.ndarray]:
        lead, matrix = panel.shape[:-2], (1, *panel.shape)[-2:]
        matrices = np.ascontiguousarray(panel, np.float32).reshape(dtypes.count(lead), *matrix)
        data = np.empty((len(matrices), matrix[0], matrix[1] // self.block.elements * self.block.nbytes), np.uint8)
        scales = np.empty(len(matrices), np.float32)
        spec, region = TensorSpec(name="", shape=matrix, dtype="f32"), tuple(slice(0, size) for size in matrix)
        codec = Mx.from_params(_MX)
        for number, values in enumerate(matrices):
            parts: Any = codec.encode(values)
            codes = codec.codes(parts, spec, region)
            assert codes is not None
            unscaled, scale = split_global_scale(codes)
            data[number], scales[number] = float4.blocks(NVFP4, unscaled), scale
        return {"data": data.reshape(*panel.shape[:-1], data.shape[-1]), SCALE: scales.reshape(lead)}

    def code_layout(self, spec: TensorSpec) -> CodeLayout:
        return evolve(float4.layout(NVFP4, spec.shape), global_scale="multiply")

    def codes(self, parts: Parts, spec: TensorSpec, region: Region) -> Codes | None:
        blocks = self._blocks(parts, region)
        codes = float4.codes(NVFP4, blocks.reshape(*blocks.shape[:-2], -1))
        layout = self.code_layout(spec)
        factor = parts[SCALE][region[:-2]]
        return codes and evolve(codes, layout=layout, global_scale=factor)

    def from_codes(self, codes: Codes, spec: TensorSpec) -> tuple[dict[str, np.ndarray], Exactness] | None:
        scale, data = _multiplier(codes), float4.blocks(NVFP4, split_global_scale(codes)[0])
        return None if data is None or scale is None else ({"data": data, SCALE: scale[0]}, scale[1])

    def holds(self, codes: Codes, spec: TensorSpec) -> Exactness | None:
        scale = _multiplier(codes)
        return scale[1] if scale is not None and float4.holds(NVFP4, split_global_scale(codes)[0]) else None

    def _blocks(self, parts: Parts, region: Region) -> np.ndarray:
        """Return a copy of the blocks of a region, u8 [..., blocks of a row, bytes of a block]."""
        block, columns = self.block, region[-1]
        first, last = columns.start // block.elements, columns.stop // block.elements
        data = np.array(parts["data"][(*region[:-1], slice(first * block.nbytes, last * block.nbytes))])
        return data.reshape(*data.shape[:-1], last - first, block.nbytes)

    def _factor(self, parts: Parts, region: Region) -> np.ndarray:
        """Return the global scales of a region, with an axis for the rows."""
        factor = np.asarray(parts[SCALE][region[:-2]], np.float32)
        return factor[..., None] if len(region) > 1 else factor


def _multiplier(codes: Codes) -> tuple[np.ndarray, Exactness] | None:
    """Return the global scale of codes as a factor, and its exactness; None without one for each matrix."""
    factor, kind = codes.global_scale, codes.layout.global_scale
    if factor is None or kind is None or factor.shape != codes.shape[:-2]:
        return None
    return convert_global_scale(factor, kind, "multiply")
