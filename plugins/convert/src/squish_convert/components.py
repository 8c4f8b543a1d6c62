"""The components of a model: its text layers, and what lies beside them, such as a vision tower."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from attrs import frozen

from squish_core.codes import ErrorCode
from squish_core.errors import UsageError
from squish_core.file import File
from squish_core.text import counted, did_you_mean, words

from .families import AUDIO, COMPONENTS, GGUF, MTP, TEXT, VISION
from .mapping.inventory import take_inventory
from .mapping.mapped import MappedFile, Naming, naming_of

_AUDIO = re.compile(r"(?:^|\.)(?:a|audio\w*|\w+_audio)\.")
_PREDICTING = re.compile(r"(?:^|\.)(?:mtp|nextn)\.")


@frozen
class LeftOut:
    """A component that a conversion does not write.

    Attributes
    ----------
    part
        Its name, one of `COMPONENTS`.
    tensors
        Names of its tensors in the source.
    option
        The option that writes it to a file of its own; None if Squish does not map it.
    """

    part: str
    tensors: tuple[str, ...]
    option: str | None = None

    def __str__(self) -> str:
        what = f"{self.part}, {counted(len(self.tensors), 'tensor')}"
        return f"{what}: {self.option} writes it to a file of its own" if self.option else what


def check_part(part: str | None) -> str:
    """Return the component to write; UsageError for a word that names none."""
    if part is not None and part not in COMPONENTS:
        raise UsageError(
            "there is no such component of a model",
            expected=", ".join(COMPONENTS),
            found=repr(part),
            code=ErrorCode.USAGE,
            hint=did_you_mean(part, COMPONENTS),
        )
    return part or TEXT


def left_out(file: File) -> tuple[LeftOut, ...]:
    """Return the components of a model that its mapping leaves out.

    Parameters
    ----------
    file
        The source of a conversion, mapped.

    Returns
    -------
    tuple of LeftOut
        Empty for a file that is not mapped: all its tensors are written.
    """
    if not isinstance(file, MappedFile):
        return ()
    groups = _by_part(file.unwritten, file.naming.part, (*file.predicting, *file.behind))
    return tuple(LeftOut(part, names, _option(file.original, file.naming, part)) for part, names in groups.items())


def components(file: File) -> Mapping[str, tuple[str, ...]]:
    """Name the tensors of each component of a model.

    Parameters
    ----------
    file
        An open file; only its header is read.

    Returns
    -------
    Mapping
        Component -> names of its tensors, in the order of `COMPONENTS`; empty for a file without a known family.

    Examples
    --------
    >>> dict(components(squish.open("model.safetensors")))  # there is no config.json beside it
    {}
    """
    inventory = take_inventory(file, naming_of(file).layout)
    family, coverage = inventory.family, inventory.coverage
    if family is None or coverage is None or inventory.settings is None:
        return {}
    own = inventory.naming.part
    groups = _by_part(coverage.other_modalities, own, family.left_out(inventory.settings))
    mapped = tuple(coverage.sources)
    groups[own] = (*mapped, *groups.get(own, ()))
    return {part: groups[part] for part in COMPONENTS if groups.get(part)}


def parts_of(file: File, naming: Naming) -> Iterator[str]:
    """Yield the components of a model of this family that Squish maps."""
    for entry in file.registry.families.values():
        info = entry.info
        names = (info.architecture,) if naming.layout == GGUF and info.part == naming.part else info.model_types
        if naming.model_type in names and not info.layouts:
            yield info.part


def _option(file: File, naming: Naming, part: str) -> str | None:
    is_mapped = part != naming.part and part in parts_of(file, naming)
    return words(f"{{option:part={part}}}") if is_mapped and part != TEXT else None


def _by_part(names: Iterable[str], own: str, predicting: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Group tensors that the component `own` does not include by theirs."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_part_of(name, own, predicting), []).append(name)
    return {part: tuple(groups[part]) for part in COMPONENTS if part in groups}


def _part_of(name: str, own: str, predicting: Collection[str]) -> str:
    if _PREDICTING.search(name) or any(fnmatchcase(name, pattern) for pattern in predicting):
        return MTP
    if _AUDIO.search(name):
        return AUDIO
    return VISION if own == TEXT else TEXT
