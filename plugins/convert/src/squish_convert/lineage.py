"""Which models a file was made from, where its metadata states it.

The commands `info` and `verify` and reports name them alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from attrs import frozen

from squish_core.errors import SquishError
from squish_core.file import File

README = "README.md"
LARGEST_README = 1 << 18
"""Bytes of a model card that are read."""
LONGEST_NAME = 300
_GGUF = re.compile(r"general\.(base_model|dataset|source)\.?(\d*)\.?(name|organization|version|repo_url|url|doi)")
_KEYS = ("base_model_name_or_path", "base_model", "modelspec.merged_from", "ss_sd_model_name")
"""Keys of metadata and of JSON files that name a base model."""
_FILES = ("adapter_config.json", "config.json")


@frozen
class Ancestor:
    """A model that a file was made from: `relation` as the file states it, and the place that states it."""

    ancestor: str
    relation: str
    stated_in: str


def lineage(file: File) -> tuple[Ancestor, ...]:
    """Name the models that a file was made from, as its metadata, configuration or model card states.

    Parameters
    ----------
    file
        An open file; only its header and small files beside it are read.

    Returns
    -------
    tuple of Ancestor
        Each model once.

    Examples
    --------
    >>> from squish_convert.api import lineage
    >>> lineage(squish.open("model.gguf"))
    ()
    """
    found = [*_gguf(file.metadata), *_named(file.metadata, "metadata")]
    for name in _FILES:
        found += _named(_json(file, name), name)
    found += _model_card(file)
    unique = {(each.ancestor, each.relation): each for each in reversed(found) if each.ancestor}
    return tuple(reversed(unique.values()))


def lineage_lines(ancestors: tuple[Ancestor, ...]) -> list[str]:
    """Return a line for each model."""
    return [f"{each.relation}: {each.ancestor} ({each.stated_in})" for each in ancestors]


def _gguf(metadata: Mapping[str, Any]) -> Iterator[Ancestor]:
    """`general.base_model.0.name` and the like: one ancestor for each number, its address before its name."""
    entries: dict[tuple[str, str], dict[str, str]] = {}
    for key, value in metadata.items():
        if (match := _GGUF.fullmatch(key)) and isinstance(value, str):
            entries.setdefault((match[1], match[2]), {})[match[3]] = value
    for (kind, number), facts in entries.items():
        name = " ".join(filter(None, (facts.get("organization"), facts.get("name"), facts.get("version"))))
        address = next((facts[key] for key in ("repo_url", "url", "doi") if key in facts), "")
        both = f"{name}, {address}" if name and address else name or address
        key = f"general.{kind}.{number}".rstrip(".")
        if kind != "dataset":
            yield _ancestor(both, "base model" if kind == "base_model" else "source", key)


def _named(data: Mapping[str, Any], place: str) -> Iterator[Ancestor]:
    for key in _KEYS:
        value = data.get(key)
        for name in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(name, str):
                yield _ancestor(name, "base model", f"{key} in {place}")


def _ancestor(name: str, relation: str, place: str) -> Ancestor:
    shown = " ".join(name.split())
    return Ancestor(shown if len(shown) <= LONGEST_NAME else f"{shown[:LONGEST_NAME]}...", relation, place)


def _json(file: File, name: str) -> Mapping[str, Any]:
    """Return an asset, or a file beside the weights; {} if it is absent or no object."""
    with suppress(SquishError, ValueError, RecursionError):
        data = json.loads(_content(file, name) or b"{}")
        return data if isinstance(data, dict) else {}
    return {}


def _content(file: File, name: str) -> bytes | None:
    """Return the start of an asset or of a file in the model's folder; None without one."""
    if name in file.assets:
        return file.assets[name].numpy().tobytes()[:LARGEST_README]
    if not file.source.is_dir or file.source.is_remote:
        return None
    with suppress(SquishError, OSError):
        member = file.source.member(name) if file.source.has(name) else None
        return None if member is None else bytes(member.read(0, min(member.size, LARGEST_README)))
    return None


def _model_card(file: File) -> Iterator[Ancestor]:
    """`base_model` in the front matter of the README, a name or a list, with `base_model_relation`."""
    text = (_content(file, README) or b"").decode("utf-8", "replace").replace("\r\n", "\n")
    front = re.match(r"---\n(.*?)\n---(?:\n|$)", text, re.DOTALL)
    if front is None:
        return
    relation = _scalars(front[1], "base_model_relation")
    for name in _scalars(front[1], "base_model"):
        yield _ancestor(name, f"base model ({relation[0]})" if relation else "base model", README)


def _scalars(front: str, key: str) -> list[str]:
    """Return the value of a key of YAML, or those of its list; for anything more complex, nothing."""
    match = re.search(rf"^{key}:[ \t]*(.*)((?:\n[ \t]*-[ \t].*)*)", front, re.MULTILINE)
    if match is None:
        return []
    line = match[1].split(" #")[0].strip()
    items = line.strip("[]").split(",") if line else re.findall(r"-[ \t](.*)", match[2])
    return [item.strip().strip("\"'") for item in items if item.strip().strip("\"'") not in ("", "null", "~", "|", ">")]
