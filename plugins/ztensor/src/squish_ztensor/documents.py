"""What `squish edit` prints with `--json`.

Apart from the command, because only `squish schema` imports these classes.
"""

from __future__ import annotations

from attrs import frozen


@frozen
class Edit:
    """What an edit changed.

    Attributes
    ----------
    added, removed, attributes
        Names of tensors, and metadata keys.
    size
        Bytes of the file.
    recovered
        Bytes of an interrupted edit that were removed.
    """

    file: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    attributes: tuple[str, ...]
    size: int
    recovered: int
    notes: tuple[str, ...]
