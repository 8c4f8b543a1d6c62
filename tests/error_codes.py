"""The error codes in the source, and docs/errors.md made from them: `python tests/error_codes.py` writes the page."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "errors.md"
HEAD = """# Error codes

Every `SquishError` has a `code`; so have the findings of `verify` (`Problem.code`) and refusals. Switch on the code and
the class, never on the text. The table is made from the source by `python tests/error_codes.py`, and a test holds it
against the source; the example is one message with this code.

| code | raised as | for example |
|---|---|---|
"""


def sources() -> Iterator[Path]:
    """Modules of the core and of all plugins."""
    yield from sorted((ROOT / "squish_core").rglob("*.py"))
    yield from sorted(path for path in ROOT.glob("plugins/*/src/**/*.py"))


def text_of(node: ast.expr | None) -> str:
    """A message with its variables as `...`; "" where it is no literal."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        pieces = (piece.value if isinstance(piece, ast.Constant) else "..." for piece in node.values)
        return "".join(map(str, pieces))
    return ""


def constants() -> dict[str, str]:
    """Name -> code of `ErrorCode`, from its source."""
    tree = ast.parse((ROOT / "squish_core" / "codes.py").read_text(encoding="utf-8"))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ErrorCode")
    pairs = [(node.targets[0], node.value) for node in body if isinstance(node, ast.Assign)]
    return {name.id: text_of(value) for name, value in pairs if isinstance(name, ast.Name)}


CONSTANTS = constants()


def code_of(node: ast.expr | None) -> str:
    """A code that is a literal or one of `ErrorCode`; "" where it is neither."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ErrorCode":
        return CONSTANTS[node.attr]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def calls() -> Iterator[tuple[str, str, str]]:
    """(code, class, message) of every call that names its code."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            keywords = {keyword.arg: keyword.value for keyword in node.keywords}
            if code := code_of(keywords.get("code")):
                name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                stated = node.args[0] if node.args else keywords.get("message") or keywords.get("why")
                yield code, name, text_of(stated)


@cache
def table() -> dict[str, tuple[set[str], str]]:
    """Code -> the classes that have it, and the first message."""
    codes: dict[str, tuple[set[str], str]] = {}
    for code, name, message in calls():
        names, example = codes.setdefault(code, (set(), ""))
        if name[:1].isupper():
            names.add(name)
        if message and not example:
            codes[code] = names, message
    return dict(sorted(codes.items()))


def page() -> str:
    """The page as it should be."""
    rows = []
    for code, (names, example) in table().items():
        shown = example.replace("|", "\\|").replace("\n", " ")
        rows.append(f"| `{code}` | {', '.join(f'`{name}`' for name in sorted(names))} | {shown} |\n")
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
