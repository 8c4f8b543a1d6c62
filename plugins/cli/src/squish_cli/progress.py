"""Progress on stderr: amount, rate and the current tensor; a bar on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import sys
import time
from json import dumps
from typing import Any

from squish_core.text import escape

EVERY = 2.0
"""Seconds between two lines, and before the first."""


class Progress:
    """A context manager, called with `(tensor, amount done, total amount)`; `quiet` shows nothing.

    Sums the tasks of a job by worker. With `json`, prints each task as a line of JSON on stderr, and nothing else.

    Amounts are bytes unless `unit` names another unit, such as "tokens"; then the first call starts the clock, before
    the work.
    """

    def __init__(self, verb: str, quiet: bool = False, unit: str = "", json: bool = False) -> None:
        self._verb, self._quiet, self._unit, self._json = verb, quiet, unit, json
        self._written: dict[str, int] = {}
        self._started = self._shown = time.monotonic()
        self._before: int | None = None if unit else 0
        self._bar: Any = None
        self._task: Any = None
        self._lines_only = not sys.stderr.isatty()

    def __enter__(self) -> Progress:
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
        if self._json and not self._quiet:
            facts = {"worker": worker, "read": read, "written": written, "seconds": round(seconds, 6)}
            print(dumps(facts), file=sys.stderr, flush=True)

    def __call__(self, name: str, done: int, total: int | None) -> None:
        if self._quiet or self._json:
            return
        if self._before is None:
            self._started = self._shown = time.monotonic()
            self._before = done
        if not self._lines_only and self._bar is None:
            self._start(total)
        if self._bar is not None:
            amounts = self._amounts(done, total, time.monotonic())
            self._bar.update(
                self._task, completed=done, total=total, name=f"{escape(name)}{self._workers()}", amounts=amounts
            )
            return
        now = time.monotonic()
        if now - self._shown >= EVERY:
            self._shown = now
            print(self._line(name, done, total, now), file=sys.stderr, flush=True)

    def _line(self, name: str, done: int, total: int | None, now: float) -> str:
        return f"{self._verb}: {self._amounts(done, total, now)}, {escape(name)}{self._workers()}"

    def _workers(self) -> str:
        """The bytes that each worker has written."""
        from squish_core.text import format_bytes

        shares = (f"{escape(worker)} {format_bytes(written)}" for worker, written in sorted(self._written.items()))
        return f" ({', '.join(shares)})" if self._written else ""

    def _amounts(self, done: int, total: int | None, now: float) -> str:
        """The amount done, the total and the rate."""
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
