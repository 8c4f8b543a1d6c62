"""Names of a tensor in the other layouts of its family, by which activation statistics may be keyed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from squish_core.file import File

from ..families.base import GGUF, Family
from .mapped import MappedFile, family_of, naming_of
from .names import Templates, fill, members, target_rules

Alias = tuple[str, int | None]
"""A name, and the number of the tensor in the stack of that name."""


class Aliases:
    """The other names of a file's tensors.

    Parameters
    ----------
    file
        An open file, mapped or not. Without a known family, its tensors have no other names.
    """

    def __init__(self, file: File) -> None:
        self._mapped = file if isinstance(file, MappedFile) else None
        naming = file.naming if isinstance(file, MappedFile) else naming_of(file)
        self._family = None
        if naming.family is not None and (self._mapped is not None or naming.layout != GGUF):
            self._family = family_of(file, naming)

    def of(self, name: str) -> tuple[tuple[Alias, ...], ...]:
        """What stands for a tensor, in each other layout; several names stand for a stack."""
        if self._family is None:
            return ()
        names: Mapping[str, Mapping[str, int]] = {self._family.own_name(name): {}}
        if self._mapped is not None:
            target = self._mapped.mapped.targets[name]
            experts = self._mapped.mapped.setting.sizes["experts"]
            names = dict(members(target.rule.of, target.numbers, experts))
        in_gguf = tuple(alias for name in names for alias in _in_gguf(self._family, name))
        return (tuple((name, None) for name in names), in_gguf) if len(in_gguf) == len(names) else ()


def _in_gguf(family: Family, name: str) -> tuple[Alias, ...]:
    """GGUF's name of a tensor of the family."""
    match = _gguf_rules(family).find(name)
    if match is None:
        return ()
    rule, numbers = match
    stacked = "{e}" not in rule.name and "e" in numbers
    return ((fill(rule.name, numbers), numbers["e"] if stacked else None),)


@lru_cache(maxsize=4)
def _gguf_rules(family: Family) -> Templates:
    return target_rules(family, GGUF)
