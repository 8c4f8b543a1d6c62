"""ASTC: a matrix as a one-channel texture in 16-byte blocks of any footprint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from math import gcd, prod
from typing import Any

import astc_encoder
import numpy as np
from astc_encoder.enum import ASTCProfile, ASTCQualityPreset, ASTCType

from squish_core.api import Codec, CodecError, ErrorCode, Params, Parts, Region, TensorSpec, decode_all

FOOTPRINTS = {
    f"{x}x{y}": (x, y)
    for x, y in (
        (4, 4),
        (5, 4),
        (5, 5),
        (6, 5),
        (6, 6),
        (8, 5),
        (8, 6),
        (8, 8),
        (10, 5),
        (10, 6),
        (10, 8),
        (10, 10),
        (12, 10),
        (12, 12),
    )
}
QUALITIES = ("fastest", "fast", "medium", "thorough")
_SLAB = 1 << 18
"""Texels per library call, with four channels each."""
_CONTEXTS = threading.local()  # contexts are not thread-safe


class Astc(Codec):
    """`value = scale * texel + zero` in float32; texels are the red channel, 0 to 1, in float16.

    Part `blocks` u8 (block rows, blocks per row, 16): the width is the last axis, the height all others combined.
    Parameters: `footprint` ("6x6": width by height), `scale`, `zero`; for encoding also `quality`.

    Source: Khronos Data Format Specification, ASTC, LDR profile; SQUIZD P5.
    """

    def bind(self) -> None:
        self.footprint = _footprint(self.params)  # width and height of a block

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        (x, y), (rows, columns) = self.footprint, _matrix(spec.shape)
        return {"blocks": ("u8", (-(-rows // y), -(-columns // x), 16))}

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        x, y = self.footprint
        if len(spec.shape) < 2:
            return (x,) * len(spec.shape)
        return (y // gcd(y, prod(spec.shape[1:-1])), *(None,) * (len(spec.shape) - 2), x)

    def encode_grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        """Return complete rows of blocks."""
        return (*self.grain(spec)[:-1], None) if spec.shape else ()

    @classmethod
    def params_for(cls, spec: TensorSpec, options: Params) -> Params:
        complete = {"footprint": "6x6", "quality": "fast", **options}
        if set(complete) != {"footprint", "quality"} or complete["quality"] not in QUALITIES:
            raise CodecError(
                "invalid astc parameters",
                expected=f"footprint, and quality one of {', '.join(QUALITIES)}",
                found=", ".join(f"{key}={value}" for key, value in options.items()),
                code=ErrorCode.PARAMS,
            )
        _footprint(complete)
        if not spec.elements:
            raise CodecError("ASTC cannot store an empty tensor", found=f"shape {list(spec.shape)}", code="shape")
        return complete

    def fit_params(self, panels: Callable[[], Iterator[np.ndarray]], spec: TensorSpec) -> Params:
        """Compute scale and zero: texel 0 is the minimum, 1 the maximum."""
        ends = [(float(panel.min()), float(panel.max())) for panel in panels()]
        low, high = np.float32(np.min(ends)), np.float32(np.max(ends))
        with np.errstate(over="ignore", invalid="ignore"):
            scale = high - low
        if not np.isfinite(scale):
            raise CodecError(
                "ASTC cannot encode non-finite values or a range beyond float32",
                found=f"{low} to {high}",
                code=ErrorCode.RANGE,
                hint="Keep this tensor unquantized, or fix its values first.",
            )
        return {**self.params, "scale": float(scale) or 1.0, "zero": float(low)}

    def encode(self, panel: np.ndarray, *, activations: np.ndarray | None = None) -> dict[str, np.ndarray]:
        rows, columns = _matrix(panel.shape)
        texels = np.zeros((rows, columns, 4), np.float32)
        scale, zero = np.float32(self.params["scale"]), np.float32(self.params["zero"])
        texels[..., 0] = (panel.reshape(rows, columns) - zero) / scale
        context = _context(self.footprint, self.params["quality"])
        image = astc_encoder.ASTCImage(ASTCType.F32, columns, rows, 1, texels.tobytes())
        blocks = context.compress(image, astc_encoder.ASTCSwizzle.from_str("RRR1"))
        shape = self.parts(TensorSpec(name="", shape=panel.shape, dtype="f32"))["blocks"][1]
        return {"blocks": np.frombuffer(blocks, np.uint8).reshape(shape)}

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        (x, y), (rows, columns) = self.footprint, _ranges(region, spec.shape)
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
                        "invalid block: ASTC error color [P5]",
                        part="blocks",
                        code="P5",
                        found=f"in rows {top} to {down.stop}, columns {left} to {across.stop}",
                    )
                panel = matrix[top - rows.start : down.stop - rows.start, left - columns.start :][:, : texels.shape[1]]
                np.multiply(texels, np.float32(self.params["scale"]), out=panel)
                panel += np.float32(self.params["zero"])

    def check_parts(self, parts: Parts, spec: TensorSpec) -> None:
        decode_all(self, parts, spec)


def _texels(blocks: np.ndarray, footprint: tuple[int, int], rows: int, columns: int) -> np.ndarray:
    """Decode the red channel of blocks to float32; invalid blocks become NaN."""
    image = astc_encoder.ASTCImage(ASTCType.F16, columns, rows)
    context = _context(footprint, "fastest")
    decoded = context.decompress(np.ascontiguousarray(blocks).tobytes(), image, astc_encoder.ASTCSwizzle())
    return np.frombuffer(decoded.data, np.float16).reshape(rows, columns, 4)[..., 0].astype(np.float32)


def _context(footprint: tuple[int, int], quality: str) -> Any:
    """Return the library context for a footprint, cached per thread."""
    contexts: dict[Any, Any] = _CONTEXTS.__dict__
    if (footprint, quality) not in contexts:
        preset = ASTCQualityPreset[quality.upper()]
        contexts[footprint, quality] = astc_encoder.ASTCContext(
            astc_encoder.ASTCConfig(ASTCProfile.LDR, *footprint, quality=preset)
        )
    return contexts[footprint, quality]


def _footprint(params: Params) -> tuple[int, int]:
    name = params.get("footprint")
    if type(name) is not str or name not in FOOTPRINTS:
        raise CodecError("unknown ASTC footprint", expected=", ".join(FOOTPRINTS), found=repr(name), code="footprint")
    return FOOTPRINTS[name]


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    return (prod(shape[:-1]), shape[-1]) if shape else (1, 1)


def _ranges(region: Region, shape: tuple[int, ...]) -> tuple[range, range]:
    """Return the texture rows and columns of a region."""
    if len(shape) < 2:
        return range(1), range(region[0].start, region[0].stop) if shape else range(1)
    inner = prod(shape[1:-1])
    return range(region[0].start * inner, region[0].stop * inner), range(region[-1].start, region[-1].stop)
