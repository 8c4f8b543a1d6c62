"""The files of a directory: lookup by stem, numbering for the Index, header parsing."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from squish_core.api import (
    ErrorCode,
    FileRef,
    Filter,
    FormatError,
    LimitError,
    Limits,
    MissingPluginError,
    Part,
    Segment,
    Source,
    SquishError,
    TensorError,
    check_shape,
    dtypes,
    install_command,
    load_json,
    load_meta,
)

from ..features import LISTING
from .npy import MAX_HEADER, PREFIX, Npy, header_size, parse

if TYPE_CHECKING:
    from .listing import Listed

META = "squish.meta"
"""The file with metadata that `stats.json` cannot store: a GGUF's keys, with their types."""
MAX_JSON = 64 << 20
"""Maximum size of a JSON file in bytes."""


COMMON, SHAPE = 128, 256
"""Size of the first read: a typical header, which in a shape array includes its numbers."""


@frozen
class Stored:
    """An array of the directory; `head` is the start of its file."""

    path: str
    npy: Npy
    file: int
    size: int
    filters: tuple[Filter, ...] = ()
    head: bytes = b""

    def part(self, dtype: str, shape: tuple[int, ...]) -> Part:
        """Return the array as a codec's part; TensorError unless dtype and matrix shape match."""
        if self.npy.dtype != dtype or not _shapes_match(self.npy.shape, shape):
            raise TensorError(
                f"{self.path} does not match the tensor",
                expected=f"{dtype} {list(shape)}",
                found=f"{self.npy.dtype} {list(self.npy.shape)}",
                code="shape",
            )
        start, length = (0, self.size) if self.filters else (self.npy.offset, self.npy.nbytes)
        return Part(
            dtype=dtype,
            shape=shape,
            segments=(Segment(self.file, start, length),),
            filters=self.filters,
            byteorder=self.npy.byteorder,
        )

    def raw(self) -> Part:
        """Return the array as a part."""
        return self.part(self.npy.dtype, self.npy.shape)

    def flat(self, dtype: str, count: int) -> Part:
        """Return the first `count` elements of a padded 1-D array."""
        if self.filters or self.npy.shape == (count,):
            return self.part(dtype, (count,))
        whole = self.part(dtype, self.npy.shape)
        length = dtypes.nbytes(dtype, (count,))
        if len(self.npy.shape) != 1 or not length <= self.npy.nbytes <= length + 64:
            return self.part(dtype, (count,))
        return Part(dtype=dtype, shape=(count,), segments=(Segment(self.file, whole.segments[0].offset, length),))


