"""`squish cache build`: the tiers of a npy directory."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from attrs import evolve
from squish_cli.api import Answer, Progress, options

from squish_core.api import counted

from .gate import Gate, evaluator
from .tiers import cache

EXAMPLES = (
    "squish cache build model-squished/ --tier 4bit",
    "squish cache build model-squished/ --tier finalized",
    "squish cache build model-squished/ --tier 3bit --gate wiki.txt:kl=0.05",
    "squish cache build model-squished/ --tier finalized --scheduler local:4 --resume",
)


def add_to(app: typer.Typer) -> None:
    """Add `build` to the group `squish cache`."""
    group: Any = next(each.typer_instance for each in app.registered_groups if each.name == "cache")
    document = "squish_npydir.documents:CacheBuild"
    group.command("build", examples=EXAMPLES, document=document, progress=True)(build)


def build(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A Squish npy directory.")],
    tier: Annotated[str, typer.Option("--tier", help=f"{', '.join(cache.BUILDERS)}; int4a:group_size=N,scales=f16.")],
    delete_source: Annotated[
        bool, typer.Option("--delete-source", help="int4, int4a: delete the INT8 arrays after comparing all values.")
    ] = False,
    gate: Annotated[
        str | None,
        typer.Option(
            "--gate",
            metavar="TEXT[:kl=0.05|top1=0.97]",
            help="Refuse a tier whose model is further from the source on this text. Needs squish-torch.",
        ),
    ] = None,
    scheduler: options.Scheduler = None,
    task_bytes: options.TaskBytes = None,
    resume: options.Resume = None,
    quiet: options.Quiet = False,
) -> Answer:
    """Build a tier from the directory's own files.

    Opening uses the best tier. Building again completes an interrupted build; the sentinel is written last.
    """
    if gate:
        evaluator()  # an error before anything is built
    with (
        Progress("building", quiet, file=model) as progress,
        Progress("comparing", quiet or not gate, "tokens", file=model) as tokens,
    ):
        check = evolve(Gate.parse(gate), progress=tokens).check if gate else None
        result = cache.build(
            model,
            tier,
            progress,
            delete_source=delete_source,
            gate=check,
            job=options.job(scheduler, task_bytes, resume),
        )
    data = {
        "file": model,
        "tier": tier,
        "built": result.built,
        "reused": result.reused,
        "size": result.size,
        "savings_pct": result.savings_pct,
        "gate": dict(result.measured) if gate else None,
    }
    reused = f", {counted(result.reused, 'other')} existed already" if result.reused else ""
    line = f"{model}: built {counted(result.built, 'tensor')} of the tier {tier}{reused}; {result.size:,} bytes"
    line += "" if result.savings_pct is None else f", {result.savings_pct:.0f}% less than INT8"
    lines = [line if result.built else f"{model}: the tier {tier} exists already"]
    if gate:
        lines.append(f"gate: mean KL {result.measured['kl']:.3g}, same top token {result.measured['top1']:.2%}")
    return Answer(data, lines)
