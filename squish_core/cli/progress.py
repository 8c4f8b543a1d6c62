"""Progress on stderr: bytes, rate and the current tensor; a bar on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

from squish_core.text import escape

EVERY = 2.0
"""Seconds between two lines, and before the first."""


class Progress:
    """A context manager, called with `(tensor, bytes done, total bytes)`; `quiet` shows nothing."""

    def __init__(self, verb: str, quiet: bool = False) -> None:
        self._verb, self._quiet = verb, quiet
        self._started = self._shown = time.monotonic()
        self._bar: Any = None
        self._task: Any = None
        self._lines_only = not sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, name: str, done: int, total: int | None) -> None:
        if self._quiet:
            return
        if not self._lines_only and self._bar is None:
            self._start(total)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, name=escape(name))
            return
        now = time.monotonic()
        if now - self._shown >= EVERY:
            self._shown = now
            print(self._line(name, done, total, now), file=sys.stderr, flush=True)

    def _line(self, name: str, done: int, total: int | None, now: float) -> str:
        from squish_core.text import format_bytes

        of = f" of {format_bytes(total)} ({100 * done // total}%)" if total else ""
        return f"{self._verb}: {format_bytes(done)}{of}, {format_bytes(done / (now - self._started))}/s, {escape(name)}"

    def _start(self, total: int | None) -> None:
        """Create the bar, at the first report so that quick commands never import rich; lines if rich is missing."""
        try:
            from rich import progress
            from rich.console import Console
            from rich.table import Column
        except ModuleNotFoundError:
            self._lines_only = True
            return
        one_line = Column(no_wrap=True)
        columns = (
            progress.TextColumn(self._verb, markup=False),
            progress.BarColumn(20),
            progress.DownloadColumn(table_column=one_line),
            progress.TransferSpeedColumn(table_column=one_line),
            # The name takes the remaining width and is shortened on a narrow terminal.
            progress.TextColumn(
                "{task.fields[name]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
            ),
        )
        # rich itself honors NO_COLOR.
        self._bar = progress.Progress(*columns, console=Console(stderr=True), transient=True, expand=True)
        self._task = self._bar.add_task("", total=total, name="")
        self._bar.start()
