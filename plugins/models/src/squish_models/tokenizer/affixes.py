"""The tokens that a tokenizer adds around a text; llama.cpp's keys can express one on each side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

Steps = Sequence[Any]
SEPARATORS = {"BertProcessing": 1, "RobertaProcessing": 2}
"""Post-processors with `cls` before and `sep` after a text -> number of `sep` between two texts."""


@frozen
class Affixes:
    """The tokens that the template of a tokenizer.json adds around a text, as strings.

    Parameters
    ----------
    before, after
        Tokens before and after one text.
    between
        Tokens between two texts, without those around each; None if the template of pairs does not state them.
    """

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    between: tuple[str, ...] | None = None

    @property
    def lost(self) -> tuple[str, ...]:
        """The tokens beyond the first before and the last after a text, for which GGUF has no key."""
        return (*self.before[1:], *self.after[:-1])


def affixes_of(stored: Mapping[str, Any]) -> Affixes:
    """Return the tokens that the post-processor of a tokenizer.json adds around a text."""
    processor = stored.get("post_processor") or {}
    steps = processor.get("processors", [processor]) if isinstance(processor, dict) else []
    for step in steps:
        if isinstance(step, dict) and step.get("type") in SEPARATORS:
            first, last = str(step["cls"][0]), str(step["sep"][0])
            return Affixes((first,), (last,), (last,) * SEPARATORS[step["type"]])
    template = next((step for step in steps if isinstance(step, dict) and step.get("type") == "TemplateProcessing"), {})
    single, pair = ([*_pieces(template.get(key) or ())] for key in ("single", "pair"))
    places = [place for place, (kind, _) in enumerate(single) if kind == "Sequence"]
    if not places:
        return Affixes()
    before, after = (tuple(text for _, text in part) for part in (single[: places[0]], single[places[-1] + 1 :]))
    return Affixes(before, after, _between(pair, before, after))


def _pieces(steps: Steps) -> Iterator[tuple[str, str]]:
    """Yield the steps of a template: "Sequence" with A or B, and "SpecialToken" with its text."""
    for step in steps:
        for kind in ("Sequence", "SpecialToken"):
            if isinstance(step, dict) and kind in step:
                yield kind, str(step[kind]["id"])


def _between(pair: list[tuple[str, str]], before: tuple[str, ...], after: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the tokens between two texts; None without any, or if more than one token is before or after the pair."""
    first, last = (("SpecialToken", each[0]) if each else None for each in (before, after[-1:]))
    rest = pair[1 if pair and pair[0] == first else 0 : len(pair) - (1 if pair and pair[-1] == last else 0)]
    if len(rest) < 3 or rest[0] != ("Sequence", "A") or rest[-1] != ("Sequence", "B"):
        return None
    return tuple(text for _, text in rest[1:-1])


def adds_separator(affixes: Affixes, ends: Sequence[str | None]) -> bool | None:
    """Return whether llama.cpp should add a separator between two texts, by its converter's rule; None if unknown.

    Parameters
    ----------
    affixes
        The tokens around a text.
    ends
        The texts of the separator and of eos.
    """
    if affixes.between is None:
        return None
    first, *rest = affixes.between
    return (first in ends and not affixes.after) or (len(rest) == 1 and rest[0] in ends)
