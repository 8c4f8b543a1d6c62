"""`squish bench`: speed as a fraction of what the machine can do."""

from __future__ import annotations

from typing import Annotated

import typer

from squish_core.codes import ErrorCode
from squish_core.errors import UsageError

from .options import Json
from .output import Answer

Target = Annotated[str | None, typer.Argument(metavar="FILE", help="A file of weights, or a model's folder.")]
Synthetic = Annotated[
    bool, typer.Option("--synthetic", help="Measure a seeded matrix under every codec that can encode it.")
]


def bench(file: Target = None, synthetic: Synthetic = False, as_json: Json = False) -> Answer:
    """Measure opening, decoding and multiplying.

    Each rate is a fraction of what this machine can do, on every backend; 1 is the limit. decode (to float32, into a
    reused array) is compared with filling memory of the same size, linear (one vector) with reading the stored
    bytes, and open with reading the whole file. Small tensors fit the CPU's caches, and so do the bytes they are
    compared with.
    """
    from .benchmark import benchmark

    if bool(file) == synthetic:
        raise UsageError("pass either a FILE or --synthetic", code=ErrorCode.USAGE, hint="See `squish bench --help`.")
    report = benchmark(file)
    return Answer(report.to_dict(), list(report.lines()))
