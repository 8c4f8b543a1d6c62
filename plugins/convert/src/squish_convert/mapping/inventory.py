"""The contents of a model of a known family, and everything that contradicts the family or is missing."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from attrs import frozen

from squish_core.errors import FormatError, SquishError
from squish_core.file import File
from squish_core.guard import guarded

from ..families.base import GGUF, Family
from ..families.model import Model
from .coverage import Coverage, Matching
from .mapped import Naming, family_of, model_of, naming_of
from .names import engine_rules

MOST = 64
"""Maximum number of missing or unknown tensors to list."""


@frozen(kw_only=True)
class Inventory:
    """A model against its family, under the names of one layout.

    `family`, `model` and `coverage` are None if the family is unknown; `settings` and `coverage` if the settings
    cannot be read. `errors` are what contradicts the family or is missing, at most MOST tensors.
    """

    naming: Naming
    family: Family | None = None
    model: Model | None = None
    settings: Mapping[str, Any] | None = None
    coverage: Coverage | None = None
    errors: tuple[SquishError, ...] = ()


@frozen(kw_only=True)
class Outline:
    """The settings of a model, the tensors that they tie, and its tensors against the family's, not yet compared."""

    model: Model
    settings: Mapping[str, Any]
    tied: tuple[str, ...]
    matching: Matching


def take_inventory(file: File, layout: str) -> Inventory:
    """Compare a file with the family that it states.

    Parameters
    ----------
    file
        An open model; its header is read, and the vectors that stand for settings.
    layout
        Whose names the tensors must have: "hf", "gguf", "mlx" or "uqff".

    Returns
    -------
    Inventory
        What is there and what is not.

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
    if (layout == GGUF) != (naming.layout == GGUF):
        errors: tuple[SquishError, ...] = ()
    else:
        errors = tuple(islice(matching.errors(), MOST))
    return Inventory(
        naming=naming, family=family, model=outline.model, settings=outline.settings, coverage=matching.coverage(),
        errors=errors,
    )  # fmt: skip


def outline_of(file: File, family: Family, naming: Naming, layout: str) -> Outline:
    """Read the settings of a file, for comparing its tensors with the family's; SquishError if they are unusable."""
    with guarded(FormatError, f"reading its settings as {family.id}", file=file.name):
        model = model_of(file, family, naming.layout)
        settings = family.settings(model)
        sizes = {"layers": 0, "experts": 0, **family.sizes(settings)}
        tied = tuple(tensor.name for tensor in family.tensors if family.is_tied(settings, tensor))
        absent, left_out = family.absent(settings), family.left_out(settings)
    rules = engine_rules(family, layout)
    matching = Matching(family, file.index.tensors, rules, sizes, tied, absent, left_out)
    return Outline(model=model, settings=settings, tied=tied, matching=matching)
