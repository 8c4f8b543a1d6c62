"""`squish bench`: rates of this machine, as ratios to its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from squish_core.cli.options import Json
from squish_core.cli.output import Answer
from squish_core.codes import ErrorCode
from squish_core.display.tables import table
from squish_core.errors import UsageError

if TYPE_CHECKING:
    from squish_core.analysis.benchmark import Measured

Target = Annotated[str | None, typer.Argument(metavar="FILE", help="A weights file, or a folder of them.")]
Synthetic = Annotated[bool, typer.Option("--synthetic", help="A seeded matrix under every codec that encodes.")]


def bench(file: Target = None, synthetic: Synthetic = False, as_json: Json = False) -> Answer:
    """Measure opening, decoding and multiplying.

    On every backend, against what the machine can do, in ratios: decode (to float32, into a reused array) to filling
    as many bytes of memory, linear (one vector) to reading as many bytes as are stored, open to reading the whole
    file. 1 is the limit. Small tensors of a file lie in caches, and so do the bytes they are compared with.
    """
    from squish_core.analysis.benchmark import bench as benchmark
    from squish_core.text import format_bytes

    if bool(file) == synthetic:
        raise UsageError(
            "name a file or say --synthetic", code=ErrorCode.USAGE, hint="`squish bench --help` says more."
        )
    found = benchmark(file)
    rates = {"set": found.limits.set, "read": found.limits.read, "file": found.limits.file}
    shown = ", ".join(f"{name} {rate / 1e9:.3g} GB/s" for name, rate in rates.items() if rate)
    rows = table(
        ("what", "backend", "ratio", "of", "MB", "ms", "codec"), "<<><>><",
        [(row.what, row.backend, *_figures(row), row.codec) for row in found.rows if row.seconds is not None],
    )  # fmt: skip
    refused = sorted({f"{row.backend or row.what}: {row.refused}" for row in found.rows if row.refused})
    lines = [f"limits: {shown} (last-level cache {format_bytes(found.limits.cache)})", "", *rows]
    if refused:
        lines += ["", "not measured", *(f"  {each}" for each in refused)]
    return Answer(found.to_dict(), lines)


def _figures(row: Measured) -> tuple[str, str, str, str]:
    ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
    return ratio, row.of, f"{(row.size or 0) / 1e6:.3g}", f"{1e3 * (row.seconds or 0):.3g}"
