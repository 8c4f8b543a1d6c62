"""Sources: bytes by offset, with every bound checked here. Files and folders on disk are in `local`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from squish_core.codes import ErrorCode
from squish_core.errors import ClosedError, FormatError, TruncatedError

if TYPE_CHECKING:
    from squish_core.io.pin import Pin, Statement, Traffic
    from squish_core.model import Problem

HEAD, TAIL = 4096, 64
SNIFFED = 64 << 10
"""Bytes that `Container.sniff` may read."""
MEMBERS = 64
"""Open files per folder, at most: a model may have more files than a process may have descriptors."""


@frozen
class Backing:
    """A mapped file that loaded weights read in place. Identified by path: one descriptor per file would be too many.

    `node`: device and inode.
    """

    name: str
    node: tuple[int, int]
    size: int

    def check(self) -> None:
        """Raise TruncatedError if the file has shrunk. A deleted or replaced file stays alive under its mapping."""
        try:
            info = os.stat(self.name)
        except OSError:
            return
        if info.st_size < self.size and (info.st_dev, info.st_ino) == self.node:
            raise shrunk_error(self.name, self.size, info.st_size)


def shrunk_error(name: str, expected: int, size: int) -> TruncatedError:
    """Error for a file that shrank while it was open."""
    return TruncatedError(
        "the file changed while it was open",
        file=name,
        expected=f"{expected} bytes",
        found=f"{size} bytes",
        code=ErrorCode.CHANGED,
        hint="Open it again once it is complete.",
    )


class Source:
    """Bytes by offset. `name` is for messages, `size` in bytes; `read` copies, `view` does not.

    Subclasses implement `_read` and `_view`; both are called with ranges inside the file only.
    """

    is_dir = False
    cheap_views = False
    """Whether views are free until used (mappings, memory); otherwise each view reads its bytes."""
    is_remote = False
    """Whether reads go over a network, so that whole files are fetched only on request."""
    lists_members = True
    """Whether `members` lists every file of a folder; otherwise only `has` shows whether a file exists."""
    path: Path | None = None
    packed: tuple[str, int] | None = None
    """Byte codec and size of the compressed file, if this is the content of one."""
    pin: Pin | None = None
    """The identity of a remote file's content; None for local files and folders."""
    findings: tuple[Problem, ...] = ()
    """Problems of the file itself, whatever its format, such as an interrupted append."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        self._members: dict[str, Source] = {}
        self._overlay: dict[str, Source] = {}
        self._lock = threading.Lock()

    @cached_property
    def filename(self) -> str:
        """The name inside its folder, as in `FileRef`."""
        return os.path.basename(self.name)

    def read(self, offset: int, length: int, what: str = "data") -> bytes:
        """Copy a byte range. A TruncatedError for a range past the end names `what`."""
        self._check(offset, length, what)
        return self._read(offset, length) if length else b""

    def view(self, offset: int, length: int, what: str = "data") -> memoryview:
        """Read-only view of a byte range, without a copy; it stays valid after `close`."""
        self._check(offset, length, what)
        return self._view(offset, length) if length else memoryview(b"")

    def writable_view(self, offset: int, length: int) -> Callable[[], memoryview | None]:
        """Return a function that makes private, writable views of a byte range without copying it.

        Writes to a view never reach the file. The function returns None if it cannot make one. It keeps no file
        open and works after `close`.
        """
        return lambda: None

    def read_into(self, offset: int, out: memoryview, what: str = "data") -> None:
        """Fill `out` with the bytes from `offset` on."""
        self._check(offset, len(out), what)
        out[:] = self._view(offset, len(out)) if len(out) else b""

    def read_ranges(self, ranges: Sequence[tuple[int, int]], what: str = "data") -> list[memoryview]:
        """Views of several byte ranges (offset, length), read together if that is faster."""
        return [self.view(offset, length, what) for offset, length in ranges]

    def read_ahead(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Announce the byte ranges (offset, length) that will be read, in about this order, each once."""

    def expect(self, statements: Iterable[Statement]) -> bool:
        """Compare statements about bytes with the bytes, each before its bytes are read.

        Returns whether this source does so; if not, the caller must read and compare the bytes itself.
        """
        return False

    def release_pages(self) -> None:
        """Return memory with pages of the file to the system; views stay valid."""

    def traffic(self) -> Traffic | None:
        """Traffic of this file and its members; None for a local source."""
        return None

    def check_open(self) -> None:
        """Raise ClosedError after `close`."""
        if self._closed:
            raise closed(self.name)

    def check_size(self) -> None:
        """Raise TruncatedError if the file ends before its views."""

    def descriptor(self) -> int | None:
        """File descriptor for copies in the kernel; None if the source is not a plain file."""
        return None

    def member(self, name: str, folder: str = "", *, links: bool = True) -> Source:
        """Open another file of the same folder, or of its subfolder `folder` (`a/b`).

        It closes with this source, or earlier if unused once `MEMBERS` others have been opened. `links=False` refuses
        a file on disk that a symbolic link or a second hard link leads to.
        """
        for piece in (*folder.split("/"), name) if folder else (name,):
            check_file_name(piece, self.name)
        path = f"{folder}/{name}" if folder else name
        with self._lock:
            if self._closed:
                raise closed(self.name)
            if path not in self._members:
                if len(self._members) >= MEMBERS:
                    del self._members[next(iter(self._members))]
                source = self._overlay[path].member(name) if path in self._overlay else self._open_member(path)
                source = source if self._maps else source.unmapped()
                source.filename, source._overlay = path, self._overlay
                self._members[path] = source
            if not links:
                self._refuse_links(path, self._members[path])
            return self._members[path]

    def unmapped(self) -> Source:
        """Return a second source of the same open file whose `view` copies: truncating a mapped file kills the process.

        Subclasses that wrap another source or keep a cache override this.
        """
        twin: Source = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._maps, twin._members, twin._lock = False, {}, threading.Lock()
        return twin

    def backing(self) -> Backing | None:
        """Return the file that views are mapped from; None if they are private memory."""
        return None

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle an open file; pass its name to the other process and open it there")

    def members(self, folder: str = "", likely: Iterable[str] = ()) -> tuple[str, ...]:
        """Sorted names of the regular files beside this one, overlaid files included, or in the subfolder `folder`.

        If nothing lists the folder: the `likely` names that exist.
        """
        names = self._names(folder) if self.lists_members else self._present(folder, tuple(likely))
        return tuple(sorted({*names, *(() if folder else self._overlay)}))

    def subfolders(self, folder: str = "") -> tuple[str, ...]:
        """Sorted names of the folders beside this file, or in the subfolder `folder`; none where nothing lists them."""
        return tuple(sorted(self._folder_names(folder)))

    def has(self, name: str, folder: str = "") -> bool:
        """Return whether a file exists in the folder or a subfolder; also works if nothing lists the folder."""
        if not self.lists_members and not (name in self._overlay and not folder):
            return name in self._present(folder, (name,))
        return name in self.members(folder)

    def problems(self) -> tuple[Problem, ...]:
        """Findings of this file and of the members opened so far."""
        with self._lock:
            return (*self.findings, *(finding for member in self._members.values() for finding in member.findings))

    def stat(self, path: str) -> tuple[int, int] | None:
        """Size and modification time (ns) of a folder's entry, without opening it.

        None if there is no such entry or the source is not a folder on disk. `path` must come from the caller, never
        from a file.
        """
        return None

    def overlay(self, folder: Source, names: Iterable[str] | None = None, unread: bool = False) -> tuple[str, ...]:
        """Take those of `names` (all files of `folder` by default) that are missing here from `folder`.

        With `unread`, also those that are here: the format does not read them. Returns the names.
        """
        own = frozenset[str]() if unread else frozenset(self._names())
        taken = [name for name in (folder.members() if names is None else names) if name not in own]
        self._overlay = {**self._overlay, **dict.fromkeys(taken, folder)}
        return tuple(taken)

    def first(self, path: str, length: int) -> tuple[int, bytes]:
        """Size and first bytes (at most `length`) of a member, by name or `folder/name`; fast for many small files."""
        folder, _, name = path.rpartition("/")
        member = self.member(name, folder)
        return member.size, member.read(0, min(length, member.size))

    def close(self) -> None:
        """Stop new reads; existing views stay valid."""
        with self._lock:
            self._closed = True
            members = list(self._members.values())
        for member in members:
            member.close()

    _closed = False
    _maps = True

    def _check(self, offset: int, length: int, what: str) -> None:
        self.check_open()
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
        """Return names of the regular files in the folder, or in its subfolder `folder`."""
        return ()

    def _folder_names(self, folder: str = "") -> tuple[str, ...]:
        """Return names of the folders in the folder, or in its subfolder `folder`."""
        return ()

    def _present(self, folder: str, names: Sequence[str]) -> tuple[str, ...]:
        """Return the names that are files of the folder; for sources that list no members."""
        raise NotImplementedError

    def _refuse_links(self, path: str, member: Source) -> None:
        """Raise FormatError if a link leads to a member; only sources on disk have links."""

    def _open_member(self, name: str) -> Source:
        message = f"refers to the file {name!r}, but bytes in memory have no folder"
        raise FormatError(message, file=self.name, code="companion")

    def _read(self, offset: int, length: int) -> bytes:
        return bytes(self._view(offset, length))

    def _view(self, offset: int, length: int) -> memoryview:
        raise NotImplementedError


