"""`squish browse`: look through a file in the terminal.

Apart from the program itself (`browser`), which needs Textual.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import Annotated

import typer

from squish_core.codes import ErrorCode
from squish_core.errors import MissingPluginError, UsageError

from .options import Assets, FileName, Format
from .output import Answer


def browse(
    file: FileName,
    other: Annotated[str | None, typer.Argument(metavar="FILE2", help="A second file, shown beside the first.")] = None,
    format: Format = None,  # noqa: A002
    assets: Assets = None,
) -> Answer:
    """Look through a file in the terminal.

    Shows the tensors as a tree, and values, plan and metadata of the selected one. Reads only the header, and a
    tensor's values when you ask for its statistics. Runs in 80 x 24 and over ssh; with NO_COLOR=1 without colors.
    Press ? for the keys.
    """
    from squish_core.opening import open as open_file
    from squish_core.plugins.catalog import install_command

    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        hint = "`squish info` and `squish ls` print what it shows."
        raise UsageError("browse needs a terminal", code=ErrorCode.USAGE, hint=hint)
    try:
        from .browser import Browser
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        hint = f"Run `{install_command('squish-core-cli', extra='[browse]')}`."
        raise MissingPluginError("Textual is not installed", code=ErrorCode.NOT_INSTALLED, hint=hint) from None
    if os.environ.get("TERM") == "dumb":
        os.environ["NO_COLOR"] = "1"  # Textual reads it
    with ExitStack() as stack:
        opened = stack.enter_context(open_file(file, format, assets=assets))
        second = stack.enter_context(open_file(other)) if other is not None else None
        Browser(opened, second).run()
        return Answer({"file": opened.name, "against": None if second is None else second.name}, [])
