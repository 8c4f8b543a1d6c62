"""Reading one GGUF file's header: key/values and tensor table, every count and length checked before it is used."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from attrs import field, frozen

from squish_core.api import (
    FormatError,
    LimitError,
    Limits,
    Problem,
    Source,
    TruncatedError,
    Typed,
    UnsupportedVersionError,
    check_name,
    dtypes,
)

from .arrays import StoredSequence, text
from .tables import (
    ALIGNMENT_KEY,
    ARRAY,
    BLOCK_TYPES,
    DEFAULT_ALIGNMENT,
    DENSE_TYPES,
    MAGIC,
    MAX_ALIGNMENT,
    MAX_ARRAY_DEPTH,
    MAX_RANK,
    SCALARS,
    STRING,
    VERSIONS,
)

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_FEWEST_ENTRY, _FEWEST_TENSOR = 8 + 4 + 1, 8 + 4 + 4 + 8


class Record(NamedTuple):
    """One line of the tensor table: `length` is None where the type's size is not known, `offset` counts from 0."""

    shape: tuple[int, ...]
    type: int
    offset: int
    length: int | None
    file: int = 0


@frozen(kw_only=True)
class Header:
    """A whole header; `data` is where the tensor data starts."""

    version: int
    meta: dict[str, Typed]
    records: dict[str, Record]
    alignment: int
    data: int
    problems: list[Problem] = field(factory=list)


class Cursor:
    """Reads forward through the header, in windows that grow, within the limit."""

    def __init__(self, source: Source, limits: Limits) -> None:
        self.source, self.limits, self.at = source, limits, 0
        self.window = bytearray(source.read(0, min(4096, source.size)))

    def need(self, length: int, what: str) -> None:
        """Make `length` more bytes available; TruncatedError or LimitError naming `what`."""
        end = self.at + length
        if end <= len(self.window):
            return
        if end > self.source.size:
            raise TruncatedError(
                f"the header is cut in {what}", offset=self.at, expected=f"{length} bytes",
                found=f"{self.source.size - self.at} of a file of {self.source.size} bytes", code="truncated",
                hint="The file is truncated (an interrupted download?) or the length is damaged.",
            )  # fmt: skip
        if end > self.limits.header:
            raise LimitError(
                f"the header is larger than the limit, at {what}", offset=self.at,
                expected=f"at most {self.limits.header} bytes", found=f"{end} bytes", code="header",
            )  # fmt: skip
        wanted = min(max(end, 2 * len(self.window)), self.source.size, self.limits.header)
        self.window += self.source.read(len(self.window), wanted - len(self.window))

    def take(self, length: int, what: str) -> bytes:
        """The next bytes."""
        self.need(length, what)
        self.at += length
        return bytes(self.window[self.at - length : self.at])

    def unpack(self, layout: struct.Struct, what: str) -> Any:
        """The next number."""
        self.need(layout.size, what)
        self.at += layout.size
        return layout.unpack_from(self.window, self.at - layout.size)[0]

    def string(self, what: str) -> bytes:
        """The next length and its bytes."""
        return self.take(self.unpack(_U64, f"the length of {what}"), what)

    def skip_strings(self, count: int, what: str) -> None:
        """Walk over strings, checking each length."""
        unpack, window = _U64.unpack_from, self.window
        for _ in range(count):
            if self.at + 8 > len(window):
                self.need(8, what)
            position = self.at + 8 + unpack(window, self.at)[0]
            if position > len(window):
                self.need(position - self.at, what)
            self.at = position

    def count(self, fewest: int, what: str) -> int:
        """A number of entries that the rest of the file could hold."""
        start, count = self.at, self.unpack(_U64, what)
        if count * fewest > self.source.size - self.at:
            raise FormatError(
                f"{what} is larger than the file can hold", offset=start,
                expected=f"at most {(self.source.size - self.at) // fewest}", found=count, code="count",
                hint="The file is truncated or damaged.",
            )  # fmt: skip
        return int(count)


