"""Microscaling: float4 values in blocks of 32, each with a power of two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from squish_core.api import Codec, CodecError, Params, Parts, Region, TensorSpec

if TYPE_CHECKING:
    import numpy as np

BLOCK = 32


class Mx(Codec):
    """`e2m1 * 2**(scale - 127)` in float32, blocks of 32 along the last axis.

    Parts: `data` u8 [..., in / 2], the even element in the low nibble; `scale` f8_e8m0 [..., in / 32] (255 is NaN).
    Source: OCP Microscaling Formats 1.0; uqff-formats, section 4.
    """

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        if not spec.shape or spec.shape[-1] % BLOCK:
            raise CodecError(
                "the blocks do not divide the rows", code="shape",
                expected=f"a last dimension divisible by {BLOCK}", found=f"shape {list(spec.shape)}",
            )  # fmt: skip
        *lead, last = spec.shape
        return {"data": ("u8", (*lead, last // 2)), "scale": ("f8_e8m0", (*lead, last // BLOCK))}

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        return (*(1 for _ in spec.shape[1:]), BLOCK)

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        import numpy as np

        *lead, last = region
        packed = parts["data"][(*lead, slice(last.start // 2, last.stop // 2))]
        scale = parts["scale"][(*lead, slice(last.start // BLOCK, last.stop // BLOCK))]
        np.take(_pairs(), packed, axis=0, out=out.reshape(*packed.shape, 2), mode="clip")
        blocks = out.reshape(*scale.shape, BLOCK)
        with np.errstate(over="ignore", invalid="ignore"):
            blocks *= scale.astype(np.float32)[..., None]


def _pairs() -> np.ndarray:
    """The two values of each byte, f32 [256, 2]."""
    import numpy as np

    half = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    values = np.concatenate([half, -half])
    codes = np.arange(256)
    return np.stack([values[codes & 15], values[codes >> 4]], axis=-1)
