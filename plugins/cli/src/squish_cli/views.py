"""Commands that inspect a file: ls, info, plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from squish_core.codes import ErrorCode
from squish_core.display import table, terminal_width
from squish_core.errors import SquishError, UsageError
from squish_core.summary import link_of, shown_as, stored_as, with_link, zero_share

from .options import Assets, Backend, FileName, Format, HtmlPage, Op, Patterns, Prefer, check_page
from .output import Answer

if TYPE_CHECKING:
    from squish_core.file import File
    from squish_core.tensor import Tensor


NARROW = 50
"""Columns of a terminal below which a tensor is two lines, its name and the rest, instead of a row of a table."""
WAYS = ("layer", "kind", "type")
"""What `--by` takes."""
ORDERS: dict[str, Callable[[Tensor], Any]] = {
    "file": lambda tensor: 0,
    "name": lambda tensor: tensor.name,
    "size": lambda tensor: -tensor.nbytes,
    "bits": lambda tensor: -tensor.bits_per_weight,
}


def ls(
    file: FileName,
    patterns: Patterns = None,
    long: Annotated[
        bool, typer.Option("--long", "-l", help="Also list each stored part with its dtype, shape, file and offset.")
    ] = False,
    sort: Annotated[
        str, typer.Option("--sort", metavar="|".join(ORDERS), help=f"Order of the tensors: {', '.join(ORDERS)}.")
    ] = "file",
    format: Format = None,  # noqa: A002
    assets: Assets = None,
) -> Answer:
    """List the tensors of a file.

    Shows each tensor's shape, dtype or codec, bits per weight and size, and the totals. Reads only the header.
    --sort size and --sort bits list the largest first; --sort file keeps the order of the file.
    """
    from squish_core.opening import open as open_file

    if sort not in ORDERS:
        raise UsageError("no such --sort", found=repr(sort), expected=", ".join(ORDERS), code=ErrorCode.USAGE)
    with open_file(file, format, assets=assets) as opened:
        tensors = sorted(matching_tensors(opened, patterns), key=ORDERS[sort])
        data = [
            {
                "name": tensor.name,
                "shape": tensor.shape,
                "dtype": tensor.dtype,
                "codec": tensor.codec,
                "bits": tensor.bits_per_weight,
                "size": tensor.nbytes,
                "tied_to": tensor.spec.tied_to,
                "problem": tensor.spec.problem,
                "parts": parts(tensor) if long else None,
            }
            for tensor in tensors
        ]
        lines = listing(tensors, long)
        return Answer({"file": opened.name, "format": opened.format, "tensors": data}, [*lines, total(opened, tensors)])


def listing(tensors: Iterable[Tensor], long: bool) -> list[str]:
    """Return a row for each tensor and, with `long`, for each of its parts."""
    from squish_core.text import format_bytes

    rows: list[tuple[object, ...]] = []
    for tensor in tensors:
        bits, size = f"{tensor.bits_per_weight:.2f}", format_bytes(tensor.nbytes)
        zeros = zero_share(tensor.file, tensor.spec)
        stored = stored_as(tensor.spec, long) if long else shown_as(tensor.spec, zeros)
        stored += f", {zeros:.1%} zeros" if zeros else ""
        rows.append((list(tensor.shape), stored, bits, size, label(tensor)))
        for part in parts(tensor) if long else ():
            where = f"{part['file']} at byte {part['offset']:,}" if part["file"] else "not stored in a file"
            rows.append((part["shape"], part["dtype"], "", format_bytes(part["size"]), f"  {part['role']}: {where}"))
    if terminal_width() < NARROW:
        facts = ("  ".join(str(cell) for cell in row[:-1] if cell) for row in rows)
        return [line for row, text in zip(rows, facts) for line in (str(row[-1]), f"  {text}")]
    return table(("shape", "stored as", "bits", "size", "name"), "<<>><", rows)


def parts(tensor: Tensor) -> list[dict[str, Any]]:
    """Return the stored parts of a tensor's first encoding, with the offset of each."""
    files, encodings = tensor.file.index.files, tensor.spec.encodings[:1]
    stored = {role: part for encoding in encodings for role, part in encoding.parts.items()} | dict(tensor.spec.extras)
    return [
        {
            "role": role,
            "dtype": part.dtype,
            "shape": list(part.shape),
            "size": part.stored,
            "file": files[part.segments[0].file].name if part.segments else None,
            "offset": part.segments[0].offset if part.segments else None,
        }
        for role, part in stored.items()
    ]


