"""Pins: identifiers of the content of remote files."""

from __future__ import annotations

from typing import Any

from attrs import asdict, frozen


@frozen(kw_only=True)
class Pin:
    """Identifies the content of a remote file, so that another process opens the same content or fails.

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
