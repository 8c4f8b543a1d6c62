"""The manifest of 0.1 to 1.2: checked in one pass; the object maps are kept as records.

A record is an object in the form of 1.1: `{shape, format, attributes?, components: {role: {dtype, type?, offset,
length, uncompressed_length?, encoding?, digest?}}}`. `objects` converts records of all versions to tensors.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from squish_core.api import (
    ErrorCode,
    FileRef,
    FormatError,
    LimitError,
    Limits,
    Problem,
    Source,
    check_name,
    check_shape,
)

from .. import columns
from .. import objects as layouts
from ..components import element
from ..records import Extent, Manifest, Record, attributes_of, name_problem, warning
from ..v2 import manifest
from ..wire import Location, locate, no_footer
from . import cbor, early

ALIGNMENT = 64
ZSTD_RATIO = 1 << 15
"""Upper bound of zstd's compression ratio: a block has at least 4 bytes and decodes to at most 128 KiB."""

_EARLY = {"0.1": early.from_0_1, "1.0": early.from_1_0}


def read_manifest(source: Source, limits: Limits) -> Manifest:
    """Find, decode and check the manifest; FormatError for anything that the specification forbids."""
    location = locate(source, limits)
    if location.wire == "2":
        return manifest.read(source, location, limits)
    start = location.offset
    data = source.read(start, location.length, "the manifest")
    table = (
        columns.read(data, location.wire, limits, alignment=ALIGNMENT, end=start) if location.wire == "1.1" else None
    )
    root = table.others if table else _root(source, data, location, limits)
    _check_keys(root, start)
    version = _field(root, "version", str, start)
    attributes = attributes_of(root, None, start)
    problems = []
    if version.split(".")[0] != "1" and location.wire != "0.1":
        problems.append(warning("version", "version", f"the manifest has version {version[:40]!r}, not 1.x"))
    common = partial(
        Manifest,
        offset=start,
        version=version,
        attributes=attributes,
        problems=problems,
        files=(FileRef(source.filename, source.size),),
    )
    if table:
        return common(records=table.records, extents=table.extents, as_v1=columns.record)
    extents = _check_objects(root, limits, start, problems)
    # Tensors are ordered by their first component; those without components come last.
    records = {**dict.fromkeys(extent[3] for extent in extents), **root["objects"]}
    return common(records=records, extents=extents, build=layouts.build)


def _check_keys(root: Record, start: int) -> None:
    for key in root:
        if type(key) is not str:
            raise FormatError(
                "each key of the manifest must be text",
                offset=start,
                expected="text",
                found=repr(key)[:40],
                code="schema",
            )


def _check_objects(root: Record, limits: Limits, start: int, problems: list[Problem]) -> list[Extent]:
    """Check all objects, and return the extents of their components in order."""
    objects = _field(root, "objects", dict, start)
    extents: list[Extent] = []
    if len(objects) > limits.tensors:
        raise LimitError(
            "too many tensors",
            offset=start,
            expected=f"at most {limits.tensors}",
            found=len(objects),
            code="count",
            limit="tensors",
        )
    for name, record in objects.items():
        if name != "":
            check_name(name, limits, offset=start)
        if problem := name_problem(name):
            problems.append(problem)
        _check_object(name, record, limits, start, extents, problems)
    extents.sort()
    return extents


def _root(source: Source, data: bytes, location: Location, limits: Limits) -> Record:
    """Decode the manifest and translate it to the form of 1.1."""
    try:
        root = cbor.decode(data, location.offset, limits)
        translated: Record = _EARLY[location.wire](root, location.offset) if location.wire in _EARLY else root
        return translated
    except FormatError as error:
        # A truncated 1.1 file looks like a 1.0 file with an invalid manifest.
        raise no_footer(source, f" ({error.message})") if location.wire == "1.0" else error from None


