"""The CoreML appendix: a zip archive, checked entry by entry before it is unpacked (specification 9; profile P8)."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from typing import Any

from attrs import frozen

from squish_core.api import Limits, Source

from ..findings import Findings
from .blocks import skip_zeros

MAGIC, MAX_ENTRIES, MAX_RATIO, MAX_TOTAL = b"ANLX", 100_000, 1000, 64 << 30
HEADER_SIZE = 12
"""Bytes before the archive: the magic and the length."""
_LOCAL = struct.Struct("<4s5H3I2H")
TAIL, _MAX_DIRECTORY = 22 + 20 + 0xFFFF, 16 << 20


@frozen(kw_only=True)
class Appendix:
    """The place of the zip archive, and the names of its entries."""

    offset: int
    length: int
    names: tuple[str, ...]


class _View(io.RawIOBase):
    """The archive as a file object, so that zipfile reads only its directory."""

    def __init__(self, source: Source, offset: int, length: int) -> None:
        self._source, self._offset, self._length, self._position = source, offset, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = max(0, offset + (0, self._position, self._length)[whence])
        return self._position

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._length - self._position))
        buffer[:count] = self._source.read(self._offset + self._position, count)
        self._position += count
        return count


def read_appendix(
    source: Source, at: int, limits: Limits, findings: Findings, *, all_headers: bool = True
) -> Appendix | None:
    """Read the appendix at `at`; None if it is missing (a warning) or invalid (an error of the appendix alone).

    Without `all_headers`, the central directory is read, and not the header before each entry.
    """
    if at + 12 > source.size or source.read(at, 4) != MAGIC:
        findings.warn(
            "P8", "CoreML appendix", "missing, although the flag ANE_COREML is set", offset=at, expected=MAGIC
        )
        return None
    (length,) = struct.unpack("<Q", source.read(at + 4, 8))
    stop = at + 12 + length
    if not stop <= source.size <= stop + 63 or skip_zeros(source, stop, source.size) < source.size:
        findings.error(
            "P8",
            "CoreML appendix",
            "its length does not match the end of the file",
            offset=at + 4,
            expected=f"{source.size - at - 12} bytes, and at most 63 zero bytes after them",
            found=length,
        )
        return None
    try:
        _check_directory(source, at + 12, length)
        with zipfile.ZipFile(open_view(source, at + 12, length)) as archive:
            entries = archive.infolist()
            _check(entries, limits, findings, at)
            for entry in entries if all_headers else ():
                if findings.first is None:
                    _check_local(source, at + 12, length, entry, findings)
    except (
        zipfile.BadZipFile,
        ValueError,
        NotImplementedError,
        EOFError,
        struct.error,
        OSError,
        UnicodeError,
    ) as error:
        findings.error("P8", "CoreML appendix", f"corrupt zip archive: {error}", offset=at + 12)
    if findings.first is not None:
        return None
    return Appendix(offset=at + 12, length=length, names=tuple(entry.filename for entry in entries))


def _check_directory(source: Source, offset: int, length: int) -> None:
    """ValueError if the zip directory, which zipfile loads whole, is larger than any package needs."""
    tail = source.read(offset + length - min(length, TAIL), min(length, TAIL))
    at = tail.rfind(b"PK\5\6")
    size = int.from_bytes(tail[at + 12 : at + 16], "little") if at >= 0 else 0
    if tail[max(at - 20, 0) :].startswith(b"PK\6\7"):
        (record,) = struct.unpack_from("<Q", tail, at - 12)
        size = int.from_bytes(source.read(offset + record + 40, 8), "little") if record + 48 <= length else size
    if size > _MAX_DIRECTORY:
        raise ValueError(f"its directory has {size} bytes, at most {_MAX_DIRECTORY} are allowed")


def open_view(source: Source, offset: int, length: int) -> io.BufferedReader:
    """Return a range of a source as a binary file."""
    return io.BufferedReader(_View(source, offset, length))


def check_contents(source: Source, appendix: Appendix, findings: Findings) -> None:
    """Check the CRC of every entry, which is unpacked in pieces and never to disk."""
    with zipfile.ZipFile(open_view(source, appendix.offset, appendix.length)) as archive:
        for entry in archive.infolist():
            try:
                with archive.open(entry) as file:
                    while file.read(1 << 20):
                        pass
            except (
                zipfile.BadZipFile,
                zlib.error,
                EOFError,
                NotImplementedError,
                RuntimeError,
                ValueError,
                OSError,
            ) as error:
                findings.error("P8", f"CoreML appendix/{entry.filename}", f"cannot unpack it: {error}")


def _check(entries: list[zipfile.ZipInfo], limits: Limits, findings: Findings, at: int) -> None:
    names: set[str] = set()
    where, total = "CoreML appendix", 0
    if len(entries) > MAX_ENTRIES:
        findings.error(
            "P8", where, "too many entries", offset=at, expected=f"at most {MAX_ENTRIES}", found=len(entries)
        )
        return
    for entry in entries:
        name = entry.orig_filename
        total += entry.file_size
        kind = entry.external_attr >> 28
        fault = (
            "unsafe path"
            if not _is_relative(name)
            else "duplicate name"
            if name.rstrip("/").casefold() in names
            else "encrypted"
            if entry.flag_bits & 0x41
            else "link or device"
            if entry.create_system == 3 and kind not in (0, 4, 8)
            else "unknown compression method"
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
            else f"compression ratio over {MAX_RATIO}"
            if entry.file_size > MAX_RATIO * max(entry.compress_size, 1)
            else "two sizes, but no compression"
            if not entry.compress_type and entry.file_size != entry.compress_size
            else None
        )
        names.add(name.rstrip("/").casefold())
        if fault:
            findings.error("P8", f"{where}/{name[:80]}", fault, offset=at + 12 + entry.header_offset)
            return
    if total > min(MAX_TOTAL, limits.decoded):
        findings.error(
            "P8",
            where,
            "too large when unpacked",
            offset=at,
            expected=f"at most {min(MAX_TOTAL, limits.decoded)} bytes",
            found=total,
        )


def _is_relative(name: str) -> bool:
    parts = name.removesuffix("/").split("/")
    return (
        "\\" not in name
        and "\0" not in name
        and ":" not in name
        and len(name) <= 1024
        and all(part not in ("", ".", "..") for part in parts)
    )


def _check_local(source: Source, start: int, length: int, entry: zipfile.ZipInfo, findings: Findings) -> None:
    """Check that the local header matches the central directory, and that the data lies inside."""
    where, at = f"CoreML appendix/{entry.filename}", entry.header_offset
    if at < 0 or at + _LOCAL.size > length:
        findings.error("P8", where, "its local header is outside the archive", offset=start + max(at, 0))
        return
    magic, _, flags, method, _, _, crc, packed, size, name_length, extra = _LOCAL.unpack(
        source.read(start + at, _LOCAL.size)
    )
    data = at + _LOCAL.size + name_length + extra
    if data + entry.compress_size > length:
        findings.error("P8", where, "its data extends past the end of the archive", kind="truncated", offset=start + at)
        return
    name = source.read(start + at + _LOCAL.size, name_length)
    encoding = "utf-8" if entry.flag_bits & 0x800 else "cp437"
    same = magic == b"PK\3\4" and method == entry.compress_type and name == entry.orig_filename.encode(encoding)
    # Bit 3: crc and sizes follow the data; 0xFFFFFFFF: they are in the zip64 field.
    deferred = bool(flags & 8) or 0xFFFFFFFF in (packed, size)
    same = same and not (flags ^ entry.flag_bits) & 0x49
    if not same or (not deferred and (crc, packed, size) != (entry.CRC, entry.compress_size, entry.file_size)):
        findings.error("P8", where, "its local header differs from the central directory", offset=start + at)
