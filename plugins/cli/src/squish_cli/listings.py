"""Commands that list what is installed and what is not: formats, codecs, backends, plugins, matrix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from squish_core.codes import ErrorCode
from squish_core.display import table
from squish_core.errors import UsageError
from squish_core.plugins import catalog
from squish_core.plugins.hookspecs import PLURALS
from squish_core.text import did_you_mean

from .options import Op
from .output import Answer
from .tables import read

if TYPE_CHECKING:
    from squish_core.plugins.entries import Entry
    from squish_core.plugins.hookspecs import BackendInfo, ContainerInfo
    from squish_core.plugins.registry import Registry

Only = Annotated[str | None, typer.Argument(metavar="NAME", help="Show only this one.")]
FormatId = Annotated[str | None, typer.Argument(metavar="ID", help="Show one format in detail.")]
FAMILY = 6
"""Number of ids with a common prefix above which only their count is summarize."""
_SINGULAR = {many: one for one, many in PLURALS.items()}


def formats(format_id: FormatId = None) -> Answer:
    """List the file formats, or show one in detail.

    ID shows the options for `--to` and `--format`, the features for `plan`, and the short names for `--encode`.
    """
    from squish_core.plugins.registry import registry

    containers = registry().containers
    if format_id is not None:
        if format_id not in containers:
            registry().container(format_id)  # raises with the package to install
        data = containers[format_id].to_dict()
        return Answer({"formats": [data], "missing": {}}, one_format(data))

    def row(entry: Entry[ContainerInfo]) -> tuple[object, ...]:
        info = entry.info
        return info.id, "read, write" if info.can_write else "read", info.title, " ".join(info.suffixes) or "-"

    return listing("container", ("id", "can", "title", "suffixes"), map(row, containers.values()))


def matrix(
    format_id: Annotated[str, typer.Argument(metavar="ID", help="The format.")],
    backend: Annotated[
        list[str] | None,
        typer.Option("--backend", metavar="ID[:key=value]", help="Only this backend as a column. Repeatable."),
    ] = None,
    op: Op = None,
) -> Answer:
    """Show what runs each combination of a format's features.

    Each row is a combination, such as a word of flags; each column a backend, `any` the choice among all of them. A
    cell has the mode, and the encoding if it is not the row's; "-": nothing runs it, and --json says why.
    """
    from squish_core.plugins.registry import registry

    answers = registry().matrix(format_id, backends=backend or None, op=op)
    return Answer(answers.to_dict(), answers.lines())


def codecs(name: Only = None) -> Answer:
    """List the codecs.

    `squish convert --encode` takes ids and short names, also of allocators. NAME may be an id, a prefix of ids such as
    ggml, or a short name.
    """
    from squish_core.plugins.registry import registry

    rows, encoders = [], registry().encoders
    for entry in registry().codecs.values():
        info = entry.info
        other = encoders[info.id].info if info.id in encoders else info
        kind = f"{'lossless' if info.lossless else 'lossy'}{', bytes' if info.kind == 'bytes' else ''}"
        kind = "whole model" if info.kind == "whole" else kind
        rows.append((info.id, kind, info.title, " ".join({**info.aliases, **other.aliases})))
    answer = listing("codec", ("id", "kind", "title", "short names"), rows, name=name)
    allocators = [entry for entry in registry().find("allocator") if name in (None, entry.id)]
    if name is not None and not (answer.lines or allocators):
        raise _unknown(name, "codec", [name for row in rows for name in (str(row[0]), *str(row[3]).split())])
    lines = table(("allocator", "title"), "<<", [(entry.info.id, entry.info.title) for entry in allocators])
    if lines:
        lines = [*([""] if answer.lines else []), "Allocators choose a codec for each tensor.", *lines]
    data = {**answer.data, "allocators": [entry.to_dict() for entry in allocators]}
    return Answer(data, [*answer.lines, *lines])


def backends(name: Only = None) -> Answer:
    """List the backends.

    `squish doctor` shows which of them run on this machine.
    """
    from squish_core.plugins.registry import registry

    def row(entry: Entry[BackendInfo]) -> tuple[object, ...]:
        return entry.id, entry.info.preference, origin(entry), entry.info.title

    header = ("id", "preference", "package", "title")
    answer = listing("backend", header, map(row, registry().backends.values()), "<><<", name=name)
    if name is not None and not answer.lines:
        registry().backend(name)  # raises with the package to install
    return answer


def plugins(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show only this one, or with --available those with this word.")
    ] = None,
    is_available: Annotated[
        bool, typer.Option("--available", help="List the directory of plugins instead, those of others included.")
    ] = False,
) -> Answer:
    """List the plugins and what each provides.

    With --available, lists the directory of plugins, installed or not; NAME is then a word of their names,
    descriptions or ids.
    """
    from squish_core.plugins.registry import registry

    installed = registry()
    if is_available:
        return available(name or "", installed)
    data: list[dict[str, Any]] = [
        {
            "package": item.dist,
            "version": item.version,
            "ok": True,
            "reason": None,
            "brings": provided_ids(installed, item.dist),
            "conflicts": conflicts(installed, item.dist),
        }
        for item in installed.plugins
    ]
    data += [
        {"package": item.dist, "version": "", "ok": False, "reason": item.reason, "brings": {}, "conflicts": []}
        for item in installed.broken
    ]
    if name is not None:
        packages = [item["package"] for item in data]
        data = [item for item in data if name.removeprefix("squish-") == item["package"].removeprefix("squish-")]
        if not data:
            raise _unknown(name, "plugin", packages)
    rows = [
        (
            "ok" if item["ok"] else "broken",
            item["package"],
            item["version"],
            item["reason"] or summarize(item["brings"]),
        )
        for item in data
    ]
    lines = table(("state", "package", "version", "provides"), "<<<<", rows)
    messages = conflicts(installed) if name is None else []
    lines += ["", *(f"conflict: {message}" for message in messages)] if messages else []
    return Answer({"plugins": data, "conflicts": messages}, lines)


def available(word: str, registry: Registry) -> Answer:
    """List the plugins of the directory with a word in their names, descriptions or ids; code 1 if none has it."""
    here = {item.dist for item in registry.plugins}
    rows = [
        {
            "package": row["name"],
            "state": "installed" if row["name"] in here else "available",
            "description": row["description"],
            "provides": row["provides"],
            "repository": row["repository"],
        }
        for row in read("plugins")
        if word.lower() in " ".join((row["name"], row["description"], *row["provides"])).lower()
    ]
    shown = [(row["state"], row["package"], row["description"]) for row in rows]
    lines = table(("state", "package", "for"), "<<<", shown) if rows else [f"no plugin of the directory has {word!r}"]
    absent = [row["package"] for row in rows if row["state"] == "available"]
    lines += ["", f"install: squish install {absent[0] if len(absent) == 1 else 'PACKAGE'}"] if absent else []
    return Answer({"available": rows}, lines, 0 if rows else 1)


def listing(
    kind: str, header: tuple[str, ...], rows: Iterable[tuple[object, ...]], align: str = "", name: str | None = None
) -> Answer:
    """A table of one kind of plugin, then ids of the catalog that are not installed; with `name`, only its rows."""
    from squish_core.plugins.registry import registry

    entries = [entry.to_dict() for entry in registry().find(kind)]
    align = align or "<" * len(header)
    if name is not None:
        rows = [row for row in rows if _matches(name.lower(), row)]
        shown = {row[0] for row in rows}
        entries = [entry for entry in entries if entry["id"] in shown]
        return Answer({kind_name(kind): entries, "missing": {}}, table(header, align, sorted(rows)))
    absent = missing_ids(kind, registry())
    lines = table(header, align, sorted(rows)) or ["none installed"]
    lines += [""] if absent else []
    for package, ids in absent.items():
        lines.append(f"not installed: {', '.join(ids)} ({catalog.install_command(package)})")
    return Answer({kind_name(kind): entries, "missing": absent}, lines)


def _matches(name: str, row: tuple[object, ...]) -> bool:
    """Return whether a row has this id, an id with this prefix, or this short name in its last column."""
    return name == row[0] or str(row[0]).startswith(f"{name}.") or name in str(row[-1]).split()


def _unknown(name: str, kind: str, names: Iterable[str]) -> UsageError:
    return UsageError(
        f"no such {kind}",
        found=repr(name),
        code=ErrorCode.USAGE,
        hint=f"{did_you_mean(name, names)} `squish {kind}s` lists all.".lstrip(),
    )


def one_format(data: dict[str, Any]) -> list[str]:
    """Return a format's declaration as a table."""
    return table(
        ("id", data["id"]),
        "<<",
        [
            ("title", data["title"]),
            ("package", f"{data['package']} {data['version']}"),
            ("can", "read, write" if data["can_write"] else "read"),
            ("suffixes", " ".join(data["suffixes"]) or "-"),
            *([("refines", data["refines"])] if data["refines"] else []),
            *((f"--to {data['id']}:{name}=", text) for name, text in data["options"].items()),
            *((f"--format {data['id']}:{name}=", text) for name, text in data["reading"].items()),
            *((f"--feature {name}=", _values(data, name)) for name in data["features"]),
            *((f"--encode {name}", f"short for {spec}") for name, spec in data["aliases"].items()),
            *data["facts"].items(),
        ],
    )


