"""Commands that read tensors: verify, diff, convert."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from squish_core.cli.options import Assets, Format, Json, Quiet
from squish_core.cli.output import Answer, counted, error_data, table
from squish_core.cli.progress import Progress
from squish_core.errors import MAX_MESSAGE, MAX_PLACE, SquishError, shorten

if TYPE_CHECKING:
    from squish_core.analysis.diff import Difference
    from squish_core.analysis.verify import Report
    from squish_core.conversion.convert import Conversion
    from squish_core.conversion.plan import Step

CANNOT_RUN = (
    "missing",
    "unreadable",
    "file-kind",
    "not-installed",
    "broken",
    "import",
    "unknown",
    "ambiguous",
    "folder",
)
"""Codes of errors on opening that say nothing against the file's content."""
Target = Annotated[
    str, typer.Argument(metavar="DST", help="The file or folder to write. A file there is replaced, a folder is not.")
]
To = Annotated[
    str | None,
    typer.Option("--to", metavar="ID[:key=value,...]", help="Format to write; by default from DST's suffix."),
]
Encode = Annotated[
    list[str] | None,
    typer.Option(
        "--encode",
        metavar="[PATTERN=]SPEC",
        help="Encode values anew: int8, f16, int4:group_size=64, '*embed*=keep'. Repeatable, the last match wins.",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="PATTERN", help="Write only tensors whose name matches; repeatable."),
]
Names = Annotated[
    str | None,
    typer.Option("--names", metavar="hf|gguf:ARCH", help="Write the names of Hugging Face, or of GGUF: hf:qwen2."),
]
Stats = Annotated[
    str | None,
    typer.Option("--stats", metavar="FILE", help="Activations, for encodings that weigh errors by them."),
]
Delete = Annotated[
    bool, typer.Option("--delete-source", help="Verify and compare what was written, then delete SRC's weights.")
]
WORST = 12
"""Tensors whose loss is printed."""
FEW = 4
"""Sets of parameters of one codec that are told apart in a summary; places of one finding that are named."""
LONG = 40
"""Characters of a codec and its parameters that a summary has room for; --json has all."""


