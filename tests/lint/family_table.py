"""The table of families in docs/models.md, made from their rules, and what was run, from the page's other table.

`python tests/lint/family_table.py` writes both.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from squish_convert.families import Family
from squish_models import squish_families
from squish_models.overview import RUNS, operations

import squish_core as squish

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
START, END = "<!-- families: python tests/lint/family_table.py -->", "<!-- end of the families -->"
HEAD = "| family | models | `model_type` | GGUF | besides names |\n|---|---|---|---|---|\n"


def changes(family: Family) -> list[str]:
    """What GGUF has of a family besides names, each once."""
    rules = (*family.names["gguf"], *family.names.get("hf", ()))
    written = [rule.of for rule in rules if not rule.reading]
    words = dict.fromkeys(word for expression in written for word in operations(expression))
    constants = [f"`{name}`" for name in family.constants if "*" not in name]
    return [*words, *constants, *(["the text part alone"] if family.other_modalities else [])]


def table() -> str:
    """The table as it should be."""
    rows = []
    registry = squish.registry()
    for info in squish_families():
        if info.layouts or info.part != "text":  # models that only an engine knows, or towers
            continue
        types = ", ".join(f"`{model_type}`" for model_type in info.model_types)
        present = [name.replace("|", "` or `") for name in info.present]
        apart = "".join(f" with `{name}`" for name in present) + "".join(f" without `{name}`" for name in info.absent)
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


def results() -> str:
    """What `squish families` lists of the table of runs: family -> small model -> formats -> result."""
    sys.path.append(str(PAGE.parents[1] / "tests"))
    from oracles.families import FAMILIES

    text_families = (info for info in squish_families() if info.part == "text" and not info.layouts)
    types = {kind: info.id for info in text_families for kind in info.model_types}
    found: dict[str, dict[str, dict[str, str]]] = {}
    rows = re.findall(r"^\| (\S+), folder \| (.+?) \| \S+ \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    for model, formats, result in rows:
        entry = FAMILIES[model]
        family = types[model if "respelling" in entry else entry.get("model_type", model)]
        found.setdefault(family, {}).setdefault(model, {})[formats] = result
    return json.dumps(found, indent=1) + "\n"


if __name__ == "__main__":
    RUNS.write_text(results(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
