"""Components (v2: parts) of an object: one stored array each.

A component is a map `{dtype, type?, offset, length, uncompressed_length?, encoding?, digest?}` as 1.1 and 1.2 write it.
Other versions are translated to this form, with additional keys that no file can set: `wire` (2: dtype names of v2),
`file`, `byteorder`, `digest_of`.
"""

from __future__ import annotations

from typing import Any

from squish_core.api import Filter, Part, Segment, dtypes

from .names import ELEMENTS

Component = dict[str, Any]
Components = dict[str, Component]

_FILTERS: dict[int, dict[Any, tuple[Filter, ...]]] = {
    1: {None: (), "raw": (), "zstd": (Filter("zstd"),)},
    2: {None: (), "zt.zstd-seekable/1": (Filter("zt.zstd-seekable"),)},
}


class UnreadableError(Exception):
    """One object's values cannot be read; the others can."""


def required(components: Components, role: str) -> Component:
    """Return a component; UnreadableError if it is missing."""
    if role not in components:
        raise UnreadableError(f"missing component {role!r}")
    return components[role]


def element(component: Component) -> str | None:
    """Return the element type of a component; None if its dtype and type are unknown or not text."""
    try:
        return ELEMENTS[component.get("wire", 1)].get((component.get("dtype", ""), component.get("type")))
    except TypeError:
        return None


def element_of(component: Component, role: str) -> str:
    """Return the element type of a component; UnreadableError if it is unknown."""
    dtype = element(component)
    if dtype is None:
        stored, logical = component.get("dtype"), component.get("type")
        kind = f"{stored!r} as {logical!r}" if logical else repr(stored)
        raise UnreadableError(f"unknown dtype {kind[:60]} of component {role!r}")
    return dtype


def decoded_length(component: Component) -> int | None:
    """Return the size in bytes before encoding; None if the file does not state it."""
    if component.get("encoding") in (None, "raw"):
        length: int = component["length"]
        return length
    size = component.get("uncompressed_length")
    return size if type(size) is int and size >= 0 else None


def count(component: Component, role: str) -> int:
    """Return the number of elements of a component, from its size; UnreadableError if it is unknown or not whole."""
    length, width = decoded_length(component), dtypes.bits(element_of(component, role)) // 8
    if length is None:
        raise UnreadableError(f"component {role!r} does not state its decoded length")
    if not width or length % width:
        raise UnreadableError(f"the {length} bytes of component {role!r} are not a multiple of {width}")
    return length // width


def part(component: Component, dtype: str, shape: tuple[int, ...]) -> Part:
    """Return the stored array of a component; UnreadableError if its size does not match."""
    encoding, digest = component.get("encoding"), component.get("digest")
    filters = _FILTERS[component.get("wire", 1)]
    if type(encoding) not in (str, type(None)) or encoding not in filters:
        raise UnreadableError(f"unknown encoding {str(encoding)[:40]!r}")
    if type(digest) not in (str, type(None)):
        raise UnreadableError("the digest must be text")
    if (byteorder := component.get("byteorder", "<")) not in ("<", ">"):
        raise UnreadableError(f"unknown byte order {str(byteorder)[:40]!r}")
    length, size = decoded_length(component), dtypes.nbytes(dtype, shape)
    if length is not None and length != size:
        raise UnreadableError(f"a component has {length} bytes, but {dtype} {list(shape)} needs {size}")
    segment = Segment(component.get("file", 0), component["offset"], component["length"])
    return Part(
        dtype=dtype,
        shape=shape,
        segments=(segment,),
        filters=filters[encoding],
        digest=digest,
        digest_of=component.get("digest_of", "stored"),
        byteorder=byteorder,
    )


def raw_part(component: Component) -> Part:
    """Return a component without a layout: a flat array of its dtype, or its stored bytes if that is not possible."""
    length = component["length"]
    try:
        dtype = element_of(component, "")
        if dtypes.bits(dtype) >= 8:
            return part(component, dtype, (count(component, ""),))
        size = decoded_length(component)
        return part(component, "u8", (length if size is None else size,))
    except UnreadableError:
        segment = Segment(component.get("file", 0), component["offset"], length)
        digest = component.get("digest")
        # A digest of decoded bytes cannot be checked if the encoding is unknown.
        verifiable = type(digest) is str and (
            component.get("encoding") is None or component.get("digest_of") != "decoded"
        )
        return Part(dtype="u8", shape=(length,), segments=(segment,), digest=digest if verifiable else None)
