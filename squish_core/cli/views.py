"""Commands that look into a file: ls, info, plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from squish_core.cli.options import Assets, FileName, Format, Json, Patterns
from squish_core.cli.output import Answer, counted, plain_data, table
from squish_core.cli.values import values
from squish_core.errors import SquishError, escape

if TYPE_CHECKING:
    from squish_core.handles import File
    from squish_core.resolver import Chain
    from squish_core.tensors import Tensor

MOST_FILES = 16
"""Files that `info` shows to people."""
LONG = 64
"""Longest metadata value or list that is shown whole: characters for people, items in JSON."""


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
    from squish_core.handles import open as open_file
    from squish_core.resolver import human

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
            (list(item.shape), stored_as(item), f"{item.bits_per_weight:.2f}", human(item.nbytes), label(item))
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
    from squish_core.handles import open as open_file

    if patterns and meta is not None:
        raise SquishError("--meta is for the file, not for tensors", code="usage", hint="Leave out one of them.")
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
    op: Annotated[str, typer.Option("--op", help="What for: dense, linear, embed or experts.")] = "linear",
    json: Json = False,
) -> Answer:
    """Explain how tensors would be run here.

    Names the chain chosen for each - container, codec, backend - and why not the others. Reads no tensor data.
    """
    if file is None:
        return plan_features(format, feature or [], policy, op, backend)
    if feature:
        raise SquishError("--feature is for asking without a FILE", code="usage", hint="Leave out one of them.")
    from squish_core.handles import open as open_file

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
    format_id: str | None, features: Sequence[str], policy: str, op: str, backend: str | None = None
) -> Answer:
    """The chain for a format's features, without a file."""
    from squish_core.plugins import registry

    if format_id is None:
        raise SquishError("give a FILE, or --format and --feature", code="usage", hint="See `squish plan --help`.")
    values: dict[str, set[str]] = {}
    for text in features:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise SquishError("a feature cannot be read", expected="NAME=VALUE", found=repr(text), code="usage")
        values.setdefault(name, set()).add(value)
    wanted = {name: next(iter(given)) if len(given) == 1 else given for name, given in values.items()}
    chain = registry().resolve(container=format_id, policy=policy, op=op, backend=backend, **wanted)
    return Answer(chain.to_dict(), chain.explain().split("\n"))


def chosen(file: File, patterns: Sequence[str] | None) -> list[Tensor]:
    """The tensors whose name matches any of the patterns; all without one."""
    from fnmatch import fnmatchcase

    from squish_core.recipes import check_patterns

    names = [name for name in file if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)]
    if patterns and not names:
        check_patterns(patterns, file, file.name)
    return [file[name] for name in names]


def stored_as(tensor: Tensor) -> str:
    """The dtype of a dense tensor, else the codec, with the width of its codes where it has several."""
    if tensor.codec == "dense":
        return tensor.dtype
    params = tensor.spec.encodings[0].codec.params if tensor.spec.encodings else {}
    return f"{tensor.codec}:bits={params['bits']}" if "bits" in params else tensor.codec


def label(tensor: Tensor) -> str:
    """The name and what is special about the tensor."""
    notes = [f"same bytes as {tensor.spec.tied_to}"] if tensor.spec.tied_to else []
    notes += [f"unreadable: {tensor.spec.problem}"] if tensor.spec.problem else []
    return f"{tensor.name}  ({'; '.join(notes)})" if notes else tensor.name


def summary(file: File) -> dict[str, Any]:
    """What `info` tells, as plain data."""
    index, counts = file.index, dict[str, dict[str, Any]]()
    for tensor in map(file.__getitem__, file):
        entry = counts.setdefault(
            stored_as(tensor),
            {"stored_as": stored_as(tensor), "tensors": 0, "parameters": 0, "nbytes": 0, "lacks": None},
        )
        entry["tensors"] += 1
        if tensor.spec.tied_to is None:
            entry["parameters"] += tensor.spec.elements
            entry["nbytes"] += tensor.nbytes
        missing = [file.registry.missing(encoding) for encoding in tensor.spec.encodings]
        if missing and all(missing) and entry["lacks"] is None:
            entry["lacks"] = missing[0].install or missing[0].why  # type: ignore[union-attr]
    codecs = sorted(counts.values(), key=lambda entry: -entry["nbytes"])
    for entry in codecs:
        entry["bits_per_weight"] = 8 * entry["nbytes"] / entry["parameters"] if entry["parameters"] else 0.0
    parameters, nbytes = (sum(entry[key] for entry in codecs) for key in ("parameters", "nbytes"))
    return {
        "file": file.name, "format": file.format, "version": file.version, "kind": index.kind,
        "files": [{"name": ref.name, "size": ref.size, "digest": ref.digest} for ref in index.files],
        "size": file.size, "packed": packed(file), "tensors": len(file), "parameters": parameters,
        "bits_per_weight": 8 * nbytes / parameters if parameters else 0.0, "codecs": codecs,
        "meta": {key: brief(value) for key, value in file.meta.items()},
        "assets": {name: part.nbytes for name, part in index.assets.items()}, "caches": list(index.caches),
        "sections": index.attrs.get("sections", []),
        "whole": [str(encoding.codec) for encoding in index.whole],
        "children": {
            name: {"kind": child.kind, "tensors": len(child.tensors)} for name, child in index.children.items()
        },
        "problems": [
            {"severity": p.severity, "code": p.code, "where": p.where, "message": p.message} for p in index.problems
        ],
    }  # fmt: skip


