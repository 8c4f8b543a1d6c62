"""The head of one GGUF file: version, metadata, tensor table. Source: gguf.md of ggml."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from struct import Struct
from typing import Any, NamedTuple

from attrs import frozen

from squish_core.api import (
    ErrorCode,
    FormatError,
    Limits,
    Problem,
    Source,
    TruncatedError,
    Typed,
    UnknownFormatError,
    UnsupportedVersionError,
    align_up,
    check_name,
    counted,
    lookalike,
)

from .cursor import Cursor
from .types import (
    BITNET,
    BITNET_TL2,
    DEFAULT_ALIGNMENT,
    FORKS,
    INSTEAD,
    LAYOUTS,
    MAX_ALIGNMENT,
    MAX_KEY,
    MAX_PAIRS,
    PQ2_0,
    Q2_0,
    REMOVED,
    WIDE_Q2_0,
)

MAGIC = b"GGUF"
_START, _COUNTS = Struct("<4sI"), Struct("<QQ")
_ENTRY = [Struct(f"<{rank}QIQ") for rank in range(5)]
_RANK = Struct("<I")
_MAX_ELEMENTS = 1 << 60  # NumPy's limit at eight bytes each, with zero dimensions counted as one
_LONGEST_NAME = 63  # GGML_MAX_NAME with its NUL


class Record(NamedTuple):
    """One line of the tensor table: type code, stored shape, absolute offset, bytes, byte order.

    `original`: the tensor's shape, if a key says that it is not the stored one.
    """

    code: int
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    big: bool = False
    original: tuple[int, ...] | None = None


@frozen(kw_only=True)
class Head:
    """The contents of one file's head, which ends at `end`; tensor data starts at `data`."""

    name: str
    size: int
    version: int
    meta: dict[str, Any]
    records: dict[str, Record]
    end: int
    data: int
    alignment: int
    problems: list[Problem]

    def value(self, key: str, default: Any = None) -> Any:
        """Return a metadata value without its type."""
        return self.meta[key].value if key in self.meta else default


def read_head(source: Source, limits: Limits) -> Head:
    """Read and check everything before the tensor data; FormatError names the field and offset."""
    cursor = Cursor(source, limits)
    version = _version(cursor)
    tensor_count, pair_count = cursor.take(_COUNTS)
    cursor.what = "tensor_count"
    cursor.room_for(tensor_count, 8 + _RANK.size + _ENTRY[0].size)
    cursor.at_most(limits.tensors, tensor_count, "tensors", limit="tensors")
    cursor.what = "metadata_kv_count"
    cursor.room_for(pair_count, 8 + 4 + 1)
    cursor.at_most(MAX_PAIRS, pair_count, "keys")
    meta = _pairs(cursor, pair_count)
    alignment = check_alignment(meta.get("general.alignment"))
    architecture = meta.get("general.architecture")
    renumbered = BITNET_TL2 if architecture is not None and architecture.value in BITNET else {}
    records = _table(cursor, tensor_count, limits, renumbered)
    data = align_up(cursor.at, alignment)
    return Head(
        name=source.filename,
        size=source.size,
        version=version,
        meta=meta,
        alignment=alignment,
        end=cursor.at,
        data=data,
        records=_absolute(records, data, alignment, source.size),
        problems=cursor.problems,
    )


def _version(cursor: Cursor) -> int:
    magic, version = cursor.take(_START)
    if magic != MAGIC:
        other = lookalike(cursor.copy(0, 80), text=True)
        if other:
            raise UnknownFormatError(f"is {other[0]}", code="lookalike", hint=other[1])
        raise FormatError(
            "not a GGUF file (bad magic)",
            offset=0,
            expected=MAGIC,
            found=magic,
            code="magic",
            hint="This is another kind of file, or a damaged one; download it again.",
        )
    if version in (2, 3):
        return int(version)
    swapped = int.from_bytes(int(version).to_bytes(4, "little"), "big")
    if swapped in (1, 2, 3):
        cursor.big, version = True, swapped
        if swapped > 1:
            return swapped
    raise UnsupportedVersionError(
        f"unsupported GGUF version {version}",
        offset=4,
        expected="version 2 or 3",
        found=version,
        code="version",
        hint="Rewrite it with a current llama.cpp." if version < 2 else "A newer squish-gguf may read it.",
    )


def _pairs(cursor: Cursor, count: int) -> dict[str, Typed]:
    meta: dict[str, Typed] = {}
    for number in range(count):
        at, cursor.what = cursor.at, f"metadata key {number}"
        raw = cursor.string(longest=MAX_KEY)
        try:
            key = raw.decode()
        except UnicodeDecodeError:
            raise cursor.wrong("is not UTF-8", at, found=raw[:64], code="utf-8") from None
        if not key or "\0" in key:
            raise cursor.wrong("contains NUL" if key else "is empty", at, code="name")
        cursor.what = f"metadata {key[:100]!r}"
        if key in meta:
            raise cursor.wrong("appears twice", at, code=ErrorCode.DUPLICATE)
        meta[key] = Typed(*cursor.value(cursor.kind()))
    return meta


