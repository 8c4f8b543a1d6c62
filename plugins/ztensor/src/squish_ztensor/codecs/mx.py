"""OCP microscaling of zTensor v2: elements in one part, a power of two per block in another."""

from __future__ import annotations

from math import lcm

import numpy as np

from squish_core.api import Codec, CodecError, CodeLayout, Codes, ErrorCode, Params, Parts, Region, TensorSpec, dtypes


class AxisMx(Codec):
    """`2^(e-127) * element` in float32; e = 255 is NaN. Source: zTensor v2 `zt.mx/1`; OCP MX 1.0.

    Unlike `mx` of squish-codecs, which is not needed to read zTensor: blocks of any size along any axis, int8 elements,
    no encoder. Where both can store a tensor, they declare the same code layout.

    Parameters: `block_size` elements along `axis` share an exponent; `dtype` f4_e2m1 (two per byte, low nibble first),
    f8_e4m3, f8_e5m2 or i8. Parts: `data`, `scales`.
    """

    @classmethod
    def params_for(cls, spec: TensorSpec, options: Params) -> Params:
        raise CodecError(
            "zt.mx only decodes; encode with the codec mx",
            tensor=spec.name,
            expected="mxfp4, mxfp8 or mx:...",
            code=ErrorCode.ENCODE,
        )

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        shape, axis = spec.shape, self.params["axis"]
        grid = (*shape[:axis], shape[axis] // self.params["block_size"], *shape[axis + 1 :])
        packed = self.params["dtype"] == "f4_e2m1"
        data = ("u8", (*shape[:-1], shape[-1] // 2)) if packed else (self.params["dtype"], shape)
        return {"data": data, "scales": ("f8_e8m0", grid)}

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        steps: list[int | None] = [1] * len(spec.shape)
        if self.params["dtype"] == "f4_e2m1":
            steps[-1] = 2
        steps[self.params["axis"]] = lcm(steps[self.params["axis"]] or 1, self.params["block_size"])
        return tuple(steps)

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        axis, block = self.params["axis"], self.params["block_size"]
        span = region[axis]
        grid = (*region[:axis], slice(span.start // block, span.stop // block), *region[axis + 1 :])
        if self.params["dtype"] == "f4_e2m1":
            packed = parts["data"][(*region[:-1], slice(region[-1].start // 2, region[-1].stop // 2))]
            codes = np.stack([packed & 15, packed >> 4], -1).reshape(out.shape)
            elements = codes.view(dtypes.to_numpy("f4_e2m1")).astype(np.float32)
        else:
            elements = parts["data"][region].astype(np.float32)
        scales = parts["scales"][grid].astype(np.float32)
        np.multiply(elements, np.repeat(scales, block, axis), out=out)

    def code_layout(self, spec: TensorSpec) -> CodeLayout | None:
        """Return the layout of floats in blocks along rows."""
        if self.params["axis"] != len(spec.shape) - 1 or self.params["dtype"] == "i8":
            return None
        group = (*(1 for _ in spec.shape[1:]), self.params["block_size"])
        if self.params["dtype"] != "f4_e2m1":
            return CodeLayout(bits=8, group=group, scale_dtype="f8_e8m0", table=self.params["dtype"])
        table = np.arange(16, dtype=np.uint8).view(dtypes.to_numpy("f4_e2m1")).astype(np.float32)
        return CodeLayout(bits=4, group=group, scale_dtype="f8_e8m0", table=tuple(table.tolist()))

    def codes(self, parts: Parts, spec: TensorSpec, region: Region) -> Codes | None:
        layout = self.code_layout(spec)
        if layout is None:
            return None
        *lead, last = region
        block, shape = self.params["block_size"], tuple(part.stop - part.start for part in region)
        scale = parts["scales"][(*lead, slice(last.start // block, last.stop // block))]
        if layout.bits == 8:
            return Codes(layout=layout, shape=shape, scale=scale, unpack=lambda: parts["data"][region].view(np.uint8))
        packed = (*lead, slice(last.start // 2, last.stop // 2))

        def unpack() -> np.ndarray:
            pairs = parts["data"][packed]
            return np.stack([pairs & 15, pairs >> 4], -1).reshape(shape)

        return Codes(layout=layout, shape=shape, scale=scale, unpack=unpack, pack=lambda: parts["data"][packed])
