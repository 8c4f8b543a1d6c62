"""Assets in a conversion."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from squish_core.errors import SquishError
from squish_core.file import File
from squish_core.formats.dropped import Dropped
from squish_core.formats.json import has_keys, load_json, without_keys
from squish_core.model import Part

INLINE = 16 << 20
"""Assets up to this size are read before a conversion, so that the target format can inspect them."""
_REASON = "describes the encoding of the source's tensors"


def carried_assets(file: File, target: str) -> tuple[dict[str, Part], tuple[Dropped, ...]]:
    """The assets for a file in the format `target`, and what is dropped.

    Declarations about the encoding of the source's tensors are dropped, unless the target has the same format, whose
    writer replaces them. Small assets come with their bytes (`Part.data`).
    """
    index = file.index
    declarations = {} if index.format == target else index.declarations
    assets = {}
    dropped: list[Dropped] = []
    for name, part in index.assets.items():
        paths = declarations.get(name, ())
        if () in paths:
            dropped.append(Dropped("asset", name, _REASON))
        elif paths:
            assets[name], absent = _without_declarations(file, name, paths)
            dropped += (Dropped("declaration", ".".join(path), _REASON, where=name) for path in absent)
        elif part.data is None and part.nbytes <= INLINE:
            assets[name] = _inline(bytes(file.assets[name].raw))
        else:
            assets[name] = part
    return assets, tuple(dropped)


def asset_bytes(file: File, assets: Mapping[str, Part]) -> dict[str, bytes]:
    """The bytes of these assets, from the part itself or the source."""
    return {name: bytes(file.assets[name].raw if part.data is None else part.data) for name, part in assets.items()}


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
