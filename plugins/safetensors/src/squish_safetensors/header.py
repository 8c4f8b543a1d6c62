"""The header of a safetensors file: parsing to checked records, and writing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from squish_core.api import (
    JSON_PIECE,
    DenseFields,
    DenseRecord,
    FormatError,
    JsonMembers,
    LimitError,
    Limits,
    Part,
    Problem,
    Segment,
    Source,
    SquishError,
    TensorSpec,
    TruncatedError,
    UnknownFormatError,
    check_name,
    check_shape,
    counted,
    dtypes,
    duplicate_key_error,
    lookalike,
    merge_members,
)

# Tag -> dtype name, in the order of the reference implementation, which sorts by it in reverse.
TAGS = {
    "BOOL": "bool", "F4": "f4_e2m1", "F6_E2M3": "f6_e2m3", "F6_E3M2": "f6_e3m2", "U8": "u8", "I8": "i8",
    "F8_E5M2": "f8_e5m2", "F8_E4M3": "f8_e4m3", "F8_E8M0": "f8_e8m0", "F8_E4M3FNUZ": "f8_e4m3fnuz",
    "F8_E5M2FNUZ": "f8_e5m2fnuz", "I16": "i16", "U16": "u16", "F16": "f16", "BF16": "bf16", "I32": "i32",
    "U32": "u32", "F32": "f32", "C64": "complex64", "F64": "f64", "I64": "i64", "U64": "u64",
}  # fmt: skip
DTYPE_TAGS = {dtype: tag for tag, dtype in TAGS.items()}
DTYPE_ORDER = {dtype: index for index, dtype in enumerate(DTYPE_TAGS)}
METADATA = "__metadata__"
FIELDS = frozenset(("dtype", "shape", "data_offsets"))
MAX_HEADER = 100_000_000  # the format's own limit
MAX_OFFSET = 1 << 63
LARGE = 1 << 20
TensorRecord = tuple[int, str, tuple[int, ...], int, int]
"""(file, tag, shape, offset, length) of one tensor; the offset counts from the start of the file."""
UndeclaredRecord = tuple[int, str, tuple[int, ...], int, int, Problem]
"""A record of codes with undeclared scales, and the finding."""


@frozen
class Header:
    """A checked header: tensors in file order, text metadata, and problems."""

    records: dict[str, TensorRecord]
    metadata: dict[str, str]
    problems: tuple[Problem, ...]


def read_header(source: Source, limits: Limits, file: int = 0) -> Header:
    """Read a header and check every rule of the format.

    Source: the specification of safetensors (its README, section "Format").

    Parameters
    ----------
    source : Source
        The file.
    limits : Limits
        Limits for the header's length, and for the number, names and shapes of tensors.
    file : int
        Number of the file in the Index.

    Returns
    -------
    Header
        Tensors in file order, the text metadata, and problems that do not prevent reading.

    Raises
    ------
    SquishError
        If the header breaks a rule or exceeds a limit; with its offset.

    Examples
    --------
    >>> from squish_core.api import BytesSource
    >>> header = read_header(BytesSource(dump_header([("up", "f32", (2,))], {}) + bytes(8)), Limits())
    >>> header.records
    {'up': (0, 'F32', (2,), 64, 8)}
    """
    raw = _raw_header(source, limits)
    records: dict[str, TensorRecord] = {}
    unknown: dict[str, list[str]] = {}
    metadata: dict[str, Any] | None = None
    for at, members in JsonMembers(raw, "header", limits, start=8):
        if METADATA in members:
            if metadata is not None:
                raise duplicate_key_error(METADATA, at)
            metadata = _metadata(members.pop(METADATA), at)
        if not records:  # the first piece is valid
            _check_count(raw, limits)
        piece = {}
        for name, entry in members.items():
            try:
                piece[name] = _record(file, entry, 8 + len(raw), name, limits)
            except SquishError as error:
                index = bytes(raw[at - 8 : at - 8 + JSON_PIECE]).find(json.dumps(name, ensure_ascii=False).encode())
                raise error.within(tensor=name, offset=at + max(index, 0)) from None
            if len(entry) > len(FIELDS):
                for field in entry.keys() - FIELDS:
                    unknown.setdefault(field, []).append(name)
        merge_members(records, piece, at, limits)
    by_offset = sorted(records.items(), key=lambda item: item[1][3:])
    _check_tiling(by_offset, 8 + len(raw), source.size)
    attributes = metadata or {}
    return Header(
        dict(by_offset),
        {key: value for key, value in attributes.items() if type(value) is str},
        (*_unknown_fields(unknown), *_not_text(attributes)),
    )


def read_record(name: str, record: TensorRecord | UndeclaredRecord) -> DenseFields | TensorSpec:
    """Return the tensor of a record; with an unknown dtype it is listed, and its bytes are an extra part.

    Parameters
    ----------
    name : str
        Name of the tensor.
    record : TensorRecord or UndeclaredRecord
        Its entry in the header.

    Returns
    -------
    DenseFields or TensorSpec
        The fields of a dense tensor, which take less memory than its spec.

    Examples
    --------
    >>> read_record("up", (0, "F32", (2,), 64, 8))
    ('f32', (2,), 0, 64, None)
    """
    if len(record) == 6:
        return evolve(spec_of_record(name, record[:5]), undeclared=record[5])
    file, tag, shape, offset, length = record
    dtype = TAGS.get(tag)
    if dtype is not None:
        return dtype, shape, file, offset, None
    part = Part(dtype="u8", shape=(length,), segments=(Segment(file, offset, length),))
    return TensorSpec(
        name=name,
        shape=shape,
        dtype="unknown",
        extras={"data": part},
        attrs={"dtype": tag},
        problem=f"unknown dtype {tag[:40]!r}",
    )


def spec_of_record(name: str, record: TensorRecord) -> TensorSpec:
    """Return the spec of a record.

    Parameters
    ----------
    name : str
        Name of the tensor.
    record : TensorRecord
        Its entry in the header.

    Returns
    -------
    TensorSpec

    Examples
    --------
    >>> spec_of_record("up", (0, "F32", (2,), 64, 8)).dtype
    'f32'
    """
    tensor = read_record(name, record)
    return DenseRecord(*tensor).spec(name) if isinstance(tensor, tuple) else tensor


def dump_header(tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """Encode length and header of a file: compact JSON, space-padded to 8 bytes.

    Parameters
    ----------
    tensors : iterable of tuple
        (name, dtype, shape) in data order.
    metadata : mapping of str to str
        Text metadata.

    Returns
    -------
    bytes

    Examples
    --------
    >>> dump_header([("up", "f32", (2,))], {})[8:]
    b'{"up":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}} '
    """
    entries: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    position = 0
    for name, dtype, shape in tensors:
        end = position + dtypes.nbytes(dtype, shape)
        entries[name] = {"dtype": DTYPE_TAGS[dtype], "shape": shape, "data_offsets": (position, end)}
        position = end
    raw = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw


def _raw_header(source: Source, limits: Limits) -> memoryview:
    head = source.read(0, min(64, source.size))
    other = lookalike(head, text=True) if head[8:9] != b"{" else None
    if other:
        raise UnknownFormatError(f"is {other[0]}", file=source.name, code="lookalike", hint=other[1])
    if len(head) < 8:
        raise TruncatedError(
            "truncated: the file ends within the header length",
            offset=0,
            expected="8 bytes",
            found=f"{len(head)} bytes",
            code="truncated",
            hint="Download the file again.",
        )
    length, cap = int.from_bytes(head[:8], "little"), min(limits.header, MAX_HEADER)
    if length == 0 or length > cap:
        raise LimitError(
            "not a safetensors file: the header length is out of range",
            offset=0,
            expected=f"1..{cap} bytes",
            found=f"{length} bytes",
            code="header-length",
            hint="If it should be one, it is damaged; download it again.",
        )
    if 8 + length > source.size:
        raise TruncatedError(
            "truncated: the file ends within the header",
            offset=8,
            expected=f"at least {8 + length} bytes",
            found=f"{source.size} bytes",
            code="truncated",
            hint="Download the file again.",
        )
    return text_of(source, 8, length)


def text_of(source: Source, offset: int, length: int) -> memoryview:
    """Return the bytes of a text: a large one is not copied, so that an early error is cheap."""
    return source.view(offset, length) if length > LARGE else memoryview(source.read(offset, length))


def _check_count(raw: memoryview, limits: Limits) -> None:
    """Refuse too many tensors before parsing, by counting data_offsets."""
    mark = b'"data_offsets"'
    pieces = (bytes(raw[at : at + LARGE + len(mark) - 1]) for at in range(0, len(raw), LARGE))
    count = sum(piece.count(mark) for piece in pieces)
    if count > limits.tensors:
        raise LimitError(
            "too many tensors",
            offset=8,
            expected=f"at most {limits.tensors}",
            found=count,
            code="count",
            limit="tensors",
        )


def _metadata(entry: Any, at: int) -> dict[str, Any]:
    if entry is None:  # MLX writes null if there is none, and the reference implementation accepts it
        return {}
    if type(entry) is not dict:
        raise FormatError(f"{METADATA} must be an object", offset=at, found=type(entry).__name__, code="metadata")
    return entry


def _record(file: int, entry: Any, start: int, name: str, limits: Limits) -> TensorRecord:
    check_name(name, limits)
    if type(entry) is not dict:
        raise FormatError("the entry must be an object", found=type(entry).__name__, code="entry")
    if not entry.keys() >= FIELDS:
        raise FormatError("missing field in the entry", expected=", ".join(sorted(FIELDS - entry.keys())), code="entry")
    tag, offsets = entry["dtype"], entry["data_offsets"]
    shape = check_shape(entry["shape"], limits, tensor=name)
    if type(tag) is not str:
        raise FormatError("dtype must be text", found=type(tag).__name__, code="dtype")
    if type(offsets) is not list or [*map(type, offsets)] != [int, int]:
        raise FormatError(
            "data_offsets must be a pair of integers", expected="[begin, end]", found=repr(offsets)[:80], code="offsets"
        )
    begin, end = offsets
    if not 0 <= begin <= end < MAX_OFFSET:
        raise FormatError(
            "data_offsets out of range",
            expected="0 <= begin <= end < 2**63",
            found=repr(offsets)[:80],
            code="offsets",
        )
    if tag in TAGS:
        _check_size(tag, shape, end - begin)
    return file, tag, shape, start + begin, end - begin


def _check_size(tag: str, shape: tuple[int, ...], length: int) -> None:
    bits = dtypes.count(shape) * dtypes.bits(TAGS[tag])
    if bits & 7:
        raise FormatError(
            "the packed elements do not end at a byte", expected="whole bytes", found=f"{bits} bits", code="size"
        )
    if bits >> 3 != length:
        raise FormatError(
            "data_offsets do not match dtype and shape",
            expected=f"{bits >> 3} bytes for {tag} {list(shape)}"[:200],
            found=f"{length} bytes",
            code="size",
        )


def _check_tiling(records: list[tuple[str, TensorRecord]], start: int, size: int) -> None:
    """Check that tensor data cover the rest of the file without holes, overlaps or trailing bytes."""
    position, before = start, ""
    for name, (_, _, _, offset, length) in records:
        if offset + length > size:
            raise TruncatedError(
                "truncated: the data extends past the end of the file",
                tensor=name,
                offset=offset,
                expected=f"{max(record[3] + record[4] for _, record in records)} bytes in total",
                found=f"{size} bytes",
                code="bounds",
                hint="The download may have been interrupted; download the file again.",
            )
        if offset != position:
            fault = f"overlaps that of {before[:80]!r}" if offset < position else "has a gap before it"
            raise FormatError(
                f"the data {fault}",
                tensor=name,
                offset=offset,
                expected=f"an offset of {position}",
                found=offset,
                code="overlap" if offset < position else "hole",
                hint="The file is damaged or malicious; do not trust its tensors.",
            )
        position, before = offset + length, name
    if position != size:
        raise FormatError(
            f"{size - position} unexpected bytes after the last tensor",
            offset=position,
            expected=f"{position} bytes in total",
            found=f"{size} bytes",
            code="trailing",
            hint="Data was appended to the file; download it again.",
        )


def _unknown_fields(unknown: Mapping[str, Sequence[str]]) -> list[Problem]:
    """Report each unknown field once, for all tensors with it."""
    return [
        Problem(
            code="field",
            severity="warning",
            where=names[0],
            message=f"unknown field {field[:80]!r} (in {counted(len(names), 'tensor')})",
        )
        for field, names in sorted(unknown.items())
    ]


def _not_text(metadata: Mapping[str, Any]) -> list[Problem]:
    return [
        Problem(
            code="metadata",
            severity="warning",
            where=f"{METADATA}.{key}",
            message=f"ignored: not text but {type(value).__name__}",
        )
        for key, value in metadata.items()
        if type(value) is not str
    ]
