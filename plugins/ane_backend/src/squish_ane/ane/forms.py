"""Maps stored tensors to forms of the tables, from codec parameters alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from squish_codecs.api import Tables

from squish_core.api import Codec, CodeLayout, Encoding, TensorSpec, dtypes

from .planner import Weights

PALETTES = {1: "palette1_2", 2: "palette1_2", 3: "palette3_6", 4: "palette4", 6: "palette3_6", 8: "palette8"}
FLOATS = {"f16": "dense", "f8_e4m3": "f8_e4m3", "f8_e5m2": "f8_e5m2"}


def weights_of(encoding: Encoding, spec: TensorSpec, codec: Codec) -> Weights | None:
    """Return the weights in a form of the compiler; None if there is none, so they are decoded."""
    params = encoding.codec.params
    if encoding.codec.id == "boxes" and not {"books", "count"}.isdisjoint(params):
        return _boxes(params, spec)
    reader = _FORMS.get(encoding.codec.id)
    if reader:
        return reader(encoding, spec)
    layout = codec.code_layout(spec)
    if layout is None or layout.table is not None:
        return None
    offset = encoding.parts.get("offset")
    zeros = offset is not None and offset.data is not None and not any(offset.data)
    return _integers(layout, spec, zeros)


def dense_weights(spec: TensorSpec) -> Weights:
    """Return the weights as dense float16, for a tensor that is decoded first."""
    return _weights(spec, "dense")


def unity_weights(spec: TensorSpec) -> Weights:
    """Return the weights of a depthwise convolution with one tap: a factor for each channel."""
    return _weights(spec, "unity")


def _integers(layout: CodeLayout, spec: TensorSpec, zeros: bool) -> Weights:
    """Return the form of integer codes; `zeros`: all their zero points are zero."""
    if layout.bits < 8:
        return _weights(spec, "affine4", bits=layout.bits, signed=layout.signed)
    row = max(dtypes.count(spec.shape[1:]), 1)
    block = layout.run_length(spec.shape)
    if block is None or block % row:
        block = prod(layout.group_sizes(spec.shape))
        return _weights(spec, "blockwise", bits=8, block=block, signed=layout.signed)
    centered = ((layout.signed and layout.offset_kind == "none") or zeros) and not layout.zero
    return _weights(spec, "int8" if centered else "int8_asymmetric", bits=8, signed=layout.signed)


def _palette(encoding: Encoding, spec: TensorSpec) -> Weights | None:
    tables = Tables.of(encoding.codec.params)
    if tables.scaled:
        return None
    codebooks = spec.elements // tables.codebook_size if tables.codebook_size else 1
    return _indices(spec, tables.scheme.bits, codebooks, tables.codebook_dtype, vector_size=tables.vector)


def _boxes(params: Mapping[str, Any], spec: TensorSpec) -> Weights | None:
    """Return the form of codebooks by box, or of codes under a mask."""
    bits, is_scaled = params["bits"], params.get("scale_dtype", "none") != "none"
    if is_scaled and "books" not in params and bits == 8:
        return _weights(spec, "sparse_int8", nonzero=params["count"])
    if is_scaled or "books" not in params:
        return None
    codebooks = prod(params["books"])
    if "count" in params:
        return _weights(spec, "sparse_palette", bits=bits, nonzero=params["count"], codebooks=codebooks)
    return _indices(spec, bits, codebooks, params.get("codebook_dtype", "f32"))


def _indices(spec: TensorSpec, bits: int, codebooks: int, dtype: str, *, vector_size: int = 1) -> Weights | None:
    """Return the form of a palette; the compiler rejects 1 and 2 bits with any number of codebooks."""
    form = PALETTES.get(bits)
    if form is None:
        return None
    if codebooks > 1 and form != PALETTES[1]:
        form = "palette_many"
    return _weights(spec, form, bits=bits, codebooks=codebooks, vector_size=vector_size, codebook=dtype)


def _bitmask(encoding: Encoding, spec: TensorSpec) -> Weights | None:
    params = encoding.codec.params
    count, bits = dtypes.count(encoding.parts["data"].shape), params.get("bits", 0)
    if bits:
        return _weights(spec, "sparse_palette", bits=bits, nonzero=params.get("count", 0))
    if params["dtype"] == "i8":
        return _weights(spec, "sparse_int8", nonzero=count)
    return _weights(spec, "sparse", nonzero=count) if params["dtype"] == "f16" else None


def _dense(encoding: Encoding, spec: TensorSpec) -> Weights | None:
    form = FLOATS.get(encoding.parts["data"].dtype)
    return _weights(spec, form) if form else None


def _float8(encoding: Encoding, spec: TensorSpec) -> Weights | None:
    return _weights(spec, FLOATS[encoding.parts["data"].dtype])


def _weights(spec: TensorSpec, form: str, **more: Any) -> Weights:
    channels = spec.shape[0] if spec.shape else 1
    return Weights(form=form, elements=spec.elements, channels=channels, **more)


_FORMS: Mapping[str, Callable[[Encoding, TensorSpec], Weights | None]] = {
    "palette": _palette, "bitmask": _bitmask, "dense": _dense, "float8": _float8,
}  # fmt: skip
