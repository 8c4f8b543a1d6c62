"""Files of a checkpoint: small parts, and JSON files beside the tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from squish_core.api import FormatError, Index, LazyAssets, Limits, Part, Source, SquishError, load_json, parse_object

from ..folder import CONFIG_FILE, MAX_ENTRY, read_json

TOKENIZER_CONFIG, ADDED_TOKENS = "tokenizer_config.json", "added_tokens_decoder"


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
        folder, _, name = self.index.files[number].name.rpartition("/")
        is_own = not self.source.is_dir and not folder and name == self.source.filename
        return self.source if is_own else self.source.member(name, folder)


def with_config(assets: Mapping[str, bytes], change: Callable[[dict[str, Any]], dict[str, Any]]) -> Mapping[str, bytes]:
    """Return the assets with their config.json (or {} without one) changed by `change`.

    An unchanged config.json keeps its bytes, and an empty one is not created.
    """
    config = read_config(assets.get(CONFIG_FILE, b"{}"))
    changed = change(config)
    if changed == config and (CONFIG_FILE in assets or not config):
        return assets
    data = (json.dumps(changed, ensure_ascii=False, indent=4) + "\n").encode()
    return LazyAssets((*assets, CONFIG_FILE), lambda name: data if name == CONFIG_FILE else assets[name])


def readable_by_transformers(assets: Mapping[str, bytes], notes: list[str]) -> Mapping[str, bytes]:
    """Return the assets, without a null of mistral.rs's tokenizer_config.json on which Transformers fails.

    `notes` receives a sentence if something is left out.
    """

    def read(name: str) -> bytes:
        data = assets[name]
        if name != TOKENIZER_CONFIG or ADDED_TOKENS.encode() not in data:
            return data
        try:
            config = parse_object(data, name)
        except SquishError:
            return data
        if config.get(ADDED_TOKENS, {}) is not None:
            return data
        notes.append(f"{name}: {ADDED_TOKENS} is null, on which Transformers fails; left out")
        del config[ADDED_TOKENS]
        return (json.dumps(config, ensure_ascii=False, indent=2) + "\n").encode()

    return LazyAssets(assets, read)


def read_config(raw: bytes) -> dict[str, Any]:
    """Read the object in a config.json; FormatError if unreadable."""
    try:
        return load_json(raw, CONFIG_FILE, Limits(), piece=MAX_ENTRY, constants=True)
    except SquishError as error:
        raise FormatError(
            f"cannot read the source's {CONFIG_FILE}: {error.message}",
            part=CONFIG_FILE,
            offset=error.offset,
            expected=error.expected,
            found=error.found,
            code="json",
            hint="Correct it, or download it again.",
        ) from None
