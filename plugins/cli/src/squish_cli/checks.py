"""Commands that read tensors: verify, diff, convert, cp, bench."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from attrs import evolve

from squish_core.codes import CANNOT_RUN, ErrorCode
from squish_core.errors import Problem, SquishError, UsageError, redact

from . import spellings
from .annotations import Finding, check_output, finding_lines
from .families import Family, declared
from .identity import Manifest, PublicKey, Signature, attested
from .options import (
    Assets,
    Encode,
    Format,
    HtmlPage,
    Names,
    Only,
    Output,
    Part,
    Quiet,
    Requantize,
    Resume,
    Scheduler,
    TaskBytes,
    To,
    check_page,
    components,
    job,
)
from .output import Answer, Progress, error_data, error_line

if TYPE_CHECKING:
    from squish_convert.lineage import Ancestor

    from squish_core.checking.verify import Report

Destination = Annotated[
    str | None,
    typer.Argument(
        metavar="DST",
        help="File or folder to write, or a URL such as s3://bucket/key. An existing file is replaced; an existing "
        "folder, or anything at the URL, is an error.",
    ),
]
Recipe = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        metavar="FILE",
        help="TOML with rules of --encode (`squish tune` writes one), or a file of weights, of which the type of each "
        "tensor is copied; --encode adds to it.",
    ),
]
Imatrix = Annotated[
    list[str] | None,
    typer.Option(
        "--imatrix",
        metavar="FILE",
        help="Activation statistics (imatrix) for encodings that weight errors by them. Repeat it to merge files.",
    ),
]
JobPlan = Annotated[
    str | None,
    typer.Option(
        "--job-plan",
        metavar="FILE",
        help="Write the plan to FILE as JSON, then execute it (--dry-run: only write it). If FILE exists, execute it; "
        "SRC and DST are optional.",
    ),
]
JournalFile = Annotated[
    str | None,
    typer.Option("--journal", metavar="FILE", help="Journal of the job. By default, DST.squish-journal."),
]
Delete = Annotated[
    bool, typer.Option("--delete-source", help="Delete SRC's weights after verifying DST and comparing it with SRC.")
]
Measured = Annotated[str | None, typer.Argument(metavar="FILE", help="A file of weights, or a model's folder.")]
Synthetic = Annotated[
    bool, typer.Option("--synthetic", help="Measure a seeded matrix under every codec that can encode it.")
]


def verify(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Files of weights, or models' folders.")],
    deep: Annotated[bool, typer.Option("--deep", help="Also check every digest and decode every tensor.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")] = False,
    scheduler: Scheduler = None,
    format: Format = None,  # noqa: A002
    output: Output = None,
    manifest: Manifest = None,
    signature: Signature = None,
    key: PublicKey = None,
    html: HtmlPage = None,
    quiet: Quiet = False,
) -> Answer:
    """Check files and list what is wrong with them.

    Checks bounds, overlaps, sizes and the rules of the format; with --deep, all data too. Exit code 1 if any file has
    an error.
    """
    check_output(output)
    check_page(html)
    if (manifest or signature or key) and len(files) > 1:
        raise UsageError("a manifest or signature is of one file", found=f"{len(files)} files", code=ErrorCode.USAGE)
    answers, findings, results = list[Answer](), list[Finding](), list[Any]()
    for file in files:
        try:
            report, ancestors = verify_file(file, deep, strict, format, quiet, scheduler)
            problems = attested(file, format, manifest, signature, key, quiet)
            report = evolve(report, problems=(*report.problems, *problems))
        except SquishError as error:  # the other files can still be checked
            if isinstance(error, UsageError) if output else len(files) == 1:
                raise
            results.append((redact(file), error_line(error), ()))
            answers.append(Answer(_uncheckable(file, error, deep, strict, format), [error_line(error)], 2))
            findings.append(Finding(redact(file), _as_problem(error)))
        else:
            answers.append(_verified(report, strict, ancestors))
            problems = tuple(map(_as_error, report.problems)) if strict else report.problems
            findings += [Finding(report.file, problem) for problem in problems]
            results.append((report.file, evolve(report, problems=problems), ancestors))
    code = max(answer.code for answer in answers)
    data = {"files": [answer.data for answer in answers]}
    answer = Answer(data, [line for answer in answers for line in answer.lines], code)
    if html is not None:
        from .pages import last, write_result
        from .sections import checked

        title = f"Findings in {last(results[0][0])}" if len(results) == 1 else f"Findings in {len(results)} files"
        write_result(html, title, (checked(*result) for result in results), "verify", answer)
    return answer if output is None else evolve(answer, lines=finding_lines(output, findings), verbatim=True)


def verify_file(
    file: str,
    deep: bool,
    strict: bool,
    format: str | None,  # noqa: A002
    quiet: bool,
    scheduler: str | None,
) -> tuple[Report, tuple[Ancestor, ...]]:
    """Return the findings in one file, and what it was made from; SquishError if it cannot be checked."""
    from squish_convert.lineage import lineage

    import squish_core as squish
    from squish_core.opening import open as open_file

    try:
        opened = open_file(file, format)
    except SquishError as error:
        if error.code in CANNOT_RUN or isinstance(error, UsageError):
            raise
        with Progress("verifying", quiet, file=redact(file)):
            return squish.verify(file, deep=deep, format=format), ()
    with opened, Progress("verifying", quiet, file=redact(file)) as progress:
        ancestors = lineage(opened)
        return squish.verify(opened, deep=deep, progress=progress, scheduler=scheduler), ancestors


def _verified(report: Report, strict: bool, ancestors: tuple[Ancestor, ...]) -> Answer:
    """Return the findings in one file as data and text."""
    from squish_convert.lineage import lineage_lines

    from squish_core.checking.verify import report_lines
    from squish_core.display import to_json

    ok = report.clean if strict else report.ok
    data = {**report.to_dict(), "ok": ok, "lineage": to_json(ancestors), "strict": strict, "error": None}
    made_from = [f"made from {line}" for line in lineage_lines(ancestors)]
    return Answer(data, [*report_lines(report, strict), *made_from], 0 if ok else 1)


def _uncheckable(file: str, error: SquishError, deep: bool, strict: bool, format: str | None) -> dict[str, Any]:  # noqa: A002
    """Return data of a file that cannot be checked: what the report of an empty file has, and the error."""
    from squish_core.checking.verify import Report

    report = Report(file=file, format=format, deep=deep, problems=())
    return {**report.to_dict(), "ok": False, "lineage": [], "strict": strict, "error": error_data(error)}


def _as_problem(error: SquishError) -> Problem:
    from squish_core.checking.check import as_problem

    return as_problem(error)


def _as_error(problem: Problem) -> Problem:
    return evolve(problem, severity="error") if problem.severity == "warning" else problem


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A file of weights.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The file to compare with A, in any format.")],
    everything: Annotated[
        bool, typer.Option("--all", help="List every tensor that differs, not just the ten worst.")
    ] = False,
    names: Annotated[
        str | None,
        typer.Option("--names", metavar="keep", help="Compare the names unchanged, without mapping layouts."),
    ] = None,
    scheduler: Scheduler = None,
    html: HtmlPage = None,
    quiet: Quiet = False,
) -> Answer:
    """Compare two files, in the same format or in different ones.

    Compares tensors, metadata and assets; decodes only tensors whose bytes differ. Equal values that are stored
    differently count as the same. Two models of one family are compared under the names, rows and settings of A,
    whatever their layouts. Prints the verdict, then the ten tensors that differ most. Exit code 1 if they differ.
    """
    from squish_convert.compare.diff import WORST, difference_lines

    import squish_core as squish

    check_page(html)
    with Progress("comparing", quiet) as progress:
        difference = squish.diff(a, b, progress=progress, rename=names, scheduler=scheduler)
    lines = difference_lines(difference, None if everything else WORST)
    answer = Answer(difference.to_dict(), list(lines), 0 if difference.same else 1)
    if html is not None:
        from . import sections
        from .pages import last, write_result

        parts = [sections.difference(difference), sections.listed("Tensors", difference)]
        write_result(html, last(difference.a, difference.b), parts, "diff", answer)
    return answer


def convert(
    src: Annotated[str | None, typer.Argument(metavar="SRC", help="The file to read.")] = None,
    dst: Destination = None,
    to: To = None,
    encode: Encode = None,
    recipe: Recipe = None,
    tensor_type: spellings.TensorType = None,
    output_tensor_type: spellings.OutputType = None,
    token_embedding_type: spellings.EmbeddingType = None,
    pure: spellings.Pure = False,
    q_bits: spellings.Bits = None,
    q_group_size: spellings.GroupSize = None,
    q_mode: spellings.Mode = None,
    graph: spellings.Graph = None,
    only: Only = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; write nothing.")] = False,
    format: Format = None,  # noqa: A002
    assets: Assets = None,
    names: Names = None,
    family: Family = None,
    part: Part = None,
    imatrix: Imatrix = None,
    requantize: Requantize = False,
    delete_source: Delete = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is at the URL DST.")] = False,
    job_plan: JobPlan = None,
    scheduler: Scheduler = None,
    task_bytes: TaskBytes = None,
    resume: Resume = None,
    journal: JournalFile = None,
    html: HtmlPage = None,
    quiet: Quiet = False,
) -> Answer:
    """Convert a file to another format, or to other encodings.

    Keeps quantized codes, and changes values only as --encode requests. Quantizes quantized tensors again only with
    --requantize. SPEC is ID[:key=value,...], where ID is an id or short name from
    `squish codecs`, or keep; ID(SPEC) wraps another encoding.
    """
    from squish_convert.recipe import is_toml, read_rules
    from squish_convert.report import conversion_lines

    import squish_core as squish
    from squish_core.opening import open as open_file

    check_page(html)
    in_toml = recipe is not None and is_toml(recipe)
    encode_rules = [*(read_rules(Path(recipe)) if recipe and in_toml else ()), *(encode or ())]
    rules = spellings.preset_rules(encode_rules, tensor_type or (), output_tensor_type, token_embedding_type, pure)
    rules = spellings.mlx_rules(rules, to, q_bits, q_group_size, q_mode)
    to, names = spellings.graph_target(to, graph, names)
    with ExitStack() as stack:
        stack.enter_context(declared(family))
        opened = stack.enter_context(open_file(src, format, assets=assets)) if src else None
        progress = stack.enter_context(Progress("writing", quiet, file=redact(src) if src else None))
        report = squish.convert(
            opened,
            dst,
            to,
            rules,
            only=only,
            assets=assets,
            rename=names,
            part=components(part),
            activations=imatrix,
            requantize=requantize,
            recipe=None if in_toml else recipe,
            delete_source=delete_source,
            overwrite=overwrite,
            plan=job_plan,
            job=job(scheduler, task_bytes, resume, journal),
            dry_run=dry_run,
            progress=progress,
        )
    answer = Answer(report.to_dict(), list(conversion_lines(report)))
    if html is not None:
        from .pages import last, write_result
        from .sections import conversion

        write_result(html, f"{last(report.source)} to {last(report.target)}", [conversion(report)], "convert", answer)
    return answer


def cp(
    src: Annotated[str, typer.Argument(metavar="SRC", help="The file or URL to read.")],
    dst: Annotated[str, typer.Argument(metavar="DST", help="The local file to write; its suffix names the format.")],
    only: Only = None,
    layers: Annotated[
        str | None,
        typer.Option(
            "--layers",
            metavar="LAYERS",
            help="Only these layers, such as 0-11,8-15, in this order; they are renumbered, and the settings adjusted.",
        ),
    ] = None,
    experts: Annotated[
        str | None,
        typer.Option(
            "--experts", metavar="stack|unstack", help="Store experts in one tensor, or in one for each expert."
        ),
    ] = None,
    to: To = None,
    format: Format = None,  # noqa: A002
    quiet: Quiet = False,
) -> Answer:
    """Copy some tensors or layers into a local file.

    Keeps codes and values, and names but for the numbers of layers and experts; `squish convert --only` changes them.
    From a remote model, fetches only the header and the bytes of these tensors.
    """
    from squish_convert.api import with_experts, with_layers
    from squish_convert.report import conversion_lines

    import squish_core as squish
    from squish_core.opening import open as open_file

    with open_file(src, format) as opened, Progress("copying", quiet, file=redact(src)) as progress:
        try:
            picked = opened if layers is None else with_layers(opened, layers)
            picked = picked if experts is None else with_experts(picked, experts)
            report = squish.convert(picked, dst, to, only=only or None, rename="keep", progress=progress)
        except squish.SquishError as error:
            if error.code == ErrorCode.REFUSED:
                error.hint = f"`squish convert --only` encodes them. {error.hint}"
            raise
    return Answer(report.to_dict(), list(conversion_lines(report)))


def bench(file: Measured = None, synthetic: Synthetic = False) -> Answer:
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
