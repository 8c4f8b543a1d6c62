"""Assets in a conversion: those of a mapped model are computed, so each is read when the target needs it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from squish_core.errors import SquishError
from squish_core.file import File
from squish_core.formats.assets import MAX_INLINE, LazyAssets
from squish_core.formats.dropped import Dropped
from squish_core.formats.json import has_keys, load_json, without_keys
from squish_core.model import Part

_REASON = "describes the encoding of the source's tensors"


def carried_assets(file: File, target: str) -> tuple[Mapping[str, Part], tuple[Dropped, ...]]:
    """The assets for a file in the format `target`, and what is dropped.

    Declarations about the encoding of the source's tensors are dropped, unless the target has the same format, whose
    writer replaces them. Small assets come with their bytes (`Part.data`).
    """
    index = file.index
    declarations = {} if index.format == target else index.declarations
    changed: dict[str, Part] = {}
    dropped: list[Dropped] = []
    names = []
    for name in index.assets:
        paths = declarations.get(name, ())
        if () in paths:
            dropped.append(Dropped("asset", name, _REASON))
            continue
        names.append(name)
        if paths:
            changed[name], absent = _without_declarations(file, name, paths)
            dropped += (Dropped("declaration", ".".join(path), _REASON, where=name) for path in absent)

    def read(name: str) -> Part:
        part = changed.get(name) or index.assets[name]
        is_inline = part.data is not None or part.nbytes > MAX_INLINE
        return part if is_inline else _inline(bytes(file.assets[name].raw))

    return LazyAssets(names, read), tuple(dropped)


def asset_bytes(file: File, assets: Mapping[str, Part]) -> Mapping[str, bytes]:
    """The bytes of these assets, from the part itself or the source."""

    def read(name: str) -> bytes:
        part = assets[name]
        return bytes(file.assets[name].raw if part.data is None else part.data)

    return LazyAssets(assets, read)


def _without_declarations(file: File, name: str, paths: Iterable[Sequence[str]]) -> tuple[Part, list[Sequence[str]]]:
    """Remove the JSON members at these paths from an asset; also returns the paths that existed."""
    raw = bytes(file.assets[name].raw)
    try:
        document = load_json(raw, name, file.limits, piece=len(raw), constants=True)
    except SquishError:
        return _inline(raw), []
    present = [path for path in paths if has_keys(document, path)]
    if not present:
        return _inline(raw), []
    return _inline((json.dumps(without_keys(document, present), ensure_ascii=False, indent=2) + "\n").encode()), present


def _inline(data: bytes) -> Part:
    return Part(dtype="u8", shape=(len(data),), data=data)
