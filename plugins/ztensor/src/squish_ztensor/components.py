"""Components (v2: parts) of an object: what one stored array is.

A component is a map `{dtype, type?, offset, length, uncompressed_length?, encoding?, digest?}` as 1.1 and 1.2 write it.
The other wires are brought to this form with keys that no file can set: `wire` (2: the names are those of v2),
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
    """Why one object's values cannot be given."""


def required(components: Components, role: str) -> Component:
    """The component under this name; UnreadableError without it."""
    if role not in components:
        raise UnreadableError(f"the component {role!r} is missing")
    return components[role]


def element(component: Component) -> str | None:
    """Element type of a component; None when its dtype and type are not known, or not even text."""
    try:
        return ELEMENTS[component.get("wire", 1)].get((component.get("dtype", ""), component.get("type")))
    except TypeError:
        return None


def element_of(component: Component, role: str) -> str:
    """Element type of a component; UnreadableError when it is not known."""
    dtype = element(component)
    if dtype is None:
        stored, logical = component.get("dtype"), component.get("type")
        kind = f"{stored!r} as {logical!r}" if logical else repr(stored)
        raise UnreadableError(f"the dtype {kind[:60]} of component {role!r} is not known")
    return dtype


def decoded_length(component: Component) -> int | None:
    """Bytes before encoding; None where the file does not say."""
    if component.get("encoding") in (None, "raw"):
        length: int = component["length"]
        return length
    size = component.get("uncompressed_length")
    return size if type(size) is int and size >= 0 else None


def count(component: Component, role: str) -> int:
    """Number of elements of a component that stands alone; UnreadableError when it is not whole or not stated."""
    length, width = decoded_length(component), dtypes.bits(element_of(component, role)) // 8
    if length is None:
        raise UnreadableError(f"the decoded length of component {role!r} is not stated")
    if not width or length % width:
        raise UnreadableError(f"the {length} bytes of component {role!r} are not whole elements")
    return length // width


def part(component: Component, dtype: str, shape: tuple[int, ...]) -> Part:
    """The stored array of a component that a layout reads; UnreadableError when its size is another one."""
    encoding, digest = component.get("encoding"), component.get("digest")
    filters = _FILTERS[component.get("wire", 1)]
    if type(encoding) not in (str, type(None)) or encoding not in filters:
        raise UnreadableError(f"the encoding {str(encoding)[:40]!r} is not known")
    if type(digest) not in (str, type(None)):
        raise UnreadableError("the digest is not text")
    if (byteorder := component.get("byteorder", "<")) not in ("<", ">"):
        raise UnreadableError(f"the byte order {str(byteorder)[:40]!r} is not known")
    length, size = decoded_length(component), dtypes.nbytes(dtype, shape)
    if length is not None and length != size:
        raise UnreadableError(f"a component has {length} bytes where {size} are needed for {dtype} {list(shape)}")
    segment = Segment(component.get("file", 0), component["offset"], component["length"])
    return Part(
        dtype=dtype, shape=shape, segments=(segment,), filters=filters[encoding], digest=digest,
        digest_of=component.get("digest_of", "stored"), byteorder=byteorder,
    )  # fmt: skip


def raw_part(component: Component) -> Part:
    """A component without a layout: a flat array of its dtype, or its stored bytes where those say too little."""
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
        # A digest of decoded bytes says nothing of bytes whose encoding is not known.
        verifiable = type(digest) is str and (
            component.get("encoding") is None or component.get("digest_of") != "decoded"
        )
        return Part(dtype="u8", shape=(length,), segments=(segment,), digest=digest if verifiable else None)
