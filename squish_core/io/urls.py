"""The interfaces of plugins for URLs: openers of sources, and targets, whose files appear complete or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from squish_core.codes import ErrorCode
from squish_core.errors import UsageError, WriteError, redact
from squish_core.io.pin import Pin
from squish_core.io.source import Source


class RemoteTarget:
    """A file, or a folder of files, to write at a URL. Plugins subclass it (`SourceOpener.create`).

    `name` is the URL without user, password and query; `filename` its last piece; `job` the id of the job that writes
    it, or "": a process may complete what another process of the job began.

    Examples
    --------
    >>> from squish_core.api import RemoteTarget
    >>> RemoteTarget("s3://bucket/models/tiny.gguf").filename
    'tiny.gguf'
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.filename = name.rstrip("/").rpartition("/")[2]
        self.job = ""
        self.written: dict[str, int] = {}

    def __str__(self) -> str:
        return self.name

    def existing(self) -> tuple[str, ...]:
        """Paths of existing files: "" for the target itself, else files in the folder, possibly not all."""
        raise NotImplementedError

    def new_file(
        self, path: str, *, size: int | None, overwrite: bool
    ) -> AbstractContextManager[Callable[[memoryview], object]]:
        """Return a function that appends bytes to a file, which appears when the block succeeds.

        Parameters
        ----------
        path
            Path of the file in the folder, or "" for the target itself.
        size
            Bytes of the file, at most; None if unknown.
        overwrite
            Whether to replace a file that is there; otherwise a WriteError with code `exists`.
        """
        raise NotImplementedError

    def remove(self, path: str) -> None:
        """Remove a file that was written before the target failed."""
        raise NotImplementedError

    def close(self) -> None:
        """End all requests."""

    def check(self, *, overwrite: bool) -> None:
        """Raise WriteError with code `exists` if there is a file at the URL or below, unless it may be overwritten."""
        if not overwrite and (paths := self.existing()):
            raise target_exists(self.name, "" if paths[0] == "" else f"{paths[0]} in it")

    @contextmanager
    def opened(self, path: str, *, size: int | None, overwrite: bool) -> Iterator[Callable[[Any], object]]:
        """As `new_file`, for any buffers, with the bytes counted in `written`."""
        count = 0

        def write(data: Any) -> None:
            nonlocal count
            view = memoryview(data).cast("B")
            append(view)
            count += len(view)

        with self.new_file(path, size=size, overwrite=overwrite) as append:
            yield write
        self.written[path] = count


def target_exists(name: str, what: str = "") -> WriteError:
    """Make the error for a target that is there already.

    Parameters
    ----------
    name
        Path or URL of the target.
    what
        What exists there, if it is not a file.

    Returns
    -------
    WriteError
        With code `exists`.

    Examples
    --------
    >>> target_exists("s3://bucket/model.gguf").code
    'exists'
    """
    hint = "Choose a new name, or replace it with --overwrite (overwrite=True)."
    return WriteError("already exists", file=name, found=what or None, code=ErrorCode.EXISTS, hint=hint)


class SourceOpener:
    """Opens the URLs of the schemes in its `SourceInfo`; `create` writes to them if possible.

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
        """Return the source of a URL.

        Parameters
        ----------
        url
            As the user wrote it; errors and `Source.name` show it without user, password and query.
        options
            The declared options that the user set: text from the environment, any value from Python.

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

    def open_pinned(self, pin: Pin, options: Mapping[str, Any]) -> Source:
        """Return the source of a pin, by default that of its URL; the core compares the pins.

        Parameters
        ----------
        pin
            `Source.pin` of an earlier opening.
        options
            As in `open`.

        Returns
        -------
        Source
            Open.

        Raises
        ------
        FormatError
            There is no such file, or it cannot be read.

        Examples
        --------
        >>> from squish_core.api import Pin
        >>> SourceOpener().open_pinned(Pin(url="zeros://any", size=8), {})
        Traceback (most recent call last):
            ...
        NotImplementedError
        """
        return self.open(pin.url, options)

    def create(self, url: str, options: Mapping[str, Any]) -> RemoteTarget:
        """Return a file or folder to write at a URL.

        Parameters
        ----------
        url, options
            As in `open`.

        Returns
        -------
        RemoteTarget
            Nothing is written yet.

        Raises
        ------
        UsageError
            The source only reads (code `read-only`).

        Examples
        --------
        >>> SourceOpener().create("zeros://any", {})
        Traceback (most recent call last):
            ...
        squish_core.errors.UsageError: ...
        """
        hint = "Write a local file, or to a store such as s3://."
        raise UsageError("URLs of this source can only be read", found=redact(url), code="read-only", hint=hint)