@frozen(kw_only=True)
class Folder:
    """The files of one directory."""

    source: Source
    limits: Limits
    refs: list[FileRef] = field(factory=list)
    _lists: dict[str, frozenset[str]] = field(factory=dict)
    _numbers: dict[str, int] = field(factory=dict)

    @cached_property
    def listed(self) -> Mapping[str, Listed] | None:
        """The list of files of a remote directory; None without one, and on disk."""
        if not self.source.is_remote or not self.source.has(LISTING):
            return None
        from . import listing

        files = listing.parse(self.json(LISTING, "list of files"))
        return files if self.source.expect(listing.statements(files)) else None

    def names(self, folder: str = "") -> frozenset[str]:
        """Return the names of the regular files of a folder."""
        if folder not in self._lists:
            self._lists[folder] = frozenset(
                self.source.members(folder) if self.source.lists_members else self._listed_names(folder)
            )
        return self._lists[folder]

    def _listed_names(self, folder: str) -> list[str]:
        if self.listed is None:
            raise FormatError(
                "cannot list the files of this folder, which a npy directory needs",
                file=self.source.name,
                expected=f"a {LISTING}, or a store that lists its files (s3, hf)",
                found="neither",
                code=ErrorCode.FOLDER,
                hint="Download it, or convert it again, which writes the list: `squish convert DIR NEW --to npydir`.",
            )
        places = (path.rpartition("/") for path in self.listed)
        return [name for place, _, name in places if place == folder]

    def has(self, path: str) -> bool:
        """Return whether a regular file with this name (`folder/name`) exists."""
        folder, _, name = path.rpartition("/")
        if self.source.lists_members or self.listed is not None:
            return name in self.names(folder)
        return self.source.has(name, folder)

    def size(self, path: str) -> int:
        """Return the size of a file, as listed if it is."""
        return self.listed[path].size if self.listed and path in self.listed else self.open(path).size

    def open(self, path: str) -> Source:
        """Open a file by `folder/name`."""
        folder, _, name = path.rpartition("/")
        return self.source.member(name, folder)

    def number(self, path: str, size: int) -> int:
        """Return the number of a file in the Index."""
        if path not in self._numbers:
            self._numbers[path] = len(self.refs)
            self.refs.append(FileRef(path, size))
        number = self._numbers[path]
        if self.refs[number].size != size:
            raise FormatError(
                "changed: its size differs from when the folder was opened",
                file=path,
                expected=self.refs[number].size,
                found=size,
                code=ErrorCode.CHANGED,
                hint="Open the folder again once it is complete.",
            )
        return number

    def find(self, path: str) -> Stored | None:
        """Read the header of the array `path.npy` or `path.npy.zst`; None if missing."""
        for suffix in (".npy", ".npy.zst"):
            if self.has(path + suffix):
                try:
                    return self._uncompressed(path + suffix) if suffix == ".npy" else self._compressed(path + suffix)
                except SquishError as error:
                    raise error.within(file=f"{self.source.name}/{path}{suffix}") from None
        if self.has(path + ".npy.br"):
            raise TensorError(
                f"unsupported brotli compression of {path}.npy.br",
                code="brotli",
                hint="Decompress it with `brotli -d`.",
            )
        return None

    def metadata(self) -> dict[str, Any]:
        """Read the file with typed metadata; SquishError if invalid or larger than a header may be."""
        source = self.open(META)
        if source.size > self.limits.header:
            raise LimitError(
                "the metadata is too large",
                file=source.name,
                expected=f"at most {self.limits.header} bytes",
                found=source.size,
                code="meta",
                limit="header",
            )
        return load_meta(source.read(0, source.size, "metadata"), self.limits)[0]

    def json(self, path: str, label: str) -> dict[str, Any]:
        """Read the object in a JSON file; FormatError if invalid or larger than a header may be."""
        source = self.open(path)
        most = min(self.limits.header, MAX_JSON)
        if source.size > most:
            raise LimitError(
                f"the {label} is too large",
                file=source.name,
                expected=f"at most {most} bytes",
                found=source.size,
                code="json",
            )
        try:
            return load_json(memoryview(source.read(0, source.size).strip()), label, self.limits)
        except SquishError as error:
            raise error.within(file=source.name) from None

    def numbers(self, stored: Stored, dtype: str, limit: int) -> list[Any]:
        """Read the numbers of a small 1-D array (a shape, a description)."""
        npy = stored.npy
        if npy.dtype != dtype or len(npy.shape) != 1 or npy.shape[0] > limit:
            raise FormatError(
                "invalid array",
                file=stored.path,
                expected=f"{dtype} with at most {limit} elements",
                found=f"{npy.dtype} {list(npy.shape)}",
                code="shape",
            )
        end = npy.offset + npy.nbytes
        raw = stored.head if len(stored.head) >= end else self.open(stored.path).read(0, end)
        kind = {"i64": "q", "f64": "d"}[dtype]
        return list(struct.unpack(f"{npy.byteorder}{npy.shape[0]}{kind}", raw[npy.offset : end]))

    def shape(self, stored: Stored, tensor: str) -> tuple[int, ...]:
        """Read the logical shape in an array `shape`."""
        return check_shape(self.numbers(stored, "i64", self.limits.rank), self.limits, tensor=tensor)

    def _uncompressed(self, path: str) -> Stored:
        size, first = self._first(path)
        length = header_size(first[:PREFIX])
        if length > len(first):
            first = self.open(path).read(0, min(length, size))
        return Stored(path, parse(first[:length], size, self.limits), self.number(path, size), size, head=first)

    def _first(self, path: str) -> tuple[int, bytes]:
        """Return the size of a file and its first bytes."""
        listed = self.listed.get(path) if self.listed else None
        if listed is not None and len(listed.head) >= PREFIX:
            return listed.size, listed.head
        return self.source.first(path, SHAPE if path.endswith("__shape.npy") else COMMON)

    def _compressed(self, path: str) -> Stored:
        source = self.open(path)
        first = _head(source, PREFIX + MAX_HEADER)
        npy = parse(first[: header_size(first[:PREFIX])], None, self.limits)
        filters = (Filter("zstd", {"skip": npy.offset}),)
        return Stored(path, npy, self.number(path, source.size), source.size, filters, first)


FIRST_BLOCK = 160 << 10
"""Bytes of a zstd file that contain its first block, which decodes to at most 128 KiB."""


def _head(source: Source, size: int) -> bytes:
    """Decode the start of a compressed file."""
    try:
        from squish_zstd.api import decode_head
    except ModuleNotFoundError:
        raise MissingPluginError(
            "cannot be decompressed without the package squish-zstd",
            code=ErrorCode.NOT_INSTALLED,
            hint=f"Run `{install_command('squish-zstd')}`.",
        ) from None
    length = source.size if source.cheap_views else min(source.size, FIRST_BLOCK)
    while True:
        head = decode_head(source.view(0, length), size)
        if len(head) >= size or length == source.size:
            return head
        length = min(source.size, 8 * length)


def _shapes_match(stored: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Return whether shapes match: leading axes are merged, and a vector is a row or a column."""
    return bool(_matrices(stored) & _matrices(shape))


def _matrices(shape: tuple[int, ...]) -> set[tuple[int, int]]:
    if len(shape) < 2:
        count = dtypes.count(shape)
        return {(1, count), (count, 1)}
    return {(dtypes.count(shape[:-1]), shape[-1])}
