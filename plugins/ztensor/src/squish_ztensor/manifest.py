"""The v1.1 manifest: one pass over the decoded map that checks everything and keeps the object maps as records.

A record is an object as v1.1 writes it: `{shape, format, attributes?, components: {role: {dtype, type?, offset,
length, uncompressed_length?, encoding?, digest?}}}`. What a record means is said in `layouts`, for every wire.
"""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from squish_core.api import FormatError, LimitError, Limits, Problem, Source, check_name, check_shape

from . import cbor, layouts
from .wire import manifest_range

ALIGNMENT = 64
ZSTD_RATIO = 1 << 15
"""No zstd stream gives more bytes per stored byte: a block takes 4 bytes or more and gives at most 128 KiB."""

Extent = tuple[int, int, int, str]
Record = dict[str, Any]


@frozen(kw_only=True)
class Manifest:
    """A checked manifest; `offset` is where it starts, `records` are in the order of their data in the file."""

    offset: int
    version: str
    attributes: dict[str, Any]
    records: dict[str, Record]
    extents: list[Extent]
    problems: list[Problem] = field(factory=list)


def read_manifest(source: Source, limits: Limits) -> Manifest:
    """Find, decode and check the manifest; FormatError for whatever the specification forbids."""
    start, length = manifest_range(source, limits)
    root = cbor.decode(source.read(start, length, "the manifest"), start, limits)
    version, objects = _field(root, "version", str, start), _field(root, "objects", dict, start)
    attributes = _attributes(root, None, start)
    if len(objects) > limits.tensors:
        raise LimitError("too many tensors", expected=f"at most {limits.tensors}", found=len(objects), code="count")
    problems = []
    if version.split(".")[0] != "1":
        problems.append(_warning("version", "version", f"the manifest's version is {version[:40]!r}, not 1.x"))
    extents: list[Extent] = []
    for name, record in objects.items():
        if name == "":
            problems.append(_warning("name", "", "a tensor has an empty name"))
        else:
            check_name(name, limits, offset=start)
        _check_object(name, record, limits, start, extents, problems)
    extents.sort()
    # A tensor comes where its first component lies; those without any come last.
    records = {**dict.fromkeys(extent[3] for extent in extents), **objects}
    return Manifest(
        offset=start, version=version, attributes=attributes, records=records, extents=extents, problems=problems
    )


def _check_object(
    name: str, record: Any, limits: Limits, end: int, extents: list[Extent], problems: list[Problem]
) -> None:
    if type(record) is not dict:
        raise FormatError("an object is not a map", tensor=name, found=type(record).__name__, code="schema")
    shape = check_shape(record.get("shape"), limits, tensor=name)
    components = record.get("components")
    if type(components) is not dict:
        raise FormatError(
            "the components are not a map", tensor=name, found=type(components).__name__, code="schema"
        )  # fmt: skip
    if "attributes" in record:
        _attributes(record, name, end)
    for role, component in components.items():
        if type(role) is not str or type(component) is not dict:
            raise FormatError("a component is not a map under a text key", tensor=name, found=repr(role), code="schema")
        offset, length = component.get("offset"), component.get("length")
        if type(offset) is not int or type(length) is not int or offset < 0 or length < 0:
            raise _not_a_size(name, role, offset, length)
        if offset % ALIGNMENT or offset < ALIGNMENT or offset + length > end:
            raise _misplaced(name, role, offset, length, end)
        extents.append((0, offset, length, name))
    if "data" in components:
        layout, data = record.get("format"), components["data"]
        needed = layouts.decoded_size(layout, shape, data)
        if needed is not None and (needed != data["length"] or "encoding" in data):
            _check_size(name, shape, data, needed)
        if len(components) > 1 and layout == "dense":
            extra = ", ".join(sorted(role for role in components if role != "data"))
            problems.append(_warning("extra", name, f"a dense tensor has further components: {extra}"))


def _check_size(name: str, shape: tuple[int, ...], data: Record, needed: int) -> None:
    """The data has the bytes that shape and dtype need; for zstd, could have them."""
    length, encoding = data["length"], data.get("encoding")
    stated = data.get("uncompressed_length")
    if encoding in (None, "raw"):
        found, fits = length, length == needed
    elif stated is not None:
        found, fits = stated, type(stated) is int and stated == needed and needed <= length * ZSTD_RATIO
    else:
        found, fits = f"{length} of zstd", encoding != "zstd" or needed <= length * ZSTD_RATIO
    if not fits:
        raise FormatError(
            "the data does not have the size that its shape needs", tensor=name, part="data", offset=data["offset"],
            expected=f"{needed} bytes for {data['dtype']} {list(shape)}", found=f"{found} bytes", code="size",
        )  # fmt: skip


def _field(root: Record, key: str, kind: type, offset: int) -> Any:
    if type(root.get(key)) is not kind:
        what = "is not of the right type" if key in root else "is missing"
        raise FormatError(
            f"the manifest's {key!r} {what}", offset=offset, expected="text" if kind is str else "a map",
            found=type(root[key]).__name__ if key in root else None, code="schema",
        )  # fmt: skip
    return root[key]


def _attributes(owner: Record, name: str | None, offset: int) -> dict[str, Any]:
    attributes = owner.get("attributes")
    if attributes is None:
        return {}
    if type(attributes) is not dict or not all(type(key) is str for key in attributes):
        raise FormatError(
            "the attributes are not a map with text keys", tensor=name, offset=offset,
            found=type(attributes).__name__, code="schema",
        )  # fmt: skip
    return {key: cbor.plain(value) for key, value in attributes.items()}


def _not_a_size(name: str, role: str, offset: Any, length: Any) -> FormatError:
    key, value = ("length", length) if type(offset) is int and offset >= 0 else ("offset", offset)
    return FormatError(
        f"{key!r} of a component is not a non-negative integer", tensor=name, part=role,
        expected="uint64", found="nothing" if value is None else repr(value)[:40], code="schema",
    )  # fmt: skip


def _misplaced(name: str, role: str, offset: int, length: int, end: int) -> FormatError:
    if offset < ALIGNMENT:
        what, expected = "the data starts inside the header", f"an offset of {ALIGNMENT} or more"
    elif offset % ALIGNMENT:
        what, expected = "the data's offset is not aligned", f"a multiple of {ALIGNMENT}"
    else:
        what, expected = "the data runs into the manifest or past the end of the file", f"an end of at most {end}"
    return FormatError(
        what, tensor=name, part=role, offset=offset, expected=expected, code="bounds",
        found=f"offset {offset}, length {length}", hint="The file is damaged, or cut and glued.",
    )  # fmt: skip


def _warning(code: str, where: str, message: str) -> Problem:
    return Problem(code=code, severity="warning", where=where, message=message)
