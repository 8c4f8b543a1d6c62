"""Files and folders as sources: positioned reads, and lazy mappings that keep no file descriptor."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import sys
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from squish_core.codes import ErrorCode
from squish_core.concurrency import Pool, workers
from squish_core.errors import FormatError, LimitError, TruncatedError
from squish_core.io.paths import NOWHERE, file_type, missing, regular_files, snapshot_of, subfolders
from squish_core.io.rollback import committed_size
from squish_core.io.source import Backing, BytesSource, Source, check_file_name, closed, shrunk_error
from squish_core.io.system import IS_POSIX, READ, read_at, read_into_at


def map_shared(fd: int, size: int) -> memoryview:
    """Map the first `size` bytes (at least one) of an open file, read-only. Views keep the mapping alive."""
    if not IS_POSIX:
        return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ))
    return _mapping(fd, 0, size, mmap.PROT_READ, mmap.MAP_SHARED).toreadonly()


def map_private(fd: int, offset: int, length: int) -> memoryview:
    """Map a range (at least one byte) of an open file copy-on-write: writes never reach the file."""
    start = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    size = offset + length - start
    if not IS_POSIX:
        view = memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_COPY, offset=start))
    else:
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
        view = _mapping(fd, start, size, mmap.PROT_READ | mmap.PROT_WRITE, flags)
    return view[offset - start :]


UNTRACKED: Mapping[str, Any] = {"trackfd": False}
"""Arguments of `mmap.mmap` that keep it from duplicating the descriptor."""
IS_UNTRACKED = sys.version_info >= (3, 13) and sys.platform == "linux"
"""Whether `mmap.mmap` takes them; on macOS it would also flush the disk with each mapping."""

if IS_POSIX:

    def _mapping(fd: int, offset: int, size: int, protection: int, flags: int) -> memoryview:
        if IS_UNTRACKED:
            try:
                return memoryview(mmap.mmap(fd, size, flags, protection, offset=offset, **UNTRACKED))
            except ValueError as error:  # the file has become shorter than the range
                raise OSError(errno.ENXIO, str(error)) from None
        address = _libc.mmap(None, size, protection, flags, fd, offset)
        if address == ctypes.c_void_p(-1).value:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        pages = (ctypes.c_ubyte * size).from_address(address)
        weakref.finalize(pages, _libc.munmap, address, size).atexit = False  # views may outlive everything else
        return memoryview(pages).cast("B")

    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    _libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    _libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def release_pages(view: memoryview) -> None:
    """Return the resident pages of a mapping to the system; later reads take them from its page cache."""
    advice = getattr(mmap, "MADV_DONTNEED", None)
    if advice is None:
        return
    if isinstance(view.obj, mmap.mmap):
        view.obj.madvise(advice)
    elif isinstance(view.obj, ctypes.Array):
        _libc.madvise(ctypes.addressof(view.obj), view.nbytes, advice)


Identity = tuple[int, int, int, int]
"""Device, inode, size and modification time of a file."""
PIECE = 4 << 20
"""Bytes of one system call; larger reads are split over threads."""
READERS = 4
"""Threads per read, at most."""


class _Handle:
    """A file descriptor, closed with its last reference: a read that races `close` still reads this file."""

    def __init__(self, path: Path | str) -> None:
        self.fd = os.open(path, READ)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone when the interpreter exits
        if hasattr(self, "fd"):
            close(self.fd)


class _LocalSource(Source):
    """A file or folder at `path`; `folder` has its members."""

    path: Path
    folder: Path

    @property
    def cheap_views(self) -> bool:  # type: ignore[override]
        """Whether views are of mappings."""
        return self._maps

    def _names(self, folder: str = "") -> tuple[str, ...]:
        return regular_files(self.folder / folder)

    def _folder_names(self, folder: str = "") -> tuple[str, ...]:
        return subfolders(self.folder / folder)


class FileSource(_LocalSource):
    """A regular file: headers through pread, tensor bytes through one lazy, read-only mapping."""

    def __init__(self, path: Path) -> None:
        try:
            handle = _Handle(path)
            info = os.fstat(handle.fd)
            size, finding = committed_size(path, handle.fd) if stat.S_ISREG(info.st_mode) else (info.st_size, None)
        except OSError as error:
            raise missing(path, error) from None
        super().__init__(str(path), size)
        self.path, self.folder = path, path.parent
        if finding:
            self.findings = (finding,)
        self.identity = _identity(info)
        self._handle: _Handle | None = handle
        self._map: memoryview | None = None
        if not stat.S_ISREG(info.st_mode):
            hint = "Squish needs random access; write the data to a file first."
            found = file_type(info.st_mode)
            raise FormatError("is not a regular file", file=str(path), found=found, code=ErrorCode.FILE_KIND, hint=hint)

    def check_size(self) -> None:
        handle = self._open()
        if os.fstat(handle.fd).st_size < self.size:
            raise self._shrunk(handle)

    def descriptor(self) -> int | None:
        handle = self._handle
        return None if handle is None else handle.fd

    def read_into(self, offset: int, out: memoryview, what: str = "data") -> None:
        self._check(offset, len(out), what)
        handle = self._open()
        if len(out) <= PIECE:
            self._fill(handle, offset, out)
            return
        # Parallel reads keep the disk busy and share the page faults of fresh memory.
        with Pool(workers(READERS)) as readers:
            fill = partial(self._fill, handle)
            readers.map(lambda at: fill(offset + at, out[at : at + PIECE]), range(0, len(out), PIECE))

    def _fill(self, handle: _Handle, offset: int, out: memoryview) -> None:
        done = 0
        while done < len(out):
            try:
                count = read_into_at(handle.fd, out[done:], offset + done)
            except OSError as error:
                raise self._read_error(error, offset + done) from None
            if not count:
                raise self._shrunk(handle)
            done += count

    def release_pages(self) -> None:
        if (pages := self._map) is not None:
            release_pages(pages)

    def close(self) -> None:
        with self._lock:
            self._handle = self._map = None  # the last view frees the mapping
        super().close()

    def _open(self) -> _Handle:
        handle = self._handle
        if handle is None:
            raise closed(self.name)
        return handle

    def _open_member(self, name: str) -> Source:
        return FileSource(self.folder / name)

    def _refuse_links(self, path: str, member: Source) -> None:
        _refuse_links(self.folder, path, member, self.path.resolve().parent if self.path.is_symlink() else None)

    def _read(self, offset: int, length: int) -> bytes:
        if length <= PIECE:
            try:
                data = read_at(self._open().fd, length, offset)
            except OSError as error:
                raise self._read_error(error, offset) from None
            if len(data) == length:
                return data
        out = bytearray(length)
        self.read_into(offset, memoryview(out))
        return bytes(out)

    def _view(self, offset: int, length: int) -> memoryview:
        if not self._maps:
            import numpy as np

            out = np.empty(length, np.uint8).data  # a bytearray would be zeroed first
            self.read_into(offset, out)
            return out.toreadonly()
        mapping = self._map
        try:
            self.check_size()  # access beyond the end of a file that has shrunk kills the process
            if mapping is None:
                mapping = self._mapped()
        except OSError as error:
            raise self._read_error(error, offset) from None
        return mapping[offset : offset + length]

    def _mapped(self) -> memoryview:
        with self._lock:
            handle = self._open()
            if self._map is None:
                self._map = map_shared(handle.fd, self.size)
            return self._map

    def writable_view(self, offset: int, length: int) -> Callable[[], memoryview | None]:
        if not self._maps:
            return super().writable_view(offset, length)
        return partial(_map_privately, self.name, self.identity, offset, length)

    def backing(self) -> Backing | None:
        return Backing(self.name, self.identity[:2], self.size) if self._maps else None

    def _shrunk(self, handle: _Handle) -> TruncatedError:
        return shrunk_error(self.name, self.size, os.fstat(handle.fd).st_size)

    def _read_error(self, error: OSError, offset: int) -> FormatError:
        if error.errno == errno.ENOMEM:
            return LimitError(
                "not enough memory to read it",
                file=self.name,
                offset=offset,
                expected=f"{self.size:,} bytes",
                code=ErrorCode.MEMORY,
                hint="Raise the limit of this process (ulimit -v), or use a machine with more memory.",
            )
        return FormatError(
            f"cannot be read: {error.strerror or error}",
            file=self.name,
            offset=offset,
            code=ErrorCode.UNREADABLE,
            hint="The disk or its connection failed. Try again, or get a new copy of the file.",
        )


def _map_privately(name: str, identity: Identity, offset: int, length: int) -> memoryview | None:
    """Private writable view of a range of the file; None if the file was replaced or cannot be mapped again."""
    try:
        handle = _Handle(name)
        current = _identity(os.fstat(handle.fd))
        if length and current == identity:
            return map_private(handle.fd, offset, length)
    except OSError:  # the file is gone, or the process has too many mappings
        return None
    if current[:2] == identity[:2] and current[2] < offset + length:  # mapped pages are gone
        raise shrunk_error(name, offset + length, current[2])
    return None


class FolderSource(_LocalSource):
    """A folder; its regular files are members."""

    is_dir = True

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), 0)
        self.path = self.folder = path
        self._first: dict[str, Identity] = {}

    def stat(self, path: str) -> tuple[int, int] | None:
        try:
            info = os.stat(os.path.join(self.name, path))
        except OSError as error:
            if error.errno in NOWHERE:
                return None
            raise missing(Path(self.name, path), error) from None
        return info.st_size, info.st_mtime_ns

    def _open_member(self, name: str) -> Source:
        """Open a member; one that was dropped and is opened again must be the same file."""
        member = FileSource(self.path / name)
        self._check_same(name, member.identity)
        return member

    def _refuse_links(self, path: str, member: Source) -> None:
        _refuse_links(self.folder, path, member)

    def first(self, path: str, length: int) -> tuple[int, bytes]:
        for piece in path.split("/"):
            check_file_name(piece, self.name)
        try:
            handle = _Handle(os.path.join(self.name, path))
            info = os.fstat(handle.fd)
            if self._closed or not stat.S_ISREG(info.st_mode):
                return super().first(path, length)  # raises the right error
            data = os.read(handle.fd, length)
        except OSError:
            return super().first(path, length)
        self._check_same(path, _identity(info))
        return info.st_size, data

    def _check_same(self, name: str, identity: Identity) -> None:
        if self._first.setdefault(name, identity) != identity:
            raise FormatError(
                "was replaced while the folder was open",
                file=os.path.join(self.name, name),
                code=ErrorCode.CHANGED,
                hint="Open the folder again once it is complete.",
            )


def _refuse_links(folder: Path, path: str, member: Source, store: Path | None = None) -> None:
    """Raise FormatError if a link leads to an open file of a folder: its target may be anywhere.

    `store`: a folder to which links may lead, that of the file that a link to the model leads to.
    """
    resolved, link = folder, ""
    for piece in path.split("/"):
        resolved /= piece
        info = os.lstat(resolved)
        if stat.S_ISLNK(info.st_mode):
            link = "a symbolic link"
    if link and store is not None and (target := resolved.resolve()).parent == store:
        info, link = os.lstat(target), ""
    if stat.S_ISREG(info.st_mode) and info.st_nlink > 1:
        link = f"a file with {info.st_nlink} hard links"
    assert isinstance(member, FileSource)
    if not link and _identity(info)[:2] != member.identity[:2]:
        link = "another file than the one that was opened"
    if link:
        raise FormatError(
            "refers to a file through a link",
            file=str(folder / path),
            expected="a regular file of the folder",
            found=link,
            code="link",
            hint="Copy the file into the folder if you trust where the link leads.",
        )


def _identity(info: os.stat_result) -> Identity:
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def open_source(target: Any) -> Source:
    """Open a path, or wrap bytes, as a source.

    Parameters
    ----------
    target
        A path of a file or folder, any object with the buffer protocol, or a source, which is returned.

    Returns
    -------
    Source
        Reads are checked against its size.

    Raises
    ------
    MissingFileError
        The path does not exist.
    FileAccessError
        It cannot be read.
    FormatError
        It is not a local path, or neither a file nor a folder.

    Examples
    --------
    >>> source = open_source("model.gguf")
    >>> bytes(source.read(0, 4))
    b'GGUF'
    >>> source.close()
    """
    if isinstance(target, Source):
        return target
    if not isinstance(target, (str, os.PathLike)):
        try:
            return BytesSource(target)
        except TypeError:
            what = type(target).__name__
            raise TypeError(f"expected a path or the bytes of a file, not {what}") from None
    name = os.fspath(target)
    if not name:
        raise FormatError("the path is empty", file=repr(name), code=ErrorCode.MISSING, hint="Name a file.")
    path = Path(name)
    if "://" in name and not path.exists():
        hint = "Name a local path here; `squish.open` reads URLs where squish-remote is installed."
        raise FormatError("is not a local path", file=name, code=ErrorCode.MISSING, hint=hint)
    try:
        info = path.stat()
    except (OSError, ValueError) as error:
        raise missing(path, error) from None
    return FolderSource(snapshot_of(path)) if stat.S_ISDIR(info.st_mode) else FileSource(path)


def open_folder(path: Any) -> Source:
    """Open a folder as a source; FormatError if `path` is a file."""
    source = open_source(path)
    if not source.is_dir:
        raise FormatError(
            "is not a folder", file=source.name, code=ErrorCode.FILE_KIND, hint="Pass the folder that contains it."
        )
    return source
