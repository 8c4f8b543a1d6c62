"""Encoders: GGML blocks with the bytes of ggml's reference encoders, affine codes with those of `squish_codecs`."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from squish_codecs.api import Affine, Scheme, SquizdInt2, SquizdInt4, TcaTbe, check_encodable, is_mlx_layout

from squish_core.api import BLOCK_TYPES, CodecError, Dense, ErrorCode, Params, TensorSpec, dtypes, full

from . import library as native
from .layouts.base import DENSE, GGML, GGML_FIRST, PANELS, TYPES, Array
from .library import library, threads
from .metrics import Measuring

OFFSETS = {"none": 0, "zero_point": 1, "bias": 2}
RUN = 16
"""Values that the loops take at a time: groups are so many, or several times that."""
SEARCHED = {"none": 1 << 62, "mse": 256}
"""Values of the largest group that the loops encode, with this search."""

WEIGHED = ("iq4_nl", "iq4_xs", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
"""Block types whose errors may be weighed by activations."""
KINDS = {name: GGML_FIRST + number for number, name in enumerate(GGML)} | {"iq4_nl": PANELS + 1, "iq4_xs": PANELS + 2}
"""Block types by their numbers in native/weights.h."""


class GgmlEncoder(Measuring):
    """Q4_0 Q4_1 Q8_0 IQ4_NL IQ4_XS Q2_K Q3_K Q4_K Q5_K Q6_K from float32, as `ggml_quantize_chunk` gives them.

    With `search=activations`, which the K and IQ4 types take, as it gives them with the squared activations for an
    importance matrix. Equal bytes wherever ggml's own arithmetic is defined: scales that fit float16, steps below
    2**22 of them.
    """

    id = ""

    def __init__(self) -> None:
        library()

    @property
    def name(self) -> str:
        """The block type that the codec's id names."""
        return self.id.removeprefix("ggml.")

    def params_for(self, spec: TensorSpec, params: Params) -> Params:
        weighed = {"search": "activations"}
        if params and (self.name not in WEIGHED or params not in (weighed, {"search": "none"})):
            raise CodecError(
                f"{self.id} takes no such parameters", found=", ".join(f"{key}={params[key]}" for key in params),
                expected="search=none or search=activations" if self.name in WEIGHED else "none", code=ErrorCode.PARAMS,
            )  # fmt: skip
        return params if params == weighed else {}

    def encode(self, panel: Array, params: Params, *, stats: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Part `data`, u8 [..., blocks per row * bytes], of values whose last axis blocks divide.

        `stats`: the `activations` of the columns, f32, for `search=activations`.
        """
        block = BLOCK_TYPES[self.name]
        elements, nbytes = block.elements, block.nbytes
        if not panel.ndim or panel.shape[-1] % elements:
            raise CodecError(
                f"rows do not divide into {self.name.upper()} blocks", code="shape",
                expected=f"a last dimension that is a multiple of {elements}", found=f"shape {list(panel.shape)}",
            )  # fmt: skip
        values = np.require(panel, np.float32, ["C", "A"])
        blocks = values.size // elements
        out = np.empty((*panel.shape[:-1], panel.shape[-1] // elements * nbytes), np.uint8)
        importance = _importance(panel, stats) if params.get("search") == "activations" else None
        weights = None if importance is None else importance.ctypes.data
        sizes = (panel.shape[-1], out.ctypes.data, blocks, elements, nbytes, threads())
        if not library().encode(KINDS[self.name], values.ctypes.data, weights, *sizes):
            raise CodecError(
                "values that are not finite cannot be encoded", expected="finite values",
                found=f"{np.count_nonzero(~np.isfinite(panel))} of {panel.size}", code=ErrorCode.RANGE,
                hint="Keep this tensor, or repair it first.",
            )  # fmt: skip
        return {"data": out}


def _importance(panel: Array, stats: Mapping[str, Array] | None) -> Array:
    """What squared errors in each column are worth: the squares of its activations."""
    seen = (stats or {}).get("activations")
    with np.errstate(over="ignore"):
        found = None if seen is None else np.square(np.asarray(seen, np.float32, order="C"))
    if found is None or found.shape != panel.shape[-1:] or not np.isfinite(found).all():
        raise CodecError(
            "search=activations needs statistics of activations", code=ErrorCode.ENCODE,
            expected=f"[{panel.shape[-1]}], with squares that are finite",
            found="none" if found is None else f"shape {list(found.shape)}",
        )  # fmt: skip
    return found


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


class SquizdInt4Encoder(Measuring, SquizdInt4):
    """SQUIZD's INT4 over the compiled affine encoder."""

    def __init__(self) -> None:
        self.affine = AffineEncoder()


class SquizdInt2Encoder(Measuring, SquizdInt2):
    """SQUIZD's INT2 over the compiled affine encoder."""

    def __init__(self) -> None:
        self.affine = AffineEncoder()


class TcaTbeEncoder(TcaTbe):
    """TCA-TBE, encoded in one pass over the elements."""

    def __init__(self) -> None:
        library()
        super().__init__()

    def encode(self, panel: Array, params: Params, *, stats: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """The parts that `TcaTbe` declares; `high` and `full` of a panel lie in larger arrays."""
        bits = np.ascontiguousarray(panel.astype(dtypes.to_numpy("bf16"), copy=False)).view(np.uint16)
        rows, columns = (prod(panel.shape[:-1]), panel.shape[-1]) if panel.ndim else (1, 1)
        planes = np.empty((3, rows, -(-columns // 64)), np.uint64)
        high, others = np.empty(bits.size, np.uint8), np.empty(bits.size, np.uint16)
        places = (array.ctypes.data for array in (planes, high, others))
        count = library().encode_triple(bits.ctypes.data, rows, columns, params["base_exponent"], *places)
        made = {f"plane{place}": plane for place, plane in enumerate(planes)}
        return {**made, "high": high[:count], "full": others[: bits.size - count]}


def compiled(scheme: Scheme, panel: Array) -> dict[str, Array] | None:
    """Parts by the compiled loops; None where they do not cover the scheme, or a value, scale or bias is not finite."""
    check_encodable(scheme)
    declared = scheme.parts(panel.shape)
    line = panel.size if scheme.flat else panel.shape[-1]
    size = scheme.group_size or line
    in_rows = not scheme.transposed and (scheme.group_axis, scheme.pack_axis) == (-1, -1)
    packed = scheme.packing.order == "lsb" and not line * scheme.bits % scheme.packing.width
    fits = panel.size and not size % RUN and not line % size and size <= SEARCHED.get(scheme.search, 0)
    if not (in_rows and packed and fits) or (scheme.offset == "zero_point" and scheme.zero):
        return None
    values = np.require(panel, np.float32, ["C", "A"])
    offset_dtype = scheme.offset_dtype if scheme.offset == "bias" else "i8" if scheme.signed else "u8"
    scale = np.empty(declared["scale"][1], dtypes.to_numpy(scheme.scale_dtype))
    offset = np.empty(scale.shape if scheme.offset != "none" else 0, dtypes.to_numpy(offset_dtype))
    data = np.empty(declared["data"][1], dtypes.to_numpy(scheme.word))
    how = native.Affine(
        size, scheme.bits, scheme.low, scheme.high, scheme.zero, OFFSETS[scheme.offset], is_mlx_layout(scheme),
        TYPES[scheme.scale_dtype], TYPES[offset_dtype], scheme.search == "mse",
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
