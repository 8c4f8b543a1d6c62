"""The generated pages of the reference: from the commands, schemas, docstrings and the registry.

Nothing in them depends on the machine, the time or the folder: two builds of one commit are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

FOLDER = "reference"
WRITTEN_BY_HAND = {"index.md"}


def pages() -> Iterator[tuple[str, str]]:
    """(path below the folder, Markdown) of every generated page."""
    from . import commands, packages, python, registry, schemas

    for module in (commands, packages, python, registry, schemas):
        yield from module.pages()


def write(docs: Path) -> None:
    """Write the pages whose text has changed, and remove those that are no longer generated."""
    folder = docs / FOLDER
    generated = dict(pages())
    for name, text in generated.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for path in folder.rglob("*.md"):
        name = path.relative_to(folder).as_posix()
        if name not in generated and name not in WRITTEN_BY_HAND:
            path.unlink()


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ("---",) * len(header), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def codes(names: tuple[str, ...] | list[str]) -> str:
    """Return words as code, separated by spaces."""
    return " ".join(f"`{name}`" for name in names)
