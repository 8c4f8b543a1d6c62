"""Error codes: what each means, and what to do, from the page that the source is compared with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from squish_cli.output import option

from squish_core import text

from . import table

LIST = Path(__file__).parents[1] / "errors.md"
ROW = re.compile(r"^\| `([^`]+)` \| (.*?) \| (.*) \|$", re.MULTILINE)
HEAD = """# Errors, with cause and cure

Every error has a code, as has every finding of `verify`. The command line prints an error as its file, its tensor, what
is wrong with which value, what was expected, and the next step; `--json` has the same in fields. Programs should switch
on the code and the class, never on the text: [error codes](../errors.md) lists the classes.

`...` stands for what differs from case to case.

"""


def pages() -> Iterator[tuple[str, str]]:
    """The page."""
    rows = [(f"`{code}`", literal(cause)) for code, _, cause in ROW.findall(LIST.read_text("utf-8"))]
    yield "errors.md", HEAD + table(("code", "cause"), rows)


def literal(message: str) -> str:
    """A message with its options as the shell spells them, and no character that Markdown would take."""
    before, text.spelling = text.spelling, option
    try:
        words = text.words(message.replace("\\|", "|"))
    finally:
        text.spelling = before
    pieces = words.split("`")
    pieces[::2] = [re.sub(r"([*<>\[\]{}_])", r"\\\1", each) for each in pieces[::2]]
    return "`".join(pieces)
