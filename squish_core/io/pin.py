"""Facts about remote files: pins, which identify the content, statements about unread bytes, and traffic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import asdict, frozen

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError
from squish_core.text import counted


@frozen
class Traffic:
    """Traffic of a remote source since it was opened, without its first bytes.

    `unused`: bytes between ranges that were fetched together, and bytes that were read ahead and never read.

    Examples
    --------
    >>> Traffic(requests=3, fetched=300, unused=20) - Traffic(requests=1, fetched=100, unused=0)
    Traffic(requests=2, fetched=200, unused=20)
    """

    requests: int
    fetched: int
    unused: int

    def __sub__(self, earlier: Traffic) -> Traffic:
        return Traffic(self.requests - earlier.requests, self.fetched - earlier.fetched, self.unused - earlier.unused)

    def __str__(self) -> str:
        unused = f", {self.unused:,} of them unused" if self.unused else ""
        return f"fetched {counted(self.fetched, 'byte')} in {counted(self.requests, 'request')}{unused}"


@frozen(kw_only=True)
class Statement:
    """What one part of a file states about another, which opening did not read.

    Before a remote source returns any byte of `start` to `stop` of the file `path` (the source itself by default), it
    compares the bytes at the offsets in `content` with those in the file, once. `what` and `code` are for the error.

    Examples
    --------
    >>> Statement(start=320, stop=4416, content=((320, b"INT4"),), what="the header of a block").check({320: b"INT2"})
    Traceback (most recent call last):
        ...
    squish_core.errors.FormatError: the header of a block differs from what the file states elsewhere ...
    """

    start: int
    stop: int
    content: tuple[tuple[int, bytes], ...]
    what: str
    code: str = ErrorCode.CONTRADICTION
    path: str = ""

    def check(self, stored: Mapping[int, bytes | memoryview], file: str | None = None) -> None:
        """Raise FormatError unless these bytes, by offset, are those stated."""
        for offset, expected in self.content:
            found = bytes(stored[offset])
            if found != expected:
                place = next(n for n in range(len(expected)) if found[n : n + 1] != expected[n : n + 1]) & ~15
                raise FormatError(
                    f"{self.what} differs from what the file states elsewhere",
                    file=file,
                    offset=offset + place,
                    expected=expected[place : place + 16].hex(" "),
                    found=found[place : place + 16].hex(" "),
                    code=self.code,
                    hint="Download the file: `squish verify` then lists what contradicts what.",
                )


@frozen(kw_only=True)
class Pin:
    """Identifies the content of a remote file: `squish.open(pin)` opens the same content, here or elsewhere, or fails.

    `evolve(pin, url=...)` continues with a new address of the same content, such as one that is signed again.
    `url` has no user, password or query. `tag`, `modified` and `version` are the server's, if it provides them;
    `size` is in bytes.

    Examples
    --------
    >>> Pin(url="https://example.org/model.gguf", size=64, tag='"5f3"').to_dict()["tag"]
    '"5f3"'
    """

    url: str
    size: int
    tag: str | None = None
    modified: str | None = None
    version: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; `Pin(**data)` restores the pin.

        Returns
        -------
        dict
            The fields by name.

        Examples
        --------
        >>> pin = Pin(url="s3://bucket/model.gguf", size=64)
        >>> Pin(**pin.to_dict()) == pin
        True
        """
        return asdict(self)

    def check(self, other: Pin | None) -> None:
        """Check that another pin is of the same content, whatever its URL.

        Parameters
        ----------
        other
            The pin of an open file; None if it has none.

        Raises
        ------
        FormatError
            Code `changed`.

        Examples
        --------
        >>> pin = Pin(url="https://example.org/model.gguf", size=64, tag='"5f3"')
        >>> pin.check(Pin(url="https://mirror.org/model.gguf", size=64, tag='"5f3"'))
        """
        names = ("size", "version" if self.version else "tag" if self.tag else "modified")
        for name in names:
            expected, found = getattr(self, name), getattr(other, name, None)
            if expected != found:
                raise FormatError(
                    "has other content than was pinned",
                    file=self.url,
                    expected=f"{name} {expected}",
                    found=f"{name} {found}",
                    code=ErrorCode.CHANGED,
                    hint="Open its URL, without the pin, to read the current content.",
                )
