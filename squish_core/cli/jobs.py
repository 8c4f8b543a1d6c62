"""Options of commands that run as tasks in other processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

Scheduler = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        metavar="local[:N]|dask[:ADDRESS]",
        help="Run as tasks in N processes, or on the workers of a Dask cluster.",
    ),
]
TaskBytes = Annotated[
    str | None,
    typer.Option("--task-bytes", metavar="SIZE", help="Bytes that a task writes, about: 256MiB by default."),
]
Resume = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="[=verify]",
        help="Go on with the unfinished job of this command; =verify first reads what it has written.",
    ),
]
JournalFile = Annotated[
    str | None,
    typer.Option("--journal", metavar="FILE", help="Journal of the job; by default DST.squish-journal."),
]
_ALONE = {"convert": "--resume", "cache": "--resume"}
"""Command -> its option that may have no value; `squish eval --resume FILE` has one."""


def with_values(argv: Sequence[str]) -> list[str]:
    """The command line with a value for options that may have none."""
    alone = _ALONE.get(argv[0]) if argv else None
    return [f"{word}=True" if word == alone else word for word in argv]


def resume_value(text: str | None) -> bool | str:
    """`resume=` of `convert`."""
    return text == "True" or text or False
