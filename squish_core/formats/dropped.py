"""Records of what a target cannot store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from attrs import frozen


@frozen
class Dropped:
    """Something in the source that the target cannot store.

    `name` is its key, role or file name; `where` is the tensor, part or file it belongs to, if any.
    """

    kind: Literal[
        "metadata", "asset", "attribute", "part", "digest", "child", "encoding", "declaration", "tensor", "graph"
    ]
    name: str
    reason: str = ""
    where: str = ""

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        return f"{where}{self.kind} {self.name}{f' ({self.reason})' if self.reason else ''}"


def dropped_assets(names: Iterable[str], reason: str = "") -> tuple[Dropped, ...]:
    """Make the records of assets that a target cannot store.

    Parameters
    ----------
    names
        Names of the files.
    reason
        Why the target cannot store them.

    Returns
    -------
    tuple of Dropped
        One for each, of kind "asset".

    Examples
    --------
    >>> print(*dropped_assets(["config.json"], "a single file"))
    asset config.json (a single file)
    """
    return tuple(Dropped("asset", name, reason) for name in names)


def dropped_metadata(keys: Iterable[str], reason: str = "") -> tuple[Dropped, ...]:
    """Make the records of metadata keys that a target cannot store.

    Parameters
    ----------
    keys
        The keys.
    reason
        Why the target cannot store them.

    Returns
    -------
    tuple of Dropped
        One for each, of kind "metadata".

    Examples
    --------
    >>> print(*dropped_metadata(["author"], "no place for it"))
    metadata author (no place for it)
    """
    return tuple(Dropped("metadata", key, reason) for key in keys)
