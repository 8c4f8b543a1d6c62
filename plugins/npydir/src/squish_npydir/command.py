"""`squish cache build`: the tiers of a npy directory."""

from __future__ import annotations

from typing import Annotated

import typer
from attrs import evolve

from squish_core.api import Answer, Progress

from .tiers import cache
from .tiers.gate import Gate

EXAMPLES = (
    "squish cache build model-squished/ --tier 4bit",
    "squish cache build model-squished/ --tier finalized",
    "squish cache build model-squished/ --tier 3bit --gate wiki.txt:kl=0.05",
)


def add_to(app: typer.Typer) -> None:
    """Add `build` to the group `squish cache`, which an app that only looks at commands may lack."""
    group = next((each.typer_instance for each in app.registered_groups if each.name == "cache"), None)
    if group is None:
        group = typer.Typer()
        app.add_typer(group, name="cache")
    group.command("build", epilog="\b\nExamples:\n" + "\n".join(f"  {example}" for example in EXAMPLES))(build)


def build(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A Squish npy directory.")],
    tier: Annotated[str, typer.Option("--tier", help=f"{', '.join(cache.BUILDERS)}; int4:group_size=N,scales=f16.")],
    delete_source: Annotated[
        bool, typer.Option("--delete-source", help="int4: delete the INT8 arrays once all values were compared.")
    ] = False,
    gate: Annotated[
        str | None,
        typer.Option(
            "--gate",
            metavar="TEXT[:kl=0.05|top1=0.97]",
            help="Refuse a tier whose model is further from the source on this text. Needs squish-torch.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> Answer:
    """Build a tier from the directory's own files.

    The next open takes the best one that is there. An interrupted build is completed when it is started again; the
    sentinel is written last.
    """
    with Progress("building", quiet) as progress, Progress("comparing", quiet, "tokens") as tokens:
        check = evolve(Gate.parse(gate), progress=tokens) if gate else None
        result = cache.build(model, tier, progress, delete_source=delete_source, gate=check)
    data = {"model": model, "tier": tier, "made": result.made, "kept": result.kept, "size": result.size}
    kept = f", {result.kept:,} more were there" if result.kept else ""
    line = f"{model}: {tier} with {result.made:,} tensors{kept}; {result.size:,} bytes"
    lines = [line if result.made else f"{model}: the tier {tier} is there already"]
    if gate:
        data["gate"] = dict(result.measured)
        lines.append(f"gate: mean KL {result.measured['kl']:.3g}, same top token {result.measured['top1']:.2%}")
    return Answer(data, lines)
