"""Sources: random access to the bytes of a file, a folder or a buffer, with every bound checked here."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import threading
from functools import cached_property
from pathlib import Path
from typing import Any

from squish_core.errors import ClosedError, FormatError, TruncatedError
from squish_core.mapping import mapped

HEAD, TAIL = 4096, 64
PIECE = 4 << 20
"""Bytes of one read; larger ones are split over threads."""
READERS = min(4, os.cpu_count() or 1)
LENT = (".json", ".jinja", ".txt", ".model")
"""Suffixes of the files that a folder of assets lends: what describes a model, never its weights."""
MEMBERS = 64
"""Files of a folder that stay open at a time: a model may have more of them than a process may have descriptors."""


class Source:
    """Bytes by offset. `name` is for people, `size` in bytes; `read` copies, `view` does not.

    Subclasses give `_read` and `_view`; both are called with a range that lies inside the file.
    """

    is_dir = False
    path: Path | None = None

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        self._members: dict[str, Source] = {}
        self._lent: dict[str, Source] = {}
        self._lock = threading.Lock()

    @cached_property
    def filename(self) -> str:
        """The name in its folder, as `FileRef` has it."""
        return os.path.basename(self.name)

    def read(self, offset: int, length: int, what: str = "data") -> bytes:
        """Copy of a byte range; TruncatedError naming `what` when it runs past the end."""
        self._check(offset, length, what)
        return self._read(offset, length)

    def view(self, offset: int, length: int, what: str = "data") -> memoryview:
        """Read-only view of a byte range without a copy; it stays valid after `close`."""
        self._check(offset, length, what)
        return self._view(offset, length) if length else memoryview(b"")

    def read_into(self, offset: int, out: memoryview, what: str = "data") -> None:
        """Fill `out` (bytes) from `offset`."""
        self._check(offset, len(out), what)
        out[:] = self._view(offset, len(out)) if len(out) else b""

    def member(self, name: str, folder: str = "") -> Source:
        """Another file of the same folder, or of `folder` in it (`a/b`), by its plain name; closed with this one, or
        when many others have been opened since and nobody uses it."""
        for piece in (*folder.split("/"), name) if folder else (name,):
            check_plain_name(piece, self.name)
        path = f"{folder}/{name}" if folder else name
        with self._lock:
            if self._closed:
                raise closed(self.name)
            if path not in self._members:
                if len(self._members) >= MEMBERS:
                    del self._members[next(iter(self._members))]
                opened = self._lent[path].member(name) if path in self._lent else self._open_member(path)
                opened.filename, opened._lent = path, self._lent
                self._members[path] = opened
            return self._members[path]

    def members(self, folder: str = "") -> tuple[str, ...]:
        """Sorted names of the regular files in the folder (for a file: the folder it lies in) and of those lent, or
        in a folder in it."""
        return tuple(sorted({*self._names(folder), *(() if folder else self._lent)}))

    def stat(self, path: str) -> tuple[int, int] | None:
        """Size, and time of change in ns, of what lies in the folder, unopened; None where nothing does, or where
        this is no folder on a disk. `path` is the caller's own, never a name from a file."""
        return None

    def lend(self, folder: Source) -> tuple[str, ...]:
        """Let the config, tokenizer and the like of another folder be found here, where they are not; their names."""
        own = frozenset(self._names())
        wanted = (name for name in folder.members() if name.endswith(LENT) and not name.endswith(".index.json"))
        self._lent = {name: folder for name in wanted if name not in own and not name.startswith(".")}
        return tuple(self._lent)

    def first(self, path: str, length: int) -> tuple[int, bytes]:
        """Size and first bytes (at most `length`) of a member by its name or `folder/name`, for one look at many."""
        folder, _, name = path.rpartition("/")
        member = self.member(name, folder)
        return member.size, member.read(0, min(length, member.size))

    def close(self) -> None:
        """Stop new reads; views handed out before stay valid."""
        with self._lock:
            self._closed = True
            members = list(self._members.values())
        for member in members:
            member.close()

    _closed = False

    def _check(self, offset: int, length: int, what: str) -> None:
        if self._closed:
            raise closed(self.name)
        if offset < 0 or length < 0 or offset + length > self.size:
            raise TruncatedError(
                f"{what} runs past the end of the file",
                file=self.name,
                offset=offset,
                expected=f"{length} bytes",
                found=f"a file of {self.size} bytes",
                code="bounds",
                hint="The file is truncated (an interrupted download?) or damaged; fetch it again.",
            )

    def _names(self, folder: str = "") -> tuple[str, ...]:
        """Names of the regular files in the folder, or in one in it."""
        return ()

    def _open_member(self, name: str) -> Source:
        raise FormatError(f"needs the file {name!r}, but bytes in memory have no folder", file=self.name)

    def _read(self, offset: int, length: int) -> bytes:
        return bytes(self._view(offset, length))

    def _view(self, offset: int, length: int) -> memoryview:
        raise NotImplementedError