def verify(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Weights files, or folders of them.")],
    deep: Annotated[bool, typer.Option("--deep", help="Check every digest and decode every tensor, too.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="A warning counts as a fault.")] = False,
    format: Format = None,  # noqa: A002
    quiet: Quiet = False,
    json: Json = False,
) -> Answer:
    """Check files and list what is wrong with them.

    Looks at bounds, overlaps, sizes and what the format demands; with --deep at all data. Exit code 1 when there is
    an error in any. --json gives an object for one FILE, a list of them for several.
    """
    answers = list[Answer]()
    for file in files:
        try:
            answers.append(verified(file, deep, strict, format, quiet))
        except SquishError as error:  # it cannot be looked at; the others can
            if len(files) == 1:
                raise
            answers.append(Answer({"file": file, "ok": False, "error": error_data(error)}, [f"error: {error}"], 2))
    data = [answer.data for answer in answers]
    lines = [line for answer in answers for line in answer.lines]
    return Answer(data if len(files) > 1 else data[0], lines, max(answer.code for answer in answers))


def verified(file: str, deep: bool, strict: bool, format: str | None, quiet: bool) -> Answer:  # noqa: A002
    """What is wrong with one file; SquishError when it cannot be looked at."""
    import squish_core as squish
    from squish_core.opening import open as open_file

    try:
        opened = open_file(file, format)
    except SquishError as error:
        if error.code in CANNOT_RUN:
            raise
        report = squish.verify(file, deep=deep, format=format)
    else:
        with opened, Progress("verifying", quiet) as progress:
            report = squish.verify(opened, deep=deep, progress=progress)
    ok = report.clean if strict else report.ok
    return Answer({**report.to_dict(), "ok": ok, "strict": strict}, list(report_lines(report, ok)), 0 if ok else 1)


def report_lines(report: Report, ok: bool) -> Iterable[str]:
    """The findings, those that are alike together, then the verdict."""
    from squish_core.analysis.verify import severities

    places: dict[tuple[str, str, str], list[str]] = {}
    for problem in report.problems:
        places.setdefault((problem.severity, problem.code, problem.message), []).append(problem.where)
    for (severity, code, message), where in places.items():
        more = f" and {len(where) - FEW} more" if len(where) > FEW else ""
        places_shown = ", ".join(shorten(place, MAX_PLACE) for place in where[:FEW])
        yield from (f"{severity:8} {places_shown}{more} ({code})", f"         {shorten(message, MAX_MESSAGE)}")
    found = ", ".join(counted(count, word) for word, count in severities(report.problems)) or "no findings"
    what = f"{report.format}, {counted(report.tensors, 'tensor')}"
    if report.deep:
        read = f"{'all' if report.decoded == report.tensors else f'{report.decoded:,} of them'} decoded"
        checked = f"{report.digests - report.unverified:,} of " if report.unverified else ""
        what += f", {read}, {checked}{counted(report.digests, 'digest')} checked"
    else:
        what += ", tensor data not read (--deep)"
    what = what if report.format else "cannot be opened"
    yield f"{'ok' if ok else 'error'}: {report.file}: {what}; {found}"


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A weights file.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The file to compare it with, of any format.")],
    quiet: Quiet = False,
    json: Json = False,
) -> Answer:
    """Compare two files of any formats.

    Compares tensors, metadata and assets; decodes only tensors whose bytes differ. Exit code 1 when they are not the
    same. Equal values stored in another way are no difference.
    """
    import squish_core as squish

    with Progress("comparing", quiet) as progress:
        found = squish.diff(a, b, progress=progress)
    return Answer(found.to_dict(), list(difference_lines(found)), 0 if found.same else 1)


def difference_lines(found: Difference) -> Iterable[str]:
    """What differs, then how much is equal."""
    words = {"bytes": "equal bytes", "values": "equal values", "differs": "other values", "shape": "another shape"}
    rows = [
        (
            item.state,
            *("-" if value is None else f"{value:.3g}" for value in (item.nmse, item.max_error)),
            "-" if item.cosine is None else f"{item.cosine:.6g}",
            " -> ".join(dict.fromkeys(side for side in (item.a, item.b) if side)),
            item.name,
        )
        for item in found.tensors
        if item.state not in ("bytes", "values")
    ]
    yield from table(("tensor", "NMSE", "max error", "cosine", "stored as", "name"), "<>>><<", rows)
    for title, changes in (("metadata", found.meta), ("assets", found.assets)):
        if changes:
            yield from (title, *(f"  {change}" for change in changes))
    counts = Counter(item.state for item in found.tensors)
    told = ", ".join(f"{count:,} {words.get(state, state)}" for state, count in counts.most_common()) or "none"
    rest = [f"{title} {'differ' if changes else 'equal'}" for title, changes in
            (("metadata", found.meta), ("assets", found.assets))]  # fmt: skip
    yield f"{'same' if found.same else 'differs'}: tensors: {told}; {', '.join(rest)}"


def convert(
    src: Annotated[str, typer.Argument(metavar="SRC", help="The file to read.")],
    dst: Target,
    to: To = None,
    encode: Encode = None,
    only: Only = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would happen; write nothing.")] = False,
    format: Format = None,  # noqa: A002
    assets: Assets = None,
    names: Names = None,
    stats: Stats = None,
    delete_source: Delete = False,
    quiet: Quiet = False,
    json: Json = False,
) -> Answer:
    """Write a file in another format.

    Stored codes are kept as they are; values change only where --encode says so.
    SPEC is ID[:key=value,...] with an ID or a short name of `squish codecs`, or keep; ID(SPEC) wraps another.
    """
    import squish_core as squish
    from squish_core.opening import open as open_file

    with open_file(src, format, assets=assets) as opened, Progress("writing", quiet) as progress:
        report = squish.convert(
            opened, dst, to, encode, only=only, names=names, stats=stats, delete_source=delete_source,
            dry_run=dry_run, progress=progress,
        )  # fmt: skip
    return Answer(report.to_dict(), list(conversion_lines(report)))


def quality_lines(report: Conversion) -> Iterable[str]:
    """How far encoded values are from what they were, the farthest first, and all of them together."""
    told = sorted(
        ((step.quality, step) for step in report.steps if step.quality), key=lambda pair: (pair[0].snr, pair[1].name)
    )
    total, lossy = report.quality, [step for _, step in told]
    lines = [(lost, step.bits, step.name) for lost, step in told[:WORST]]
    if total and len(told) > 1:
        more = f", {len(told) - WORST} more than these (--json has them all)" if len(told) > WORST else ""
        bits = 8 * sum(step.size for step in lossy) / max(sum(step.spec.elements for step in lossy), 1)
        lines.append((total, bits, f"all {len(told)}{more}"))
    rows = [
        (f"{lost.snr:.2f}", f"{lost.nmse:.3g}", f"{lost.max_error:.3g}", f"{lost.cosine:.6g}", f"{bits:.2f}", name)
        for lost, bits, name in lines
    ]
    head = ("SNR dB", "NMSE", "max error", "cosine", "bits", "encoded with loss, farthest first")
    yield from table(head, ">>>>><", rows)


def _kind_names(names: Iterable[str]) -> dict[str, str]:
    """What to call each way of storing: without its parameters where they are different for each tensor, with the
    first two of many."""
    kinds = {name: name.partition(":")[0] for name in names}
    variants = Counter(kinds.values())
    brief = {name: ",".join([*name.split(",")[:2], "..."]) if len(name) > LONG else name for name in kinds}
    return {name: kind if variants[kind] > FEW else brief[name] for name, kind in kinds.items()}


def conversion_lines(report: Conversion) -> Iterable[str]:
    """What was done to how many tensors, how exact that is, and what was left behind."""
    from squish_core.text import format_bytes

    size = format_bytes(report.size) if report.size is not None else "size not known before"
    verb, time = ("would write", "") if report.dry_run else ("wrote", f", {report.seconds:.1f} s")
    yield f"{verb} {report.target}: {report.format}, {size} (from {format_bytes(report.source_size)}){time}"
    kinds: dict[tuple[str, str, str, str], list[Step]] = {}
    called = _kind_names(name for step in report.steps for name in (step.source, step.target))
    for step in report.steps:
        kinds.setdefault((step.action, called[step.source], called[step.target], str(step.exactness)), []).append(step)
    rows = [
        (
            action,
            f"{len(steps):,}",
            format_bytes(sum(step.size for step in steps)),
            f"{8 * sum(step.size for step in steps) / max(sum(step.spec.elements for step in steps), 1):.2f}",
            exactness,
            source if source == target else f"{source} -> {target}",
        )
        for (action, source, target, exactness), steps in kinds.items()
    ]
    yield from table(("action", "tensors", "size", "bits", "exactness", "stored as"), "<>>><<", rows)
    yield from quality_lines(report)
    notes: dict[str, list[str]] = {}
    for step in report.steps:
        if step.note:
            notes.setdefault(step.note, []).append(step.name)
    for note, names in notes.items():
        yield f"note: {counted(len(names), 'tensor')} {note} ({names[0]}{', ...' if len(names) > 1 else ''})"
    if stacked := [step for step in report.steps if step.stack]:
        stacks = counted(len({step.stack for step in stacked}), "stacked tensor")
        yield f"note: {counted(len(stacked), 'tensor')} written as rows of {stacks} ({stacked[0].stack}, ...)"
    yield from (f"note: {note}" for note in report.notes)
    for step in report.steps:
        if step.clipped:
            yield f"note: {counted(step.clipped, 'value')} of {step.name} clipped: too large for {step.target}"
    yield from (f"warning: no tensor matches {pattern!r}, so nothing is kept by it" for pattern in report.unused)
    if report.deleted:
        yield from ("would delete:" if report.dry_run else "deleted:", *(f"  {path}" for path in report.deleted))
    if report.dropped:
        yield from ("not carried over:", *(f"  {what}" for what in report.dropped))