def total(file: File, tensors: Sequence[Tensor]) -> str:
    """Return the totals of the listed tensors, tied tensors counted once."""
    from squish_core.text import counted, format_bytes

    untied = [tensor for tensor in tensors if tensor.spec.tied_to is None]
    elements, nbytes = sum(tensor.size for tensor in untied), sum(tensor.nbytes for tensor in untied)
    name = with_link(file.name, link_of(file.path))
    if not tensors:
        return f"no tensors in {name}"
    bits = f"{format_bytes(nbytes)}, {8 * nbytes / elements if elements else 0:.2f} bits each"
    return f"{counted(len(tensors), 'tensor')} in {name}: {counted(elements, 'parameter')}, {bits}"


def info(
    file: FileName,
    patterns: Patterns = None,
    meta: Annotated[str | None, typer.Option("--meta", metavar="KEY", help="Print one metadata value in full.")] = None,
    by: Annotated[
        str | None, typer.Option("--by", metavar="|".join(WAYS), help="Print the sizes of tensors by this instead.")
    ] = None,
    format: Format = None,  # noqa: A002
    assets: Assets = None,
) -> Answer:
    """Summarize a file, or the values of some of its tensors.

    Shows the format, sizes, encodings, metadata, assets, problems, components (text, vision, audio, mtp) and the
    models it was made from, from the header alone. With PATTERN, decodes the matching tensors and shows their
    extremes, mean, standard deviation, outliers and zeros; for a single tensor, also quantiles and how its magnitudes
    are distributed. With --by, sums sizes by layer, by kind of tensor or by type of storage.
    """
    from squish_convert.components import components
    from squish_convert.lineage import lineage, lineage_lines

    from squish_core.display import to_json
    from squish_core.opening import open as open_file
    from squish_core.text import counted

    if patterns and meta is not None:
        raise UsageError("--meta and PATTERN cannot be combined", code=ErrorCode.USAGE, hint="Omit one of them.")
    if by is not None and (by not in WAYS or patterns or meta is not None):
        message = "--by takes neither PATTERN nor --meta" if by in WAYS else "no such --by"
        raise UsageError(message, found=repr(by), expected=", ".join(WAYS), code=ErrorCode.USAGE)
    with open_file(file, format, assets=assets) as opened:
        if by is not None:
            return sizes_by(opened, by)
        if patterns:
            return statistics_of(opened, matching_tensors(opened, patterns))
        if meta is not None:
            return metadata_value(opened, meta)
        summary, parts, ancestors = opened.summary(), components(opened), lineage(opened)
        sizes = {part: len(names) for part, names in parts.items()}
        listed = ", ".join(f"{part} ({counted(size, 'tensor')})" for part, size in sizes.items())
        lines = [*summary.lines(), *(["", f"components: {listed}"] if sizes else [])]
        lines += ["", "made from", *(f"  {line}" for line in lineage_lines(ancestors))] if ancestors else []
        return Answer({**summary.to_dict(), "components": sizes, "lineage": to_json(ancestors)}, lines)


def sizes_by(file: File, by: str) -> Answer:
    """Sizes of the tensors by layer, kind or type."""
    from squish_convert.places import groups

    from squish_core.text import format_bytes

    found = groups(file, by)
    whole = sum(group.size for group in found) or 1
    rows = []
    for group in found:
        size, share = format_bytes(group.size), f"{group.size / whole:.1%}"
        rows.append((group.name, f"{group.tensors:,}", f"{group.parameters:,}", size, share, f"{group.bits:.2f}"))
    data = {"file": file.name, "format": file.format, "by": by, "groups": [group.to_dict() for group in found]}
    lines = table((by, "tensors", "parameters", "size", "share", "bits"), "<>>>>>", rows)
    return Answer(data, [*lines, total(file, list(file.values()))])


def metadata_value(file: File, key: str) -> Answer:
    """One metadata value, not shortened."""
    from squish_core.display import to_json
    from squish_core.text import did_you_mean

    metadata = file.metadata
    if key not in metadata:
        raise SquishError(
            "no such metadata key",
            file=file.name,
            found=repr(key),
            code="meta",
            hint=did_you_mean(key, metadata) or "`squish info` lists the keys.",
        )
    value = to_json(metadata[key])
    lines = value.split("\n") if isinstance(value, str) else value if isinstance(value, list) else [value]
    data = {"file": file.name, "format": file.format, "key": key, "value": value}
    return Answer(data, [str(line) for line in lines], verbatim=True)


