"""`squish bench`: rates of this machine, as ratios to its limits."""

from __future__ import annotations

from typing import Annotated

import typer

from squish_core.cli.options import Json
from squish_core.cli.output import Answer
from squish_core.codes import ErrorCode
from squish_core.errors import UsageError

Target = Annotated[str | None, typer.Argument(metavar="FILE", help="A weights file, or a folder of them.")]
Synthetic = Annotated[bool, typer.Option("--synthetic", help="A seeded matrix under every codec that encodes.")]


def bench(file: Target = None, synthetic: Synthetic = False, as_json: Json = False) -> Answer:
    """Measure opening, decoding and multiplying.

    On every backend, against what the machine can do, in ratios: decode (to float32, into a reused array) to filling
    as many bytes of memory, linear (one vector) to reading as many bytes as are stored, open to reading the whole
    file. 1 is the limit. Small tensors of a file lie in caches, and so do the bytes they are compared with.
    """
    from squish_core.analysis.benchmark import benchmark

    if bool(file) == synthetic:
        raise UsageError(
            "name a file or say --synthetic", code=ErrorCode.USAGE, hint="`squish bench --help` says more."
        )
    measured = benchmark(file)
    return Answer(measured.to_dict(), list(measured.lines()))
