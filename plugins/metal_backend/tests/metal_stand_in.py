"""Stands in for PyObjC's `Metal` and `objc`: the documented calls that decode ASTC, with Arm's library as the GPU."""

from __future__ import annotations

import contextlib
import re
from types import SimpleNamespace

import astc_encoder
import numpy as np
from astc_encoder.enum import ASTCProfile, ASTCType

FOOTPRINTS = ("4x4", "5x4", "5x5", "6x5", "6x6", "8x5", "8x6", "8x8", "10x5", "10x6", "10x8", "10x10", "12x10", "12x12")
LARGEST = 16384


class Metal(SimpleNamespace):
    """The module. `fault`: "no device", "no ASTC", "compiler", "run", "eight bits" or None; `magenta`: error color."""

    def __init__(self, fault: str | None = None, magenta: bool = False) -> None:
        formats = {f"MTLPixelFormatASTC_{name}_LDR": 204 + at for at, name in enumerate(FOOTPRINTS)}
        super().__init__(
            **formats,
            MTLGPUFamilyApple2=1002,
            MTLTextureUsageShaderRead=1,
            MTLStorageModeShared=0,
            MTLResourceStorageModeShared=0,
            MTLTextureDescriptor=Descriptor,
            MTLSizeMake=lambda *size: size,
            MTLRegionMake2D=lambda x, y, width, height: ((x, y, 0), (width, height, 1)),
            textures=[],
        )
        self.fault, self.magenta = fault, magenta
        self.footprints = {value: name.split("_")[1] for name, value in formats.items()}

    def MTLCreateSystemDefaultDevice(self):
        return None if self.fault == "no device" else Device(self)


class Descriptor:
    """A texture to make."""

    @classmethod
    def texture2DDescriptorWithPixelFormat_width_height_mipmapped_(cls, pixels, width, height, mipmapped):
        assert 0 < width <= LARGEST
        assert 0 < height <= LARGEST
        assert not mipmapped
        descriptor = cls()
        descriptor.pixels, descriptor.width, descriptor.height = pixels, width, height
        return descriptor

    def setUsage_(self, usage):
        self.usage = usage

    def setStorageMode_(self, mode):
        self.mode = mode


class Device:
    """The GPU."""

    def __init__(self, metal):
        self.metal = metal

    def supportsFamily_(self, family):
        return self.metal.fault != "no ASTC"

    def newLibraryWithSource_options_error_(self, source, options, error):
        if self.metal.fault == "compiler":
            return None, "program_source:1:1: error: unknown type name"
        assert re.search(r"texture2d<half> \w+ \[\[texture\(0\)]]", source)
        assert re.search(r"device half4\* \w+ \[\[buffer\(0\)]]", source)
        names = re.findall(r"kernel void (\w+)\(", source)
        return SimpleNamespace(newFunctionWithName_=lambda name: name if name in names else None), None

    def newComputePipelineStateWithFunction_error_(self, function, error):
        assert function
        return function, None

    def newTextureWithDescriptor_(self, descriptor):
        assert (descriptor.usage, descriptor.mode) == (1, 0)
        texture = Texture(self.metal, descriptor)
        self.metal.textures.append((descriptor.width, descriptor.height))
        return texture

    def newBufferWithLength_options_(self, length, options):
        return Buffer(length)

    def newCommandQueue(self):
        return SimpleNamespace(commandBuffer=lambda: Commands(self.metal))


class Texture:
    """Compressed bytes."""

    def __init__(self, metal, descriptor):
        self.metal, self.width, self.height = metal, descriptor.width, descriptor.height
        self.footprint = tuple(map(int, metal.footprints[descriptor.pixels].split("x")))

    def replaceRegion_mipmapLevel_withBytes_bytesPerRow_(self, region, level, data, row_size):
        assert region == ((0, 0, 0), (self.width, self.height, 1))
        assert level == 0
        x, y = self.footprint
        assert row_size == -(-self.width // x) * 16
        assert len(data) == -(-self.height // y) * row_size
        self.data = data

    def values(self):
        """The texels as a GPU reads them."""
        context = astc_encoder.ASTCContext(astc_encoder.ASTCConfig(ASTCProfile.LDR, *self.footprint))
        image = astc_encoder.ASTCImage(ASTCType.F16, self.width, self.height)
        texels = np.frombuffer(context.decompress(self.data, image, astc_encoder.ASTCSwizzle()).data, np.float16).copy()
        if self.metal.magenta:
            invalid = np.isnan(texels.reshape(-1, 4)).any(axis=1)
            texels.reshape(-1, 4)[invalid] = (1, 0, 1, 1)
        if self.metal.fault == "eight bits":
            texels = (np.round(texels.astype(np.float32) * 255) / 255).astype(np.float16)
        return texels


class Buffer:
    """Memory that the CPU shares."""

    def __init__(self, length):
        self.memory = bytearray(length)

    def contents(self):
        return SimpleNamespace(as_buffer=lambda length: memoryview(self.memory)[:length])


class Commands:
    """A command buffer, which is its own encoder."""

    def __init__(self, metal):
        self.metal, self.state = metal, "recording"

    def computeCommandEncoder(self):
        return self

    def setComputePipelineState_(self, pipeline):
        assert pipeline == "texels"

    def setTexture_atIndex_(self, texture, index):
        assert index == 0
        self.texture = texture

    def setBuffer_offset_atIndex_(self, buffer, offset, index):
        assert (offset, index) == (0, 0)
        self.buffer = buffer

    def dispatchThreads_threadsPerThreadgroup_(self, grid, group):
        assert grid == (self.texture.width, self.texture.height, 1)
        assert np.prod(group) <= 1024

    def endEncoding(self):
        self.state = "encoded"

    def commit(self):
        assert self.state == "encoded"
        self.state = "committed"

    def waitUntilCompleted(self):
        assert self.state == "committed"
        self.buffer.memory[:] = self.texture.values().tobytes()

    def error(self):
        return "Caused GPU Timeout Error" if self.metal.fault == "run" else None


def objc():
    """The module `objc`."""
    return SimpleNamespace(autorelease_pool=contextlib.nullcontext)
