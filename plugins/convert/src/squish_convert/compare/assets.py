"""Compare the assets of two files, apart from what describes how each file stores its tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from squish_core.errors import SquishError
from squish_core.file import File
from squish_core.formats.json import has_keys, load_json, without_keys

from ..families.model import CONFIG_FILE
from ..mapping.mapped import MappedFile
from ..mapping.pairing import respelled

Paths = Mapping[str, Sequence[Sequence[str]]]
DTYPE = "torch_dtype"
"""Setting with the dtype of a folder's tensors; null in a config rebuilt from GGUF's keys, which do not state it."""


def declarations(first: File, second: File) -> dict[str, list[Sequence[str]]]:
    """Paths in assets that describe the encoding of either file's tensors; none if both have the same format."""
    paths: dict[str, list[Sequence[str]]] = {}
    if first.format == second.format:
        return paths
    for file in (first, second.original):
        for name, each in file.index.declarations.items():
            merged = paths.setdefault(name, [])
            merged += [path for path in each if path not in merged]
    return paths


def same_asset(first: File, second: File, name: str, paths: Paths, mapped: MappedFile | None) -> bool:
    """Whether both files have the same asset, apart from declarations, and from the spelling of a mapped model's
    settings: `mapped` is the second file if it is one."""
    raw = [bytes(file.assets[name].raw) for file in (first, second)]
    if raw[0] == raw[1]:
        return True
    declared = paths.get(name, ())
    mapped = mapped if name == CONFIG_FILE else None
    if not declared and mapped is None:
        return False
    try:
        one, other = (without_keys(load_json(data, name, first.limits), declared) for data in raw)
        if one != other and mapped is not None and (settings := respelled(first, mapped)) is not None:
            one = without_keys(load_json(settings, name, first.limits), declared)
    except SquishError:
        return False
    if mapped is not None and None in (one.get(DTYPE, ""), other.get(DTYPE, "")):
        one, other = (without_keys(config, [(DTYPE,)]) for config in (one, other))
    return one == other


def declared_keys(file: File, paths: Paths) -> Iterator[str]:
    """The declarations that a file has, as words."""
    for name in paths.keys() & file.assets.keys():
        if () in paths[name]:
            yield name
            continue
        try:
            document = load_json(bytes(file.assets[name].raw), name, file.limits)
        except SquishError:
            continue
        yield from (f"{name} {'.'.join(path)}" for path in paths[name] if has_keys(document, path))
