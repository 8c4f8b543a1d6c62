"""Microscaling: float4 or float8 values in blocks, each with a small float as its scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from squish_core.api import Codec, CodecError, Params, Parts, Region, TensorSpec

from .float8 import table_of

if TYPE_CHECKING:
    import numpy as np

_LEGAL: dict[str, tuple[Any, ...]] = {
    "element": ("f4_e2m1", "f8_e4m3", "f8_e5m2"),
    "block_size": (32, 16),
    "scale_dtype": ("f8_e8m0", "f8_e4m3"),
    "global_scale": ("none", "multiply", "divide"),
}


class Mx(Codec):
    """`element * scale` in float32, one scale for each block of `block_size` along the last axis.

    Parts: `data`, u8 [..., in / 2] with the even element in the low nibble for f4_e2m1, else [..., in]; `scale`
    [..., in / block_size]; `global_scale` f32 [], which multiplies or divides the scales first. Parameters:

    element       f4_e2m1  f4_e2m1 f8_e4m3 f8_e5m2
    block_size    32       32 16
    scale_dtype   f8_e8m0  f8_e8m0 (a power of two; 255 is NaN), f8_e4m3
    global_scale  none     none; multiply (ModelOpt's NVFP4); divide (that of compressed-tensors)

    Sources: OCP Microscaling Formats 1.0; uqff-formats, section 4; MLX, compressed-tensors and ModelOpt checkpoints.
    """

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        element, block, scale, factor = _checked(params)
        if not spec.shape or spec.shape[-1] % block:
            raise CodecError(
                "the blocks do not divide the rows", code="shape",
                expected=f"a last dimension divisible by {block}", found=f"shape {list(spec.shape)}",
            )  # fmt: skip
        *lead, last = spec.shape
        made = {"data": ("u8", (*lead, last // 2)) if element == "f4_e2m1" else (element, spec.shape)}
        made["scale"] = (scale, (*lead, last // block))
        return made if factor == "none" else {**made, "global_scale": ("f32", ())}

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        return (*(1 for _ in spec.shape[1:]), _checked(params)[1])

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        import numpy as np

        element, block, _, factor = _checked(params)
        table = _pairs() if element == "f4_e2m1" else table_of(element)
        width = table.ndim  # elements of a byte
        *lead, last = region
        packed = parts["data"][(*lead, slice(last.start // width, last.stop // width))].view(np.uint8)
        scale = parts["scale"][(*lead, slice(last.start // block, last.stop // block))].astype(np.float32)
        np.take(table, packed, axis=0, out=out.reshape(*packed.shape, 2) if width == 2 else out, mode="clip")
        blocks = out.reshape(*scale.shape, block)
        with np.errstate(all="ignore"):
            if factor != "none":
                whole = np.float32(parts["global_scale"][...])
                scale = scale * whole if factor == "multiply" else scale / whole
            blocks *= scale[..., None]

    def encode(
        self, panel: np.ndarray, params: Params, *, stats: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """The nearest codes under the largest power of two that keeps a block's maximum below 2 * 6: saturating."""
        import numpy as np

        block = _checked(params)[1]
        blocks = np.ascontiguousarray(panel, np.float32).reshape(*panel.shape[:-1], -1, block)
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
            raise CodecError("mx is encoded without parameters (MXFP4)", found=", ".join(params), code="params")
        self.parts(spec, params)
        return params


def _checked(params: Params) -> tuple[Any, ...]:
    """Element, block size, scale dtype, global scale; CodecError where a parameter is none of the legal ones."""
    chosen = {name: legal[0] for name, legal in _LEGAL.items()} | dict(params)
    for name, value in chosen.items():
        if value not in _LEGAL.get(name, ()):
            legal = " or ".join(map(str, _LEGAL.get(name, _LEGAL)))
            raise CodecError(f"mx cannot take this {name}", expected=legal, found=repr(value)[:80], code="params")
    return tuple(chosen.values())


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
