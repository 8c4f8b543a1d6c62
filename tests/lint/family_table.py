"""The table of families in docs/models.md, made from their rules: `python tests/lint/family_table.py` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from squish_convert.families import (
    Add,
    Expression,
    Family,
    Interleave,
    Join,
    NegExp,
    Permute,
    Reshape,
    Stack,
    Tile,
    Transpose,
)
from squish_models import squish_families

import squish_core as squish

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
START, END = "<!-- families: python tests/lint/family_table.py -->", "<!-- end of the families -->"
HEAD = "| family | models | `model_type` | GGUF | besides names |\n|---|---|---|---|---|\n"


def operations(expression: Expression) -> Iterator[str]:
    """What an expression does, in words."""
    while not isinstance(expression, str):
        if isinstance(expression, Interleave):
            yield "rows alternate"
            return
        if isinstance(expression, Join):
            yield "rows joined"
            return
        if isinstance(expression, Permute):
            yield "rows of q and k interleaved"
        elif isinstance(expression, Add):
            yield f"norms {expression.constant:+g}"
        elif isinstance(expression, NegExp):
            yield "`-exp` of decays"
        elif isinstance(expression, Tile):
            yield f"heads {'grouped' if expression.inverse else 'tiled'}{' in columns' if expression.columns else ''}"
        elif isinstance(expression, Reshape):
            yield "axes of 1 left out"
        elif isinstance(expression, Stack):
            yield "experts stacked"
        elif isinstance(expression, Transpose):
            yield "matrices transposed"
        expression = expression.of


def changes(family: Family) -> list[str]:
    """What GGUF has of a family besides names, each once."""
    rules = (*family.names["gguf"], *family.names.get("hf", ()))
    written = [rule.of for rule in rules if not rule.reading]
    words = dict.fromkeys(word for expression in written for word in operations(expression))
    constants = [f"`{name}`" for name in family.constants]
    return [*words, *constants, *(["the text part alone"] if family.other_modalities else [])]


def table() -> str:
    """The table as it should be."""
    rows = []
    registry = squish.registry()
    for info in squish_families():
        if info.layouts:  # no family: models that only an engine knows
            continue
        types = ", ".join(f"`{model_type}`" for model_type in info.model_types)
        apart = "".join(f" with `{name}`" for name in info.present) + "".join(
            f" without `{name}`" for name in info.absent
        )
        family = registry.implementation("family", info.id)
        architecture = f"`{family.architecture}`{apart}" + ("" if info.architecture else ", read as another family's")
        besides = "; ".join(changes(family)) or "-"
        rows.append(f"| `{info.id}` | {info.title} | {types} | {architecture} | {besides} |\n")
    return HEAD + "".join(rows)


def page() -> str:
    """The page with the table between its marks."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
