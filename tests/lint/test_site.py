"""What the site is made from: generated pages name nothing of this machine, and hints name pages of the site."""

from __future__ import annotations

import ast
import platform
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from error_codes import sources

from squish_core.text import SITE, site_page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CARRIERS = ("CITATION.cff", "README.md", "pyproject.toml")
"""Files that cannot read the address from `squish_core.text`."""


@cache
def pages() -> dict[str, str]:
    """Path below docs/reference -> text of each generated page."""
    sys.path.insert(0, str(DOCS))
    try:
        import _pages

        return dict(_pages.pages())
    finally:
        sys.path.remove(str(DOCS))


def modules_with(word: str) -> Iterator[tuple[Path, ast.Module]]:
    """The modules of all distributions that contain a word, parsed."""
    for path in sources():
        if word in (text := path.read_text("utf-8")):
            yield path, ast.parse(text)


def texts(tree: ast.Module) -> Iterator[str]:
    """The strings of a module, without docstrings and texts below constants."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def test_generated_pages_name_nothing_of_this_machine() -> None:
    private = {str(ROOT), str(Path.home()), platform.node()} - {"", "/", "/root"}
    assert [name for name, text in pages().items() if any(word in text for word in private)] == []


def test_every_command_and_format_has_a_page() -> None:
    commands = [name for name in pages() if name.startswith("cli/")]
    assert {"cli/convert.md", "cli/cache-list.md", "cli/run.md", "cli/edit.md"} <= {*commands}
    listed = pages()["formats.md"]
    assert [path.stem for path in (DOCS / "formats").glob("*.md") if f"(../formats/{path.name})" not in listed] == []


def test_no_text_of_a_program_names_a_page_of_a_checkout() -> None:
    """Who installs a wheel has no docs/."""
    assert [(path.name, text) for path, tree in modules_with("docs/") for text in texts(tree) if "docs/" in text] == []
    assert [name for name, text in pages().items() if name.startswith("cli/") and "docs/" in text] == []


def test_the_address_of_the_site_is_stated_once() -> None:
    assert [path.name for path, _ in modules_with(SITE)] == ["text.py"]
    assert [name for name in CARRIERS if SITE not in (ROOT / name).read_text("utf-8")] == []


def test_pages_that_hints_name_exist() -> None:
    for _, tree in modules_with("site_page"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "site_page":
                (argument,) = node.args
                name = ast.literal_eval(argument).partition("#")[0]
                assert (DOCS / f"{name}.md").exists() or name.removeprefix("reference/") + ".md" in pages(), name
                assert site_page(name) == f"{SITE}{name}.html"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 120
