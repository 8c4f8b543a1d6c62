"""Openers of URLs, which plugins declare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from squish_core.errors import UsageError, redact
from squish_core.io.pin import Pin
from squish_core.io.source import Source

if TYPE_CHECKING:
    from squish_core.io.remote_target import RemoteTarget


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

    def open_pinned(self, pin: Pin, options: Mapping[str, Any]) -> Source:
        """The source of a pin, by default what its URL leads to; the core compares the pins.

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
        """A file or folder to write at a URL.

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
        raise UsageError(
            "such addresses can be read, not written", found=redact(url), code="read-only",
            hint="Write a local file, or to a store such as s3://.",
        )  # fmt: skip
