"""ASTC: a matrix as a texture of one channel, in blocks of 16 bytes whatever their footprint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from math import gcd, prod
from typing import Any

import astc_encoder
import numpy as np
from astc_encoder.enum import ASTCProfile, ASTCQualityPreset, ASTCType

from squish_core.api import Codec, CodecError, ErrorCode, Params, Parts, Region, TensorSpec, decode_all

FOOTPRINTS = {
    f"{x}x{y}": (x, y)
    for x, y in (
        (4, 4), (5, 4), (5, 5), (6, 5), (6, 6), (8, 5), (8, 6), (8, 8), (10, 5), (10, 6), (10, 8), (10, 10),
        (12, 10), (12, 12),
    )
}  # fmt: skip
QUALITIES = ("fastest", "fast", "medium", "thorough")
_SLAB = 1 << 18
"""Texels that go through the library at a time, with four channels each."""
_HELD = threading.local()  # a context serves one thread


class Astc(Codec):
    """`value = scale * texel + zero` in float32; texels are the red channel, 0 to 1, with the precision of float16.

    Part `blocks` u8 (rows of blocks, blocks in a row, 16): width is the last axis, height all others together.
    Parameters: `footprint` ("6x6": width by height), `scale`, `zero`; when encoding also `quality`.

    Source: Khronos Data Format Specification, ASTC, LDR profile; SQUIZD P5.
    """

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        (x, y), (rows, columns) = _footprint(params), _matrix(spec.shape)
        return {"blocks": ("u8", (-(-rows // y), -(-columns // x), 16))}

    def grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        x, y = _footprint(params)
        if len(spec.shape) < 2:
            return (x,) * len(spec.shape)
        return (y // gcd(y, prod(spec.shape[1:-1])), *(None,) * (len(spec.shape) - 2), x)

    def encode_grain(self, spec: TensorSpec, params: Params) -> tuple[int | None, ...]:
        """Whole rows of blocks."""
        return (*self.grain(spec, params)[:-1], None) if spec.shape else ()

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        wanted = {"footprint": "6x6", "quality": "fast", **params}
        if set(wanted) != {"footprint", "quality"} or wanted["quality"] not in QUALITIES:
            raise CodecError(
                "astc takes a footprint and a quality", expected=f"quality one of {', '.join(QUALITIES)}",
                found=", ".join(f"{key}={value}" for key, value in params.items()), code=ErrorCode.PARAMS,
            )  # fmt: skip
        _footprint(wanted)
        if not spec.elements:
            raise CodecError("a texture has no area", found=f"shape {list(spec.shape)}", code="shape")
        return wanted

    def fit_params(self, panels: Callable[[], Iterator[np.ndarray]], spec: TensorSpec, params: Params) -> Params:
        """Scale and zero: black is the smallest value, white the largest."""
        ends = [(float(panel.min()), float(panel.max())) for panel in panels()]
        low, high = np.float32(np.min(ends)), np.float32(np.max(ends))
        with np.errstate(over="ignore", invalid="ignore"):
            scale = high - low
        if not np.isfinite(scale):
            raise CodecError(
                "values that are not finite, or too far apart, make no texture", found=f"{low} to {high}",
                code=ErrorCode.RANGE, hint="Keep this tensor, or repair it first.",
            )  # fmt: skip
        return {**params, "scale": float(scale) or 1.0, "zero": float(low)}

    def encode(
        self, panel: np.ndarray, params: Params, *, stats: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        rows, columns = _matrix(panel.shape)
        texels = np.zeros((rows, columns, 4), np.float32)
        texels[..., 0] = (panel.reshape(rows, columns) - np.float32(params["zero"])) / np.float32(params["scale"])
        context = _context(_footprint(params), params["quality"])
        image = astc_encoder.ASTCImage(ASTCType.F32, columns, rows, 1, texels.tobytes())
        made = context.compress(image, astc_encoder.ASTCSwizzle.from_str("RRR1"))
        shape = self.parts(TensorSpec(name="", shape=panel.shape, dtype="f32"), params)["blocks"][1]
        return {"blocks": np.frombuffer(made, np.uint8).reshape(shape)}

    def decode(self, parts: Parts, spec: TensorSpec, params: Params, *, region: Region, out: np.ndarray) -> None:
        (x, y), (rows, columns) = _footprint(params), _ranges(region, spec.shape)
        matrix = out.reshape(len(rows), len(columns))
        wide = max(1, _SLAB // (x * y))
        high = max(1, wide // -(-len(columns) // x))
        for top in range(rows.start, rows.stop, high * y):
            down = slice(top, min(top + high * y, rows.stop))
            for left in range(columns.start, columns.stop, wide * x):
                across = slice(left, min(left + wide * x, columns.stop))
                blocks = parts["blocks"][top // y : -(-down.stop // y), left // x : -(-across.stop // x)]
                texels = _texels(blocks, (x, y), down.stop - top, across.stop - left)
                if np.isnan(texels).any():
                    raise CodecError(
                        "a block has the error color [P5]", part="blocks", code="P5",
                        found=f"in rows {top} to {down.stop}, columns {left} to {across.stop}",
                    )  # fmt: skip
                panel = matrix[top - rows.start : down.stop - rows.start, left - columns.start :][:, : texels.shape[1]]
                np.multiply(texels, np.float32(params["scale"]), out=panel)
                panel += np.float32(params["zero"])

    def check_parts(self, parts: Parts, spec: TensorSpec, params: Params) -> None:
        decode_all(self, parts, spec, params)


def _texels(blocks: np.ndarray, footprint: tuple[int, int], rows: int, columns: int) -> np.ndarray:
    """The red channel of some blocks, in float32; NaN where a block has the error color."""
    image = astc_encoder.ASTCImage(ASTCType.F16, columns, rows)
    context = _context(footprint, "fastest")
    made = context.decompress(np.ascontiguousarray(blocks).tobytes(), image, astc_encoder.ASTCSwizzle())
    return np.frombuffer(made.data, np.float16).reshape(rows, columns, 4)[..., 0].astype(np.float32)


def _context(footprint: tuple[int, int], quality: str) -> Any:
    """The library's tables for a footprint, made once in each thread."""
    held: dict[Any, Any] = _HELD.__dict__
    if (footprint, quality) not in held:
        preset = ASTCQualityPreset[quality.upper()]
        held[footprint, quality] = astc_encoder.ASTCContext(
            astc_encoder.ASTCConfig(ASTCProfile.LDR, *footprint, quality=preset)
        )
    return held[footprint, quality]


def _footprint(params: Params) -> tuple[int, int]:
    name = params.get("footprint")
    if type(name) is not str or name not in FOOTPRINTS:
        raise CodecError(
            "ASTC has no such footprint", expected=", ".join(FOOTPRINTS), found=repr(name), code="footprint"
        )
    return FOOTPRINTS[name]


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    return (prod(shape[:-1]), shape[-1]) if shape else (1, 1)


def _ranges(region: Region, shape: tuple[int, ...]) -> tuple[range, range]:
    """Rows and columns of the texture that a region covers."""
    if len(shape) < 2:
        return range(1), range(region[0].start, region[0].stop) if shape else range(1)
    inner = prod(shape[1:-1])
    return range(region[0].start * inner, region[0].stop * inner), range(region[-1].start, region[-1].stop)