class BytesSource(Source):
    """A buffer in memory."""

    def __init__(self, data: Any, name: str = "<bytes>") -> None:
        self._data = memoryview(data).cast("B").toreadonly()
        super().__init__(name, len(self._data))

    def _view(self, offset: int, length: int) -> memoryview:
        return self._data[offset : offset + length]


class _Handle:
    """A file descriptor, closed when its last user lets go: a read that races `close` stays on this file."""

    def __init__(self, path: Path | str) -> None:
        # O_NONBLOCK: opening a pipe put in the file's place must not wait for a writer.
        self.fd = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


class FileSource(Source):
    """A regular file: headers by pread, tensor bytes through one lazy read-only mapping."""

    def __init__(self, path: Path) -> None:
        try:
            handle = _Handle(path)
        except OSError as error:
            raise missing(path, error) from None
        info = os.fstat(handle.fd)
        super().__init__(str(path), info.st_size)
        self.path = path
        self.identity = _identity(info)
        self._handle: _Handle | None = handle
        self._map: memoryview | None = None
        if not stat.S_ISREG(info.st_mode):
            raise FormatError(
                "is not a regular file", file=str(path), found=kind_of(info.st_mode), code="file-kind",
                hint="Squish reads at random places; write it to a file first.",
            )  # fmt: skip

    def _names(self, folder: str = "") -> tuple[str, ...]:
        assert self.path is not None
        return regular_files(self.path.parent / folder)

    def read_into(self, offset: int, out: memoryview, what: str = "data") -> None:
        self._check(offset, len(out), what)
        handle = self._open()
        if not hasattr(os, "preadv"):  # Windows
            super().read_into(offset, out, what)
            return
        pieces = [(start, out[start : start + PIECE]) for start in range(0, len(out), PIECE)]
        if len(pieces) < 2:
            for start, piece in pieces:
                self._fill(handle, offset + start, piece)
            return
        from concurrent.futures import ThreadPoolExecutor

        # Several reads at once keep a disk busy, and share the cost of first touching fresh memory.
        with ThreadPoolExecutor(READERS) as readers:
            list(readers.map(lambda item: self._fill(handle, offset + item[0], item[1]), pieces))

    def _fill(self, handle: _Handle, offset: int, out: memoryview) -> None:
        done = 0
        while done < len(out):
            got = os.preadv(handle.fd, [out[done:]], offset + done)
            if not got:
                raise self._shrunk(handle)
            done += got

    def close(self) -> None:
        with self._lock:
            self._handle = self._map = None  # views keep the mapping alive; the last one frees it
        super().close()

    def _open(self) -> _Handle:
        handle = self._handle
        if handle is None:
            raise closed(self.name)
        return handle

    def _open_member(self, name: str) -> Source:
        assert self.path is not None
        return FileSource(self.path.parent / name)

    def _read(self, offset: int, length: int) -> bytes:
        if length <= PIECE and hasattr(os, "pread"):
            data = os.pread(self._open().fd, length, offset)
            if len(data) == length:
                return data
        out = bytearray(length)
        self.read_into(offset, memoryview(out))
        return bytes(out)

    def _view(self, offset: int, length: int) -> memoryview:
        with self._lock:
            handle = self._open()
            # A mapped file that has shrunk kills the process on access, so look before each view.
            if os.fstat(handle.fd).st_size < self.size:
                raise self._shrunk(handle)
            if self._map is None:
                try:
                    self._map = mapped(handle.fd, self.size)
                except OSError as error:
                    raise missing(Path(self.name), error) from None
            return self._map[offset : offset + length]

    def _shrunk(self, handle: _Handle) -> TruncatedError:
        return TruncatedError(
            "the file changed while it was open",
            file=self.name,
            expected=f"{self.size} bytes",
            found=f"{os.fstat(handle.fd).st_size} bytes",
            code="changed",
            hint="Open it again once it is complete.",
        )


