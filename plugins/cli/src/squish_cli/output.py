"""Output: an `Answer` as JSON or as escaped, wrapped text, in the words of the command line; progress.

Progress is on stderr: amount, rate and the current tensor; a bar on a terminal, occasional lines elsewhere. With
`--json-lines` it is documents on stdout.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import field, frozen

from squish_core.display import fit, terminal_width, to_json
from squish_core.errors import SquishError, redact
from squish_core.text import escape

_OPTIONS = {"rename": "names", "activations": "imatrix", "plan": "job-plan"}
"""Argument of a Python function -> the option, for placeholders in texts; others have the argument's name."""
_COLORS = {"ok": 32, "same": 32, "error": 31, "broken": 31, "conflict": 31, "no": 31, "differs": 31, "warning": 33}
_COMMAND = re.compile("`[^`]+`")
_STATE = re.compile(rf"^( *)({'|'.join(_COLORS)})(?=[ :,]|$)")


TEXT, JSON, JSON_LINES = "", "--json", "--json-lines"
"""How results are printed: as text, as one document, or as documents of one line, the result last."""
ERROR, PROGRESS, TASK, PIECE = "squish/error/1", "squish/progress/1", "squish/task/1", "squish/text/1"
"""Schemas of documents that are not results of commands; `documents.py` describes them."""
_style = TEXT


@frozen
class Answer:
    """The result of a command: plain data for `--json`, lines for people, and the exit code.

    Lines are wrapped to the terminal unless they are `verbatim`. `schema` names the schema of `data`, such as
    "squish/ls/1"; the app sets it for the command that it runs.
    """

    data: Mapping[str, Any]
    lines: Sequence[str]
    code: int = 0
    verbatim: bool = False
    schema: str = field(default="", eq=False)


@contextmanager
def printing(argv: Sequence[str]) -> Iterator[None]:
    """Print results as the options of a command line say; they are looked up here, so that usage errors are JSON."""
    global _style
    before, _style = _style, next((style for style in (JSON_LINES, JSON) if style in argv), TEXT)
    try:
        yield
    finally:
        _style = before


def style() -> str:
    """Tell how results are printed: as text, as one document, or as documents of one line.

    Returns
    -------
    str
        `TEXT`, `JSON` or `JSON_LINES`.

    Examples
    --------
    >>> style() == TEXT
    True
    """
    return _style


def print_document(schema: str, data: Mapping[str, Any], *, line: bool = False) -> None:
    """Print data on stdout as a JSON document whose first key names its schema.

    Parameters
    ----------
    schema
        Such as "squish/serve/1".
    data
        What `to_json` accepts, by key.
    line
        Print one line, as `--json-lines` does: the command goes on, and its reader waits for the end of the document.

    Examples
    --------
    >>> print_document("squish/text/1", {"text": "Hello"}, line=True)
    {"schema": "squish/text/1", "text": "Hello"}
    """
    indent = None if line or _style == JSON_LINES else 1
    text = json.dumps({"schema": schema, **to_json(data)}, indent=indent, allow_nan=False)
    sys.stdout.write(f"{text}\n")  # in one piece: several threads report progress
    sys.stdout.flush()


def show(answer: Answer) -> None:
    """Print an answer on stdout."""
    if _style != TEXT:
        print_document(answer.schema, answer.data)
        return
    colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    width = terminal_width()
    for line in answer.lines:
        # Names from files reach the terminal only here.
        first, *rest = [escape(line)] if answer.verbatim else fit(escape(line), width)
        print(_STATE.sub(_color, first) if colored else first, *rest, sep="\n")


def show_error(error: Exception) -> None:
    """Print an error on stderr, or as JSON on stdout."""
    if _style != TEXT:
        print_document(ERROR, {"error": error_data(error)})
    else:
        print_stderr(error_line(error))


def error_line(error: Exception) -> str:
    """Return an error as a line, which ends with its code in square brackets, a word for `squish explain`."""
    text, code = redact(str(error)), code_of(error)
    return f"error: {text}" if code is None or text.endswith(f"[{code}]") else f"error: {text} [{code}]"


def code_of(error: Exception) -> str | None:
    """Return the code of an error; that of the system's own errors is `os`."""
    return "os" if isinstance(error, OSError) and not hasattr(error, "code") else getattr(error, "code", None)


