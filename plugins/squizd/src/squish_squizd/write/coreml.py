"""Writing the CoreML appendix: a package from a folder, or the appendix of the source."""

from __future__ import annotations

import struct
import tempfile
import zipfile
from pathlib import Path
from typing import IO

from squish_core.api import ErrorCode, OutgoingWhole, Sink, SquishError, UsageError

from ..read.blocks import ALIGNMENT

CODEC, ROLE = "ane.mlpackage", "archive"
HEADER = struct.Struct("<4sQ")


def copy_appendix(sink: Sink, whole: OutgoingWhole) -> None:
    """Copy the source's package byte for byte."""
    archive = whole.parts[ROLE]
    _begin(sink, archive.part.nbytes)
    archive.write_to(sink)


def write_package(sink: Sink, path: str) -> None:
    """Write an .mlpackage folder as a zip with sorted entries and fixed dates, so that it is reproducible."""
    root = Path(path)
    files = sorted(item for item in root.rglob("*") if item.is_file() and not item.is_symlink())
    if not files:
        raise SquishError("not a CoreML package: expected an .mlpackage folder with files", file=path, code="coreml")
    if sink.records:
        raise UsageError("the size of a package follows from its files", code=ErrorCode.IMAGE)
    with tempfile.TemporaryFile() as spool:
        with zipfile.ZipFile(spool, "w", zipfile.ZIP_STORED) as archive:
            for item in files:
                entry = zipfile.ZipInfo(item.relative_to(root).as_posix(), (1980, 1, 1, 0, 0, 0))
                entry.external_attr = 0o100644 << 16
                with (
                    item.open("rb") as source,
                    archive.open(entry, "w", force_zip64=item.stat().st_size >= 1 << 31) as out,
                ):
                    while chunk := source.read(1 << 20):
                        out.write(chunk)
        _begin(sink, spool.tell())
        _copy(spool, sink)


def _begin(sink: Sink, length: int) -> None:
    sink.pad(ALIGNMENT)
    sink.write(HEADER.pack(b"ANLX", length))


def _copy(spool: IO[bytes], sink: Sink) -> None:
    spool.seek(0)
    while chunk := spool.read(1 << 20):
        sink.write(chunk)
