"""From a manifest record to a TensorSpec: the meaning of an object's `format` (v2: layout), for all versions.

A layout is a function from shape, components and attributes to an element type and an Encoding; it raises
`UnreadableError` if it cannot read the object. The object is then listed with its components as raw parts.
"""

from __future__ import annotations

from typing import Any

from squish_core.api import DENSE, CodecSpec, DenseFields, Encoding, Filter, Part, Refusal, TensorSpec, dtypes

from . import profiles
from .components import Component, Components, UnreadableError, element, element_of, part, raw_part, required
from .names import BLOCKS
from .profiles import Reading
from .v1 import cbor


def build(name: str, record: dict[str, Any]) -> DenseFields | TensorSpec:
    """Build the tensor of a checked record."""
    dense = _dense_record(record)
    if dense is not None:
        return dense
    shape, components = tuple(record["shape"]), record["components"]
    attrs = {key: cbor.native(value) for key, value in (record.get("attributes") or {}).items()}
    try:
        dtype, encoding = _reading(record.get("format"))(shape, components, attrs)
    except UnreadableError as error:
        extras = {role: raw_part(component) for role, component in components.items()}
        dtype = _nominal_dtype(components)
        return TensorSpec(name=name, shape=shape, dtype=dtype, extras=extras, attrs=attrs, problem=str(error))
    ranges = {stored.segments[0] for stored in encoding.parts.values() if stored.segments}
    extras = {
        role: raw
        for role, component in components.items()
        if role not in encoding.parts and (raw := raw_part(component)).segments[0] not in ranges
    }
    codec_attributes = _codec_attributes(encoding.codec)
    attrs = {key: value for key, value in attrs.items() if key not in codec_attributes}
    return TensorSpec(name=name, shape=shape, dtype=dtype, encodings=(encoding,), extras=extras, attrs=attrs)


def _dense_record(record: dict[str, Any]) -> DenseFields | None:
    """Return the tensor of a record with one raw dense component, or None."""
    components = record["components"]
    data = components.get("data")
    if data is None or len(components) > 1 or record.get("format") != "dense" or record.get("attributes"):
        return None
    dtype, digest = element(data), data.get("digest")
    if dtype is None or data.get("encoding") not in (None, "raw") or data.get("byteorder", "<") != "<":
        return None
    if digest is not None and type(digest) is not str:
        return None
    return dtype, tuple(record["shape"]), data.get("file", 0), data["offset"], digest


def decoded_size(layout: Any, shape: tuple[int, ...], dtype: str | None) -> int | None:
    """Return the size of `data` in bytes before encoding, from shape and element type; None if unknown."""
    if layout == "dense":
        return None if dtype is None else dtypes.nbytes(dtype, shape)
    block = block_of(layout)
    if block is None or not shape or shape[-1] % BLOCKS[block][0]:
        return None
    return dtypes.nbytes("u8", row_shape(block, shape))


def block_of(layout: Any) -> str | None:
    """Return the GGML block type of a layout, `gguf.q4_k` or in v2 `gguf.q4_k/1`, or None."""
    if type(layout) is not str or not layout.startswith("gguf."):
        return None
    name = layout[5:].removesuffix("/1")
    return name if name in BLOCKS else None


def encoding_for(layout: str | None, dtype: str | None, filters: tuple[Filter, ...]) -> Encoding | Refusal:
    """Return the encoding of an object with this format and element type, as the released writers store it."""
    block = block_of(dtype)
    if block is not None and layout is not None:
        why = f"{dtype} is a format, not an element type of {layout}"
        return Refusal(why=why, code="dtype", encoding=Encoding(codec=_CODECS.get(layout, DENSE)))
    codec = CodecSpec(f"ggml.{block}") if block else _CODECS.get(layout or "dense", DENSE)
    if codec.id in ("affine", "zt.mx") and dtype is not None:
        return Refusal(
            why=f"{layout} stores codes of f32 values; it has no dtype {dtype}",
            code="dtype",
            encoding=Encoding(codec=codec),
        )
    kind = "u8" if block else dtype or "f32"
    roles = {"affine": ("data", "scale"), "zt.sparse_csr": ("values", "indices", "indptr"),
             "zt.sparse_coo": ("values", "coords"), "zt.mx": ("data", "scales")}  # fmt: skip
    parts = {role: Part(dtype=kind, shape=(), filters=filters) for role in roles.get(codec.id, ("data",))}
    if "offset" in codec.params:
        parts["offset"] = parts["scale"]
    return Encoding(codec=codec, parts=parts)


