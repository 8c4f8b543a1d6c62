"""`squish needs`: what a file needs, and what is missing."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import Format, Json
from .output import Answer

Target = Annotated[
    str, typer.Argument(metavar="FILE", help="A file of weights, a model's folder or a URL; or an id, such as gguf.")
]
Backend = Annotated[
    str | None, typer.Option("--backend", metavar="ID", help="Also list what running the file on this backend needs.")
]
Requirements = Annotated[
    bool, typer.Option("--requirements", help="Print the packages as pip's requirements file, one a line.")
]


def needs(
    file: Target,
    backend: Backend = None,
    requirements: Requirements = False,
    format: Format = None,  # noqa: A002
    json: Json = False,
) -> Answer:
    """List the plugins that a file needs, and which are missing.

    Reads only the header. Lists its format, the codecs of its tensors and their packages, then the command that
    installs what is missing. Exit code 1 if something is missing.
    """
    from squish_core.needs import needs as needs_of

    answer = needs_of(file, backend, format)
    lines = answer.requirements() if requirements else list(answer.lines())
    return Answer(answer.to_dict(), lines, 0 if answer.ok else 1, verbatim=requirements)
