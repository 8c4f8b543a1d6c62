"""F8Q8: blocks of 32 int8 values with a float8 scale, over the flattened tensor."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from squish_core.api import Codec, Params, Parts, Region, TensorSpec, dtypes
from squish_uqff.float8 import e4m3_values

if TYPE_CHECKING:
    import numpy as np

BLOCK, BLOCK_BYTES = 32, 33
SCALE = 416  # what the writer takes for the largest e4m3 value


class F8Q8(Codec):
    """`q * (e4m3(d) / 416)` in float32. Part `data`: u8 [blocks, 33], a block is d, then 32 of int8.

    Blocks run on over the row-major order; the last one is padded. Source: uqff-formats, section 4.
    """

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {"data": ("u8", (-(-spec.elements // BLOCK), BLOCK_BYTES))}

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        if not spec.shape:
            return ()
        step = BLOCK // math.gcd(BLOCK, dtypes.count(spec.shape[1:]))
        return (step, *(None for _ in spec.shape[1:]))

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        import numpy as np

        first = region[0].start * dtypes.count(spec.shape[1:]) // BLOCK if region else 0
        blocks = parts["data"][first : first - (-out.size // BLOCK)]
        scale = (e4m3_values() / np.float32(SCALE))[blocks[:, 0]]
        codes = blocks[:, 1:].view(np.int8)
        if out.size % BLOCK == 0:
            np.multiply(codes, scale[:, None], out=out.reshape(-1, BLOCK), dtype=np.float32)
        else:
            out.reshape(-1)[:] = (codes * scale[:, None]).reshape(-1)[: out.size]
