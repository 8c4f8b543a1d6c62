"""`--family`: families of models that TOML files declare.

Apart from the commands, because the variable that workers read is set and restored here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated

import typer

from squish_core.codes import ErrorCode
from squish_core.errors import MissingPluginError
from squish_core.plugins import catalog

VARIABLE = "SQUISH_FAMILIES"
PACKAGE = "squish-models"
Family = Annotated[
    list[str] | None,
    typer.Option(
        "--family", metavar="FILE", help="A TOML file that declares a family of models. Repeat it for several."
    ),
]


@contextmanager
def declared(paths: Sequence[str] | None) -> Iterator[None]:
    """Make the families of files known to this process and, by the variable, to its workers."""
    if not paths:
        yield
        return
    try:
        models = import_module("squish_models.api")
    except ModuleNotFoundError:
        raise MissingPluginError(
            f"--family needs {PACKAGE}, which is not installed",
            code=ErrorCode.NOT_INSTALLED,
            hint=f"Run `{catalog.install_command(PACKAGE)}`.",
        ) from None
    for path in paths:
        models.register_family(path)
    before = os.environ.get(VARIABLE)
    absolute = [os.path.abspath(path) for path in paths]
    os.environ[VARIABLE] = os.pathsep.join((*absolute, *([before] if before else ())))
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before
