"""Encoders of affine codes, microscaled 4-bit floats and TCA-TBE, bit-identical to `squish_codecs`."""

from __future__ import annotations

from math import prod

import numpy as np
from squish_codecs.api import Affine, Mx, Scheme, SquizdInt2, SquizdInt4, TcaTbe, check_encodable, is_mlx_layout

from squish_core.api import BLOCK_TYPES, CodecError, Encoder, ErrorCode, Params, TensorSpec, dtypes

from . import library as native
from .layouts.base import TYPES, Array
from .library import library, threads
from .metrics import EncoderMetrics

OFFSETS = {"none": 0, "zero_point": 1, "bias": 2}
RUN = 16
"""Values per kernel step; group sizes are multiples of it."""
MAX_GROUP = {"none": 1 << 62, "mse": 256}
"""Largest group size of the compiled encoder, by search."""


class AffineEncoder(EncoderMetrics, Affine):
    """Affine codes, compiled for groups and words along rows with groups of multiples of 16; NumPy for the rest."""

    def __init__(self) -> None:
        library()

    def encode(self, panel: Array, *, activations: Array | None = None) -> dict[str, Array]:
        return encode_compiled(self.scheme, panel) or super().encode(panel, activations=activations)


class SquizdInt4Encoder(EncoderMetrics, SquizdInt4):
    """SQUIZD INT4 with the compiled affine encoder."""

    encoder_type = AffineEncoder

    def __init__(self) -> None:
        library()


class SquizdInt2Encoder(EncoderMetrics, SquizdInt2):
    """SQUIZD INT2 with the compiled affine encoder."""

    encoder_type = AffineEncoder

    def __init__(self) -> None:
        library()


