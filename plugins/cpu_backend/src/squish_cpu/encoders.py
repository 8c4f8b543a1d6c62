"""Encoders: GGML blocks with the bytes of ggml's reference encoders, affine codes with those of `squish_codecs`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from squish_codecs import encoding
from squish_codecs.affine import Affine
from squish_codecs.scheme import Scheme

from squish_core.api import Codec, CodecError, Dense, Params, TensorSpec, dtypes, full

from . import library as native
from .layouts import DENSE, GGML, GGML_FIRST, TYPES, Array
from .library import library, threads
from .measuring import Measuring

OFFSETS = {"none": 0, "zero_point": 1, "bias": 2}
RUN = 16
"""Values that the loops take at a time: groups are so many, or several times that."""


class GgmlEncoder(Measuring):
    """Q4_0 Q4_1 Q8_0 Q4_K Q5_K Q6_K from float32, as `ggml_quantize_chunk` gives them without importance weights.

    Equal bytes wherever ggml's own arithmetic is defined: scales that fit float16, steps below 2**22 of them.
    """

    id = ""

    def __init__(self) -> None:
        library()

    @property
    def name(self) -> str:
        """The block type that the codec's id names."""
        return self.id.removeprefix("ggml.")

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        if params:
            raise CodecError(f"{self.id} takes no parameters", found=", ".join(params), code="params")
        return params

    def encode(self, panel: Array, params: Params, *, stats: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Part `data`, u8 [..., blocks per row * bytes], of values whose last axis blocks divide."""
        elements, nbytes = GGML[self.name]
        if not panel.ndim or panel.shape[-1] % elements:
            raise CodecError(
                f"rows do not divide into {self.name.upper()} blocks", code="shape",
                expected=f"a last dimension that is a multiple of {elements}", found=f"shape {list(panel.shape)}",
            )  # fmt: skip
        values = np.require(panel, np.float32, ["C", "A"])
        blocks = values.size // elements
        out = np.empty((*panel.shape[:-1], panel.shape[-1] // elements * nbytes), np.uint8)
        kind = GGML_FIRST + list(GGML).index(self.name)
        if not library().encode(kind, values.ctypes.data, out.ctypes.data, blocks, elements, nbytes, threads()):
            raise CodecError(
                "values that are not finite cannot be encoded", expected="finite values",
                found=f"{np.count_nonzero(~np.isfinite(panel))} of {panel.size}", code="not-finite",
                hint="Keep this tensor, or repair it first.",
            )  # fmt: skip
        return {"data": out}


class AffineEncoder(Measuring, Affine):
    """Compiled where groups and words run along rows and groups are multiples of 16; else, and for errors, NumPy's."""

    def __init__(self) -> None:
        library()

    def encode(self, panel: Array, params: Params, *, stats: Mapping[str, Array] | None = None) -> dict[str, Array]:
        scheme = Scheme.of(params)
        return compiled(scheme, panel) or super().encode(panel, params, stats=stats)


class DenseEncoder(Measuring, Dense):
    """Floats of 16 and 32 bits to each other, rounded to the nearest; NumPy's way for all others."""

    def __init__(self) -> None:
        library()

    def encode(self, panel: Array, params: Params, *, stats: Mapping[str, Array] | None = None) -> dict[str, Array]:
        given = dtypes.from_numpy(panel.dtype)
        wanted = params.get("dtype", given)
        if given == wanted or not {given, wanted} <= DENSE.keys() or not panel.size:
            return super().encode(panel, params, stats=stats)
        values = np.require(np.atleast_1d(panel), requirements=["C", "A"])
        decode = self.decoder(self, {"data": values}, TensorSpec(name="", shape=values.shape, dtype=given), {})
        assert decode is not None
        out = np.empty(values.shape, dtypes.to_numpy(wanted))
        decode(full(values.shape), out)
        return {"data": out.reshape(panel.shape)}


def squizd_encoder(name: str) -> Codec:
    """SQUIZD's INT4 or INT2 over the compiled affine encoder; ImportError without squish-squizd."""
    from squish_squizd import packed

    made: Codec = type(name, (Measuring, getattr(packed, name.capitalize())), {"affine": AffineEncoder()})()
    return made


def squizd_int4() -> Codec:
    """The encoder of squizd.int4."""
    return squizd_encoder("int4")


def squizd_int2() -> Codec:
    """The encoder of squizd.int2."""
    return squizd_encoder("int2")


def compiled(scheme: Scheme, panel: Array) -> dict[str, Array] | None:
    """Parts by the compiled loops; None where they do not cover the scheme, or a value, scale or bias is not finite."""
    encoding.check(scheme)
    declared = scheme.parts(panel.shape)
    line = panel.size if scheme.flat else panel.shape[-1]
    size = scheme.group_size or line
    in_rows = not scheme.transposed and (scheme.group_axis, scheme.pack_axis) == (-1, -1)
    packed = scheme.packing.order == "lsb" and not line * scheme.bits % scheme.packing.width
    if not (in_rows and packed and panel.size and not size % RUN and not line % size and scheme.search == "none"):
        return None
    values = np.require(panel, np.float32, ["C", "A"])
    offset_dtype = scheme.offset_dtype if scheme.offset == "bias" else "i8" if scheme.signed else "u8"
    scale = np.empty(declared["scale"][1], dtypes.to_numpy(scheme.scale_dtype))
    offset = np.empty(scale.shape if scheme.offset != "none" else 0, dtypes.to_numpy(offset_dtype))
    data = np.empty(declared["data"][1], dtypes.to_numpy(scheme.word))
    how = native.Affine(
        size, scheme.bits, scheme.low, scheme.high, scheme.zero, OFFSETS[scheme.offset], encoding.is_mlx(scheme),
        TYPES[scheme.scale_dtype], TYPES[offset_dtype],
    )  # fmt: skip
    places = (array.ctypes.data for array in (data, scale, offset))
    if not library().encode_affine(how, values.ctypes.data, scale.size, *places, threads()):
        return None
    parts = {"data": data, "scale": scale}
    if scheme.packed_zeros:
        parts["offset"] = scheme.packing.pack(offset.view(np.uint8), scheme.zero_axis)
    elif scheme.offset != "none":
        parts["offset"] = offset.astype(dtypes.to_numpy(scheme.offset_dtype), copy=False)
    return parts
