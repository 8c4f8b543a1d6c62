"""The manifest of 0.1 to 1.2: one pass that checks everything and keeps the object maps as records.

A record is an object as v1.1 writes it: `{shape, format, attributes?, components: {role: {dtype, type?, offset,
length, uncompressed_length?, encoding?, digest?}}}`. What a record means is said in `layouts`, for every wire.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from squish_core.api import (
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
from ..wire import Located, locate, no_footer
from . import cbor, early

ALIGNMENT = 64
ZSTD_RATIO = 1 << 15
"""No zstd stream gives more bytes per stored byte: a block takes 4 bytes or more and gives at most 128 KiB."""

_EARLY = {"0.1": early.from_0_1, "1.0": early.from_1_0}


def read_manifest(source: Source, limits: Limits) -> Manifest:
    """Find, decode and check the manifest; FormatError for whatever the specification forbids."""
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
        problems.append(warning("version", "version", f"the manifest's version is {version[:40]!r}, not 1.x"))
    common = partial(
        Manifest, offset=start, version=version, attributes=attributes, problems=problems,
        files=(FileRef(source.filename, source.size),),
    )  # fmt: skip
    if table:
        return common(records=table.records, extents=table.extents, as_first=columns.record)
    extents = _check_objects(root, limits, start, problems)
    # A tensor comes where its first component lies; those without any come last.
    records = {**dict.fromkeys(extent[3] for extent in extents), **root["objects"]}
    return common(records=records, extents=extents, build=layouts.build)


def _check_keys(root: Record, start: int) -> None:
    for key in root:
        if type(key) is not str:
            raise FormatError(
                "a key of the manifest is not text", offset=start, expected="text", found=repr(key)[:40], code="schema"
            )


def _check_objects(root: Record, limits: Limits, start: int, problems: list[Problem]) -> list[Extent]:
    """Where every component lies, in order, once all is checked."""
    objects = _field(root, "objects", dict, start)
    extents: list[Extent] = []
    if len(objects) > limits.tensors:
        raise LimitError(
            "too many tensors", offset=start, expected=f"at most {limits.tensors}", found=len(objects), code="count",
            limit="tensors",
        )  # fmt: skip
    for name, record in objects.items():
        if name != "":
            check_name(name, limits, offset=start)
        if problem := name_problem(name):
            problems.append(problem)
        _check_object(name, record, limits, start, extents, problems)
    extents.sort()
    return extents


def _root(source: Source, data: bytes, location: Located, limits: Limits) -> Record:
    """The manifest's map as 1.1 has it."""
    try:
        root = cbor.decode(data, location.offset, limits)
        translated: Record = _EARLY[location.wire](root, location.offset) if location.wire in _EARLY else root
        return translated
    except FormatError as error:
        # A cut 1.1 file looks like a 1.0 file whose manifest makes no sense.
        raise no_footer(source, f" ({error.message})") if location.wire == "1.0" else error from None


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
        attributes_of(record, name, end)
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
        size = layouts.decoded_size(layout, shape, element(data))
        if size is not None and (size != data["length"] or "encoding" in data):
            _check_size(name, shape, data, size)
        if len(components) > 1 and layout == "dense":
            extra = ", ".join(sorted(role for role in components if role != "data"))
            problems.append(warning("extra", name, f"a dense tensor has further components: {extra}"))


def _check_size(name: str, shape: tuple[int, ...], data: Record, size: int) -> None:
    """The data has the bytes that shape and dtype need; for zstd, could have them."""
    length, encoding = data["length"], data.get("encoding")
    decoded = data.get("uncompressed_length")
    if encoding in (None, "raw"):
        found, fits = length, length == size
    elif decoded is not None:
        found, fits = decoded, type(decoded) is int and decoded == size and size <= length * ZSTD_RATIO
    else:
        found, fits = f"{length} of zstd", encoding != "zstd" or size <= length * ZSTD_RATIO
    if not fits:
        raise FormatError(
            "the data does not have the size that its shape needs", tensor=name, part="data", offset=data["offset"],
            expected=f"{size} bytes for {data['dtype']} {list(shape)}", found=f"{found} bytes", code="size",
        )  # fmt: skip


def _field(root: Record, key: str, kind: type, offset: int) -> Any:
    if type(root.get(key)) is not kind:
        what = "is not of the right type" if key in root else "is missing"
        raise FormatError(
            f"the manifest's {key!r} {what}", offset=offset, expected="text" if kind is str else "a map",
            found=type(root[key]).__name__ if key in root else None, code="schema",
        )  # fmt: skip
    return root[key]


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
