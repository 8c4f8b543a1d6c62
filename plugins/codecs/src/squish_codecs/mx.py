"""Microscaling: float4 values in blocks of 32, each with a power of two."""

from __future__ import annotations

from collections.abc import Mapping
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

    def encode(
        self, panel: np.ndarray, params: Params, *, stats: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """The nearest codes under the largest power of two that keeps a block's maximum below 2 * 6: saturating."""
        import numpy as np

        blocks = np.ascontiguousarray(panel, np.float32).reshape(*panel.shape[:-1], -1, BLOCK)
        largest = np.abs(blocks).max(axis=-1)
        if not np.isfinite(largest).all():
            raise CodecError("infinities and NaN have no microscaled form", code="values")
        exponent = np.frexp(largest / np.float32(6))[1] - 1
        scale = np.where(largest > 0, np.clip(exponent + 127, 0, 254), 127).astype(np.uint8)
        powers = scale.view(_e8m0()).astype(np.float32)[..., None]
        # Between two values lies the bound from which on the upper one is taken.
        codes = np.searchsorted(_BOUNDS, np.abs(blocks) / powers, side="right").astype(np.uint8)
        codes |= np.signbit(blocks).astype(np.uint8) << 3
        pairs = codes.reshape(*panel.shape[:-1], -1, 2)
        return {"data": pairs[..., 0] | pairs[..., 1] << 4, "scale": scale.view(_e8m0())}

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        if params:
            raise CodecError("mx takes no parameters", found=", ".join(params), code="params")
        self.parts(spec, params)
        return params


_BOUNDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def _e8m0() -> np.dtype:
    import ml_dtypes
    import numpy as np

    return np.dtype(ml_dtypes.float8_e8m0fnu)


def _pairs() -> np.ndarray:
    """The two values of each byte, f32 [256, 2]."""
    import numpy as np

    half = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    values = np.concatenate([half, -half])
    codes = np.arange(256)
    return np.stack([values[codes & 15], values[codes >> 4]], axis=-1)