def statistics_of(file: File, tensors: Sequence[Tensor]) -> Answer:
    """Statistics of each tensor, with counts by magnitude if there is only one."""
    from squish_convert.statistics import COLUMNS, magnitudes, quantile_lines, statistics_row

    pairs = [(tensor, tensor.statistics()) for tensor in tensors]
    data = [
        {"name": tensor.name, "shape": tensor.shape, "dtype": tensor.dtype, "codec": tensor.codec, **stats.to_dict()}
        for tensor, stats in pairs
    ]
    rows = [(*statistics_row(stats), tensor.name) for tensor, stats in pairs]
    lines = table((*COLUMNS, "name"), ">" * len(COLUMNS) + "<", rows)
    if len(pairs) == 1:
        lines += [*quantile_lines(pairs[0][1]), "", *magnitudes(pairs[0][1])]
    return Answer({"file": file.name, "format": file.format, "tensors": data}, lines)


def plan(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="A file of weights, or a model's folder. Without it, resolves --format and --feature.",
        ),
    ] = None,
    patterns: Patterns = None,
    format: Format = None,  # noqa: A002
    feature: Annotated[
        list[str] | None,
        typer.Option("--feature", metavar="NAME=VALUE", help="Without FILE: a feature of the format. Repeatable."),
    ] = None,
    backend: Backend = None,
    prefer: Prefer = "spec",
    op: Op = None,
    html: HtmlPage = None,
) -> Answer:
    """Show how tensors would run on this machine, and why.

    For each tensor, shows the chosen container, codec and backend, and why the others were not chosen. Reads no tensor
    data, unless options of the backend ask for it.
    """
    check_page(html)
    if html is not None and file is None:
        raise UsageError("--html needs a FILE", code=ErrorCode.USAGE, hint="See `squish plan --help`.")
    if file is None:
        return plan_features(format, feature or [], prefer, op, backend)
    if feature:
        raise UsageError("--feature and FILE cannot be combined", code=ErrorCode.USAGE, hint="Omit one of them.")
    from squish_core.backends.plan import plan_tensors
    from squish_core.opening import open as open_file

    with open_file(file, format) as opened:
        specs = [tensor.spec for tensor in matching_tensors(opened, patterns)]
        plan = plan_tensors(
            opened.registry, opened.name, opened.index, specs, opened.bind, backend=backend, policy=prefer, op=op
        )
        errors = plan.errors
        if len(plan) == 1 and errors:
            raise next(iter(errors.values()))
        runs = plan.mode != "none" or not len(plan)
        pending = opened.index.pending_caches
        lines = [f"caches: the first load builds {', '.join(pending)}"] if pending else []
        data = {**plan.to_dict(), "pending_caches": list(pending)}
        answer = Answer(data, [*lines, *plan.explain().split("\n")], 0 if runs else 2)
    if html is not None:
        from . import sections
        from .pages import last, write_result

        parts = [sections.plan(plan), sections.listed("Tensors", plan)]
        write_result(html, last(plan.target), parts, "plan", answer)
    return answer


def plan_features(
    format_id: str | None, features: Sequence[str], policy: str, op: str | None, backend: str | None = None
) -> Answer:
    """Return the chain for a format's features, without a file."""
    from squish_core.plugins.registry import registry

    if format_id is None:
        raise UsageError(
            "pass a FILE, or --format and --feature", code=ErrorCode.USAGE, hint="See `squish plan --help`."
        )
    values: dict[str, set[str]] = {}
    for text in features:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise UsageError("invalid --feature", expected="NAME=VALUE", found=repr(text), code=ErrorCode.USAGE)
        values.setdefault(name, set()).add(value)
    arguments = {name: next(iter(chosen)) if len(chosen) == 1 else chosen for name, chosen in values.items()}
    chain = registry().resolve(container=format_id, policy=policy, op=op, backend=backend, **arguments)
    return Answer(chain.to_dict(), chain.explain().split("\n"))


def matching_tensors(file: File, patterns: Sequence[str] | None) -> list[Tensor]:
    """Return the tensors whose names match any pattern; all of them without patterns."""
    from fnmatch import fnmatchcase

    from squish_convert.rules import check_patterns

    names = [name for name in file if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)]
    if patterns and not names:
        check_patterns(patterns, file, file.name)
    return [file[name] for name in names]


def label(tensor: Tensor) -> str:
    """Return a tensor's name, with a note if it is tied or unreadable."""
    notes = [f"same bytes as {tensor.spec.tied_to}"] if tensor.spec.tied_to else []
    notes += [f"unreadable: {tensor.spec.problem}"] if tensor.spec.problem else []
    return f"{tensor.name}  ({'; '.join(notes)})" if notes else tensor.name
