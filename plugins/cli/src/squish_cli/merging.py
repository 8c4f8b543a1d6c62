"""`squish merge`: add LoRA adapters to a model.

Apart from the other commands, because it takes a list of adapters with numbers.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from squish_core.codes import ErrorCode
from squish_core.errors import UsageError, redact
from squish_core.plugins.sources import scheme_of

from .checks import Imatrix
from .families import Family, declared
from .options import Assets, Encode, Format, Names, Quiet, Requantize, To
from .output import Answer, Progress


def merge(
    base: Annotated[str, typer.Argument(metavar="BASE", help="The model, in any format.")],
    adapters: Annotated[
        list[str],
        typer.Argument(
            metavar="LORA[=SCALE]",
            help="Folders of PEFT or adapters in GGUF, each with a number to multiply it by (1 by default).",
        ),
    ],
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="OUT", help="The file or folder to write; its suffix names the format."),
    ],
    to: To = None,
    encode: Encode = None,
    names: Names = None,
    requantize: Requantize = False,
    imatrix: Imatrix = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; write nothing.")] = False,
    format: Format = None,  # noqa: A002
    assets: Assets = None,
    family: Family = None,
    quiet: Quiet = False,
) -> Answer:
    """Add LoRA adapters to a model.

    Only the tensors that an adapter adapts are decoded and encoded again, as what they were unless --encode says
    otherwise; all others keep their codes. Where the model is quantized, that needs --requantize.
    """
    from squish_convert.merge.merge import merge as merge_adapters
    from squish_convert.report import conversion_lines

    from squish_core.opening import open as open_file

    scales = [_scaled(adapter) for adapter in adapters]
    with (
        declared(family),
        open_file(base, format, assets=assets) as opened,
        Progress("merging", quiet, file=redact(base)) as progress,
    ):
        report = merge_adapters(
            opened,
            scales,
            output,
            to,
            encode,
            rename=names,
            activations=imatrix,
            requantize=requantize,
            dry_run=dry_run,
            progress=progress,
        )
    return Answer(report.to_dict(), list(conversion_lines(report)))


def _scaled(text: str) -> tuple[str, float]:
    """Split `LORA=SCALE`; a name that exists and the query of a URL are not split.

    UsageError if the scale is not a number.

    >>> _scaled("style.gguf=0.5"), _scaled("https://example.org/lora.gguf?part=2")
    (('style.gguf', 0.5), ('https://example.org/lora.gguf?part=2', 1.0))
    """
    name, equals, scale = text.rpartition("=")
    if not equals or os.path.lexists(text) or (scheme_of(text) is not None and "?" in name):
        return text, 1.0
    try:
        return name, float(scale)
    except ValueError:
        raise UsageError(
            "is not the scale of an adapter",
            found=repr(scale),
            expected="LORA=NUMBER, such as style=0.5",
            code=ErrorCode.USAGE,
        ) from None
