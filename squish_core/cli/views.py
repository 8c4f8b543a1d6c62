"""Commands that look into a file: ls, info, plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from squish_core.cli.options import Assets, FileName, Format, Json, Patterns
from squish_core.cli.output import Answer, table
from squish_core.cli.summaries import one_value, stored_as, summary, summary_lines
from squish_core.cli.values import values
from squish_core.errors import SquishError, UsageError
from squish_core.text import escape

if TYPE_CHECKING:
    from squish_core.backends.chain import Chain
    from squish_core.file import File
    from squish_core.tensor import Tensor


def ls(
    file: FileName,
    patterns: Patterns = None,
    format: Format = None,  # noqa: A002
    assets: Assets = None,
    json: Json = False,
) -> Answer:
    """List the tensors of a file.

    Shows shape, dtype or codec, bits per weight and size of each. Reads the header only.
    """
    from squish_core.opening import open as open_file
    from squish_core.text import format_bytes

    with open_file(file, format, assets=assets) as opened:
        tensors = chosen(opened, patterns)
        data = [
            {
                "name": tensor.name, "shape": tensor.shape, "dtype": tensor.dtype, "codec": tensor.codec,
                "bits_per_weight": tensor.bits_per_weight, "nbytes": tensor.nbytes,
                "tied_to": tensor.spec.tied_to, "problem": tensor.spec.problem,
            }
            for tensor in tensors
        ]  # fmt: skip
        rows = [
            (list(item.shape), stored_as(item), f"{item.bits_per_weight:.2f}", format_bytes(item.nbytes), label(item))
            for item in tensors
        ]  # fmt: skip
        lines = table(("shape", "stored as", "bits", "size", "name"), "<<>><", rows)
        return Answer({"file": opened.name, "format": opened.format, "tensors": data}, lines or ["no tensors"])


def info(
    file: FileName,
    patterns: Patterns = None,
    meta: Annotated[str | None, typer.Option("--meta", metavar="KEY", help="Print one metadata value whole.")] = None,
    format: Format = None,  # noqa: A002
    assets: Assets = None,
    json: Json = False,
) -> Answer:
    """Sum up a file, or the values of some of its tensors.

    Shows format, sizes, what the tensors are stored as, metadata, assets and problems, and reads the header only. With
    PATTERNs it decodes those tensors and shows extremes and zeros; of one alone, how many values have which magnitude.
    """
    from squish_core.opening import open as open_file

    if patterns and meta is not None:
        raise UsageError("--meta is for the file, not for tensors", code="usage", hint="Leave out one of them.")
    with open_file(file, format, assets=assets) as opened:
        if patterns:
            return values(opened.name, chosen(opened, patterns))
        if meta is not None:
            return one_value(opened, meta)
        data = summary(opened)
        return Answer(data, list(summary_lines(data, opened)))


def plan(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="A weights file; without one, --format and --feature.")
    ] = None,
    patterns: Patterns = None,
    format: Format = None,  # noqa: A002
    feature: Annotated[
        list[str] | None,
        typer.Option("--feature", metavar="NAME=VALUE", help="A feature of the format, without a file; repeatable."),
    ] = None,
    backend: Annotated[
        str | None, typer.Option("--backend", metavar="ID", help="Ask only this one; ID[:key=value].")
    ] = None,
    policy: Annotated[str, typer.Option("--policy", help="What to prefer: spec, smallest or exact.")] = "spec",
    op: Annotated[
        str | None, typer.Option("--op", help="What for: linear, embed, experts or dense. By rank if not given.")
    ] = None,
    json: Json = False,
) -> Answer:
    """Explain how tensors would be run here.

    Names the chain chosen for each - container, codec, backend - and why not the others. Reads no tensor data.
    """
    if file is None:
        return plan_features(format, feature or [], policy, op, backend)
    if feature:
        raise UsageError("--feature is for asking without a FILE", code="usage", hint="Leave out one of them.")
    from squish_core.opening import open as open_file

    with open_file(file, format) as opened:
        found = [planned(tensor, backend, policy, op) for tensor in chosen(opened, patterns)]
        failed = [item for item in found if isinstance(item, SquishError)]
        if len(found) == 1 and failed:
            raise failed[0]
        data = [
            {"target": item.tensor, "error": str(item)} if isinstance(item, SquishError) else item.to_dict()
            for item in found
        ]
        return Answer({"file": opened.name, "tensors": data}, grouped(found), 2 if len(failed) == len(found) > 0 else 0)


def plan_features(
    format_id: str | None, features: Sequence[str], policy: str, op: str | None, backend: str | None = None
) -> Answer:
    """The chain for a format's features, without a file."""
    from squish_core.plugins.registry import registry

    if format_id is None:
        raise UsageError("give a FILE, or --format and --feature", code="usage", hint="See `squish plan --help`.")
    values: dict[str, set[str]] = {}
    for text in features:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise UsageError("a feature cannot be read", expected="NAME=VALUE", found=repr(text), code="usage")
        values.setdefault(name, set()).add(value)
    wanted = {name: next(iter(given)) if len(given) == 1 else given for name, given in values.items()}
    chain = registry().resolve(container=format_id, policy=policy, op=op, backend=backend, **wanted)
    return Answer(chain.to_dict(), chain.explain().split("\n"))


def chosen(file: File, patterns: Sequence[str] | None) -> list[Tensor]:
    """The tensors whose name matches any of the patterns; all without one."""
    from fnmatch import fnmatchcase

    from squish_core.conversion.rules import check_patterns

    names = [name for name in file if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)]
    if patterns and not names:
        check_patterns(patterns, file, file.name)
    return [file[name] for name in names]


def label(tensor: Tensor) -> str:
    """The name and what is special about the tensor."""
    notes = [f"same bytes as {tensor.spec.tied_to}"] if tensor.spec.tied_to else []
    notes += [f"unreadable: {tensor.spec.problem}"] if tensor.spec.problem else []
    return f"{tensor.name}  ({'; '.join(notes)})" if notes else tensor.name


def planned(tensor: Tensor, backend: str | None, policy: str, op: str | None) -> Chain | SquishError:
    """The chain of a tensor, or why there is none; a wrong option is raised."""
    try:
        return tensor.plan(backend, policy=policy, op=op)
    except SquishError as error:
        if error.code in ("policy", "op", "backend", "not-installed"):
            raise
        return error.within(tensor=tensor.name)


def grouped(found: Iterable[Chain | SquishError]) -> list[str]:
    """Explanations; tensors that are handled alike share one, and backends that cannot run here are told once."""
    from attrs import evolve

    groups: dict[str, list[str]] = {}
    absent: dict[str, str] = {}
    for item in found:
        if isinstance(item, SquishError):
            groups.setdefault(f"  none     {escape(item.message)}", []).append(item.tensor or "")
            continue
        lacking = [refused for refused in item.refused if refused.encoding is None and refused.backend]
        for refused in lacking:
            why = f"is not installed ({refused.install})" if refused.install else f"cannot run here: {refused.why}"
            absent[str(refused.backend)] = why
        rest = tuple(refused for refused in item.refused if refused not in lacking)
        groups.setdefault(evolve(item, refused=rest).explain().partition("\n")[2], []).append(item.target)
    lines = []
    for text, names in groups.items():
        lines += [names[0] + (f" and {len(names) - 1} more like it" if len(names) > 1 else ""), *text.split("\n"), ""]
    lines += [f"backend {name} {why}" for name, why in absent.items()]
    return lines if absent else lines[:-1] or ["no tensors"]
