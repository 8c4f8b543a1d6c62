"""Arguments and options shared by several commands."""

from __future__ import annotations

from typing import Annotated

import typer

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
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")]
