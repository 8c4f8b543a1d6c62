"""The file of a family's declaration: its content, and errors that name the line and the key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from squish_core.api import ErrorCode, FormatError, site_page

LARGEST = 1 << 16
NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]|\{e\}){0,127}")
GUIDE = f"{site_page('models#add-a-family')} describes all tables and keys."


class Place:
    """A file, and the lines of its keys: the first line with the key in the table."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.lines = path, text.splitlines()

    def line(self, key: str, table: str = "") -> int:
        """The number of a key's line; that of the table, or 1, if the key is written in another way."""
        current, found = "", 1
        for number, line in enumerate(self.lines, 1):
            if header := re.match(r"\s*\[\s*([^\]]+?)\s*\]", line):
                current = header[1].strip("\"'")
                found = number if current in (table, table or key) else found
            elif current == table and re.match(rf"""\s*["']?{re.escape(key)}["']?\s*[.=]""", line):
                return number
        return found

    def error(self, message: str, key: str, table: str = "", **details: Any) -> FormatError:
        """An error about a key."""
        place = f"line {self.line(key, table)}, {f'[{table}] ' if table else ''}{key}"
        details.setdefault("hint", GUIDE)
        return FormatError(message, file=str(self.path), part=place, code=ErrorCode.CONFIG, **details)

    def check_name(self, name: str, names: Collection[str], what: str, key: str, table: str = "") -> None:
        """Raise FormatError for a name in the value of a key that is not one of these."""
        if name not in names:
            matches = get_close_matches(name, names, 3, 0.5)
            near = f"Close matches: {', '.join(matches)}." if matches else ""
            expected = None if near else ", ".join(sorted(names))
            message = f"is not a {what}" if name == key else f"is {name!r}, which is not a {what}"
            raise self.error(message, key, table, expected=expected, hint=f"{near} {GUIDE}".strip())

    def check_type(self, value: Any, kind: Any, key: str, table: str = "") -> Any:
        """Return a value of this type (a list of texts); FormatError for another one."""
        fits = isinstance(value, (int, float) if kind is float else kind) and (kind is bool or type(value) is not bool)
        if not fits or (kind is list and not all(isinstance(each, str) for each in value)):
            expected = {str: "text", bool: "true or false", float: "a number", list: "a list of texts"}.get(
                kind, "table"
            )
            raise self.error("has a value of the wrong type", key, table, expected=expected, found=repr(value)[:60])
        return value

    def name(self, value: Any, key: str, table: str = "") -> str:
        """A name of a tensor or a key; FormatError for other text."""
        if not isinstance(value, str) or not NAME.fullmatch(value):
            raise self.error(
                "is not a name",
                key,
                table,
                expected="letters, digits and _.-, and {e} for the expert",
                found=repr(value)[:60],
            )
        return value


def load(path: Path) -> tuple[Place, dict[str, Any]]:
    """The file's content; FormatError if it is not TOML or too large."""
    file = str(path)
    try:
        with path.open("rb") as opened:
            data = opened.read(LARGEST + 1)
        text = data.decode()
    except OSError as error:
        raise FormatError(
            f"cannot be read: {error.strerror}",
            file=file,
            code=ErrorCode.MISSING,
            hint="Correct --family or SQUISH_FAMILIES.",
        ) from None
    except UnicodeDecodeError as error:
        raise FormatError("is not text in UTF-8", file=file, offset=error.start, code=ErrorCode.CONFIG) from None
    if len(data) > LARGEST:
        raise FormatError("is too large", file=file, code="size", expected=f"at most {LARGEST} bytes", hint=GUIDE)
    try:
        return Place(path, text), tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise FormatError("is not TOML", file=file, code=ErrorCode.CONFIG, found=str(error)[:120], hint=GUIDE) from None
