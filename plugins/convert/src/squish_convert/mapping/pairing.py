"""Map one file to the names of another of the same family, so that their tensors can be compared."""

from __future__ import annotations

from squish_core.errors import SquishError
from squish_core.file import File
from squish_core.formats.base import WritableContainer

from ..families.base import GGUF
from ..families.model import CONFIG_FILE
from .mapped import MappedFile, Naming, family_of, map_file, naming_of, stores_codes


def map_to_first(first: File, second: File) -> tuple[File, str]:
    """Map the second file to the names and settings of the first, and describe the mapping in a sentence.

    The second file is returned unchanged, with an empty sentence, if names and config already agree, if the families
    are unknown or differ, or if the second file is not a complete model of its family.
    """
    same_names = set(first) == set(second)
    if same_names and not _differ_in_config(first, second):
        return second, ""
    one, other = naming_of(first), naming_of(second)
    if one.family is None or one.family != other.family:
        return second, ""
    layout = _layout(first, one)
    try:
        coded = stores_codes(first, family_of(first, one))
        mapped = map_file(second, layout, {"keep": "no"}, other, coded=coded)
    except SquishError:
        return second, ""
    return mapped, f"compared as {one.family}" if same_names else compared_as(mapped)


def compared_as(*files: File) -> str:
    """Describe how files were mapped to the names of others of their family.

    Parameters
    ----------
    files
        Open files of one family.

    Returns
    -------
    str
        A sentence on those that are mapped; empty if none is.

    Examples
    --------
    >>> compared_as(squish.open("model.gguf"))
    ''
    """
    mapped = [file for file in files if isinstance(file, MappedFile)]
    changes = ", ".join(f"{file.name} mapped from {file.naming.layout} to {file.layout}" for file in mapped)
    return f"compared as {mapped[0].family}: {changes}" if mapped else ""


def respelled(first: File, second: MappedFile) -> bytes | None:
    """The first file's config.json as a mapped file spells it; None if the first file cannot be mapped."""
    naming = naming_of(first)
    try:
        return map_file(first, second.layout, {"keep": "no"}, naming).carried.assets.get(CONFIG_FILE)
    except SquishError:
        return None


def _differ_in_config(first: File, second: File) -> bool:
    """Whether both files have a config.json, with other content."""
    if not all(CONFIG_FILE in file.assets for file in (first, second)):
        return False
    one, other = (bytes(file.assets[CONFIG_FILE].raw) for file in (first, second))
    return one != other


def _layout(file: File, naming: Naming) -> str:
    """Layout of a file's names: the one its format prescribes, if the names agree with it."""
    container = file.registry.container(file.format) if file.format in file.registry.containers else None
    own = container.naming({}) if isinstance(container, WritableContainer) else None
    return own if own is not None and (own == GGUF) == (naming.layout == GGUF) else naming.layout
