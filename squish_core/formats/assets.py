"""Which files beside the tensors describe a model."""

from __future__ import annotations

from squish_core.io.source import Source

SUFFIXES = (".json", ".jinja", ".txt", ".model")
"""Suffixes of config, tokenizer and chat template; weights have others."""


def overlay_assets(source: Source, folder: Source) -> tuple[str, ...]:
    """Resolve config and tokenizer files that are not beside `source` from `folder`; returns their names."""
    names = [name for name in folder.members() if name.endswith(SUFFIXES)]
    return source.overlay(folder, [name for name in names if not name.startswith(".") and not _lists_shards(name)])


def _lists_shards(name: str) -> bool:
    return name.endswith(".index.json")