class BytesSource(Source):
    """A buffer in memory."""

    cheap_views = True

    def __init__(self, data: Any, name: str = "<bytes>") -> None:
        self._data = memoryview(data).cast("B").toreadonly()
        super().__init__(name, len(self._data))

    def _view(self, offset: int, length: int) -> memoryview:
        return self._data[offset : offset + length]


def check_file_name(name: str, file: str) -> None:
    """Refuse a name from inside a file that could lead out of the folder.

    Parameters
    ----------
    name
        The name to check.
    file
        The file that contains it, for the error.

    Raises
    ------
    FormatError
        The name is a path, is hidden or empty, or the file system cannot encode it; code `path`.

    Examples
    --------
    >>> check_file_name("model-00001-of-00002.safetensors", "model.safetensors.index.json")
    >>> check_file_name("../weights.bin", "index.json")
    Traceback (most recent call last):
        ...
    squish_core.errors.FormatError: index.json: ...
    """
    separators = any(c in name for c in "/\\\0:")
    if not name or name.startswith(".") or separators or name != name.strip() or not _encodes(name):
        expected = "a file name without a path"
        raise FormatError(
            "refers to a file by an invalid name", file=file, expected=expected, found=repr(name), code="path"
        )


def _encodes(name: str) -> bool:
    """Return whether the file system can store the name: JSON may contain lone surrogates."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def closed(name: str) -> ClosedError:
    """Make the error for a read after `close`.

    Parameters
    ----------
    name
        The file.

    Returns
    -------
    ClosedError
        With code `closed`.

    Examples
    --------
    >>> str(closed("model.gguf"))
    'model.gguf: the file is closed. Open it again.'
    """
    return ClosedError("the file is closed", file=name, code="closed", hint="Open it again.")
