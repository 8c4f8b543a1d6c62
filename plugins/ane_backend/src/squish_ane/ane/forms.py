"""Maps stored tensors to forms of the tables, from codec parameters alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from squish_codecs.api import Tables

from squish_core.api import Codec, CodeLayout, Encoding, TensorSpec, dtypes

from .planner import Weights

PALETTES = {1: "palette1_2", 2: "palette1_2", 3: "palette3_6", 4: "palette4", 6: "palette3_6", 8: "palette8"}
FLOATS = {"f16": "dense", "f8_e4m3": "f8_e4m3", "f8_e5m2": "f8_e5m2"}


def weights_of(encoding: Encoding, spec: TensorSpec, codec: Codec) -> Weights | None:
    """Return the weights in the compiler's form; None if Core ML lacks the form, so they are decoded."""
    reader = _FORMS.get(encoding.codec.id)
    if reader:
        return reader(encoding, spec)
    layout = codec.code_layout(spec, encoding.codec.params)
    if layout is None or layout.table is not None:
        return None
    offset = encoding.parts.get("offset")
    zeros = offset is not None and offset.data is not None and not any(offset.data)
    return _integers(layout, spec, zeros)


def dense_weights(spec: TensorSpec) -> Weights:
    """Return the weights as dense float16, for a tensor that is decoded first."""
    return _weights(spec, "dense")


def _integers(layout: CodeLayout, spec: TensorSpec, zeros: bool) -> Weights:
    """Return the form of integer codes; `zeros`: all their zero points are zero."""
    if layout.bits < 8:
        return _weights(spec, "affine4", bits=layout.bits)
    row = max(dtypes.count(spec.shape[1:]), 1)
    block = layout.run_length(spec.shape)
    if block is None or block % row:
        return _weights(spec, "blockwise", bits=8, block=prod(layout.group_sizes(spec.shape)))
    centered = ((layout.signed and layout.offset_kind == "none") or zeros) and not layout.zero
    return _weights(spec, "int8" if centered else "int8_asymmetric", bits=8)


def _palette(encoding: Encoding, spec: TensorSpec) -> Weights | None:
    tables = Tables.of(encoding.codec.params)
    form = PALETTES.get(tables.scheme.bits)
    if form is None or tables.scaled:
        return None
    codebooks = spec.elements // tables.codebook_size if tables.codebook_size else 1
    return _weights(
        spec, form if codebooks == 1 else "palette_many", bits=tables.scheme.bits, codebooks=codebooks,
        vector_size=tables.vector, quantized=tables.codebook_dtype in ("i8", "u8"),
    )  # fmt: skip


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


def _weights(spec: TensorSpec, form: str, *, quantized: bool = False, **more: int) -> Weights:
    channels = spec.shape[0] if spec.shape else 1
    return Weights(form=form, elements=spec.elements, channels=channels, quantized=quantized, **more)


_FORMS: Mapping[str, Callable[[Encoding, TensorSpec], Weights | None]] = {
    "palette": _palette, "bitmask": _bitmask, "dense": _dense, "float8": _float8,
}  # fmt: skip
