"""The command cp: copies tensors of a local or remote model into a local file."""

from __future__ import annotations

from typing import Annotated

import typer

from squish_core.codes import ErrorCode

from .options import Format, Json, Only, Quiet, To
from .output import Answer
from .progress import Progress


def cp(
    src: Annotated[str, typer.Argument(metavar="SRC", help="The file or URL to read.")],
    dst: Annotated[str, typer.Argument(metavar="DST", help="The local file to write; its suffix names the format.")],
    only: Only = None,
    to: To = None,
    format: Format = None,  # noqa: A002
    quiet: Quiet = False,
    json: Json = False,
) -> Answer:
    """Copy some tensors into a local file.

    Keeps their names, codes and values; `squish convert --only` changes them. From a remote model, fetches only the
    header and the bytes of these tensors.
    """
    from squish_convert.report import conversion_lines

    import squish_core as squish
    from squish_core.opening import open as open_file

    with open_file(src, format) as opened, Progress("copying", quiet) as progress:
        try:
            report = squish.convert(opened, dst, to, only=only or None, rename="keep", progress=progress)
        except squish.SquishError as error:
            if error.code == ErrorCode.REFUSED:
                error.hint = f"`squish convert --only` encodes them. {error.hint}"
            raise
    return Answer(report.to_dict(), list(conversion_lines(report)))