def packed(file: File) -> dict[str, Any] | None:
    """With what, and to how many bytes, the files are compressed whole; None when they are not."""
    if file.source.packed is None:
        return None
    sources = [file.file(number) for number in range(len(file.index.files))]
    size = sum(source.packed[1] if source.packed else source.size for source in sources)
    return {"codec": file.source.packed[0], "size": size}


def summary_lines(data: dict[str, Any], file: File) -> Iterable[str]:
    """What `info` tells, for people."""
    from squish_core.resolver import human

    version = f" {data['version']}" if data["version"] else ""
    kind = f" ({data['kind']})" if data["kind"] != "model" else ""
    if data["packed"]:
        unpacked = f" unpacked, {human(data['packed']['size'])} compressed with {data['packed']['codec']},"
    else:
        unpacked = ""
    facts = [
        ("format", f"{data['format']}{version}{kind}"),
        ("size", f"{human(data['size'])}{unpacked} in {counted(len(data['files']), 'file')}"),
        ("tensors", f"{data['tensors']:,}"),
        ("parameters", f"{data['parameters']:,} at {data['bits_per_weight']:.2f} bits each"),
        *([("caches", f"{', '.join(data['caches'])} (the first is used)")] if data["caches"] else []),
    ]
    yield from table(("file", escape(data["file"])), "<<", facts)
    if len(data["files"]) > 1:
        shown = data["files"][:MOST_FILES]
        yield from ("", "files", *(f"  {human(ref['size']):>8}  {ref['name']}" for ref in shown))
        if more := len(data["files"]) - len(shown):
            yield f"            and {more:,} more (--json lists them)"
    rows = [
        (entry["stored_as"], f"{entry['tensors']:,}", f"{entry['parameters']:,}", human(entry["nbytes"]),
         f"{entry['bits_per_weight']:.2f}", f"cannot be decoded here: {entry['lacks']}" if entry["lacks"] else "")
        for entry in data["codecs"]
    ]  # fmt: skip
    yield from section("", table(("stored as", "tensors", "parameters", "size", "bits", ""), "<>>>><", rows))
    meta = [(key, shortened(fewest_digits(file.index.meta[key], value))) for key, value in file.meta.items()]
    yield from section("metadata", table(("", ""), "<<", meta, "  ")[1:])
    places = [(part["offset"], part["size"], part["kind"], part["holds"]) for part in data["sections"]]
    yield from section("", table(("offset", "bytes", "section", "holds"), ">><<", places))
    yield from section("assets", [f"  {human(size):>8}  {name}" for name, size in data["assets"].items()])
    yield from section("encodings of the whole model", [f"  {codec}" for codec in data["whole"]])
    children = [
        f"  {name}: {child['kind']}, {counted(child['tensors'], 'tensor')}" for name, child in data["children"].items()
    ]
    yield from section("children", children)
    yield from section("problems", [f"  {p['severity']}: {p['where']}: {p['message']}" for p in data["problems"]])


def section(title: str, lines: Sequence[str]) -> list[str]:
    """Lines under a title after an empty line; nothing when there are none."""
    return ["", *([title] if title else []), *lines] if lines else []


def one_value(file: File, key: str) -> Answer:
    """One metadata value, whole."""
    if key not in file.meta:
        import difflib

        near = difflib.get_close_matches(key, file.meta, 3, 0.5)
        raise SquishError(
            "has no such metadata", file=file.name, found=repr(key), code="meta",
            hint=f"Near: {', '.join(near)}." if near else "`squish info` lists the keys.",
        )  # fmt: skip
    value = plain_data(file.meta[key])
    lines = value.split("\n") if isinstance(value, str) else value if isinstance(value, list) else [value]
    return Answer(value, [str(line) for line in lines])


def brief(value: Any) -> Any:
    """A metadata value for JSON: a long array is only counted (`--meta` prints it)."""
    size = len(value) if hasattr(value, "__len__") and not isinstance(value, (str, bytes, dict)) else 0
    return {"length": size} if size > LONG else value


def fewest_digits(stored: Any, value: Any) -> Any:
    """A metadata value, an f32 as text of the fewest digits that mean it."""
    if getattr(stored, "type", None) != "f32":
        return value
    import numpy as np

    return str(np.float32(value))


def shortened(value: Any) -> str:
    """A metadata value in a line."""
    if hasattr(value, "__len__") and not isinstance(value, (str, bytes, dict)) and len(value) <= LONG:
        value = list(value)
    value = plain_data(value) if not isinstance(value, list) else plain_data(value[:LONG]) + value[LONG:]
    if isinstance(value, list):
        text = ", ".join(str(item) for item in value[:LONG])
        return f"[{text}]" if len(text) <= LONG >= len(value) else f"[{text[: LONG - 16]}...] {len(value):,} values"
    text = str(value)
    return text if len(text) <= LONG else f"{text[: LONG - 16]}... {len(text):,} characters"


def planned(tensor: Tensor, backend: str | None, policy: str, op: str) -> Chain | SquishError:
    """The chain of a tensor, or why there is none; a wrong option is raised."""
    try:
        return tensor.chain(backend, policy=policy, op=op)
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
