"""Inventory of plugins: ids by distribution, conflicts, and packages of this repository that are not installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from squish_core.plugins import catalog
from squish_core.plugins.hookspecs import PLURALS
from squish_core.plugins.registry import Registry

FAMILY = 6
"""Number of ids with a common prefix above which only their count is listed."""


def brought(registry: Registry, dist: str) -> dict[str, list[str]]:
    """The ids that a distribution provides, by kind."""
    ids = {kind_name(kind): [entry.id for entry in registry.find(kind) if entry.dist == dist] for kind in catalog.KINDS}
    return {kind: names for kind, names in ids.items() if names}


def conflicts(registry: Registry, dist: str | None = None) -> list[str]:
    """Errors for all ids in conflict, or only those that `dist` provides."""
    return [str(conflict.error()) for conflict in registry.conflicts if dist is None or dist in conflict.dists]


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


def add_commands(registry: Registry, app: Any) -> list[tuple[str, str]]:
    """Add the commands of all plugins to a typer app; returns (plugin, reason) for each that failed."""
    failed = []
    for implementation in registry.manager.hook.squish_commands.get_hookimpls():
        try:
            implementation.function(app)
        except Exception as error:  # a plugin may raise anything
            failed.append((implementation.plugin_name, f"{type(error).__name__}: {error}"))
    return failed


_SINGULAR = {many: one for one, many in PLURALS.items()}


def kind_name(kind: str) -> str:
    """A kind of plugin, in the plural."""
    return {"container": "formats", "family": "families"}.get(kind, f"{kind}s")


def listed(brings: Mapping[str, Sequence[str]]) -> str:
    """Summary of what a plugin provides; long lists of ids with a common prefix are counted."""
    kinds = ((kind if len(ids) > 1 else _SINGULAR.get(kind, kind[:-1]), ids) for kind, ids in brings.items())
    return "; ".join(f"{kind} {' '.join(_by_family(ids))}" for kind, ids in kinds) or "commands only"


def _by_family(ids: Sequence[str]) -> Iterator[str]:
    """Ids, with more than `FAMILY` of one prefix collapsed to `prefix.* (27)`."""
    for family, members in groupby(sorted(ids), lambda id_: id_.rpartition(".")[0]):
        names = list(members)
        yield from [f"{family}.* ({len(names)})"] if family and len(names) > FAMILY else names
