"""`squish card FILE`: a Markdown block that describes a file in its model card."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from attrs import asdict, frozen

from squish_core.errors import SquishError, redact
from squish_core.plugins import catalog
from squish_core.text import escape, format_bytes
from squish_core.version import __version__

from .options import FileName, Format, Quiet
from .output import Answer, Progress

if TYPE_CHECKING:
    from squish_convert.compare.diff import Difference

    from squish_core.file import File
    from squish_core.summary import Summary

HUB = re.compile(r"hf://(?:models/)?([^/@]+/[^/@]+)")
MOST_RULES = 12
"""Number of rules above which a command says less than the table of types."""


@frozen
class CardFile:
    """A file of the model: its name, its size in bytes and its SHA-256, None where it is not on this machine."""

    file: str
    size: int
    sha256: str | None


@frozen
class CardErrors:
    """Errors of the tensors with one kind of storage: median and worst NMSE, largest error, least cosine."""

    stored_as: str
    tensors: int
    nmse: float
    worst_nmse: float
    max_error: float
    cosine: float


def card(
    file: FileName,
    base: Annotated[
        str | None,
        typer.Option("--base", metavar="SRC", help="What the file was made from: adds errors and the command."),
    ] = None,
    command: Annotated[
        str | None, typer.Option("--command", metavar="TEXT", help="The command that made the file, if it is known.")
    ] = None,
    format: Format = None,  # noqa: A002
    quiet: Quiet = False,
) -> Answer:
    """Describe a file in Markdown, for its model card.

    Prints the metadata block of Hugging Face's cards, the files with their SHA-256, and the types of the tensors with
    their sizes. With --base also the errors against it, and the command that makes such a file from it, if one does.
    """
    import squish_core as squish

    with squish.open(file, format) as opened:
        summary, files = opened.summary(), list(files_of(opened))
        rows: list[CardErrors] = []
        same = 0
        if base is not None:
            with Progress("comparing", quiet) as progress, squish.open(base) as original:
                difference = squish.diff(original, opened, progress=progress)
                rows, same = errors_of(difference)
                command = command or command_of(opened, original, redact(file), redact(base))
    file, base = redact(file), base and redact(base)
    lines = [*front_matter(summary, base), *file_lines(summary, files), *type_lines(summary)]
    lines += [*error_lines(base, rows, same), *command_lines(command)] if base or command else []
    data = {
        "file": file,
        "format": summary.format,
        "base": base,
        "files": [asdict(each) for each in files],
        "errors": [asdict(each) for each in rows],
        "command": command,
        "markdown": "\n".join(lines),
    }
    return Answer(data, lines, verbatim=True)


def files_of(opened: File) -> Iterator[CardFile]:
    """Yield the files of a model, with digests of those on this machine."""
    from hashlib import file_digest

    folder = None if opened.path is None else opened.path if opened.path.is_dir() else opened.path.parent
    for each in opened.summary().files:
        path = None if folder is None else folder / each.file
        digest = None
        if path is not None and path.is_file():
            with path.open("rb") as stream:
                digest = file_digest(stream, "sha256").hexdigest()
        yield CardFile(file=each.file, size=each.size, sha256=digest)


def errors_of(difference: Difference) -> tuple[list[CardErrors], int]:
    """Return the errors of each kind of storage, and the number of tensors with equal values."""
    kinds: dict[str, list[Any]] = {}
    for item in difference.tensors:
        if item.state == "differs" and item.nmse is not None:
            kinds.setdefault(item.b.partition(" ")[0], []).append(item)
    rows = [
        CardErrors(
            stored_as=kind,
            tensors=len(items),
            nmse=median(item.nmse for item in items),
            worst_nmse=max(item.nmse for item in items),
            max_error=max(item.max_error for item in items),
            cosine=min(item.cosine for item in items),
        )
        for kind, items in kinds.items()
    ]
    return rows, sum(item.state in ("bytes", "values") for item in difference.tensors)


def command_of(opened: File, original: File, file: str, base: str) -> str | None:
    """Return the command that makes a file with these types from its base; None if none is found that does."""
    with TemporaryDirectory() as folder:
        target = Path(folder) / Path(file).name
        for naming in (None, "keep"):
            rules = rules_for(opened, original, target, naming)
            if rules is not None:
                suffix = next((end for end in catalog.suffixes() if file.endswith(end)), "")
                words = ["squish", "convert", base, file]
                words += [] if catalog.suffixes().get(suffix) == opened.format else ["--to", opened.format]
                words += [*(word for rule in rules for word in ("--encode", rule))]
                return shlex.join([*words, *(["--names", naming] if naming else [])])
    return None


def rules_for(opened: File, original: File, target: Path, naming: str | None) -> list[str] | None:
    """Return the rules of `--encode` under which a plan has the types of a file; None if they do not suffice."""
    import squish_core as squish

    encodings = {name: encoding_of(spec) for name, spec in opened.index.tensors.items()}
    weights: dict[str, int] = {}
    for name, spec in opened.index.tensors.items():
        weights[encodings[name]] = weights.get(encodings[name], 0) + spec.elements
    rules = [max(weights, key=lambda each: weights[each])] if weights else []
    for _ in range(2):
        try:
            plan = squish.convert(original, target, opened.format, rules, dry_run=True, rename=naming)
        except SquishError:
            return None
        steps = {step.written: step for step in plan.steps}
        if steps.keys() != encodings.keys():
            return None
        by_name = {step.name: encodings[name] for name, step in steps.items()}
        others = [step.name for name, step in steps.items() if encoding_of(step.spec) != encodings[name]]
        if not others:
            return rules
        rules = [*rules[:1], *dict.fromkeys(f"{_pattern(name, by_name)}={by_name[name]}" for name in others)]
        if len(rules) > MOST_RULES:
            return None
    return None


def encoding_of(spec: Any) -> str:
    """Return the encoding of a tensor as `--encode` takes it."""
    codec = spec.encodings[0].codec if spec.encodings else None
    if codec is None:
        return ""
    return str(spec.dtype if codec.id == "dense" else codec)


def _pattern(name: str, encodings: Mapping[str, str]) -> str:
    """Return the pattern for a tensor in every layer, or its name if a layer has it in another encoding."""
    pattern = re.sub(r"(?<=\.)\d+(?=\.)", "*", name)
    alike = {encoding for other, encoding in encodings.items() if fnmatchcase(other, pattern)}
    return pattern if alike == {encodings[name]} else name


def front_matter(summary: Summary, base: str | None) -> Iterator[str]:
    """Yield the metadata block, which Hugging Face's cards begin with."""
    yield "---"
    if base and (match := HUB.match(base)):
        yield from (f"base_model: {match[1]}", "base_model_relation: quantized")
    yield from ("tags:", f"- {summary.format}", "- squish", "---", "")


