"""A Core ML package inside another file (SQUIZD's appendix), and its extraction."""

from __future__ import annotations

import hashlib
import io
import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

from squish_core.api import (
    Codec,
    CodecError,
    Encoding,
    ErrorCode,
    File,
    FormatError,
    LimitError,
    Sink,
    TensorSpec,
    atomic_folder,
)

WHOLE, MANIFEST = "ane.mlpackage", "Manifest.json"
PIECE = 1 << 20


class Archive(Codec):
    """A zip of an .mlpackage folder in one part `archive`; only Core ML can run it."""

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        raise CodecError("a whole model is not a tensor", tensor=spec.name, code=ErrorCode.WHOLE)


def extract(file: File, folder: str | Path) -> Path:
    """Extract a file's Core ML package to a new folder, atomically.

    Parameters
    ----------
    file : File
        A file with a Core ML appendix.
    folder : str or Path
        The folder to create.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    FormatError
        If there is no package, or its archive is invalid.
    """
    encoding = _appendix(file)
    target = Path(folder)
    try:
        with zipfile.ZipFile(io.BufferedReader(_View(file, encoding))) as archive, atomic_folder(target) as sink:
            for entry, path in _entries(archive, file):
                _copy(archive, entry, path, sink, file)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise FormatError(f"corrupt Core ML package archive: {error}", file=file.name, code="zip") from None
    return target


def digest(file: File) -> str:
    """Return the SHA-256 of a file's Core ML archive, in hexadecimal."""
    checksum = hashlib.sha256()
    archive = file.array(_appendix(file).parts["archive"])
    for chunk in archive.chunks():
        checksum.update(chunk)
    return checksum.hexdigest()


def _appendix(file: File) -> Encoding:
    encoding = next((encoding for encoding in file.index.whole if encoding.codec.id == WHOLE), None)
    if encoding is None:
        raise FormatError("no Core ML package in the file", file=file.name, code=ErrorCode.MISSING)
    return encoding


def _entries(archive: zipfile.ZipFile, file: File) -> list[tuple[zipfile.ZipInfo, PurePosixPath]]:
    """Return the files of the package with their relative paths; all names are checked before writing."""
    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    roots = [
        PurePosixPath(entry.filename).parent for entry in entries if PurePosixPath(entry.filename).name == MANIFEST
    ]
    if len(roots) != 1:
        raise FormatError(
            "not an archive of one package", file=file.name, expected=MANIFEST, found=len(roots), code="zip"
        )
    if sum(entry.file_size for entry in entries) > file.limits.decoded:
        raise LimitError("decompressed package too large", file=file.name, code="limit", limit="decoded")
    files = []
    for entry in entries:
        path = PurePosixPath(entry.filename)
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise FormatError("link in the archive", file=file.name, found=repr(entry.filename), code="link")
        if not path.is_relative_to(roots[0]):
            raise FormatError("file outside the package", file=file.name, found=repr(entry.filename), code="path")
        files.append((entry, path.relative_to(roots[0])))
    return files


def _copy(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: PurePosixPath, sink: Sink, file: File) -> None:
    folder = "" if path.parent == PurePosixPath() else path.parent.as_posix()
    remaining = entry.file_size
    with sink.member(path.name, folder) as out, archive.open(entry) as data:
        while piece := data.read(PIECE):
            remaining -= len(piece)
            if remaining < 0:
                raise FormatError(
                    "archive entry longer than declared", file=file.name, found=repr(entry.filename), code="zip"
                )
            out.write(piece)


class _View(io.RawIOBase):
    """A file object over the archive's bytes, read on demand."""

    def __init__(self, file: File, encoding: Encoding) -> None:
        self._array, self._at = file.array(encoding.parts["archive"]), 0
        self._size = encoding.parts["archive"].nbytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        piece = self._array.bytes(self._at, max(0, min(len(buffer), self._size - self._at)))
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)
