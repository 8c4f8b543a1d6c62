"""The manifest of v2 (Draft 4; wires 6.2): checked in one pass; records are translated on access."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from squish_core.api import (
    DenseFields,
    FileRef,
    FormatError,
    LimitError,
    Limits,
    Source,
    TensorSpec,
    check_name,
    check_shape,
)

from .. import columns
from .. import objects as layouts
from ..names import ELEMENTS
from ..records import Extent, Manifest, Record, attributes_of, name_problem, warning
from ..wire import Location
from . import deterministic, footer
from .shards import open_shards

_DIGEST = re.compile(r"(?!xxh3:|sha256:).*|xxh3:[0-9a-f]{16}|sha256:[0-9a-f]{64}", re.DOTALL)
_ELEMENTS = ELEMENTS[2]
_SCALARS = (int, str, bytes, bool, float, type(None))


def read(source: Source, location: Location, limits: Limits) -> Manifest:
    """Decode and check; FormatError if the file violates the draft. Other errors concern a single object."""
    own = FileRef(source.filename, source.size)
    if not location.length:
        note = warning("data-shard", "file", "a data shard: blobs without a manifest; open the file that refers to it")
        return Manifest(
            offset=0,
            version="2",
            attributes={},
            records={},
            extents=[],
            files=(own,),
            problems=[note],
        )
    start = location.offset
    data = source.read(start, location.length, "the manifest")
    footer.check_hash(source, data)
    table = columns.read(data, "2", limits, alignment=footer.ALIGNMENT, end=source.size - footer.SIZE)
    if table:
        _check_attributes(table.others, None, limits, start)
        return Manifest(
            offset=start,
            version="2",
            attributes=attributes_of(table.others, None, start),
            records=table.records,
            extents=[*table.extents, (0, start, location.length, "the manifest")],
            files=(own,),
            as_v1=columns.record,
        )
    return _read(source, data, location, limits)


def _read(source: Source, data: bytes, location: Location, limits: Limits) -> Manifest:
    """Read the manifest object by object."""
    start = location.offset
    root = deterministic.decode(data, start, limits)
    objects = root.get("objects")
    if type(objects) is not dict:
        fault = "is missing" if objects is None else "is not a map"
        raise FormatError(f"'objects' of the manifest {fault}", offset=start, code="schema")
    if len(objects) > limits.tensors:
        raise LimitError(
            "too many tensors",
            offset=start,
            expected=f"at most {limits.tensors}",
            found=len(objects),
            code="count",
            limit="tensors",
        )
    _check_attributes(root, None, limits, start)
    shards = open_shards(source, root.get("shards"), objects, start)
    ends: dict[str | None, int] = {
        None: source.size - footer.SIZE,
        **{name: shard.size - footer.SIZE for name, shard in shards.items()},
    }
    numbers = {name: number for number, name in enumerate(ends)}
    extents: list[Extent] = []
    for name, record in objects.items():
        check_name(name, limits, offset=start)
        _check_object(name, record, limits, ends, numbers, extents)
    extents.sort()
    records = {**dict.fromkeys(extent[3] for extent in extents), **objects}
    extents.append((0, start, location.length, "the manifest"))
    return Manifest(
        offset=start,
        version="2",
        attributes=attributes_of(root, None, start),
        records=records,
        extents=extents,
        files=(FileRef(source.filename, source.size), *shards.values()),
        build=partial(build, numbers=numbers),
        as_v1=partial(translate, numbers=numbers),
        problems=[problem for name in objects if (problem := name_problem(name))],
    )


def build(name: str, record: Record, numbers: dict[str | None, int]) -> DenseFields | TensorSpec:
    """Build the tensor of a checked object."""
    data = record["parts"].get("data")
    if data is not None and record["layout"] == "dense" and "encoding" not in data and "attributes" not in record:
        dtype = _ELEMENTS.get((data["dtype"], data.get("type")))
        if dtype is not None:  # a dense tensor has no other parts
            file, offset = numbers[data.get("shard")], data["blob"][0]
            return dtype, tuple(record["shape"]), file, offset, data.get("digest")
    return layouts.build(name, translate(record, numbers))


def translate(record: Record, numbers: dict[str | None, int]) -> Record:
    """Return an object in the form of 1.1."""
    components = {}
    for role, part in record.get("parts", {}).items():
        offset, length = part["blob"]
        components[role] = {
            **part, "offset": offset, "length": length, "uncompressed_length": part.get("decoded_length"),
            "wire": 2, "file": numbers[part.get("shard")], "digest_of": "decoded", "byteorder": "<",
        }  # fmt: skip
    return {**record, "format": record.get("layout"), "components": components}


def _check_object(
    name: str,
    record: Any,
    limits: Limits,
    ends: dict[str | None, int],
    numbers: dict[str | None, int],
    extents: list[Extent],
) -> None:
    if type(record) is not dict:
        raise _schema("an object must be a map", name, found=type(record).__name__)
    shape = check_shape(record.get("shape"), limits, tensor=name)
    layout, parts = record.get("layout"), record.get("parts")
    if type(layout) is not str:
        raise _schema("the layout must be text", name, found=type(layout).__name__)
    if type(parts) is not dict or not parts:
        raise _schema("parts must be a map with at least one part", name, found=type(parts).__name__)
    if "attributes" in record:
        _check_attributes(record, name, limits, None)
    for role, part in parts.items():
        check_name(role, limits)
        if type(part) is not dict:
            raise _schema("a part must be a map", name, role, type(part).__name__)
        offset, length = _blob(name, role, part)
        shard = part.get("shard")
        if offset % footer.ALIGNMENT or offset < footer.ALIGNMENT or offset + length > ends[shard]:
            raise _bounds_error(name, role, offset, length, ends[shard])
        _check_texts(name, role, part)
        extents.append((numbers[shard], offset, length, name))
    if layout == "dense" or layouts.block_of(layout):
        _check_data(name, layout, shape, parts)


def _blob(name: str, role: str, part: Record) -> tuple[int, int]:
    blob = part.get("blob")
    if type(blob) is not list or len(blob) != 2 or not all(type(item) is int and item >= 0 for item in blob):
        raise _schema("'blob' must be [offset, length]", name, role, repr(blob)[:40])
    return blob[0], blob[1]


def _check_texts(name: str, role: str, part: Record) -> None:
    for key in ("dtype", "type", "encoding", "digest"):
        if type(part.get(key)) is not str and (key in part or key == "dtype"):
            raise _schema(f"{key!r} must be text", name, role, repr(part.get(key))[:40])
    decoded = part.get("decoded_length")
    if ("encoding" in part) != ("decoded_length" in part) or type(decoded) not in (int, type(None)):
        raise _schema(
            "'decoded_length' must be an integer, with an encoding and only then", name, role, repr(decoded)[:40]
        )
    if not _DIGEST.fullmatch(part.get("digest", "")):
        raise _schema("invalid digest: expected all digits in lower-case hexadecimal", name, role, part["digest"][:80])


def _check_data(name: str, layout: str, shape: tuple[int, ...], parts: dict[str, Record]) -> None:
    """Check for one part, of the size that the shape needs."""
    if "data" not in parts:
        return  # reading the tensor fails, its parts stay readable
    if len(parts) > 1:
        raise _schema(f"unexpected parts of a tensor of layout {layout}", name, found=", ".join(sorted(parts)))
    data = parts["data"]
    size = layouts.decoded_size(layout, shape, _ELEMENTS.get((data["dtype"], data.get("type"))))
    length = data.get("decoded_length", data["blob"][1])
    if size is not None and size != length:
        raise FormatError(
            "the size of the data does not match the shape",
            tensor=name,
            part="data",
            offset=data["blob"][0],
            expected=f"{size} bytes for {data.get('type', data['dtype'])} {list(shape)}",
            found=f"{length} bytes",
            code="size",
        )


def _check_attributes(owner: Record, name: str | None, limits: Limits, offset: int | None) -> None:
    if "attributes" not in owner:
        return
    if owner["attributes"] is None:
        raise _schema("attributes must be a map", name, found="null")
    for key in attributes_of(owner, name, offset or 0):
        check_name(key, limits, offset=offset)
    pending = [owner["attributes"]]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending += [*value, *value.values()]
        elif isinstance(value, (list, tuple)):
            pending += value
        elif type(value) not in _SCALARS:
            raise _schema("zTensor v2 does not allow an attribute of this type", name, found=repr(value)[:40])


def _schema(fault: str, name: str | None, part: str | None = None, found: Any = None) -> FormatError:
    return FormatError(fault, tensor=name, part=part, found=found, code="schema")


def _bounds_error(name: str, role: str, offset: int, length: int, end: int) -> FormatError:
    if offset + length > end:
        fault, expected, code = (
            "the data overlaps the footer or lies outside the file",
            f"an end of at most {end}",
            "bounds",
        )
    else:
        fault, expected, code = (
            "the offset of the data is not aligned",
            f"a multiple of {footer.ALIGNMENT}",
            "alignment",
        )
        if offset < footer.ALIGNMENT:
            fault, expected = "the data overlaps the header", f"an offset of {footer.ALIGNMENT} or more"
    return FormatError(
        fault,
        tensor=name,
        part=role,
        offset=offset,
        expected=expected,
        code=code,
        found=f"offset {offset}, length {length}",
        hint="The file is damaged; download it again.",
    )