def read_header(source: Source, limits: Limits) -> Header:
    """The checked header of one file (GGUF specification: header, metadata, tensor infos)."""
    cursor = Cursor(source, limits)
    version = _version(cursor)
    tensors = cursor.count(_FEWEST_TENSOR, "the tensor count")
    entries = cursor.count(_FEWEST_ENTRY, "the number of keys")
    if tensors > limits.tensors:
        raise LimitError(
            "too many tensors", offset=8, expected=f"at most {limits.tensors}", found=tensors, code="count"
        )
    problems: list[Problem] = []
    meta: dict[str, Typed] = {}
    for _ in range(entries):
        start = cursor.at
        key = _key(cursor, limits)
        if key in meta:
            raise FormatError(f"the key {key!r} is there twice", offset=start, code="duplicate")
        meta[key] = _value(cursor, cursor.unpack(_U32, f"the type of {key!r}"), key, problems, 0)
    alignment = _alignment(meta)
    records: dict[str, Record] = {}
    for _ in range(tensors):
        start = cursor.at
        name, record = _tensor(cursor, alignment, limits)
        if name in records:
            raise FormatError("the tensor is there twice", tensor=name, offset=start, code="duplicate")
        records[name] = record
    data = cursor.at + -cursor.at % alignment
    records = {name: record._replace(offset=data + record.offset) for name, record in records.items()}
    return Header(
        version=version, meta=meta, records=records, alignment=alignment, data=data, problems=problems
    )  # fmt: skip


def _version(cursor: Cursor) -> int:
    magic = cursor.take(4, "the magic")
    if magic != MAGIC:
        raise FormatError("is not a GGUF file", offset=0, expected=MAGIC, found=magic, code="magic")
    version = int(cursor.unpack(_U32, "the version"))
    if version in VERSIONS:
        return version
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if 1 <= swapped <= max(VERSIONS):
        raise UnsupportedVersionError(
            f"big-endian GGUF v{swapped} is not read", offset=4, expected="little-endian v2 or v3", found=hex(version),
            code="byte-order", hint="Convert it with gguf-convert-endian from the package gguf.",
        )  # fmt: skip
    raise UnsupportedVersionError(
        f"unsupported GGUF version {version}", offset=4, expected="2 or 3", found=version, code="version",
        hint="Convert it again with a current llama.cpp." if version == 1 else "Is there a newer squish-gguf?",
    )  # fmt: skip


def _key(cursor: Cursor, limits: Limits) -> str:
    start = cursor.at
    length = cursor.unpack(_U64, "the length of a key")
    if length > 65535:  # the specification's own cap
        raise FormatError("a key is too long", offset=start, expected="at most 65535 bytes", found=length, code="key")
    raw = cursor.take(length, "a key")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise FormatError("a key is not UTF-8", offset=start, found=repr(raw[:40]), code="key") from None


def _value(cursor: Cursor, kind: int, key: str, problems: list[Problem], depth: int) -> Typed:
    start = cursor.at
    if kind in SCALARS:
        name, layout = SCALARS[kind]
        value = cursor.unpack(layout, f"the value of {key!r}")
        if name == "bool":
            _check_bool(value, key, start)
            value = bool(value)
        return Typed(name, value)
    if kind == STRING:
        value = text(cursor.string(f"the value of {key!r}"))
        if isinstance(value, bytes):
            problems.append(_warning("utf-8", key, "the value is not UTF-8; it is kept as bytes"))
        return Typed("str", value)
    if kind == ARRAY:
        return _array(cursor, key, problems, depth)
    raise FormatError(
        f"the key {key!r} has a value of unknown type", offset=start - 4, expected="0 to 12", found=kind, code="type"
    )


