"""Output: an `Answer` is data and lines; here it becomes one JSON document or text, and every line is escaped."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

from squish_core.errors import SquishError, redact
from squish_core.text import escape

_COLOURS = {"ok": 32, "same": 32, "error": 31, "broken": 31, "conflict": 31, "no": 31, "differs": 31, "warning": 33}
_STATE = re.compile(rf"^( *)({'|'.join(_COLOURS)})(?=[ :,]|$)")


@frozen
class Answer:
    """What a command returns: plain data for `--json`, lines for people, and the exit code."""

    data: Any
    lines: Sequence[str]
    code: int = 0


def show(answer: Answer, as_json: bool) -> None:
    """Print an answer on stdout."""
    if as_json:
        print(json.dumps(plain_data(answer.data), indent=1, allow_nan=False))
        return
    painted = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    for line in answer.lines:
        # The one place where names from a file reach the terminal.
        text = escape(line)
        print(_STATE.sub(_paint, text) if painted else text)


def show_error(error: Exception, as_json: bool) -> None:
    """Print an error: one line on stderr, or a document on stdout."""
    if as_json:
        print(json.dumps({"error": plain_data(error_data(error))}, indent=1))
    else:
        print(f"error: {escape(redact(str(error)))}", file=sys.stderr)


def error_data(error: Exception) -> dict[str, Any]:
    """An error for JSON."""
    fields = {name: getattr(error, name, None) for name in SquishError.FIELDS}
    text = redact(str(error))
    return {"type": type(error).__name__, "message": getattr(error, "message", text), "text": text, **fields}


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning as a line on stderr; in the place of `warnings.showwarning`."""
    print(f"warning: {escape(str(message))}", file=sys.stderr)


def table(header: Sequence[str], align: str, rows: Iterable[Sequence[object]], indent: str = "") -> list[str]:
    """Aligned columns; `align` has "<" or ">" for each. No rows give no lines."""
    cells = [[escape(str(cell)) for cell in row] for row in rows]
    if not cells:
        return []
    cells.insert(0, list(header))
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = ("  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths)) for row in cells)
    return [f"{indent}{line}".rstrip() for line in lines]


def counted(count: int, noun: str) -> str:
    """`1 tensor`, `2 tensors`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def plain_data(value: Any) -> Any:
    """What JSON can hold: arrays become lists, bytes their length, NaN and infinities null."""
    if isinstance(value, Mapping):
        return {str(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytes": len(value)}
    if isinstance(value, (Sequence, set, frozenset)) and not isinstance(value, str):
        return [plain_data(item) for item in value]
    if hasattr(value, "tolist"):
        return plain_data(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else str(value)


def _paint(found: re.Match[str]) -> str:
    return f"{found[1]}\x1b[{_COLOURS[found[2]]}m{found[2]}\x1b[0m"
