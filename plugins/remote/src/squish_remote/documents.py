"""What `squish serve` and `squish refs` print with `--json`.

Apart from the commands, because only `squish schema` imports these classes.
"""

from __future__ import annotations

from attrs import frozen


@frozen
class Serve:
    """The addresses at which a file is served in another format."""

    file: str
    format: str
    urls: tuple[str, ...]


@frozen
class Refs:
    """The references that were written, and their number of arrays."""

    source: str
    target: str
    arrays: int
