"""How results are shown: tables and lines that fit the terminal, data for JSON, and what notebooks ask for."""

from __future__ import annotations

import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from squish_core.text import escape

DEFAULT_WIDTH = 100
"""Columns if there is neither a terminal nor COLUMNS."""
GAP = "  "
_INDENT = "  "
_BREAK = re.compile(r"(?:(?<=[./,:])|(?<=__)(?!_))(?!$)")
"""Where a long word may be broken; `__` stands for a dot in names of files."""
_LABEL = re.compile(r" *(?:\S+(?: \S+)*? {2,})?")


def terminal_width(stream: TextIO | None = None) -> int:
    """Width of a stream's terminal (stdout by default), else COLUMNS, else `DEFAULT_WIDTH`."""
    try:
        columns = os.get_terminal_size((stream or sys.stdout).fileno()).columns
    except (AttributeError, OSError, ValueError):  # not a terminal, or not a file
        columns = 0
    setting = os.environ.get("COLUMNS", "")
    return columns or (int(setting) if setting.isdecimal() else 0) or DEFAULT_WIDTH


def wrap(text: str, width: int) -> list[str]:
    """Split text into lines at spaces, and words longer than a line after `.`, `/`, `,`, `:` or `__`.

    A word without any of these is never split.
    """
    lines, line = [], ""
    for number, word in enumerate(text.split(" ")):
        space = " " if number and line else ""
        if len(line) + len(space) + len(word) <= width:
            line += space + word
            continue
        if line:
            lines.append(line)
        line = ""
        for piece in _BREAK.split(word) if len(word) > width else [word]:
            if line and len(line) + len(piece) > width:
                lines.append(line)
                line = ""
            line += piece
    return [*lines, line]


def fit(line: str, width: int | None = None) -> list[str]:
    """Split a line into lines of at most `width` columns, continuation lines indented below the text after a label."""
    width = width or terminal_width()
    if len(line) <= width:
        return [line]
    match = _LABEL.match(line)
    label = match[0] if match and len(match[0]) <= width // 2 else line[: len(line) - len(line.lstrip(" "))]
    hang = len(label) if label.strip() else len(label) + len(_INDENT)
    first, *rest = wrap(line[len(label) :], width - hang)
    return [label + first, *(" " * hang + text for text in rest)]


def fit_all(lines: Iterable[str], width: int | None = None) -> list[str]:
    """Wrap every line to the width of the terminal."""
    width = width or terminal_width()
    return [part for line in lines for part in fit(line, width)]


def table(header: Sequence[str], align: str, rows: Iterable[Sequence[object]], indent: str = "") -> list[str]:
    """Format a table that is no wider than the terminal.

    Parameters
    ----------
    header
        Titles of the columns.
    align
        "<" (left) or ">" (right) for each column.
    rows
        The cells. Without rows the table is empty.
    indent
        Begins each line.

    Returns
    -------
    list of str
        The lines. If the table is too wide, cells of left-aligned columns are wrapped, where it takes the fewest lines.

    Examples
    --------
    >>> table(("tensor", "bytes"), "<>", [("norm", 128)])
    ['tensor  bytes', 'norm      128']
    """
    cells = [[escape(str(cell)) for cell in row] for row in rows]
    if not cells:
        return []
    cells.insert(0, list(header))
    widths = [max(map(len, column)) for column in zip(*cells)]
    available = terminal_width() - len(indent) - len(GAP) * (len(widths) - 1)
    if sum(widths) > available:
        widths = _narrow(cells, align, widths, available)
        columns = [_wrap_cells(column, width) for column, width in zip(zip(*cells), widths)]
        widths = [max(len(text) for lines in column for text in lines) for column in columns]
        cells = [list(row) for lines in zip(*columns) for row in _side_by_side(lines)]
    lines = (GAP.join(f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths)) for row in cells)
    return [f"{indent}{line}".rstrip() for line in lines]


def _narrow(cells: Sequence[Sequence[str]], align: str, widths: list[int], available: int) -> list[int]:
    """Column widths that fit into `available`, unless the longest words are wider; words are broken at last."""
    widths, columns = list(widths), list(zip(*cells))
    lengths = [Counter(map(len, column)) for column in columns]

    def added_lines(number: int) -> tuple[int, int]:
        """Lines that narrowing a column adds; of equal ones the widest column comes first."""
        width = widths[number]
        return _line_count(lengths[number], width - 1) - _line_count(lengths[number], width), -width

    for breaks_words in (False, True):
        minima = [_min_width(column, breaks_words=breaks_words) for column in columns]
        while sum(widths) > available:
            wider = [n for n, width in enumerate(widths) if align[n] == "<" and width > minima[n]]
            if not wider:
                break
            widths[min(wider, key=added_lines)] -= 1
    return widths


def _line_count(lengths: Counter[int], width: int) -> int:
    """About how many lines cells of these lengths take in a column; the minima keep `width` above the indent."""
    step = max(width - len(_INDENT), 1)
    return sum(count * (1 - -max(length - width, 0) // step) for length, count in lengths.items())


def _min_width(column: Iterable[str], *, breaks_words: bool) -> int:
    """Width of a column's longest word or unbreakable piece, with the indent of continuation lines."""
    longest = 0
    for cell in column:
        first, *rest = (piece for word in cell.split(" ") for piece in (_BREAK.split(word) if breaks_words else [word]))
        longest = max(longest, len(first), *(len(_INDENT) + len(piece) for piece in rest))
    return longest


def _wrap_cells(column: Iterable[str], width: int) -> list[list[str]]:
    wrapped = []
    for cell in column:
        if len(cell) <= width:
            wrapped.append([cell])
        else:
            first, *rest = wrap(cell, width - len(_INDENT))
            wrapped.append([first, *(_INDENT + text for text in rest)])
    return wrapped


def _side_by_side(lines: Sequence[list[str]]) -> Iterable[tuple[str, ...]]:
    """Return the lines of one row's cells as rows, padded with empty cells."""
    height = max(map(len, lines))
    return zip(*([*cell, *[""] * (height - len(cell))] for cell in lines))


def to_json(value: Any) -> Any:
    """Data of a result for JSON: dicts of objects, lists of arrays, the length of bytes, null for NaN and infinities.

    >>> to_json({"shape": (2, 3), "error": float("inf"), "blob": b"abc"})
    {'shape': [2, 3], 'error': None, 'blob': {'bytes': 3}}
    """
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytes": len(value)}
    if isinstance(value, (Sequence, set, frozenset)):
        return [to_json(item) for item in value]
    if hasattr(value, "__attrs_attrs__"):
        return {field.name: to_json(getattr(value, field.name)) for field in value.__attrs_attrs__}
    return to_json(value.tolist()) if hasattr(value, "tolist") else str(value)
