"""Writing ranges of output files at their places, with digests."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from squish_core.errors import CodecError, WriteError
from squish_core.io.system import BINARY, write_at

from ..image import OutputFile
from .tasks import PieceRange


class RangeWriter:
    """Writes ranges of output files at their places, and hashes them."""

    def __init__(self, paths: Mapping[int, str] | Sequence[str]) -> None:
        self._paths, self._open, self.nbytes = paths, dict[int, int](), 0
        self._state: dict[PieceRange, tuple[int, Any]] = {}

    def __enter__(self) -> RangeWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        for fd in self._open.values():
            os.close(fd)

    def write_all(self, piece_range: PieceRange, chunks: Iterable[Any]) -> None:
        """Write a whole range."""
        for chunk in chunks:
            self.write(piece_range, memoryview(chunk).cast("B"))
        self.finish([piece_range])

    def write(self, piece_range: PieceRange, data: memoryview) -> None:
        """Append to a range."""
        position, digest = self._state.get(piece_range) or (0, sha256())
        end = position + data.nbytes
        if end > piece_range.nbytes:
            raise self._size_error(piece_range, end)
        digest.update(data)
        path = self._paths[piece_range.file]
        try:
            if piece_range.file not in self._open:
                self._open[piece_range.file] = os.open(path, os.O_WRONLY | BINARY)
            write_at(self._open[piece_range.file], data, piece_range.offset + position)
        except OSError as error:
            raise unwritable_by_worker(path, error) from None
        self._state[piece_range] = end, digest

    def finish(self, piece_ranges: Iterable[PieceRange]) -> None:
        """Raise CodecError unless the ranges are full."""
        for piece_range in piece_ranges:
            position, _ = self._state.get(piece_range) or (0, None)
            if position != piece_range.nbytes:
                raise self._size_error(piece_range, position)
            self.nbytes += position

    def sync(self) -> None:
        """Make everything written durable."""
        for number, fd in self._open.items():
            try:
                os.fsync(fd)
            except OSError as error:
                raise unwritable_by_worker(self._paths[number], error) from None

    def digest(self) -> str:
        """SHA-256 of the digests of all ranges."""
        return sha256(b"".join(digest.digest() for _, digest in self._state.values())).hexdigest()

    def _size_error(self, piece_range: PieceRange, position: int) -> CodecError:
        return CodecError(
            "a part has another size than planned", part=piece_range.role, code="size",
            expected=piece_range.nbytes, found=position,
        )  # fmt: skip


def write_literals(path: str, output: OutputFile) -> None:
    """Write headers, padding and assets of an output file; durable on return."""
    try:
        with open(path, "r+b") as file:
            for extent, offset in zip(output.extents, output.starts):
                if isinstance(extent, bytes):
                    file.seek(offset)
                    file.write(extent)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise unwritable_by_worker(path, error) from None


def worker_name() -> str:
    """Return host and process, as errors and journals name a worker.

    Returns
    -------
    str
        `HOST:PROCESS`.

    Examples
    --------
    >>> worker_name().rpartition(":")[2].isdecimal()
    True
    """
    return f"{socket.gethostname()}:{os.getpid()}"


def unwritable_by_worker(path: str, error: OSError) -> WriteError:
    """The error for an output file that this process cannot write."""
    return WriteError(
        f"cannot be written by the worker {worker_name()}", file=path, found=error.strerror, code="unwritable",
        hint="Workers write into the folder of the target, which must be shared, writable and large enough, or, if the "
        "target is at a URL, into their temporary folders (TMPDIR).",
    )  # fmt: skip
