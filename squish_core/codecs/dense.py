"""The dense codec: unencoded values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from squish_core import dtypes
from squish_core.codecs.base import Codec, Params, Parts, Region
from squish_core.codes import ErrorCode
from squish_core.errors import CodecError
from squish_core.model import Exactness, TensorSpec

if TYPE_CHECKING:
    import numpy as np


class Dense(Codec):
    """Row-major values in the tensor's dtype, or in `dtype` (for a second encoding, or as a target). Dtypes below 8
    bits are packed."""

    id = "dense"

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        dtype = self.value_dtype(spec)
        if dtypes.bits(dtype) < 8:
            return {"data": ("u8", (dtypes.nbytes(dtype, spec.shape),))}
        return {"data": (dtype, spec.shape)}

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        packed = dtypes.bits(self.value_dtype(spec)) < 8
        return (None if packed else 1,) * len(spec.shape)

    def value_dtype(self, spec: TensorSpec) -> str:
        return str(self.params.get("dtype", spec.dtype))

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        dtype = self.value_dtype(spec)
        if dtypes.bits(dtype) < 8:
            out[...] = unpack(parts["data"][:], dtype, dtypes.count(spec.shape)).reshape(spec.shape)
            return
        values = parts["data"][region]
        if dtype == "bool" and values.size and int(values.view("u1").max()) > 1:
            raise CodecError("a bool is not 0 or 1", found=int(values.view("u1").max()), code="bool")
        out[...] = values

    def check_parts(self, parts: Parts, spec: TensorSpec) -> None:
        dtype = self.value_dtype(spec)
        if dtype == "bool" or dtypes.bits(dtype) < 8:
            from squish_core.codecs.regions import decode_all  # `regions` imports codecs

            decode_all(self, parts, spec)

    def encode(self, panel: np.ndarray, *, activations: np.ndarray | None = None) -> dict[str, np.ndarray]:
        import numpy as np

        with np.errstate(over="ignore"):  # the core reports overflow
            return {"data": dtypes.cast(panel, self.params.get("dtype") or dtypes.from_numpy(panel.dtype))}

    @classmethod
    def params_for(cls, spec: TensorSpec, options: Params) -> Params:
        if unknown := [name for name in options if name != "dtype"]:
            found = ", ".join(unknown)
            raise CodecError(
                f"dense has no parameter {unknown[0]!r}", expected="dtype", found=found, code=ErrorCode.PARAMS
            )
        dtype = options.get("dtype", spec.dtype)
        if dtype not in dtypes.FLOATS or dtypes.bits(dtype) < 8:
            raise CodecError(
                "dense encoding needs a float dtype of at least 8 bits",
                found=repr(dtype),
                code=ErrorCode.PARAMS if options else "dtype",
            )
        return {"dtype": dtype}

    @property
    def error_bound(self) -> Exactness:
        return Exactness("values", "f32") if self.params.get("dtype") in ("f32", "f64") else Exactness("bounded")


def unpack(data: np.ndarray, dtype: str, count: int) -> np.ndarray:
    """Unpack elements of a dtype below 8 bits to one per byte; the first element is in the lowest bits."""
    import numpy as np

    width = dtypes.bits(dtype)
    spare = -count * width % 8
    if spare and int(data[-1]) >> (8 - spare):
        raise CodecError(
            "the bits after the last element are not zero", found=f"byte 0x{int(data[-1]):02x}", code="spare"
        )
    stream = np.unpackbits(data, bitorder="little", count=count * width).reshape(-1, width)
    codes = np.packbits(stream, axis=-1, bitorder="little").reshape(-1)
    if dtype.startswith("i"):
        return ((codes.astype(np.int8) << (8 - width)) >> (8 - width)).astype(dtypes.to_numpy(dtype))
    if dtype.startswith("u"):
        return codes.astype(dtypes.to_numpy(dtype))
    return codes.view(dtypes.to_numpy(dtype))