_GROUPS = {"bits": 4, "group_size": 32, "signed": False, "word": "u8", "order": "lsb", "scale_dtype": "f32"}
_CODECS = {
    # as in the specification's example; 1.1 requires zero points
    "quantized_group": CodecSpec(
        "affine",
        {
            "bits": 4,
            "group_size": 128,
            "axis": -2,
            "signed": False,
            "word": "i32",
            "order": "lsb",
            "scale_dtype": "f16",
            "offset": "zero_point",
            "offset_dtype": "f16",
        },
    ),
    "zt.quant_group/1": CodecSpec("affine", {**_GROUPS, "axis": -1}),
    "sparse_csr": CodecSpec("zt.sparse_csr", {"indices": "u64", "indptr": "u64", "ordered": False}),
    "zt.sparse_csr/1": CodecSpec("zt.sparse_csr", {"indices": "u64", "indptr": "u64", "ordered": True}),
    "sparse_coo": CodecSpec("zt.sparse_coo", {"coords": "u64"}),
    "zt.sparse_coo/1": CodecSpec("zt.sparse_coo", {"coords": "u64"}),
    "zt.mx/1": CodecSpec("zt.mx", {"block_size": 32, "axis": 1, "dtype": "f8_e4m3"}),
}


def row_shape(block: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the u8 part of a tensor whose last dimension is a multiple of the block size."""
    elements, nbytes = BLOCKS[block]
    return (*shape[:-1], shape[-1] // elements * nbytes)


def _reading(layout: Any) -> Reading:
    block = block_of(layout)
    if block is not None:
        return lambda shape, components, attributes: _blocks(block, shape, components, attributes)
    if type(layout) is str and layout in _LAYOUTS:
        return _LAYOUTS[layout]
    raise UnreadableError(f"unknown layout {str(layout)[:40]!r}" if layout else "the object has no format")


def _dense(shape: tuple[int, ...], components: Components, attributes: dict[str, Any]) -> tuple[str, Encoding]:
    data = required(components, "data")
    dtype = element_of(data, "data")
    # Elements smaller than a byte are packed into one run of bytes.
    declared = (dtype, shape) if dtypes.bits(dtype) >= 8 else ("u8", (dtypes.nbytes(dtype, shape),))
    return dtype, Encoding(codec=DENSE, parts={"data": part(data, *declared)})


def _blocks(
    block: str, shape: tuple[int, ...], components: Components, attributes: dict[str, Any]
) -> tuple[str, Encoding]:
    data = required(components, "data")
    if element(data) != "u8":
        raise UnreadableError(f"GGML blocks must be stored as u8, not {str(data.get('dtype'))[:40]!r}")
    for key, expected in zip(("elems_per_block", "block_bytes"), BLOCKS[block]):
        if attributes.get(key, expected) != expected:
            raise UnreadableError(f"{key} of {block} must be {expected}, not {str(attributes[key])[:40]}")
    if not shape or shape[-1] % BLOCKS[block][0]:
        raise UnreadableError(f"rows of the shape {list(shape)} are not a multiple of {BLOCKS[block][0]} elements")
    stored = part(data, "u8", row_shape(block, shape))
    return "f32", Encoding(codec=CodecSpec(f"ggml.{block}"), parts={"data": stored})


_LAYOUTS: dict[str, Reading] = {"dense": _dense, **profiles.READINGS}


_CODEC_ATTRIBUTES = {
    "affine": ("bits", "group_size", "axis", "packing", "order", "scale_form", "zero_point"),
    "zt.mx": ("block_size", "axis", "scale_form"),
}


def _codec_attributes(codec: CodecSpec) -> tuple[str, ...]:
    """Return the attributes that are now parameters of the codec; they would be wrong after a change of codec."""
    return ("elems_per_block", "block_bytes") if codec.id.startswith("ggml.") else _CODEC_ATTRIBUTES.get(codec.id, ())


def _nominal_dtype(components: Components) -> str:
    for role in ("data", "values"):
        component: Component = components.get(role, {})
        if type(component.get("dtype")) is str:
            return element(component) or component["dtype"]
    return "f32"
