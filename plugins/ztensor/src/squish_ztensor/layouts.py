"""What an object's `format` means: from a manifest record to a TensorSpec (spec III). Knows no wire.

A layout is a function from shape and components to an element type and an Encoding; it raises `UnreadableError` when
the object cannot be given. The object is then listed all the same, with its components as raw parts.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from squish_core.api import DENSE, CodecSpec, Encoding, Filter, Part, Segment, TensorSpec, dtypes

from . import cbor
from .names import BLOCKS, ELEMENTS

Component = dict[str, Any]
Components = dict[str, Component]
Reading = Callable[[tuple[int, ...], Components], tuple[str, Encoding]]

_WIDTHS = {element: dtypes.bits(element) // 8 for element in ELEMENTS.values()}
_FILTERS: dict[Any, tuple[Filter, ...]] = {None: (), "raw": (), "zstd": (Filter("zstd"),)}


class UnreadableError(Exception):
    """Why one object's values cannot be given."""


def build(name: str, record: dict[str, Any]) -> TensorSpec:
    """The TensorSpec of a record that the manifest's check has passed."""
    shape, components = tuple(record["shape"]), record["components"]
    attrs = {key: cbor.plain(value) for key, value in (record.get("attributes") or {}).items()}
    try:
        dtype, encoding = _layout(record.get("format"))(shape, components)
    except UnreadableError as error:
        extras = {role: _raw_part(component) for role, component in components.items()}
        dtype = _nominal_dtype(components)
        return TensorSpec(name=name, shape=shape, dtype=dtype, extras=extras, attrs=attrs, problem=str(error))
    extras = {role: _raw_part(component) for role, component in components.items() if role not in encoding.parts}
    return TensorSpec(name=name, shape=shape, dtype=dtype, encodings=(encoding,), extras=extras, attrs=attrs)


def plain(record: dict[str, Any]) -> tuple[str, tuple[int, ...], int, int] | None:
    """Where a raw dense tensor lies; None where a view would not do (encoded, bools to be checked, other layouts)."""
    data = record["components"].get("data")
    if record.get("format") != "dense" or data is None or data.get("encoding") not in (None, "raw"):
        return None
    element = _element(data)
    if element is None or element == "bool":
        return None
    return element, tuple(record["shape"]), 0, data["offset"]


def decoded_size(format: Any, shape: tuple[int, ...], data: Component) -> int | None:  # noqa: A002
    """Bytes before encoding that the shape needs of component `data`; None where the layout is not readable here."""
    if format == "dense":
        element = _element(data)
        return None if element is None else prod(shape) * _WIDTHS[element]
    block = block_of(format)
    if block is None or not shape or shape[-1] % BLOCKS[block][0]:
        return None
    return prod(row_shape(block, shape))


def block_of(format: Any) -> str | None:  # noqa: A002
    """GGML block type of a `format`: `gguf.q4_k`, or `gguf.q4_k/1` as v2 names it."""
    if type(format) is not str or not format.startswith("gguf."):
        return None
    name = format[5:].removesuffix("/1")
    return name if name in BLOCKS else None


def row_shape(block: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the u8 part of a tensor whose last dimension is a multiple of the block's elements."""
    elements, nbytes = BLOCKS[block]
    return (*shape[:-1], shape[-1] // elements * nbytes)


def _layout(format: Any) -> Reading:  # noqa: A002
    block = block_of(format)
    if block is not None:
        return lambda shape, components: _blocks(block, shape, components)
    if type(format) is str and format in _LAYOUTS:
        return _LAYOUTS[format]
    raise UnreadableError(f"the layout {str(format)[:40]!r} is not known" if format else "the object has no format")


def _dense(shape: tuple[int, ...], components: Components) -> tuple[str, Encoding]:
    data = _required(components, "data")
    element = _element(data)
    if element is None:
        kind = f"{data.get('dtype')!r} as {data['type']!r}" if data.get("type") else repr(data.get("dtype"))
        raise UnreadableError(f"the dtype {kind[:60]} of component 'data' is not known")
    return element, Encoding(codec=DENSE, parts={"data": _part(data, element, shape)})


def _blocks(block: str, shape: tuple[int, ...], components: Components) -> tuple[str, Encoding]:
    data = _required(components, "data")
    if _element(data) != "u8":
        raise UnreadableError(f"GGML blocks are stored as u8, not {str(data.get('dtype'))[:40]!r}")
    if not shape or shape[-1] % BLOCKS[block][0]:
        raise UnreadableError(f"rows of shape {list(shape)} do not divide into blocks of {BLOCKS[block][0]} elements")
    part = _part(data, "u8", row_shape(block, shape))
    return "f32", Encoding(codec=CodecSpec(f"ggml.{block}"), parts={"data": part})


def _later(layout: str) -> Reading:
    def refuse(shape: tuple[int, ...], components: Components) -> tuple[str, Encoding]:
        raise UnreadableError(f"the layout {layout!r} is not read yet")

    return refuse


_LAYOUTS: dict[str, Reading] = {
    "dense": _dense,
    **{name: _later(name) for name in ("sparse_csr", "sparse_coo", "quantized_group")},
}


def _required(components: Components, role: str) -> Component:
    if role not in components:
        raise UnreadableError(f"the component {role!r} is missing")
    return components[role]


def _part(component: Component, element: str, shape: tuple[int, ...]) -> Part:
    """The stored array of a component that a layout reads."""
    encoding, digest = component.get("encoding"), component.get("digest")
    if type(encoding) not in (str, type(None)) or encoding not in _FILTERS:
        raise UnreadableError(f"the encoding {str(encoding)[:40]!r} is not known")
    if type(digest) not in (str, type(None)):
        raise UnreadableError("the digest is not text")
    segments = (Segment(0, component["offset"], component["length"]),)
    return Part(dtype=element, shape=shape, segments=segments, filters=_FILTERS[encoding], digest=digest)


def _raw_part(component: Component) -> Part:
    """A component without a layout: a flat array of its dtype, or its stored bytes where those say too little."""
    element, length = _element(component), component["length"]
    stated = component.get("uncompressed_length") if component.get("encoding") == "zstd" else length
    try:
        if element and type(stated) is int and stated >= 0 and stated % _WIDTHS[element] == 0:
            return _part(component, element, (stated // _WIDTHS[element],))
    except UnreadableError:
        pass
    return Part(dtype="u8", shape=(length,), segments=(Segment(0, component["offset"], length),))


def _element(component: Component) -> str | None:
    """Element type of a component; None when its dtype and type are not known, or not even text."""
    try:
        return ELEMENTS.get((component.get("dtype", ""), component.get("type")))
    except TypeError:
        return None


def _nominal_dtype(components: Components) -> str:
    for role in ("data", "values"):
        component = components.get(role, {})
        if type(component.get("dtype")) is str:
            return _element(component) or component["dtype"]
    return "f32"
