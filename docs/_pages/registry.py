"""Tables of formats, codecs, backends and families, from what the plugins of this repository declare."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import squish_core as squish
from squish_core.plugins import catalog

from . import codes, table

DOCS = Path(__file__).parents[1]
HEADS = {
    "formats": "Container formats by the id that `--to` and `--format` take; `squish formats ID` prints the same.",
    "codecs": "Codecs by the id or the short name that `--encode` takes; `squish codecs` prints the same.",
    "backends": "What computes with weights, by the id that `--backend` takes. The first one that can is explained by "
    "`squish plan`; [chains](../explain/chains.md) has the order.",
    "families": "Models whose names, rows, settings and tokenizers are converted for the target's engine. "
    "[Whole models](../models.md) says what was run in which engine; `squish families ID` prints the details.",
}


@cache
def entries(kind: str) -> list[dict[str, Any]]:
    """Declarations of a kind, of the distributions of this repository, by id."""
    ours = {*catalog.distributions(), "squish-core", *catalog.RELEASED_TOGETHER.values()}
    found = [entry.to_dict() for entry in squish.registry().find(kind) if entry.dist in ours]
    return sorted(found, key=lambda entry: str(entry["id"]))


def linked(folder: str, name: str) -> str:
    """An id, with a link to its page if it has one."""
    return f"[`{name}`](../{folder}/{name}.md)" if (DOCS / folder / f"{name}.md").exists() else f"`{name}`"


def link_of_codec(name: str) -> str:
    """A codec's id, with a link to the page that describes its parameters."""
    for folder in ("codecs", "formats"):
        for page in (name, name.split(".")[0], {"ggml": "gguf"}.get(name.split(".")[0], "")):
            if page and (DOCS / folder / f"{page}.md").exists():
                return f"[`{name}`](../{folder}/{page}.md)"
    return f"`{name}`"


def one_format(entry: dict[str, Any]) -> str:
    """The options, features and short names of a format."""
    name = entry["id"]
    rows = [
        *((f"`--to {name}:{option}=`", text) for option, text in entry["options"].items()),
        *((f"`--format {name}:{option}=`", text) for option, text in entry["reading"].items()),
        *((f"`--feature {feature}=`", codes(values)) for feature, values in entry["features"].items()),
        *((f"`--encode {short}`", f"`{spec}`") for short, spec in entry["aliases"].items()),
    ]
    detail = table(("to write", "means"), rows) if rows else "It has no options.\n"
    return f"\n## {name}\n\n{entry['title']}; package `{entry['package']}`.\n\n{detail}"


def formats() -> str:
    """The table of formats, and a section for each."""
    rows = [
        (linked("formats", entry["id"]), entry["title"], "read, write" if entry["can_write"] else "read",
         codes(entry["suffixes"]), f"`{entry['refines']}`" if entry["refines"] else "", f"`{entry['package']}`")
        for entry in entries("container")
    ]  # fmt: skip
    header = ("format", "what it is", "Squish can", "suffixes", "inside", "package")
    return table(header, rows) + "".join(map(one_format, entries("container")))


def codecs() -> str:
    """The table of codecs, and that of allocators."""
    rows = [
        (link_of_codec(entry["id"]), entry["title"],
         {"bytes": "bytes", "whole": "whole model"}.get(entry["kind"], "tensor"),
         "lossless" if entry["lossless"] else "lossy", codes([*entry["aliases"]]), f"`{entry['package']}`")
        for entry in entries("codec")
    ]  # fmt: skip
    allocators = [(f"`{entry['id']}`", entry["title"], f"`{entry['package']}`") for entry in entries("allocator")]
    header = ("codec", "what it is", "of", "exactness", "short names", "package")
    return (
        table(header, rows)
        + "\n## Allocators and presets\n\nThey choose a codec for each tensor, and are named in `--encode`, too.\n\n"
        + table(("name", "what it is", "package"), allocators)
    )


def backends() -> str:
    """The table of backends."""
    rows = [
        (linked("backends", entry["id"]), entry["title"], str(entry["preference"]), f"`{entry['package']}`")
        for entry in entries("backend")
    ]
    return table(("backend", "what it is", "preference", "package"), rows)


def families() -> str:
    """The table of families of models."""
    rows = [
        (f"`{entry['id']}`", entry["title"], codes(entry["model_types"]),
         f"`{entry['architecture']}`" if entry["architecture"] else "", entry["part"])
        for entry in entries("family")
    ]  # fmt: skip
    return table(("family", "models", "`model_type`", "architecture in GGUF", "component"), rows)


def pages() -> Iterator[tuple[str, str]]:
    """One page for each kind."""
    for name, text in {"formats": formats, "codecs": codecs, "backends": backends, "families": families}.items():
        yield f"{name}.md", f"# {name.capitalize()}\n\n{HEADS[name]}\n\n{text()}"
