"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

FileName = Annotated[str, typer.Argument(metavar="FILE", help="A weights file, or a folder of them.")]
Patterns = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATTERN", help="Only tensors whose name matches, such as 'blk.0.*'."),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format", metavar="ID[:key=value,...]", help="Take the file to be of this format (see `squish formats`)."
    ),
]
Assets = Annotated[
    str | None,
    typer.Option("--assets", metavar="DIR", help="A folder with the config and tokenizer that FILE lacks."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
