"""ASTC blocks decoded by the GPU's texture units, by PyObjC's `Metal`: MLX has no textures. Not yet tried on a Mac.

Source: Apple's documentation of the Metal framework; Metal Shading Language Specification, "Texture Functions".
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from squish_core.api import BoundEncoding, CodecError, SquishError, dtypes, install_command

SIDE = 2048
"""Texels per side of a texture at most: 32 MB of results. Devices accept 16384."""
KERNEL = """
#include <metal_stdlib>
kernel void texels(metal::texture2d<half> image [[texture(0)]], device half4* values [[buffer(0)]],
                   uint2 at [[thread_position_in_grid]]) {
    values[size_t(at.y) * image.get_width() + at.x] = image.read(at);
}
"""
BLOCK = bytes.fromhex("532882e0b01ee10e00005f63115f6311")
"""A 4x4 block of the LDR profile with one channel and 16 different texels."""
TEXELS = np.array(
    [10244, 11757, 12523, 13025, 13447, 13698, 13948, 14199, 14396, 14520, 14644, 14768, 14906, 15031, 15155, 15279],
    np.uint16,
)
"""Its texels, as bits of half precision: a GPU that decodes to eight bits has others."""


class TextureUnits:
    """The texture units of the default device; SquishError if it has none for ASTC."""

    def __init__(self) -> None:
        import Metal

        self._metal: Any = Metal
        self._device = Metal.MTLCreateSystemDefaultDevice()
        if self._device is None or not self._device.supportsFamily_(Metal.MTLGPUFamilyApple2):
            raise SquishError("the GPU has no ASTC textures", code="unavailable")
        library = _result(self._device.newLibraryWithSource_options_error_(KERNEL, None, None))
        function = library.newFunctionWithName_("texels")
        self._pipeline = _result(self._device.newComputePipelineStateWithFunction_error_(function, None))
        self._queue = self._device.newCommandQueue()

    def texels(self, blocks: np.ndarray, footprint: str, rows: int, columns: int) -> np.ndarray:
        """Decode blocks (block rows, blocks per row, 16): f16 (rows, columns, 4)."""
        import objc

        metal = self._metal
        pixels = getattr(metal, f"MTLPixelFormatASTC_{footprint}_LDR")
        with objc.autorelease_pool():
            descriptor = metal.MTLTextureDescriptor.texture2DDescriptorWithPixelFormat_width_height_mipmapped_(
                pixels, columns, rows, False
            )
            descriptor.setUsage_(metal.MTLTextureUsageShaderRead)
            descriptor.setStorageMode_(metal.MTLStorageModeShared)
            texture = self._device.newTextureWithDescriptor_(descriptor)
            texture.replaceRegion_mipmapLevel_withBytes_bytesPerRow_(
                metal.MTLRegionMake2D(0, 0, columns, rows), 0, blocks.tobytes(), 16 * blocks.shape[1]
            )
            size = 8 * rows * columns
            values = self._device.newBufferWithLength_options_(size, metal.MTLResourceStorageModeShared)
            commands = self._queue.commandBuffer()
            encoder = commands.computeCommandEncoder()
            encoder.setComputePipelineState_(self._pipeline)
            encoder.setTexture_atIndex_(texture, 0)
            encoder.setBuffer_offset_atIndex_(values, 0, 0)
            encoder.dispatchThreads_threadsPerThreadgroup_(
                metal.MTLSizeMake(columns, rows, 1), metal.MTLSizeMake(8, 8, 1)
            )
            encoder.endEncoding()
            commands.commit()
            commands.waitUntilCompleted()
            _result((commands, commands.error()))
            texels = np.frombuffer(values.contents().as_buffer(size), np.float16).copy()
        return texels.reshape(rows, columns, 4)


@cache
def probe() -> TextureUnits | str:
    """Return texture units that decode a known block to its texels, else why they are not used."""
    try:
        units = TextureUnits()
        texels = units.texels(np.frombuffer(BLOCK, np.uint8).reshape(1, 1, 16), "4x4", 4, 4)
    except ImportError as error:
        return f"{error}: {install_command('squish-metal', extra='[astc]')}"
    except Exception as error:  # PyObjC raises plain exceptions
        return f"Metal failed: {error}"
    if not np.array_equal(texels[..., 0].ravel().view(np.uint16), TEXELS):
        return "the GPU decodes a known block to other texels"
    return units


def decode(units: TextureUnits, bound: BoundEncoding) -> np.ndarray:
    """Decode a tensor of the codec `astc` to float32; CodecError for an invalid block."""
    shape, params = bound.spec.shape, bound.codec.params
    rows, columns = dtypes.count(shape[:-1]), shape[-1] if shape else 1
    x, y = map(int, params["footprint"].split("x"))
    values = np.empty((rows, columns), np.float32)
    for top in range(0, rows, SIDE // y * y):
        for left in range(0, columns, SIDE // x * x):
            panel = values[top : top + SIDE // y * y, left : left + SIDE // x * x]
            height, width = panel.shape
            blocks = bound.parts["blocks"][top // y : -(-(top + height) // y), left // x : -(-(left + width) // x)]
            texels = units.texels(np.asarray(blocks), params["footprint"], height, width)
            if _has_error_color(texels):
                raise CodecError(
                    "invalid block: ASTC error color [P5]",
                    part="blocks",
                    code="P5",
                    found=f"in rows {top} to {top + height}, columns {left} to {left + width}",
                )
            np.multiply(texels[..., 0], np.float32(params["scale"]), out=panel)
            panel += np.float32(params["zero"])
    return values.reshape(shape)


def _has_error_color(texels: np.ndarray) -> bool:
    """Return whether a texel is the error color, NaN or magenta; weights are gray."""
    red, green, blue = (texels[..., channel] for channel in range(3))
    return bool((np.isnan(red) | ((red == 1) & (green == 0) & (blue == 1))).any())


def _result(answer: tuple[Any, Any]) -> Any:
    """Return the result of a Metal call; SquishError with its error."""
    result, error = answer
    if result is None or error is not None:
        raise SquishError(str(error), code="unavailable")
    return result