class FolderSource(Source):
    """A folder whose regular files are members."""

    is_dir = True

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), 0)
        self.path = path
        self._first: dict[str, tuple[int, ...]] = {}

    def _names(self, folder: str = "") -> tuple[str, ...]:
        assert self.path is not None
        return regular_files(self.path / folder)

    def stat(self, path: str) -> tuple[int, int] | None:
        try:
            info = os.stat(os.path.join(self.name, path))
        except OSError:
            return None
        return info.st_size, info.st_mtime_ns

    def _open_member(self, name: str) -> Source:
        """Opened again after it was dropped, a member must be the same file."""
        assert self.path is not None
        member = FileSource(self.path / name)
        self._check_same(name, member.identity)
        return member

    def first(self, path: str, length: int) -> tuple[int, bytes]:
        for piece in path.split("/"):
            check_plain_name(piece, self.name)
        try:
            handle = _Handle(os.path.join(self.name, path))
            info = os.fstat(handle.fd)
            if self._closed or not stat.S_ISREG(info.st_mode):
                return super().first(path, length)  # which says what is wrong
            found = os.read(handle.fd, length)
        except OSError:
            return super().first(path, length)
        self._check_same(path, _identity(info))
        return info.st_size, found

    def _check_same(self, name: str, identity: tuple[int, ...]) -> None:
        if self._first.setdefault(name, identity) != identity:
            raise FormatError(
                "was replaced while the folder was open", file=os.path.join(self.name, name), code="changed",
                hint="Open the folder again once it is complete.",
            )  # fmt: skip


def _identity(info: os.stat_result) -> tuple[int, ...]:
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def open_source(target: Any) -> Source:
    """Source of a path, or of bytes (anything with the buffer protocol)."""
    if isinstance(target, Source):
        return target
    if isinstance(target, (bytes, bytearray, memoryview, mmap.mmap)):
        return BytesSource(target)
    given = os.fspath(target)
    if not given:
        raise FormatError("the path is empty", file=repr(given), code="missing", hint="Name a file.")
    path = Path(given)
    try:
        info = path.stat()
    except (OSError, ValueError) as error:
        raise missing(path, error) from None
    return FolderSource(path) if stat.S_ISDIR(info.st_mode) else FileSource(path)


def open_folder(path: Any) -> Source:
    """Source of a folder; FormatError when it is none."""
    source = open_source(path)
    if not source.is_dir:
        raise FormatError("is not a folder", file=source.name, code="file-kind", hint="Name the folder it lies in.")
    return source


def check_plain_name(name: str, file: str) -> None:
    """A name that comes from inside a file must be a plain file name of the same folder."""
    if not name or name.startswith(".") or any(c in name for c in "/\\\0:") or name != name.strip():
        raise FormatError(
            "refers to a file by something that is not a plain file name",
            file=file,
            found=repr(name),
            code="path",
        )


def regular_files(folder: Path) -> tuple[str, ...]:
    """Names of the regular files (or links to such) of a folder; none of one that is not there."""
    try:
        return tuple(entry.name for entry in os.scandir(folder) if entry.is_file())
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise missing(folder, error) from None


def closed(name: str) -> ClosedError:
    """The error for a read after `close`."""
    return ClosedError("the file is closed", file=name, code="closed", hint="Open it again to read more.")


def missing(path: Path, error: Exception) -> FormatError:
    """The error for a path that cannot be opened."""
    if path.parts and path.parts[0].endswith(":"):  # https:
        return FormatError("is no local file", file=str(path), code="missing", hint="Download it first.")
    if isinstance(error, FileNotFoundError):
        nearest = next((parent for parent in path.parents if parent.exists()), Path())
        hint = f"{str(nearest)!r} exists; check the rest of the path." if nearest != path.parent else "Check the name."
        return FormatError("no such file or folder", file=str(path), code="missing", hint=hint)
    why = getattr(error, "strerror", None) or error
    number = getattr(error, "errno", None)
    next_step = {
        errno.EACCES: "You need the permission to read it.", errno.EMFILE: "Allow more open files: ulimit -n.",
    }.get(number or 0)  # fmt: skip
    return FormatError(f"cannot be opened: {why}", file=str(path), code="unreadable", hint=next_step)


def kind_of(mode: int) -> str:
    """What a file-system entry is, in words."""
    for test, word in (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
        (stat.S_ISSOCK, "a socket"),
    ):
        if test(mode):
            return word
    return "something else"
