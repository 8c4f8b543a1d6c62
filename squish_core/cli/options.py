"""Arguments and options shared by several commands."""

from __future__ import annotations

from typing import Annotated, TypeVar

import typer

from squish_core.cli.output import show_warning

T = TypeVar("T")

FileName = Annotated[str, typer.Argument(metavar="FILE", help="A file of weights, or a model's folder.")]
Patterns = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATTERN", help="Only tensors whose names match, such as 'blk.0.*'."),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="ID[:key=value,...]",
        help="Read the file as this format instead of detecting it (see `squish formats`).",
    ),
]
Assets = Annotated[
    str | None,
    typer.Option("--assets", metavar="DIR", help="Folder with the config and tokenizer files that the model lacks."),
]
Backend = Annotated[
    str | None, typer.Option("--backend", metavar="ID[:key=value]", help="Consider only this backend.")
]
Prefer = Annotated[
    str,
    typer.Option(
        "--prefer",
        metavar="NAME",
        help="What to prefer: spec (the format's own order of encodings), smallest (least memory when loaded) or exact "
        "(backends that round neither weights nor inputs).",
    ),
]
Op = Annotated[
    str | None,
    typer.Option(
        "--op",
        metavar="NAME",
        help="The operation: linear (y = x W^T), embed (rows by token id), experts (linear, with one of several "
        "matrices for each row) or dense (the decoded array). By default, linear for a matrix, experts for a stack of "
        "matrices and dense for anything else.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")]

OldPolicy = Annotated[str | None, typer.Option("--policy", hidden=True)]


def renamed(old: str, new: str, value: T) -> T:
    """The value of an option under its old name; a warning if it is given."""
    if value:
        show_warning(f"{old} is now {new}")
    return value
