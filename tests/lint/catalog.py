"""Writes `catalog.json`, what hints say of the plugins of this repository: `python tests/lint/catalog.py`."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from attrs import asdict

import squish_core as squish
from squish_core.plugins import catalog
from squish_core.plugins.entries import Entry
from squish_core.plugins.hookspecs import INFOS
from squish_core.specs import parse_spec

ROOT = Path(__file__).parents[2]


def catalog_text(registry: squish.Registry) -> str:
    """The text of `catalog.json`, from the plugins of this checkout, all of which must be in the registry.

    Names keep the order that they have in the file, since hints list them in it; new ones come last.
    """
    projects = _projects()
    plugins = {name for name, (_, project) in projects.items() if "entry-points" in project}
    if absent := plugins - {plugin.dist for plugin in registry.plugins}:
        sys.exit(f"not installed here: {', '.join(sorted(absent))}")
    facts: dict[str, Any] = {
        "distributions": {
            name: {"folder": folder, "requires": _requires(project, projects)}
            for name, (folder, project) in sorted(projects.items())
        }
    }
    for kind in INFOS:
        entries = {entry.id: entry for entry in registry.find(kind) if entry.dist in projects}
        old = catalog.table().get(kind, {})
        facts[kind] = {name: _facts(entries[name], registry, old.get(name, {})) for name in _ordered(entries, old)}
    return "{\n" + ",\n".join(f' "{kind}": {{\n{_lines(entries)}\n }}' for kind, entries in facts.items()) + "\n}\n"


def _projects() -> dict[str, tuple[str, dict[str, Any]]]:
    """Distribution -> its folder and its table `project`."""
    files = [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]
    projects = [(file, tomllib.loads(file.read_text("utf-8"))["project"]) for file in files]
    folders = {project["name"]: file.parent.relative_to(ROOT).as_posix() for file, project in projects}
    return {project["name"]: (folders[project["name"]].strip("."), project) for _, project in projects}


def _requires(project: Mapping[str, Any], ours: Collection[str]) -> dict[str, list[str]]:
    """Extra -> the distributions of this repository that it requires; "": those that are required always."""
    extras = {"": project.get("dependencies", ()), **project.get("optional-dependencies", {})}
    named = {extra: [re.split(r"[^\w\[\],-]", each)[0] for each in needs] for extra, needs in extras.items()}
    required = {extra: [name for name in names if name.partition("[")[0] in ours] for extra, names in named.items()}
    return {extra: names for extra, names in required.items() if names}


def _lines(entries: Mapping[str, Any]) -> str:
    """JSON with one item a line."""
    return ",\n".join(f"  {json.dumps(name)}: {json.dumps(facts)}" for name, facts in entries.items())


def _facts(entry: Entry[Any], registry: squish.Registry, before: Mapping[str, Any]) -> dict[str, Any]:
    """What hints say of a declaration. `before`: as the table has it."""
    info = asdict(entry.info, recurse=False)
    codecs = [registry.codecs[name] for name in info.get("codecs", ())]
    codecs += [registry.codecs[name] for codec in codecs for name in codec.info.needs]
    needs = {codec.dist: codec.id.partition(".")[0] for codec in reversed(codecs)}
    others = {name for dist, name in needs.items() if dist not in ("squish-core", entry.dist)}
    signatures = info.get("signatures", ())
    heads = [each for each in signatures if each.where == "head" and len(each.bytes) > 1]
    facts = {
        "dist": entry.dist,
        **{name: info.get(name) for name in ("refines", "suffixes", "suffix", "schemes")},
        "heads": [(each.offset, each.bytes.hex()) for each in heads],
        "members": [each.bytes.decode() for each in signatures if each.where == "member"],
        "needs": _ordered(sorted(others), before.get("needs", ())),
        "aliases": {name: parse_spec(text).id for name, text in info.get("aliases", {}).items()},
    }
    return {name: fact for name, fact in facts.items() if fact}


def _ordered(names: Collection[str], before: Collection[str]) -> list[str]:
    """The names, first those of before in their order."""
    return [*(name for name in before if name in names), *(name for name in names if name not in before)]


if __name__ == "__main__":
    catalog.TABLE.write_text(catalog_text(squish.Registry("")), "utf-8")
