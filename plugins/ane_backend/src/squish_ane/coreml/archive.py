"""A whole Core ML package inside another file (SQUIZD's appendix), and its way out."""

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
    Params,
    Sink,
    TensorSpec,
    atomic_folder,
)  # fmt: skip

WHOLE, MANIFEST = "ane.mlpackage", "Manifest.json"
PIECE = 1 << 20


class Archive(Codec):
    """A zip of an .mlpackage folder, in one part `archive`: for Core ML, and nothing here decodes it."""

    def parts(self, spec: TensorSpec, params: Params) -> dict[str, tuple[str, tuple[int, ...]]]:
        raise CodecError("a whole model is no tensor", tensor=spec.name, code=ErrorCode.WHOLE)


def extract(file: File, folder: str | Path) -> Path:
    """Write the Core ML package that a file carries to a new folder, whole or not at all.

    FormatError where there is none, or where it is no sound zip of one package with plain names.
    """
    encoding = _carried(file)
    target = Path(folder)
    try:
        with zipfile.ZipFile(io.BufferedReader(_View(file, encoding))) as archive, atomic_folder(target) as sink:
            for entry, path in _entries(archive, file):
                _copy(archive, entry, path, sink, file)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise FormatError(f"the Core ML package is no sound zip: {error}", file=file.name, code="zip") from None
    return target


def digest(file: File) -> str:
    """SHA-256 of the package that a file carries, as it is stored, in hexadecimal."""
    hashed = hashlib.sha256()
    stored = file.array(_carried(file).parts["archive"])
    for chunk in stored.chunks():
        hashed.update(chunk)
    return hashed.hexdigest()


def _carried(file: File) -> Encoding:
    encoding = next((encoding for encoding in file.index.whole if encoding.codec.id == WHOLE), None)
    if encoding is None:
        raise FormatError("carries no Core ML package", file=file.name, code=ErrorCode.MISSING)
    return encoding


def _entries(archive: zipfile.ZipFile, file: File) -> list[tuple[zipfile.ZipInfo, PurePosixPath]]:
    """The files of the package with their paths in it; every name is checked before any is written."""
    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    roots = [PurePosixPath(entry.filename).parent for entry in entries
             if PurePosixPath(entry.filename).name == MANIFEST]  # fmt: skip
    if len(roots) != 1:
        raise FormatError(
            "is no archive of one package", file=file.name, expected=MANIFEST, found=len(roots), code="zip"
        )
    if sum(entry.file_size for entry in entries) > file.limits.decoded:
        raise LimitError("the package would unpack to too much", file=file.name, code="limit", limit="decoded")
    found = []
    for entry in entries:
        path = PurePosixPath(entry.filename)
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise FormatError("the archive has a link", file=file.name, found=repr(entry.filename), code="link")
        if not path.is_relative_to(roots[0]):
            raise FormatError("a file lies beside the package", file=file.name, found=repr(entry.filename), code="path")
        found.append((entry, path.relative_to(roots[0])))
    return found


def _copy(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: PurePosixPath, sink: Sink, file: File) -> None:
    folder = "" if path.parent == PurePosixPath() else path.parent.as_posix()
    left = entry.file_size
    with sink.member(path.name, folder) as out, archive.open(entry) as data:
        while piece := data.read(PIECE):
            left -= len(piece)
            if left < 0:
                raise FormatError(
                    "an entry is longer than it says", file=file.name, found=repr(entry.filename), code="zip"
                )
            out.write(piece)


class _View(io.RawIOBase):
    """The archive's bytes as a file, read from the mapping where they are asked for."""

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
