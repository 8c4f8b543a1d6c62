"""The components of a model: its text layers, and what lies beside them, such as a vision tower."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase

from attrs import frozen

from squish_core.codes import ErrorCode
from squish_core.errors import SquishError, UsageError
from squish_core.file import File
from squish_core.text import counted, did_you_mean, words

from .families import AUDIO, COMPONENTS, GGUF, MTP, TEXT, VISION
from .mapping.coverage import Coverage, matches
from .mapping.inventory import Outline, outline_of
from .mapping.mapped import MappedFile, Naming, family_of, naming_of

_AUDIO = re.compile(r"(?:^|\.)(?:a|audio\w*|\w+_audio|speech\w*|talker|code2wav)\.")
_PREDICTING = re.compile(r"(?:^|\.)(?:mtp|nextn)\.")
_ADAPTER = re.compile(r"\.lora_[AB](?:\.|$)")
ADAPTERS = "adapters"
"""What a checkpoint with adapters inside has besides its components; no option names it."""
LISTED = (*COMPONENTS, ADAPTERS)


@frozen
class LeftOut:
    """A component that a conversion does not write.

    Attributes
    ----------
    part
        Its name: one of `COMPONENTS`, or "adapters".
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


OTHER_NAMES = {"mmproj": VISION, "image": VISION, "nextn": MTP, "draft": MTP}
"""Names that other software has for components."""


def component_hint(name: object) -> str:
    """Return the option for the component that was probably meant; "" if none is close."""
    meant = OTHER_NAMES.get(str(name))
    return f"Pass {{option:part={meant}}}." if meant else did_you_mean(str(name), COMPONENTS)


def check_part(part: str | None) -> str:
    """Return the component to write; UsageError for a word that names none."""
    if part is not None and part not in COMPONENTS:
        raise UsageError(
            "there is no such component of a model",
            expected=", ".join(COMPONENTS),
            found=repr(part),
            code=ErrorCode.USAGE,
            hint=component_hint(part),
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
    if not isinstance(file, MappedFile) or not file.unwritten:
        return ()
    absent, groups = {*file.unwritten}, dict[str, list[str]]()
    for each in file.members:
        for part, names in _grouped(each.coverage, each.naming.part, each.behind, each.predicting).items():
            groups.setdefault(part, []).extend(name for name in names if name in absent)
    mapped = {*parts_of(file.original, file.naming, file.behind)} - {TEXT, file.naming.part}
    options = {part: words(f"{{option:part={part}}}") for part in mapped}
    return tuple(LeftOut(part, tuple(groups[part]), options.get(part)) for part in LISTED if groups.get(part))


def components(file: File) -> Mapping[str, tuple[str, ...]]:
    """Name the tensors of each component of a model.

    Parameters
    ----------
    file
        An open file; only its header is read.

    Returns
    -------
    Mapping
        Component -> names of its tensors, in the order of `COMPONENTS`, adapters last; empty for a file without a
        known family.

    Examples
    --------
    >>> dict(components(squish.open("model.safetensors")))  # there is no config.json beside it
    {}
    """
    naming = naming_of(file)
    outline = _outline(file, naming)
    if outline is None:
        return {}
    coverage, family = outline.matching.coverage(), family_of(file, naming)
    groups = _grouped(coverage, naming.part, family.behind(outline.settings), family.left_out(outline.settings))
    return {part: tuple(groups[part]) for part in LISTED if groups.get(part)}


def layers_behind(file: File, naming: Naming) -> Collection[str]:
    """Return patterns of the layers behind the last one, which Squish maps; none if a file has no such layers."""
    outline = _outline(file, naming) if naming.part != VISION else None
    return family_of(file, naming).behind(outline.settings) if outline is not None else ()


def _outline(file: File, naming: Naming) -> Outline | None:
    """Return a model matched with its family under names of any layout; None if the settings cannot be read."""
    if naming.family is None:
        return None
    try:
        outline = outline_of(file, family_of(file, naming), naming, naming.layout, loads_all=False)
    except SquishError:
        return None
    for _ in outline.matching.errors():
        pass
    return outline


def _grouped(coverage: Coverage, part: str, behind: Collection[str], others: Collection[str]) -> dict[str, list[str]]:
    """Group the tensors of a model by component; `part` is that of its family, `others` are patterns of more layers."""
    own = VISION if part == VISION else TEXT
    predicting = {each.name for name, each in coverage.origins.items() if behind and matches(name, behind)}
    has_layers = any("n" in each.numbers for name, each in coverage.sources.items() if name not in predicting)
    groups: dict[str, list[str]] = {}
    for name in coverage.sources:
        is_behind = name in predicting or (predicting and not has_layers)
        groups.setdefault(MTP if is_behind else own, []).append(name)
    for name in coverage.other_modalities:
        groups.setdefault(_part_of(name, own, others), []).append(name)
    return groups


def parts_of(file: File, naming: Naming, behind: Collection[str]) -> Iterator[str]:
    """Yield the components of a model that Squish writes to a file of their own; `behind`: patterns of more layers."""
    yield TEXT
    if behind:
        yield MTP
    if naming.layout != GGUF:  # a GGUF of text layers lacks the keys of a tower
        infos = (entry.info for entry in file.registry.families.values())
        yield from (each.part for each in infos if naming.model_type in each.model_types and not each.layouts)


def _part_of(name: str, own: str, predicting: Collection[str]) -> str:
    if _ADAPTER.search(name):
        return ADAPTERS
    if _PREDICTING.search(name) or any(fnmatchcase(name, pattern) for pattern in predicting):
        return MTP
    if _AUDIO.search(name):
        return AUDIO
    return VISION if own == TEXT else TEXT
