"""`squish fit`: which presets of a model llama-server can serve in a given memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from squish_cli.api import Answer

from squish_core.api import counted, format_bytes, table

from .fit import Fit, Needed, fit

EXAMPLES = (
    "squish fit model/ --memory 16GB --context 32768",
    "squish fit hf://ORG/NAME --memory 24GiB",
    "squish fit model.gguf --memory 8GB --json",
)


def fit_model(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model: a file, a folder or a URL.")],
    memory: Annotated[str, typer.Option("--memory", metavar="SIZE", help="Memory that there is, such as 16GB.")],
    context: Annotated[
        int | None,
        typer.Option(
            "--context", metavar="N", help="Tokens of the context. By default, the model's, as in llama-server."
        ),
    ] = None,
) -> Answer:
    """Show which presets of a model fit in memory.

    Reads headers alone. Counts what llama.cpp reports as it loads, with one slot and llama-server's other defaults:
    weights, keys and values, states, and buffers. Ends with the command that makes the best one.

    Exit codes: 0 one fits, 1 none does.
    """
    result = fit(model, memory=memory, context=context)
    return Answer(result.to_dict(), list(_lines(result)), 0 if result.best else 1, verbatim=True)


def _lines(result: Fit) -> Iterator[str]:
    """Yield the result as text: a row for each form, the caches, and what to do."""
    yield (
        f"{result.file}: {result.architecture}, a context of {counted(result.context, 'token')}, "
        f"{format_bytes(result.memory)} of memory"
    )
    header = ("preset", "weights", "cache", "states", "buffers", "total", "fits", "longest context")
    yield from table(header, "<>>>>><>", map(_row, result.rows))
    for cache in result.caches:
        what = "states" if cache.is_state else f"cache of {counted(cache.cells, 'token')}"
        yield f"{cache.kind}: {counted(cache.layers, 'layer')}, {what}, {format_bytes(cache.size)}"
    if result.best:
        yield from (f"the best that fits is {result.best.preset}:", f"  {result.best.command}")
        return
    least = result.rows[-1]
    way = f"fits with --context {least.longest}" if least.longest else "fits with no context"
    yield f"nothing fits: {least.preset} takes the least, {format_bytes(least.total)}, and {way}"


def _row(row: Needed) -> tuple[str, ...]:
    sizes = (row.weights, row.cache, row.states, row.compute + row.logits, row.total)
    return row.preset, *map(format_bytes, sizes), "yes" if row.fits else "no", f"{row.longest:,}"
