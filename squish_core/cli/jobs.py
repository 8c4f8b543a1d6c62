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
    typer.Option("--task-bytes", metavar="SIZE", help="Approximate bytes that each task writes. By default, 256MiB."),
]
Resume = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="[=verify]",
        help="Resume the unfinished job of this command; =verify first checks what it has written.",
    ),
]
JournalFile = Annotated[
    str | None,
    typer.Option("--journal", metavar="FILE", help="Journal of the job. By default, DST.squish-journal."),
]
_VALUE_OPTIONAL = {"convert": "--resume", "cache": "--resume"}
"""Command -> its option with an optional value; `squish eval --resume FILE` requires one."""


def with_values(argv: Sequence[str]) -> list[str]:
    """The command line with explicit values for options whose value is optional."""
    option = _VALUE_OPTIONAL.get(argv[0]) if argv else None
    return [f"{word}=True" if word == option else word for word in argv]


def resume_value(text: str | None) -> bool | str:
    """`resume=` of `convert`."""
    return text == "True" or text or False
