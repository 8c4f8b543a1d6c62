"""What an object's `format` (v2: layout) means: from a manifest record to a TensorSpec. Knows no wire.

A layout is a function from shape, components and attributes to an element type and an Encoding; it raises
`UnreadableError` when the object cannot be given. The object is then listed all the same, with its components as raw
parts.
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
    """The tensor of a record that the manifest's check has passed."""
    dense = _dense_record(record)
    if dense is not None:
        return dense
    shape, components = tuple(record["shape"]), record["components"]
    attrs = {key: cbor.plain(value) for key, value in (record.get("attributes") or {}).items()}
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
    words = _words(encoding.codec)
    attrs = {key: value for key, value in attrs.items() if key not in words}
    return TensorSpec(name=name, shape=shape, dtype=dtype, encodings=(encoding,), extras=extras, attrs=attrs)


def _dense_record(record: dict[str, Any]) -> DenseFields | None:
    """The tensor of a record that is one raw dense component and nothing else."""
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
    """Bytes before encoding that the shape needs of `data` with element type `dtype`; None if it is unknown."""
    if layout == "dense":
        return None if dtype is None else dtypes.nbytes(dtype, shape)
    block = block_of(layout)
    if block is None or not shape or shape[-1] % BLOCKS[block][0]:
        return None
    return dtypes.nbytes("u8", row_shape(block, shape))


def block_of(layout: Any) -> str | None:
    """GGML block type of a layout's name: `gguf.q4_k`, or `gguf.q4_k/1` as v2 names it."""
    if type(layout) is not str or not layout.startswith("gguf."):
        return None
    name = layout[5:].removesuffix("/1")
    return name if name in BLOCKS else None


def encoding_for(layout: str | None, dtype: str | None, filters: tuple[Filter, ...]) -> Encoding | Refusal:
    """How an object of this format and element type is stored, as the released writers make it."""
    block = block_of(dtype)
    if block is not None and layout is not None:
        why = f"{dtype} is a format of its own, not an element type of {layout}"
        return Refusal(why=why, code="dtype", encoding=Encoding(codec=_CODECS.get(layout, DENSE)))
    codec = CodecSpec(f"ggml.{block}") if block else _CODECS.get(layout or "dense", DENSE)
    if codec.id in ("affine", "zt.mx") and dtype is not None:
        return Refusal(
            why=f"{layout} holds codes, whose values are f32; it has no dtype {dtype}",
            code="dtype",
            encoding=Encoding(codec=codec),
        )
    kind = "u8" if block else dtype or "f32"
    roles = {"affine": ("data", "scale"), "zt.sparse_csr": ("values", "indices", "indptr"),
             "zt.sparse_coo": ("values", "coords"), "zt.mx": ("data", "scales")}  # fmt: skip
    parts = {role: Part(dtype=kind, shape=(), filters=filters) for role in roles.get(codec.id, ("data",))}
    return Encoding(codec=codec, parts=parts)


_GROUPS = {"bits": 4, "group_size": 32, "signed": False, "word": "u8", "order": "lsb", "scale_dtype": "f32"}
_CODECS = {
    "quantized_group": CodecSpec("affine", {**_GROUPS, "axis": -2}),
    "zt.quant_group/1": CodecSpec("affine", {**_GROUPS, "axis": -1}),
    "sparse_csr": CodecSpec("zt.sparse_csr", {"indices": "u64", "indptr": "u64", "ordered": False}),
    "zt.sparse_csr/1": CodecSpec("zt.sparse_csr", {"indices": "u64", "indptr": "u64", "ordered": True}),
    "sparse_coo": CodecSpec("zt.sparse_coo", {"coords": "u64"}),
    "zt.sparse_coo/1": CodecSpec("zt.sparse_coo", {"coords": "u64"}),
    "zt.mx/1": CodecSpec("zt.mx", {"block_size": 32, "axis": 1, "dtype": "f8_e4m3"}),
}


def row_shape(block: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the u8 part of a tensor whose last dimension is a multiple of the block's elements."""
    elements, nbytes = BLOCKS[block]
    return (*shape[:-1], shape[-1] // elements * nbytes)


def _reading(layout: Any) -> Reading:
    block = block_of(layout)
    if block is not None:
        return lambda shape, components, attributes: _blocks(block, shape, components, attributes)
    if type(layout) is str and layout in _LAYOUTS:
        return _LAYOUTS[layout]
    raise UnreadableError(f"the layout {str(layout)[:40]!r} is not known" if layout else "the object has no format")


def _dense(shape: tuple[int, ...], components: Components, attributes: dict[str, Any]) -> tuple[str, Encoding]:
    data = required(components, "data")
    dtype = element_of(data, "data")
    # Types under a byte are packed into one run of bytes.
    declared = (dtype, shape) if dtypes.bits(dtype) >= 8 else ("u8", (dtypes.nbytes(dtype, shape),))
    return dtype, Encoding(codec=DENSE, parts={"data": part(data, *declared)})


def _blocks(
    block: str, shape: tuple[int, ...], components: Components, attributes: dict[str, Any]
) -> tuple[str, Encoding]:
    data = required(components, "data")
    if element(data) != "u8":
        raise UnreadableError(f"GGML blocks are stored as u8, not {str(data.get('dtype'))[:40]!r}")
    for key, expected in zip(("elems_per_block", "block_bytes"), BLOCKS[block]):
        if attributes.get(key, expected) != expected:
            raise UnreadableError(f"{key} of {block} is {expected}, not {str(attributes[key])[:40]}")
    if not shape or shape[-1] % BLOCKS[block][0]:
        raise UnreadableError(f"rows of shape {list(shape)} do not divide into blocks of {BLOCKS[block][0]} elements")
    stored = part(data, "u8", row_shape(block, shape))
    return "f32", Encoding(codec=CodecSpec(f"ggml.{block}"), parts={"data": stored})


_LAYOUTS: dict[str, Reading] = {"dense": _dense, **profiles.READINGS}


_WORDS = {
    "affine": ("bits", "group_size", "axis", "packing", "order", "scale_form", "zero_point"),
    "zt.mx": ("block_size", "axis", "scale_form"),
}


def _words(codec: CodecSpec) -> tuple[str, ...]:
    """Attributes that are parameters of the codec now; as attributes they would outlive a change of it."""
    return ("elems_per_block", "block_bytes") if codec.id.startswith("ggml.") else _WORDS.get(codec.id, ())


def _nominal_dtype(components: Components) -> str:
    for role in ("data", "values"):
        component: Component = components.get(role, {})
        if type(component.get("dtype")) is str:
            return element(component) or component["dtype"]
    return "f32"