def check_alignment(setting: Typed | None) -> int:
    """Return `general.alignment`, a u32 power of two up to 1 MiB; 32 if absent."""
    if setting is None:
        return DEFAULT_ALIGNMENT
    value = setting.value
    if setting.type != "u32" or not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
        raise FormatError(
            "invalid general.alignment",
            expected=f"a u32, a power of two up to {MAX_ALIGNMENT}",
            found=f"{setting.type} {value!r:.40}",
            code="alignment",
        )
    return int(value)


def _table(cursor: Cursor, count: int, limits: Limits, renumbered: Mapping[int, int]) -> dict[str, Record]:
    records: dict[str, Record] = {}
    long, start = 0, cursor.at
    for number in range(count):
        at, cursor.what = cursor.at, f"tensor {number} of the table"
        cursor.run = start, number, count
        raw = cursor.string(longest=limits.name)
        try:
            name = check_name(raw.decode(), limits, offset=at)
        except UnicodeDecodeError:
            raise cursor.wrong("has a name that is not UTF-8", at, found=raw[:64], code="utf-8") from None
        if name in records:
            raise FormatError("two tensors have this name", tensor=name, offset=at, code=ErrorCode.DUPLICATE)
        long += len(raw) > _LONGEST_NAME
        (rank,) = cursor.take(_RANK)
        if rank > 4:
            raise FormatError(
                "n_dims is too large", tensor=name, offset=at, expected="at most 4", found=rank, code="rank"
            )
        *dims, code, offset = cursor.take(_ENTRY[rank])
        code = renumbered.get(code, code)
        records[name] = Record(code, tuple(reversed(dims)), offset, _nbytes(name, dims, code, at), cursor.big)
    if long:
        cursor.problems.append(
            Problem(
                code="name",
                severity="note",
                where="tensor names",
                message=f"{counted(long, 'name')} of more than {_LONGEST_NAME} bytes; llama.cpp rejects this file",
            )
        )
    return records


def _nbytes(name: str, dims: list[int], code: int, at: int) -> int:
    """Return the size of a tensor in bytes; 0 if its type is unknown."""
    elements = extent = 1
    for size in dims:
        elements *= size
        extent *= size or 1
    if extent > _MAX_ELEMENTS:
        raise FormatError("the dimensions overflow", tensor=name, offset=at, found=dims[::-1], code="shape")
    kind = LAYOUTS.get(code)
    if kind is None:
        return 0
    row = dims[0] if dims else 1
    if row % kind.elements:
        raise FormatError(
            f"a row does not divide into {kind.name} blocks",
            tensor=name,
            offset=at,
            expected=f"a multiple of {kind.elements}",
            found=row,
            code="shape",
        )
    return elements // row * kind.row_size(row) if elements else 0


def _absolute(records: dict[str, Record], data: int, alignment: int, size: int) -> dict[str, Record]:
    """Return the records with absolute offsets, checked for alignment and bounds.

    A tensor of unknown type extends to the next tensor, so its bytes stay readable.
    """
    starts = sorted(record.offset for record in records.values())
    absolute = {}
    for name, record in records.items():
        if record.offset % alignment:
            raise FormatError(
                "the data offset is not aligned",
                tensor=name,
                expected=f"a multiple of {alignment}",
                found=record.offset,
                code="alignment",
            )
        offset, nbytes, code = data + record.offset, record.nbytes, record.code
        if code not in LAYOUTS or code == Q2_0:
            after = bisect_right(starts, record.offset)
            room = max(0, (data + starts[after] if after < len(starts) else size) - offset)
            code = PQ2_0 if code == Q2_0 and _is_wide(nbytes, room, alignment) else code
            nbytes = nbytes if code in LAYOUTS else room
        if offset + nbytes > size:
            full_size = max(data + record.offset + record.nbytes for record in records.values())
            raise TruncatedError(
                f"truncated in the tensor data: the file has {size} of {full_size} bytes",
                tensor=name,
                offset=offset,
                code="bounds",
                hint="The file is truncated (an interrupted download?) or damaged; fetch it again.",
            )
        absolute[name] = Record(code, record.shape, offset, nbytes, record.big)
    return absolute


def _is_wide(nbytes: int, room: int, alignment: int) -> bool:
    """Return whether a tensor declared as Q2_0 only has room for the smaller PQ2_0 blocks."""
    blocks, rest = divmod(nbytes, WIDE_Q2_0[0])
    return not rest and room < nbytes and 0 <= room - blocks * WIDE_Q2_0[1] < alignment


def unknown_type(code: int) -> str:
    """Return why a tensor of this type cannot be read."""
    if code in REMOVED:
        return f"GGML type {code} ({REMOVED[code]}) was removed from GGML; its layout is no longer defined"
    if code in FORKS:
        instead = f". {INSTEAD[code]}" if code in INSTEAD else ""
        return f"GGML type {abs(code)} ({FORKS[code]}) is not decoded; only that fork reads it{instead}"
    return f"GGML type {code} is unknown: newer than this squish-gguf, or from a llama.cpp fork"
