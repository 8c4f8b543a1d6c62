"""The GGUF container: Index from a file or a split set, and a file from tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from squish_core.api import (
    DENSE,
    CodecSpec,
    Container,
    Encoding,
    FileRef,
    FormatError,
    Index,
    Layout,
    LazyTensors,
    Limits,
    Outgoing,
    Part,
    Problem,
    Refusal,
    Segment,
    Sink,
    Source,
    TensorSpec,
    check_extents,
)

from . import writer
from .reader import Header, Record, read_header
from .tables import BLOCK_IDS, BLOCK_TYPES, DENSE_TYPES, REMOVED_TYPES

_PART_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")


class Gguf(Container):
    """GGUF v2 and v3, little-endian; any part of a split set opens the whole set."""

    def read_index(self, source: Source, limits: Limits) -> Index:
        header = read_header(source, limits)
        split = header.meta.get("split.count")
        parts = [(source, header)]
        if split is not None and split.value not in (0, 1):
            parts = _split_set(source, header, limits)
        files = [FileRef(part.filename, part.size) for part, _ in parts]
        records: dict[str, Record] = {}
        problems: list[Problem] = []
        extents: list[tuple[int, int, int, str]] = []
        for number, (part, each) in enumerate(parts):
            for name, record in each.records.items():
                if name in records:
                    raise FormatError(
                        "the tensor is in two parts of the set", file=part.name, tensor=name, code="split"
                    )
                records[name] = record._replace(file=number)
            mine = [(number, r.offset, r.length or 0, name) for name, r in each.records.items()]
            problems += [*each.problems, *_gaps(mine, each, part.size)]
            extents += mine
        aliases, _ = check_extents(extents, files, aliases="problem")
        _bound_unknown(records, files)
        meta = {key: value for key, value in parts[0][1].meta.items() if len(parts) == 1 or key not in _SPLIT_KEYS}
        return Index(
            format="gguf", version=str(header.version), files=tuple(files), meta=meta, problems=(*problems, *aliases),
            tensors=LazyTensors(records, build, extents), kind=str(_plain(meta, "general.type", "model")),
        )  # fmt: skip

    def recipes(self, *, dtype: str = "f32", **features: Any) -> tuple[Encoding, ...]:
        if dtype in BLOCK_IDS:
            return (Encoding(codec=CodecSpec(f"ggml.{dtype}"), parts={"data": Part(dtype="u8", shape=())}),)
        return (Encoding(codec=DENSE, parts={"data": Part(dtype=dtype, shape=())}),)

    def accepts(self, spec: TensorSpec, encoding: Encoding, options: Mapping[str, str]) -> Encoding | Refusal:
        return writer.accepts(spec, encoding)

    def layout(
        self,
        specs: Sequence[TensorSpec],
        meta: Mapping[str, Any],
        assets: Mapping[str, Part],
        options: Mapping[str, str],
    ) -> Layout:
        return writer.layout(specs, meta, assets)

    def write(
        self,
        sink: Sink,
        tensors: Sequence[Outgoing],
        meta: Mapping[str, Any],
        assets: Mapping[str, bytes],
        options: Mapping[str, str],
    ) -> None:
        writer.write(sink, tensors, meta)


def build(name: str, record: Record) -> TensorSpec:
    """The TensorSpec of one line of the tensor table."""
    length = record.length or 0
    segments = (Segment(record.file, record.offset, length),)
    if record.type in DENSE_TYPES:
        dtype = DENSE_TYPES[record.type]
        part = Part(dtype=dtype, shape=record.shape, segments=segments)
        return TensorSpec(
            name=name, shape=record.shape, dtype=dtype, encodings=(Encoding(codec=DENSE, parts={"data": part}),)
        )
    if record.type in BLOCK_TYPES:
        block, elements, nbytes = BLOCK_TYPES[record.type]
        shape = (*record.shape[:-1], record.shape[-1] // elements * nbytes)
        encoding = Encoding(
            codec=CodecSpec(f"ggml.{block}"), parts={"data": Part(dtype="u8", shape=shape, segments=segments)}
        )
        return TensorSpec(name=name, shape=record.shape, dtype="f32", encodings=(encoding,))
    what = f"was removed from ggml ({REMOVED_TYPES[record.type]})" if record.type in REMOVED_TYPES else "is not known"
    raw = Part(dtype="u8", shape=(length,), segments=segments)
    return TensorSpec(
        name=name, shape=record.shape, dtype="f32", extras={"data": raw},
        problem=f"its tensor type {record.type} {what}",
    )  # fmt: skip


def _gaps(extents: list[tuple[int, int, int, str]], header: Header, size: int) -> list[Problem]:
    """Bytes between tensors, or after the last, that are more than padding."""
    problems, end = [], header.data
    for _, offset, length, name in sorted(extents):
        if offset >= end + header.alignment:
            problems.append(_warning("hole", name, f"{offset - end} bytes before its data belong to no tensor"))
        end = max(end, offset + length)
    if size >= end + header.alignment and all(record.length is not None for record in header.records.values()):
        problems.append(_warning("trailing", f"byte {end}", f"{size - end} bytes after the last tensor"))
    return problems


def _bound_unknown(records: dict[str, Record], files: list[FileRef]) -> None:
    """Give a tensor of unknown size the bytes up to the next one, so that they stay readable."""
    starts = sorted({(record.file, record.offset) for record in records.values()})
    after = {here: there for here, there in zip(starts, starts[1:]) if here[0] == there[0]}
    for name, record in records.items():
        if record.length is None:
            here = (record.file, record.offset)
            end = after[here][1] if here in after else files[record.file].size
            records[name] = record._replace(length=max(0, end - record.offset))


def _split_set(source: Source, header: Header, limits: Limits) -> list[tuple[Source, Header]]:
    """All parts of a split set, in order, checked to belong together."""
    count = _plain(header.meta, "split.count", 0)
    match = _PART_NAME.fullmatch(source.filename)
    if not match or int(match[3]) != count:
        raise FormatError(
            "is a part of a split set, but its name does not say which", file=source.name, code="split",
            expected=f"NAME-NNNNN-of-{count:05}.gguf", found=source.filename, hint="Restore the file's original name.",
        )  # fmt: skip
    parts = []
    for number in range(count):
        name = f"{match[1]}-{number + 1:05}-of-{count:05}.gguf"
        part = source if name == source.filename else _member(source, name)
        each = header if part is source else read_header(part, limits)
        _check_part(part, each, number, header)
        parts.append((part, each))
    wanted, found = _plain(header.meta, "split.tensors.count", None), sum(len(each.records) for _, each in parts)
    if wanted is not None and wanted != found:
        raise FormatError(
            "the parts do not hold all tensors",
            file=source.name,
            expected=f"{wanted} tensors",
            found=found,
            code="split",
        )
    return parts


def _member(source: Source, name: str) -> Source:
    try:
        return source.member(name)
    except FormatError as error:
        raise FormatError(
            f"the part {name!r} of the split set cannot be opened", file=source.name, found=error.message, code="split",
            hint="Put all parts into one folder.",
        ) from None  # fmt: skip


def _check_part(part: Source, each: Header, number: int, first: Header) -> None:
    stated = _plain(each.meta, "split.no", None)
    if stated != number or _plain(each.meta, "split.count", None) != _plain(first.meta, "split.count", None):
        raise FormatError(
            "the part says that it is another one", file=part.name, expected=f"split.no {number}",
            found=f"split.no {stated} of {_plain(each.meta, 'split.count', None)}", code="split",
        )  # fmt: skip
    for key, value in each.meta.items():
        if key.startswith("general.") and key in first.meta and first.meta[key] != value:
            raise FormatError(
                f"the part belongs to another model: {key!r} differs", file=part.name,
                expected=repr(first.meta[key].value)[:60], found=repr(value.value)[:60], code="split",
            )  # fmt: skip
    if _plain(each.meta, "split.tensors.count", None) != _plain(first.meta, "split.tensors.count", None):
        raise FormatError("the part disagrees about the number of tensors", file=part.name, code="split")


def _plain(meta: Mapping[str, Any], key: str, default: Any) -> Any:
    return meta[key].value if key in meta else default


def _warning(code: str, where: str, message: str) -> Problem:
    return Problem(code=code, severity="warning", where=where, message=message)