def file_lines(summary: Summary, files: Sequence[CardFile]) -> Iterator[str]:
    """Yield the files with their digests."""
    yield from (f"## Files ({f'{summary.format} {summary.version}'.strip()})", "")
    rows = [(code(each.file), format_bytes(each.size), code(each.sha256) if each.sha256 else "") for each in files]
    yield from table(("file", "size", "SHA-256"), "<><", rows)


def type_lines(summary: Summary) -> Iterator[str]:
    """Yield the kinds of storage with their sizes."""
    yield from ("", "## Types", "")
    kinds = [(code(k.stored_as), k.tensors, k.parameters, k.size, k.bits) for k in summary.codecs]
    size = sum(kind.size for kind in summary.codecs)
    rows = [*kinds, ("all", summary.tensors, summary.parameters, size, summary.bits)]
    shown = [(name, f"{n:,}", f"{count:,}", format_bytes(size), f"{bits:.2f}") for name, n, count, size, bits in rows]
    yield from table(("stored as", "tensors", "parameters", "size", "bits per weight"), "<>>>>", shown)


def error_lines(base: str | None, rows: Sequence[CardErrors], same: int) -> Iterator[str]:
    """Yield the errors against the base."""
    if base is None:
        return
    yield from ("", f"## Errors against {code(base)}", "")
    if rows:
        columns = ("stored as", "tensors", "median NMSE", "largest NMSE", "largest error", "least cosine")
        numbers = [(each.nmse, each.worst_nmse, each.max_error) for each in rows]
        cells = [
            (code(row.stored_as), f"{row.tensors:,}", *(f"{value:.3g}" for value in three), f"{row.cosine:.6f}")
            for row, three in zip(rows, numbers)
        ]
        yield from (*table(columns, "<>>>>>", cells), "")
        yield "NMSE is |a-b|² / |a|²."
    yield f"Tensors with equal values: {same:,}."


def command_lines(command: str | None) -> Iterator[str]:
    """Yield the command that makes the file."""
    if command:
        yield from ("", "## Made with", "", "```sh", escape(command), "```")
    yield from ("", f"Described by squish-core {__version__}.")


def table(header: Sequence[str], align: str, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table in Markdown."""
    marks: Mapping[str, str] = {"<": "---", ">": "---:"}
    for row in (header, [marks[each] for each in align], *rows):
        yield f"| {' | '.join(row)} |"


def code(text: str) -> str:
    """Return a name as code in a cell; names come from files, so what would end it is replaced."""
    return f"`{escape(text).replace('`', chr(39)).replace('|', '/')}`"
