"""Check a model against its family: what it contains, what contradicts the family, and what is missing.

Models that keep their names are checked, too: settings against the shapes and names of tensors.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from attrs import frozen

from squish_core.codes import ErrorCode
from squish_core.errors import MAX_MESSAGE, FormatError, SquishError, shorten
from squish_core.file import File
from squish_core.guard import gc_paused, guarded
from squish_core.text import counted

from ..families import CONFIG_FILE, ENGINES, GGUF, VISION, Family, Model
from .coverage import Coverage, Matching, check_ties
from .mapped import PROJECTORS, Naming, family_of, model_of, naming_of
from .names import engine_rules, source_rules

MOST = 64
"""Maximum number of missing or unknown tensors to list."""


@frozen(kw_only=True)
class Inventory:
    """A model compared with its family, under the names of one layout.

    `family`, `model` and `coverage` are None if the family is unknown; `settings` and `coverage` if the settings
    cannot be read. `errors` has what contradicts the family or is missing, at most MOST tensors.
    """

    naming: Naming
    family: Family | None = None
    model: Model | None = None
    settings: Mapping[str, Any] | None = None
    coverage: Coverage | None = None
    errors: tuple[SquishError, ...] = ()


@frozen(kw_only=True)
class Outline:
    """The settings of a model, the tensors that they tie, and the matching of its tensors, not started yet."""

    model: Model
    settings: Mapping[str, Any]
    tied: tuple[str, ...]
    matching: Matching


def take_inventory(file: File, layout: str) -> Inventory:
    """Compare a file with the family that it declares.

    Parameters
    ----------
    file
        An open model; only its header is read, and vectors that stand for settings.
    layout
        The layout that the names must have: "hf", "gguf", "mlx" or "uqff".

    Returns
    -------
    Inventory
        What the model contains, and what is wrong or missing.

    Examples
    --------
    >>> take_inventory(squish.open("model.gguf"), "gguf").naming.layout
    'gguf'
    """
    naming = naming_of(file)
    if naming.family is None:
        return Inventory(naming=naming)
    family = family_of(file, naming)
    try:
        outline = outline_of(file, family, naming, layout)
    except SquishError as error:
        return Inventory(naming=naming, family=family, errors=(error,))
    matching = outline.matching
    errors = () if naming.crosses(layout) else tuple(islice(matching.errors(), MOST))
    return Inventory(
        naming=naming,
        family=family,
        model=outline.model,
        settings=outline.settings,
        coverage=matching.coverage(),
        errors=errors,
    )


def outline_of(file: File, family: Family, naming: Naming, layout: str, *, loads_all: bool = True) -> Outline:
    """Read the settings of a file, for comparing its tensors with the family's; SquishError if they are unusable.

    `loads_all`: the layout's engine would load every tensor; otherwise names of all layouts count, and a GGUF may have
    tensors of other modalities.
    """
    with guarded(FormatError, f"reading its settings as {family.id}", file=file.name):
        model = model_of(file, family, naming.layout)
        settings = family.settings(model)
        sizes = {"layers": 0, "experts": 0, **family.sizes(settings)}
        tied = tuple(tensor.name for tensor in family.tensors if family.is_tied(settings, tensor))
        absent, left_out, optional = family.absent(settings), family.left_out(settings), family.optional(settings)
        moved = {} if naming.layout == GGUF else family.moved(settings)
        if not loads_all and naming.layout == GGUF and naming.part != VISION:
            left_out = (*left_out, *PROJECTORS)
    rules = engine_rules(family, layout) if loads_all else source_rules(family, naming.layout == GGUF)
    matching = Matching(family, file.index.tensors, rules, sizes, tied, absent, left_out, optional, moved)
    return Outline(model=model, settings=settings, tied=tied, matching=matching)


MOST_NAMED = 4
"""Maximum number of tensors to name in a note."""


def check_settings(file: File, naming: Naming, layout: str) -> tuple[str, ...]:
    """Raise SquishError if a whole model contradicts its settings; returns notes about what its engine may miss.

    Tensors unknown to the family (buffers, other heads, parts of an unknown quantization method) are only noted,
    because nothing renames them. So are absent settings, because an engine may have a default.
    """
    family = family_of(file, naming)
    try:
        outline = outline_of(file, family, naming, layout)
    except SquishError as error:
        if error.code != ErrorCode.CONFIG or error.found is not None:
            raise
        return (f"tensors are not checked against {settings_place(layout)}: {error.part} {error.message}",)
    with gc_paused(), guarded(FormatError, f"comparing it with {family.id}", file=file.name):
        extra, absent = _differences(family, outline)
        check_ties(file, family, outline.matching.coverage(), outline.tied, sample=True)
        carried = family.carry(outline.model, outline.settings, layout, {})
    notes = _notes(family, ENGINES[layout], extra, (*absent, *carried.missing))
    return (*notes, *carried.notes)


def settings_place(layout: str) -> str:
    """Where a model of this layout states its settings."""
    return "its keys" if layout == GGUF else CONFIG_FILE


def _differences(family: Family, outline: Outline) -> tuple[list[str], list[str]]:
    """Tensors unknown to the family, and absent ones that these replace; raises the first other error."""
    extra: list[str] = []
    absent: list[str] = []
    substitutes: _Substitutes | None = None
    for error in outline.matching.errors(extra):
        if error.code != ErrorCode.UNMAPPED:
            raise error
        substitutes = substitutes or _Substitutes(family, extra)
        assert error.tensor is not None
        if not substitutes.includes(error.tensor):
            raise error
        absent.append(error.tensor)
    return extra, absent


class _Substitutes:
    """Absent tensors that unknown ones replace: other parts of the same module, or another head."""

    def __init__(self, family: Family, extra: Sequence[str]) -> None:
        self.extra = sorted(extra)
        heads = {tensor.name for tensor in family.tensors if tensor.tied_to is not None}
        self.heads = heads if any(not any(map(str.isdigit, name.split("."))) for name in extra) else set()

    def includes(self, name: str) -> bool:
        """Return whether another tensor replaces this one."""
        module = name[: name.rfind(".") + 1]
        place = bisect_left(self.extra, module)
        return name in self.heads or (place < len(self.extra) and self.extra[place].startswith(module))


def _notes(family: Family, engine: str, extra: Sequence[str], absent: Sequence[str]) -> Iterator[str]:
    if extra:
        count = f"{counted(len(extra), 'tensor')} {'is' if len(extra) == 1 else 'are'}"
        yield f"{count} unknown to the family {family.id} and not checked: {_shortened(extra)}"
    if absent:
        yield f"{engine} will lack {_shortened(absent)}"


def _shortened(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{shorten(', '.join(names[:MOST_NAMED]), MAX_MESSAGE)}{more}"
