"""Sources: random access to bytes, with every bound checked here; those of files and folders are in `local`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from squish_core.errors import ClosedError, FormatError, TruncatedError

if TYPE_CHECKING:
    from squish_core.io.pin import Pin
    from squish_core.model import Problem

HEAD, TAIL = 4096, 64
SNIFFED = 64 << 10
"""Bytes that `Container.sniff` may read."""
LENT = (".json", ".jinja", ".txt", ".model")
"""Suffixes of the files that a folder of assets lends: what describes a model, never its weights."""
MEMBERS = 64
"""Files of a folder that stay open at a time: a model may have more of them than a process may have descriptors."""


class Backing(Protocol):
    """A file that views are mapped from."""

    def check(self) -> None:
        """TruncatedError once the file ends before what was mapped."""


class Source:
    """Bytes by offset. `name` is for people, `size` in bytes; `read` copies, `view` does not.

    Subclasses give `_read` and `_view`; both are called with a range that lies inside the file.
    """

    is_dir = False
    cheap_views = False
    """Whether a view costs nothing until it is used: of a mapping or of memory. Elsewhere each view reads its bytes."""
    lists_members = True
    """Whether `members` knows every file of a folder; else only `has` tells whether a file is there."""
    path: Path | None = None
    packed: tuple[str, int] | None = None
    """Codec and size of the compressed file that this is the content of, where it is one."""
    pin: Pin | None = None
    """What identifies the content of a remote file; None for a local one, and for a folder."""
    findings: tuple[Problem, ...] = ()
    """What is wrong with the file itself, whatever its format: an interrupted append."""

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
        return self._read(offset, length) if length else b""

    def view(self, offset: int, length: int, what: str = "data") -> memoryview:
        """Read-only view of a byte range without a copy; it stays valid after `close`."""
        self._check(offset, length, what)
        return self._view(offset, length) if length else memoryview(b"")

    def writable_view(self, offset: int, length: int) -> Callable[[], memoryview | None]:
        """A function for writable views of a byte range, each its own, that never change the file and are no copies.

        It gives None where there are none. It holds no file open, and works after `close`.
        """
        return lambda: None

    def read_into(self, offset: int, out: memoryview, what: str = "data") -> None:
        """Fill `out` (bytes) from `offset`."""
        self._check(offset, len(out), what)
        out[:] = self._view(offset, len(out)) if len(out) else b""

    def read_ranges(self, ranges: Sequence[tuple[int, int]], what: str = "data") -> list[memoryview]:
        """Views of several byte ranges (offset, length), read at once where that is faster."""
        return [self.view(offset, length, what) for offset, length in ranges]

    def read_ahead(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Announce the byte ranges (offset, length) that will be read, in about this order, each once."""

    def check_size(self) -> None:
        """TruncatedError once the file ends before its views do."""

    def descriptor(self) -> int | None:
        """File descriptor for copies by the kernel; None if it is not a plain file."""
        return None

    def member(self, name: str, folder: str = "") -> Source:
        """Another file of the same folder, or of `folder` in it (`a/b`), by name; closed with this one, or when it is
        unused and many others were opened since."""
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
                opened = opened if self._maps else opened.unmapped()
                opened.filename, opened._lent = path, self._lent
                self._members[path] = opened
            return self._members[path]

    def unmapped(self) -> Source:
        """A second source of the same open file whose `view` copies, since a file truncated under a mapping kills the
        process. A subclass that holds another source or a cache replaces it."""
        twin: Source = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._maps, twin._members, twin._lock = False, {}, threading.Lock()
        return twin

    def backing(self) -> Backing | None:
        """What a view depends on while in use; None if views are this process's own memory."""
        return None

    def __reduce__(self) -> Any:
        raise TypeError("an open file does not pickle; give the other process its name, and open it there")

    def members(self, folder: str = "", likely: Iterable[str] = ()) -> tuple[str, ...]:
        """Sorted names of the regular files in the folder (for a file: the folder it lies in) and of those lent, or
        in a folder in it. Where nothing lists a folder, those of the `likely` names that are there."""
        names = self._names(folder) if self.lists_members else self._present(folder, tuple(likely))
        return tuple(sorted({*names, *(() if folder else self._lent)}))

    def has(self, name: str, folder: str = "") -> bool:
        """Whether a file of the folder, or of a folder in it, is there; also where nothing lists the folder."""
        if not self.lists_members and not (name in self._lent and not folder):
            return name in self._present(folder, (name,))
        return name in self.members(folder)

    def problems(self) -> tuple[Problem, ...]:
        """Findings of this file and of those opened beside it so far."""
        with self._lock:
            return (*self.findings, *(finding for member in self._members.values() for finding in member.findings))

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
    _maps = True

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

    def _present(self, folder: str, names: Sequence[str]) -> tuple[str, ...]:
        """Those of the names that are files of the folder; for sources that list no members."""
        raise NotImplementedError

    def _open_member(self, name: str) -> Source:
        raise FormatError(f"needs the file {name!r}, but bytes in memory have no folder", file=self.name)

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


class SourceOpener:
    """Opens the URLs of some schemes, as its `SourceInfo` declares it.

    Examples
    --------
    >>> from squish_core.api import BytesSource, SourceOpener
    >>> class Zeros(SourceOpener):
    ...     def open(self, url, options):
    ...         return BytesSource(bytes(int(options.get("size", 8))), url)
    >>> Zeros().open("zeros://any", {"size": "4"}).read(0, 4)
    b'\\x00\\x00\\x00\\x00'
    """

    id = ""

    def open(self, url: str, options: Mapping[str, Any]) -> Source:
        """The source of a URL.

        Parameters
        ----------
        url
            As the user gave it; errors and `Source.name` show it without user, password and query.
        options
            Of those declared, the ones that were given: text from the environment, any value from Python.

        Returns
        -------
        Source
            Open; a folder has `is_dir`.

        Raises
        ------
        FormatError
            There is no such file, or it cannot be read.

        Examples
        --------
        >>> SourceOpener().open("zeros://any", {})
        Traceback (most recent call last):
            ...
        NotImplementedError
        """
        raise NotImplementedError


def check_plain_name(name: str, file: str) -> None:
    """A name that comes from inside a file must be a plain file name of the same folder."""
    separators = any(c in name for c in "/\\\0:")
    if not name or name.startswith(".") or separators or name != name.strip() or not _encodes(name):
        raise FormatError(
            "refers to a file by something that is not a plain file name",
            file=file,
            found=repr(name),
            code="path",
        )


def _encodes(name: str) -> bool:
    """Whether the file system can have the name: JSON can spell surrogates that no encoding has bytes for."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def closed(name: str) -> ClosedError:
    """The error for a read after `close`."""
    return ClosedError("the file is closed", file=name, code="closed", hint="Open it again to read more.")
