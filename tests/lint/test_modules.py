"""Rules for modules: a small one that only one other imports is the exception, and says why it is on its own."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from test_boundaries import PACKAGES, imports, module_name, sources

MEASURED = ("squish_core", "squish_convert", "squish_cli")
FEW_LINES = 120
MOST_SMALL_MODULES = 19


def modules_of(package: str) -> dict[str, Path]:
    """Module of a package -> its file."""
    return {module_name(path, package): path for path in sources(package)}


def named_in_strings(path: Path) -> set[str]:
    """Modules that a module names in strings: tables of faces and declarations (`module:name`)."""
    constants = (node.value for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Constant))
    return {
        text.partition(":")[0]
        for text in constants
        if isinstance(text, str) and re.fullmatch(r"squish_\w+(\.\w+)+(:\w+)?", text)
    }


@cache
def importers() -> dict[str, set[str]]:
    """Module -> the modules of all packages that import it."""
    found: dict[str, set[str]] = defaultdict(set)
    for package in PACKAGES:
        for name, path in modules_of(package).items():
            targets = {module for base, member, _ in imports(path, package) for module in (base, f"{base}.{member}")}
            for target in targets | named_in_strings(path):
                found[target] |= {name} - {target}
    return found


def small_modules() -> dict[str, Path]:
    """Modules of few lines that exactly one other module imports."""
    modules = {name: path for package in MEASURED for name, path in modules_of(package).items()}
    return {
        name: path
        for name, path in modules.items()
        if path.name not in ("__init__.py", "__main__.py", "api.py")
        and len(path.read_text("utf-8").splitlines()) < FEW_LINES
        and len(importers()[name]) == 1
    }


def test_few_small_modules_have_one_importer() -> None:
    assert len(small_modules()) <= MOST_SMALL_MODULES, "\n".join(small_modules())


def test_a_small_module_with_one_importer_states_why_it_is_on_its_own() -> None:
    """In the second paragraph of its docstring."""
    silent = [name for name, path in small_modules().items() if not has_second_paragraph(path)]
    assert not silent


def has_second_paragraph(path: Path) -> bool:
    """Whether a module's docstring has more than its summary."""
    return "\n\n" in (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "")
