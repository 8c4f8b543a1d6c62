"""The command cp: some tensors of a model, local or remote, into a local file."""

from __future__ import annotations

from typing import Annotated

import typer

from squish_core.cli.options import Format, Json, Quiet
from squish_core.cli.output import Answer
from squish_core.cli.progress import Progress
from squish_core.codes import ErrorCode


def cp(
    src: Annotated[str, typer.Argument(metavar="SRC", help="The file or URL to read.")],
    dst: Annotated[str, typer.Argument(metavar="DST", help="The local file to write; its suffix names the format.")],
    tensors: Annotated[
        list[str] | None,
        typer.Option("--tensors", metavar="PATTERN", help="Copy the tensors whose name matches; repeatable."),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="ID[:key=value,...]", help="Format and options of DST.")
    ] = None,
    format: Format = None,  # noqa: A002
    quiet: Quiet = False,
    json: Json = False,
) -> Answer:
    """Copy some tensors into a local file.

    They stay as they are stored, under their names; `squish convert --only` changes both. Of a remote model, the header
    and the bytes of these tensors are fetched, not the rest.
    """
    import squish_core as squish
    from squish_core.conversion.report import conversion_lines
    from squish_core.opening import open as open_file

    with open_file(src, format) as opened, Progress("copying", quiet) as progress:
        try:
            report = squish.convert(opened, dst, to, only=tensors or None, rename="keep", progress=progress)
        except squish.SquishError as error:
            if error.code == ErrorCode.REFUSED:
                error.hint = f"`squish convert --only` encodes them. {error.hint}"
            raise
    return Answer(report.to_dict(), list(conversion_lines(report)))
