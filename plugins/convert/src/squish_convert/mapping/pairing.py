"""Map a file to the names of another file of its family, to compare their tensors; and list a tensor's aliases.

Activation statistics may have the names of any layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache

from squish_core.errors import SquishError
from squish_core.file import File
from squish_core.formats.base import WritableContainer

from ..expressions import Expression, Interleave, Join, Tile
from ..families import CONFIG_FILE, GGUF, HF, Family
from .codecs.heads import Order
from .coverage import sizes_at
from .mapped import MappedFile, Naming, family_of, map_file, model_of, naming_of, stores_codes
from .names import Templates, fill, members, target_rules
from .tensors import tile_order


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
        A sentence about the mapped files; empty if there are none.

    Examples
    --------
    >>> compared_as(squish.open("model.gguf"))
    ''
    """
    mapped = [file for file in files if isinstance(file, MappedFile)]
    changes = ", ".join(f"{file.name} mapped from {file.naming.layout} to {file.layout}" for file in mapped)
    return f"compared as {mapped[0].family}: {changes}" if mapped else ""


def respelled(first: File, second: MappedFile) -> bytes | None:
    """Return the first file's config.json in the layout of the second; None if the first file cannot be mapped."""
    naming = naming_of(first)
    try:
        return map_file(first, second.layout, {"keep": "no"}, naming).carried.assets.get(CONFIG_FILE)
    except SquishError:
        return None


def _differ_in_config(first: File, second: File) -> bool:
    """Return whether both files have a config.json, and these differ."""
    if not all(CONFIG_FILE in file.assets for file in (first, second)):
        return False
    one, other = (bytes(file.assets[CONFIG_FILE].raw) for file in (first, second))
    return one != other


def _layout(file: File, naming: Naming) -> str:
    """Layout of a file's names: its format's, if the names agree with it."""
    container = file.registry.container(file.format) if file.format in file.registry.containers else None
    own = container.naming({}) if isinstance(container, WritableContainer) else None
    return naming.layout if own is None or naming.crosses(own) else own


Alias = tuple[str, int | None]
"""A name, and the number of the tensor in the stack of that name."""


class Aliases:
    """The other names of a file's tensors.

    Parameters
    ----------
    file
        An open file, mapped or not. If its family is unknown, its tensors have no aliases.
    """

    def __init__(self, file: File) -> None:
        self._file, self._mapped = file, file if isinstance(file, MappedFile) else None
        naming = file.naming if isinstance(file, MappedFile) else naming_of(file)
        self._family = None
        if naming.family is not None and (self._mapped is not None or naming.layout != GGUF):
            self._family = family_of(file, naming)

    def of(self, name: str) -> tuple[tuple[Alias, ...], ...]:
        """Return the names of a tensor in each other layout; a stack may have several."""
        if self._family is None:
            return ()
        names: Mapping[str, Mapping[str, int]] = {self._family.own_name(name): {}}
        if self._mapped is not None:
            target = self._mapped.mapped.targets[name]
            experts = self._mapped.mapped.setting.experts
            names = dict(members(target.rule.of, target.numbers, experts))
        in_gguf = tuple(alias for name in names for alias in _in_gguf(self._family, name))
        return (tuple((name, None) for name in names), in_gguf) if len(in_gguf) == len(names) else ()

    def columns(self, name: str, gguf: bool, size: int) -> Order | None:
        """Return the order of a tensor's columns by those of the layout of GGUF, or of Hugging Face; None if equal."""
        is_gguf = self._mapped is not None and self._mapped.layout == GGUF
        rule = _gguf_rules(self._family).find(self.of(name)[0][0][0]) if self._family and is_gguf != gguf else None
        tile = _tile_of_columns(rule[0].of) if rule is not None else None
        return None if tile is None else tile_order(tile, self._sizes, size, tile.inverse == is_gguf)

    @cached_property
    def _sizes(self) -> Mapping[str, int]:
        if self._mapped is not None:
            return sizes_at(self._mapped.mapped.setting.sizes, {})
        assert self._family is not None
        return sizes_at(self._family.sizes(self._family.settings(model_of(self._file, self._family, HF))), {})


def _tile_of_columns(expression: Expression) -> Tile | None:
    """The operation that moves columns, if there is one."""
    while not isinstance(expression, str | Join | Interleave):
        if isinstance(expression, Tile) and expression.columns:
            return expression
        expression = expression.of
    return None


def _in_gguf(family: Family, name: str) -> tuple[Alias, ...]:
    """GGUF's name for a tensor of the family."""
    match = _gguf_rules(family).find(name)
    if match is None:
        return ()
    rule, numbers = match
    stacked = "{e}" not in rule.name and "e" in numbers
    return ((fill(rule.name, numbers), numbers["e"] if stacked else None),)


@lru_cache(maxsize=4)
def _gguf_rules(family: Family) -> Templates:
    return target_rules(family, GGUF)
