"""The document of `squish edit`.

Named like the module of the command.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen


@frozen
class Edit:
    """What an edit changed.

    Attributes
    ----------
    file
        The edited file, or the copy.
    how
        in place, rewritten, appended, copied or unchanged.
    added, removed, replaced
        Names of tensors.
    renamed
        Old name -> new name.
    attributes, assets
        Metadata keys, and other files of the model.
    size
        Bytes of the file, or of all files of the folder.
    recovered
        Bytes of an interrupted edit that were removed.
    """

    file: str
    how: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    replaced: tuple[str, ...]
    renamed: Mapping[str, str]
    attributes: tuple[str, ...]
    assets: tuple[str, ...]
    size: int
    recovered: int
    notes: tuple[str, ...]
