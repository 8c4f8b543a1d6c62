"""Two files of one family under the same names, so that their tensors can be compared."""

from __future__ import annotations

from squish_core.errors import SquishError
from squish_core.file import File
from squish_core.mapping.mapped import Naming, map_file, naming_of


def paired(first: File, second: File) -> tuple[File, str]:
    """The second file under the names and settings of the first, and a sentence that says so.

    Both stay as they are, and the sentence is empty, where their names agree, where their families are not known or not
    one, and where the second is no whole model of its family.
    """
    if set(first) == set(second):
        return second, ""
    one, other = naming_of(first), naming_of(second)
    if one.family is None or one.family != other.family:
        return second, ""
    layout = _layout(first, one)
    try:
        mapped = map_file(second, layout, {"keep": "no"}, other)
    except SquishError:
        return second, ""
    return mapped, f"compared as {one.family}: {second.name} mapped from {other.layout} to {layout}"


def _layout(file: File, naming: Naming) -> str:
    """The layout of a file's names: its format's, where that has one and they are not GGUF's."""
    container = file.registry.container(file.format) if file.format in file.registry.containers else None
    own = container.naming({}) if container is not None else None
    return own if own is not None and (own == "gguf") == (naming.layout == "gguf") else naming.layout
