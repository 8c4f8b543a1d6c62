"""F8Q8: blocks of 32 int8 values with a float8 scale, over the flattened tensor."""

from __future__ import annotations

import math

import numpy as np
from squish_codecs.api import float8_table

from squish_core.api import Codec, CodecError, ErrorCode, Params, Parts, Region, TensorSpec, dtypes

BLOCK, BLOCK_BYTES = 32, 33
SCALE = 416  # the writer's maximum e4m3 value (e4m3 goes to 448)


class F8Q8(Codec):
    """`q * (e4m3(d) / 416)` in float32. Part `data`: u8 [blocks, 33]; a block is d, then 32 int8 values.

    Blocks cover the flattened row-major tensor; the last one is padded. Source: uqff-formats, section 4.
    """

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {"data": ("u8", (-(-spec.elements // BLOCK), BLOCK_BYTES))}

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        if not spec.shape:
            return ()
        step = BLOCK // math.gcd(BLOCK, dtypes.count(spec.shape[1:]))
        return (step, *(None for _ in spec.shape[1:]))

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        first = region[0].start * dtypes.count(spec.shape[1:]) // BLOCK if region else 0
        blocks = parts["data"][first : first - (-out.size // BLOCK)]
        scale = (float8_table("f8_e4m3") / np.float32(SCALE))[blocks[:, 0]]
        codes = blocks[:, 1:].view(np.int8)
        if out.size % BLOCK == 0:
            np.multiply(codes, scale[:, None], out=out.reshape(-1, BLOCK), dtype=np.float32)
        else:
            out.reshape(-1)[:] = (codes * scale[:, None]).reshape(-1)[: out.size]

    def encode(self, panel: np.ndarray, *, activations: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Round the scale to e4m3 first, then the codes with the rounded scale."""
        values = np.ascontiguousarray(panel, np.float32).reshape(-1)
        blocks = np.zeros((-(-values.size // BLOCK), BLOCK), np.float32)
        blocks.reshape(-1)[: values.size] = values
        largest = np.abs(blocks).max(axis=-1, initial=0)
        if not np.isfinite(largest).all():
            raise CodecError("F8Q8 cannot encode infinity and NaN", code=ErrorCode.RANGE)
        rounded_scale = np.minimum(largest / np.float32(127) * np.float32(SCALE), np.float32(SCALE))
        rounded_scale = rounded_scale.astype(dtypes.to_numpy("f8_e4m3"))
        scale = rounded_scale.astype(np.float32) / np.float32(SCALE)
        codes = np.rint(blocks / np.where(scale > 0, scale, 1)[:, None])
        data = np.empty((len(blocks), BLOCK_BYTES), np.uint8)
        data[:, 0] = rounded_scale.view(np.uint8)
        data[:, 1:] = np.clip(codes, -127, 127).astype(np.int8).view(np.uint8)
        return {"data": data}

    @classmethod
    def params_for(cls, spec: TensorSpec, options: Params) -> Params:
        if options:
            raise CodecError("uqff.f8q8 takes no parameters", found=", ".join(options), code=ErrorCode.PARAMS)
        return options
