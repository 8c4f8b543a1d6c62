"""Files of a checkpoint: small parts, and JSON files beside the tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from squish_core.api import FormatError, Index, Limits, Part, Source, SquishError, load_json

from ..folder import CONFIG_FILE, MAX_ENTRY, read_json


@frozen
class CheckpointFiles:
    """Reads small parts and JSON assets of a safetensors Index."""

    index: Index
    source: Source
    limits: Limits

    def read(self, part: Part, label: str) -> bytes:
        """Read the bytes of a small part; `label` names it in errors."""
        return b"".join(
            self.file(segment.file).read(segment.offset, segment.length, label) for segment in part.segments
        )

    def json(self, name: str) -> dict[str, Any]:
        """Read the JSON object in an asset; {} if missing or unreadable (the container reports it)."""
        asset = self.index.assets.get(name)
        if asset is None:
            return {}
        try:
            return read_json(self.file(asset.segments[0].file), name, self.limits)
        except SquishError:
            return {}

    def file(self, number: int) -> Source:
        """Open a file of the Index by number."""
        name = self.index.files[number].name
        return self.source if not self.source.is_dir and name == self.source.filename else self.source.member(name)


def with_config(assets: Mapping[str, bytes], change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, bytes]:
    """Return the assets with their config.json (or {} without one) changed by `change`.

    An unchanged config.json keeps its bytes, and an empty one is not created.
    """
    config = read_config(assets.get(CONFIG_FILE, b"{}"))
    changed = change(config)
    if changed == config and (CONFIG_FILE in assets or not config):
        return dict(assets)
    return {**assets, CONFIG_FILE: (json.dumps(changed, ensure_ascii=False, indent=4) + "\n").encode()}


def read_config(raw: bytes) -> dict[str, Any]:
    """Read the object in a config.json; FormatError if unreadable."""
    try:
        return load_json(raw, CONFIG_FILE, Limits(), piece=MAX_ENTRY, constants=True)
    except SquishError as error:
        raise FormatError(
            f"cannot read the source's {CONFIG_FILE}: {error.message}", part=CONFIG_FILE, offset=error.offset,
            expected=error.expected, found=error.found, code="json", hint="Correct it, or download it again.",
        ) from None  # fmt: skip