class MxEncoder(EncoderMetrics, Mx):
    """Microscaled 4-bit floats, compiled; NumPy for 8-bit floats and for codes that round half away from zero."""

    halves = False
    """Whether each byte holds a code of the first eight of sixteen and one of the last eight, as in GGML's NVFP4."""

    def __init__(self) -> None:
        library()

    def largest(self, blocks: Array) -> Array:
        out = np.empty(blocks.shape[:-1], np.float32)
        values = np.require(blocks, np.float32, ["C", "A"])
        if not library().largest(values.ctypes.data, out.size, blocks.shape[-1], out.ctypes.data, threads()):
            return super().largest(blocks)  # where the values are that are not finite
        return out

    def elements(self, blocks: Array, steps: Array) -> Array:
        if self.form.element != "f4_e2m1" or self.form.scaling != "ocp":
            return super().elements(blocks, steps)
        *lead, count, size = blocks.shape
        out = np.empty((*lead, count * size // 2), np.uint8)
        values, steps = np.require(blocks, np.float32, ["C", "A"]), np.require(steps, np.float32, ["C", "A"])
        places = (values.ctypes.data, steps.ctypes.data, steps.size, size, self.halves, out.ctypes.data)
        library().encode_float4(*places, threads())
        return out


class ScaledNvfp4Encoder(EncoderMetrics, Encoder):
    """GGML's NVFP4 blocks of matrices with a global scale each, encoded as `mx` encodes them."""

    def __init__(self) -> None:
        self.mx = _Nvfp4.from_params({"block_size": 16, "scale_dtype": "f8_e4m3", "global_scale": "multiply"})

    @classmethod
    def params_for(cls, spec: TensorSpec, options: Params) -> Params:
        if options:
            raise CodecError(f"{cls.id} takes no parameters", found=", ".join(options), code=ErrorCode.PARAMS)
        return options

    def encode(self, panel: Array, *, activations: Array | None = None) -> dict[str, Array]:
        """Encode to `data`, blocks of four scales and 32 bytes of codes, and `global_scale`, f32 [matrices]."""
        elements, nbytes = BLOCK_TYPES["nvfp4"].elements, BLOCK_TYPES["nvfp4"].nbytes
        *lead, rows, columns = (1, *panel.shape)[-max(panel.ndim, 2) :]
        blocks = np.empty((prod(lead), rows, columns // elements, nbytes), np.uint8)
        scales = np.empty(len(blocks), np.float32)
        for number, matrix in enumerate(panel.reshape(-1, rows, columns)):
            parts = self.mx.encode(matrix)
            blocks[number, ..., :4] = parts["scale"].view(np.uint8).reshape(*blocks.shape[1:3], 4)
            blocks[number, ..., 4:] = parts["data"].reshape(*blocks.shape[1:3], nbytes - 4)
            scales[number] = parts["global_scale"]
        data = blocks.reshape(*panel.shape[:-1], columns // elements * nbytes)
        return {"data": data, "global_scale": scales.reshape(panel.shape[:-2])}


class _Nvfp4(MxEncoder):
    halves = True


class TcaTbeEncoder(TcaTbe):
    """TCA-TBE, encoded in one pass."""

    def __init__(self) -> None:
        library()
        super().__init__()

    def encode(self, panel: Array, *, activations: Array | None = None) -> dict[str, Array]:
        """Encode to the parts of `TcaTbe`; `high` and `full` are views of larger arrays."""
        bits = np.ascontiguousarray(panel.astype(dtypes.to_numpy("bf16"), copy=False)).view(np.uint16)
        rows, columns = (prod(panel.shape[:-1]), panel.shape[-1]) if panel.ndim else (1, 1)
        planes = np.empty((3, rows, -(-columns // 64)), np.uint64)
        high, others = np.empty(bits.size, np.uint8), np.empty(bits.size, np.uint16)
        places = (array.ctypes.data for array in (planes, high, others))
        count = library().encode_triple(bits.ctypes.data, rows, columns, self.params["base_exponent"], *places)
        parts = {f"plane{number}": plane for number, plane in enumerate(planes)}
        return {**parts, "high": high[:count], "full": others[: bits.size - count]}


def encode_compiled(scheme: Scheme, panel: Array) -> dict[str, Array] | None:
    """Encode with the compiled kernels; None for unsupported schemes and non-finite values, scales or biases."""
    check_encodable(scheme)
    layouts = scheme.parts(panel.shape)
    line = panel.size if scheme.flat else panel.shape[-1]
    size = scheme.group_size or line
    in_rows = not scheme.transposed and (scheme.group_axis, scheme.pack_axis) == (-1, -1)
    packed = scheme.packing.order == "lsb" and not line * scheme.bits % scheme.packing.width
    fits = panel.size and not size % RUN and not line % size and size <= MAX_GROUP.get(scheme.search, 0)
    if not (in_rows and packed and fits) or (scheme.offset == "zero_point" and (scheme.zero or scheme.symmetric)):
        return None
    values = np.require(panel, np.float32, ["C", "A"])
    offset_dtype = scheme.offset_dtype if scheme.offset == "bias" else "i8" if scheme.signed else "u8"
    scale = np.empty(layouts["scale"][1], dtypes.to_numpy(scheme.scale_dtype))
    offset = np.empty(scale.shape if scheme.offset != "none" else 0, dtypes.to_numpy(offset_dtype))
    data = np.empty(layouts["data"][1], dtypes.to_numpy(scheme.word))
    options = native.Affine(
        size,
        scheme.bits,
        scheme.low,
        scheme.high,
        scheme.zero,
        OFFSETS[scheme.offset],
        is_mlx_layout(scheme),
        TYPES[scheme.scale_dtype],
        TYPES[offset_dtype],
        scheme.search == "mse",
    )
    places = (array.ctypes.data for array in (data, scale, offset))
    if not library().encode_affine(options, values.ctypes.data, scale.size, *places, threads()):
        return None
    parts = {"data": data, "scale": scale}
    if scheme.packed_zeros:
        parts["offset"] = scheme.packing.pack(offset.view(np.uint8), scheme.zero_axis)
    elif scheme.offset != "none":
        parts["offset"] = offset.astype(dtypes.to_numpy(scheme.offset_dtype), copy=False)
    return parts
