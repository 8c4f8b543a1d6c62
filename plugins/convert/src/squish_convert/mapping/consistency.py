"""Check a model that keeps its names: its settings against the shapes and names of its tensors."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from squish_core.codes import ErrorCode
from squish_core.errors import MAX_MESSAGE, FormatError, SquishError, shorten
from squish_core.file import File
from squish_core.guard import gc_paused, guarded
from squish_core.text import counted

from ..families.base import ENGINES, GGUF, Family
from ..families.model import CONFIG_FILE
from .inventory import Outline, outline_of
from .mapped import Naming, family_of
from .ties import check_ties

MOST = 4
"""Maximum number of tensors to name in a note."""


def check_settings(file: File, naming: Naming, layout: str) -> tuple[str, ...]:
    """Raise SquishError if a whole model contradicts its settings; returns notes about what its engine may lack.

    Tensors beyond the family are notes, because nothing renames them: buffers, other heads, parts of an unknown
    quantization method. So is a setting that the model leaves out, because an engine may have a default.
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
    """Tensors beyond the family, and absent ones that those replace; raises the first error about any other."""
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
    """Tensors that others beyond the family take the place of: other parts of the same module, or another head."""

    def __init__(self, family: Family, extra: Sequence[str]) -> None:
        self.extra = sorted(extra)
        heads = {tensor.name for tensor in family.tensors if tensor.tied_to is not None}
        self.heads = heads if any(not any(map(str.isdigit, name.split("."))) for name in extra) else set()

    def includes(self, name: str) -> bool:
        """Whether a tensor is absent because of another one."""
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
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return f"{shorten(', '.join(names[:MOST]), MAX_MESSAGE)}{more}"
