"""Output: prints an `Answer` as one JSON document or as escaped, wrapped text, in the words of the command line."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from squish_core.display.data import to_json
from squish_core.display.tables import fit, terminal_width
from squish_core.errors import SquishError, redact
from squish_core.text import escape

_OPTIONS = {
    "to": "--to", "encode": "--encode", "rename": "--names", "activations": "--imatrix",
    "requantize": "--requantize", "deep": "--deep", "all": "--all", "format": "--format", "assets": "--assets",
    "only": "--only", "backend": "--backend", "plan": "--job-plan", "scheduler": "--scheduler",
    "task_bytes": "--task-bytes", "resume": "--resume", "journal": "--journal",
}  # fmt: skip
"""Argument of a Python function, which texts name -> the option."""
_COLORS = {"ok": 32, "same": 32, "error": 31, "broken": 31, "conflict": 31, "no": 31, "differs": 31, "warning": 33}
_COMMAND = re.compile("`[^`]+`")
_STATE = re.compile(rf"^( *)({'|'.join(_COLORS)})(?=[ :,]|$)")


@frozen
class Answer:
    """The result of a command: plain data for `--json`, lines for people, and the exit code.

    Lines are wrapped to the terminal unless they are `verbatim`.
    """

    data: Any
    lines: Sequence[str]
    code: int = 0
    verbatim: bool = False


def show(answer: Answer, as_json: bool) -> None:
    """Print an answer on stdout."""
    if as_json:
        print(json.dumps(to_json(answer.data), indent=1, allow_nan=False))
        return
    colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    width = terminal_width()
    for line in answer.lines:
        # Names from files reach the terminal only here.
        first, *rest = [escape(line)] if answer.verbatim else fit(escape(line), width)
        print(_STATE.sub(_color, first) if colored else first, *rest, sep="\n")


def show_error(error: Exception, as_json: bool) -> None:
    """Print an error on stderr, or as JSON on stdout."""
    if as_json:
        print(json.dumps({"error": to_json(error_data(error))}, indent=1))
    else:
        print_stderr(f"error: {redact(str(error))}")


def error_data(error: Exception) -> dict[str, Any]:
    """An error as data for JSON."""
    fields = {name: getattr(error, name, None) for name in SquishError.FIELDS}
    text = redact(str(error))
    suggestions = list(getattr(error, "suggestions", ()))
    return {
        "type": type(error).__name__, "message": getattr(error, "message", text), "text": text, **fields,
        **({"suggestions": suggestions} if suggestions else {}),
    }  # fmt: skip


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning on stderr; replaces `warnings.showwarning`."""
    print_stderr(f"warning: {message}")


def print_stderr(line: str) -> None:
    """Print a line on stderr, wrapped to its terminal, but not within commands."""
    text = escape(line)
    commands = iter(_COMMAND.findall(text))  # to be pasted: NULs, which no line has, stand for their characters
    lines = fit(_COMMAND.sub(lambda match: "\0" * len(match[0]), text), terminal_width(sys.stderr))
    print(*(re.sub("\0+", lambda _: next(commands), part) for part in lines), sep="\n", file=sys.stderr)


def option(name: str, value: str) -> str:
    """Spell an option for the shell: `--encode f32`, `--deep`, `--to`."""
    values = () if value in ("", "...", "True") else (_word(value),)
    return " ".join((_OPTIONS[name], *values))


def _word(value: str) -> str:
    """A value as a shell word, quoted if the shell would expand it."""
    return f"'{value}'" if any(mark in value for mark in "*?[") else value


def _color(match: re.Match[str]) -> str:
    return f"{match[1]}\x1b[{_COLORS[match[2]]}m{match[2]}\x1b[0m"