def _values(data: dict[str, Any], feature: str) -> str:
    """Return the values of a feature, each with its bit in files if it has one."""
    values, bits = data["features"][feature], data["bits"].get(feature)
    names = [f"{value}={bits[value]:#x}" if bits else value for value in values]
    return (", " if any(" " in name for name in names) else " ").join(names)


def origin(entry: Entry[Any]) -> str:
    """Return the distribution that provides an entry, with its version."""
    return f"{entry.dist} {entry.version}".strip()


def provided_ids(registry: Registry, dist: str) -> dict[str, list[str]]:
    """Return the ids that a distribution provides, by kind."""
    ids = {kind_name(kind): [entry.id for entry in registry.find(kind) if entry.dist == dist] for kind in catalog.KINDS}
    return {kind: names for kind, names in ids.items() if names}


def conflicts(registry: Registry, dist: str | None = None) -> list[str]:
    """Errors for all ids in conflict and families that nothing tells apart, or only those that `dist` provides."""
    from squish_convert.api import family_conflicts

    found = [str(conflict.error()) for conflict in registry.conflicts if dist is None or dist in conflict.dists]
    families = [entry.info for entry in registry.families.values()]
    own = {entry.id for entry in registry.families.values() if dist in (None, entry.dist)}
    return found + [
        str(error) for error in family_conflicts(families) if not own.isdisjoint(str(error.found).split(", "))
    ]