def _array(cursor: Cursor, key: str, problems: list[Problem], depth: int) -> Typed:
    start = cursor.at
    kind = cursor.unpack(_U32, f"the element type of {key!r}")
    what = f"the array {key!r}"
    if kind in SCALARS:
        name, layout = SCALARS[kind]
        count = cursor.count(layout.size, what)
        data = cursor.take(count * layout.size, what)
        if name == "bool" and data:
            _check_bool(max(data), key, start)
        return Typed(f"array:{name}", StoredSequence(name, count, data))
    if kind == STRING:
        count = cursor.count(8, what)
        first = cursor.at
        cursor.skip_strings(count, what)
        data = bytes(cursor.window[first : cursor.at])
        return Typed("array:str", StoredSequence("str", count, data))
    if kind != ARRAY:
        raise FormatError(
            f"{what} has elements of unknown type", offset=start, expected="0 to 12", found=kind, code="type"
        )
    if depth + 1 >= MAX_ARRAY_DEPTH:
        raise LimitError(
            f"{what} is nested too deeply", offset=start, expected=f"at most {MAX_ARRAY_DEPTH}", code="depth"
        )
    inner = [_array(cursor, key, problems, depth + 1) for _ in range(cursor.count(12, what))]
    kinds = {item.type for item in inner}
    if len(kinds) > 1:
        raise FormatError(
            f"{what} holds arrays of several types", offset=start, found=", ".join(sorted(kinds)), code="type"
        )
    return Typed(f"array:{kinds.pop() if kinds else 'array:u8'}", [item.value for item in inner])


def _check_bool(value: int, key: str, offset: int) -> None:
    if value > 1:
        raise FormatError(f"the bool {key!r} is neither 0 nor 1", offset=offset, found=value, code="bool")


def _alignment(meta: dict[str, Typed]) -> int:
    stated = meta.get(ALIGNMENT_KEY, Typed("u32", DEFAULT_ALIGNMENT))
    value = stated.value
    if stated.type != "u32" or not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
        raise FormatError(
            f"{ALIGNMENT_KEY} is not usable", expected=f"a u32 power of two up to {MAX_ALIGNMENT}",
            found=f"{stated.type} {value!r}", code="alignment",
        )  # fmt: skip
    return int(value)


def _tensor(cursor: Cursor, alignment: int, limits: Limits) -> tuple[str, Record]:
    start = cursor.at
    raw = cursor.string("a tensor name")
    try:
        name = check_name(raw.decode(), limits, offset=start)
    except UnicodeDecodeError:
        raise FormatError("a tensor name is not UTF-8", offset=start, found=repr(raw[:40]), code="name") from None
    where = f"the table entry of {name!r}"
    rank = cursor.unpack(_U32, where)
    if rank > MAX_RANK:
        raise FormatError(
            "too many dimensions",
            tensor=name,
            offset=cursor.at - 4,
            expected=f"at most {MAX_RANK}",
            found=rank,
            code="rank",
        )
    shape = tuple(reversed([cursor.unpack(_U64, where) for _ in range(rank)]))
    kind, offset = cursor.unpack(_U32, where), cursor.unpack(_U64, where)
    if offset % alignment:
        raise FormatError(
            "the data is not aligned", tensor=name, offset=cursor.at - 8, expected=f"a multiple of {alignment}",
            found=offset, code="alignment",
        )  # fmt: skip
    return name, Record(shape, kind, offset, _length(name, shape, kind, start))


def _length(name: str, shape: tuple[int, ...], kind: int, offset: int) -> int | None:
    """Bytes of a tensor in Python integers; None for a type whose size is not known."""
    if kind in DENSE_TYPES:
        return dtypes.nbytes(DENSE_TYPES[kind], shape)
    if kind not in BLOCK_TYPES:
        return None
    block, elements, nbytes = BLOCK_TYPES[kind]
    if not shape or shape[-1] % elements:
        raise FormatError(
            f"a row does not divide into {block.upper()} blocks", tensor=name, offset=offset,
            expected=f"a row length that is a multiple of {elements}", found=list(shape), code="shape",
        )  # fmt: skip
    return dtypes.nbytes("u8", shape) // elements * nbytes


def _warning(code: str, where: str, message: str) -> Problem:
    return Problem(code=code, severity="warning", where=where, message=message)