def _check_object(
    name: str, record: Any, limits: Limits, end: int, extents: list[Extent], problems: list[Problem]
) -> None:
    if type(record) is not dict:
        raise FormatError("an object must be a map", tensor=name, found=type(record).__name__, code="schema")
    shape = check_shape(record.get("shape"), limits, tensor=name)
    components = record.get("components")
    if type(components) is not dict:
        raise FormatError("components must be a map", tensor=name, found=type(components).__name__, code="schema")
    if "attributes" in record:
        attributes_of(record, name, end)
    for role, component in components.items():
        if type(role) is not str or type(component) is not dict:
            raise FormatError("a component must be a map with a text key", tensor=name, found=repr(role), code="schema")
        offset, length = component.get("offset"), component.get("length")
        if type(offset) is not int or type(length) is not int or offset < 0 or length < 0:
            raise _size_error(name, role, offset, length)
        if offset % ALIGNMENT or offset < ALIGNMENT or offset + length > end:
            raise _bounds_error(name, role, offset, length, end)
        extents.append((0, offset, length, name))
    if record.get("format") == "quantized_group" and "zeros" not in components:
        text = "the required component 'zeros' is missing; codes are read without zero points (III.4)"
        problems.append(warning(ErrorCode.MISSING, name, text))
    if "data" in components:
        layout, data = record.get("format"), components["data"]
        size = layouts.decoded_size(layout, shape, element(data))
        if size is not None and (size != data["length"] or "encoding" in data):
            _check_size(name, shape, data, size)
        if len(components) > 1 and layout == "dense":
            extra = ", ".join(sorted(role for role in components if role != "data"))
            problems.append(warning("extra", name, f"unexpected components of a dense tensor: {extra}"))


def _check_size(name: str, shape: tuple[int, ...], data: Record, size: int) -> None:
    """Check that the data has the size that shape and dtype need, or with zstd can have it."""
    length, encoding = data["length"], data.get("encoding")
    decoded = data.get("uncompressed_length")
    if encoding in (None, "raw"):
        found, fits = f"{length} bytes", length == size
    elif decoded is not None:
        found, fits = f"{decoded} bytes", type(decoded) is int and decoded == size and size <= length * ZSTD_RATIO
    else:
        found, fits = f"{length} bytes of zstd data", encoding != "zstd" or size <= length * ZSTD_RATIO
    if not fits:
        raise FormatError(
            "the size of the data does not match the shape",
            tensor=name,
            part="data",
            offset=data["offset"],
            expected=f"{size} bytes for {data['dtype']} {list(shape)}",
            found=found,
            code="size",
        )


def _field(root: Record, key: str, kind: type, offset: int) -> Any:
    if type(root.get(key)) is not kind:
        fault = "has the wrong type" if key in root else "is missing"
        raise FormatError(
            f"{key!r} of the manifest {fault}",
            offset=offset,
            expected="text" if kind is str else "a map",
            found=type(root[key]).__name__ if key in root else None,
            code="schema",
        )
    return root[key]


def _size_error(name: str, role: str, offset: Any, length: Any) -> FormatError:
    key, value = ("length", length) if type(offset) is int and offset >= 0 else ("offset", offset)
    return FormatError(
        f"invalid {key!r} of a component",
        tensor=name,
        part=role,
        expected="a non-negative integer",
        found="nothing" if value is None else repr(value)[:40],
        code="schema",
    )


def _bounds_error(name: str, role: str, offset: int, length: int, end: int) -> FormatError:
    if offset < ALIGNMENT:
        fault, expected = "the data overlaps the header", f"an offset of {ALIGNMENT} or more"
    elif offset % ALIGNMENT:
        fault, expected = "the offset of the data is not aligned", f"a multiple of {ALIGNMENT}"
    else:
        fault, expected = "the data overlaps the manifest or lies outside the file", f"an end of at most {end}"
    return FormatError(
        fault,
        tensor=name,
        part=role,
        offset=offset,
        expected=expected,
        code="bounds",
        found=f"offset {offset}, length {length}",
        hint="The file is damaged; download it again.",
    )