def error_data(error: Exception) -> dict[str, Any]:
    """Return an error as data for JSON."""
    fields = {name: getattr(error, name, None) for name in SquishError.FIELDS}
    text = redact(str(error))
    return {
        "type": type(error).__name__,
        "message": getattr(error, "message", text),
        "text": text,
        **fields,
        "code": code_of(error),
        "suggestions": list(getattr(error, "suggestions", ())),
    }


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning on stderr; replaces `warnings.showwarning`."""
    print_stderr(f"warning: {message}")


def print_stderr(line: str) -> None:
    """Print a line on stderr, wrapped to its terminal, but not within commands."""
    text = escape(line)
    commands = iter(_COMMAND.findall(text))  # commands stay whole for pasting: NULs stand for their characters
    lines = fit(_COMMAND.sub(lambda match: "\0" * len(match[0]), text), terminal_width(sys.stderr))
    print(*(re.sub("\0+", lambda _: next(commands), part) for part in lines), sep="\n", file=sys.stderr)


def option(name: str, value: str) -> str:
    """Spell an option for the shell: `--encode f32`, `--deep`, `--to`.

    >>> option("task_bytes", "1GB"), option("rename", "keep"), option("deep", "True")
    ('--task-bytes 1GB', '--names keep', '--deep')
    """
    values = () if value in ("", "...", "True") else (_word(value),)
    return " ".join((f"--{_OPTIONS.get(name, name.replace('_', '-'))}", *values))


def _word(value: str) -> str:
    """Return a value as a shell word, quoted if the shell would expand it."""
    return f"'{value}'" if any(mark in value for mark in "*?[") else value


def _color(match: re.Match[str]) -> str:
    return f"{match[1]}\x1b[{_COLORS[match[2]]}m{match[2]}\x1b[0m"


EVERY = 2.0
"""Seconds between two lines, and before the first."""
EVENT_EVERY = 0.2
"""Seconds between two documents of progress."""


class Progress:
    """A context manager, called with `(tensor, amount done, total amount)`; `quiet` shows nothing.

    Sums the tasks of a job by worker. With `--json-lines`, prints documents: one at the start, then at most one in
    `EVENT_EVERY` seconds and one at the end, and one for each task.

    Amounts are bytes unless `unit` names another unit, such as "tokens"; then the first call starts the clock, before
    the work. `file` is the file that a document of progress names.
    """

    def __init__(self, verb: str, quiet: bool = False, unit: str = "", *, file: str | None = None) -> None:
        self._verb, self._quiet, self._unit, self._file = verb, quiet, unit, file
        self._lines = style() == JSON_LINES
        self._written: dict[str, int] = {}
        self._started = self._shown = time.monotonic()
        self._before: int | None = None if unit else 0
        self._bar: Any = None
        self._task: Any = None
        self._lines_only = not sys.stderr.isatty()

    def __enter__(self) -> Progress:
        if self._lines and not self._quiet:
            self._print_event(None, 0, None)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._bar is not None:
            self._bar.stop()
        if isinstance(error, KeyboardInterrupt):
            for note in getattr(error, "__notes__", ()):  # how to resume
                print(note, file=sys.stderr)

    def task_finished(self, worker: str, read: int, written: int, seconds: float) -> None:
        """Add a finished task to its worker's total."""
        self._written[worker] = self._written.get(worker, 0) + written
        if self._lines and not self._quiet:
            facts = {"worker": worker, "read": read, "written": written, "seconds": round(seconds, 6)}
            print_document(TASK, facts)

    def _print_event(self, name: str | None, done: int, total: int | None) -> None:
        facts = {"activity": self._verb, "file": self._file, "name": name or None}
        print_document(PROGRESS, {**facts, "done": done, "total": total, "unit": self._unit or "bytes"})

    def __call__(self, name: str, done: int, total: int | None) -> None:
        if self._quiet:
            return
        now = time.monotonic()
        if self._lines:
            if now - self._shown >= EVENT_EVERY or done == total:
                self._shown = now
                self._print_event(name, done, total)
            return
        if self._before is None:
            self._started = self._shown = now
            self._before = done
        if not self._lines_only and self._bar is None:
            self._start(total)
        if self._bar is not None:
            amounts = self._amounts(done, total, now)
            self._bar.update(
                self._task, completed=done, total=total, name=f"{escape(name)}{self._workers()}", amounts=amounts
            )
            return
        if now - self._shown >= EVERY:
            self._shown = now
            print(self._line(name, done, total, now), file=sys.stderr, flush=True)

    def _line(self, name: str, done: int, total: int | None, now: float) -> str:
        return f"{self._verb}: {self._amounts(done, total, now)}, {escape(name)}{self._workers()}"

    def _workers(self) -> str:
        """Return the bytes that each worker has written."""
        from squish_core.text import format_bytes

        shares = (f"{escape(worker)} {format_bytes(written)}" for worker, written in sorted(self._written.items()))
        return f" ({', '.join(shares)})" if self._written else ""

    def _amounts(self, done: int, total: int | None, now: float) -> str:
        """Return the amount done, the total and the rate."""
        from squish_core.text import format_bytes

        rate = (done - (self._before or 0)) / max(now - self._started, 1e-9)
        if self._unit:
            amount, of_total, speed = (
                f"{done:,}",
                f" of {total:,} {self._unit}" if total else "",
                f"{rate:.3g} {self._unit}/s",
            )
        else:
            amount, of_total = format_bytes(done), f" of {format_bytes(total)}" if total else ""
            speed = f"{format_bytes(rate)}/s"
        return f"{amount}{of_total}{f' ({100 * done // total}%)' if total else ''}, {speed}"

    def _start(self, total: int | None) -> None:
        """Create the bar at the first update, so that quick commands never import rich; without rich, print lines."""
        try:
            from rich import progress
            from rich.console import Console
            from rich.table import Column
        except ModuleNotFoundError:
            self._lines_only = True
            return
        one_line = Column(no_wrap=True)
        amounts = (
            (progress.TextColumn("{task.fields[amounts]}", markup=False, table_column=one_line),)
            if self._unit
            else (progress.DownloadColumn(table_column=one_line), progress.TransferSpeedColumn(table_column=one_line))
        )
        columns = (
            progress.TextColumn(self._verb, markup=False),
            progress.BarColumn(20),
            *amounts,
            # The name takes the remaining width and is shortened on a narrow terminal.
            progress.TextColumn(
                "{task.fields[name]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
            ),
        )
        # rich itself honors NO_COLOR.
        self._bar = progress.Progress(*columns, console=Console(stderr=True), transient=True, expand=True)
        self._task = self._bar.add_task("", total=total, name="", amounts="")
        self._bar.start()