def missing_ids(kind: str, registry: Registry) -> dict[str, list[str]]:
    """Package -> ids and prefixes of a kind, for packages of this repository that are not installed."""
    present = {plugin.dist for plugin in registry.plugins} | {plugin.dist for plugin in registry.broken}
    absent: dict[str, list[str]] = {}
    for name, package in catalog.packages(kind).items():
        if package not in present:
            absent.setdefault(package, []).append(name)
    return absent


def missing_packages(registry: Registry) -> dict[str, dict[str, list[str]]]:
    """Package -> kind -> ids, for packages of this repository that are not installed."""
    absent: dict[str, dict[str, list[str]]] = {}
    for kind in catalog.KINDS:
        for package, ids in missing_ids(kind, registry).items():
            absent.setdefault(package, {})[kind_name(kind)] = ids
    return absent


def kind_name(kind: str) -> str:
    """Return a kind of plugin, in the plural."""
    return {"container": "formats", "family": "families"}.get(kind, f"{kind}s")


def summarize(brings: Mapping[str, Sequence[str]]) -> str:
    """Summary of what a plugin provides; long lists of ids with a common prefix are counted."""
    kinds = ((kind if len(ids) > 1 else _SINGULAR.get(kind, kind[:-1]), ids) for kind, ids in brings.items())
    return "; ".join(f"{kind} {' '.join(_by_family(ids))}" for kind, ids in kinds) or "commands only"


def _by_family(ids: Sequence[str]) -> Iterator[str]:
    """Ids, with more than `FAMILY` of one prefix collapsed to `prefix.* (27)`."""
    for family, members in groupby(sorted(ids), lambda id_: id_.rpartition(".")[0]):
        names = list(members)
        yield from [f"{family}.* ({len(names)})"] if family and len(names) > FAMILY else names
