"""Where a checkpoint's JSON files state how its tensors are stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from squish_core.api import Dropped, without_keys

from ..folder import CONFIG_FILE, DECLARING
from .layers import CheckpointFiles

KeyPath = tuple[str, ...]
PART = "_config"
"""End of the keys under which a configuration has those of the model's parts (`text_config`)."""
QUANTIZATION_KEYS = ("quantization_config", "compression_config")
"""Keys of a method's declaration, the newer one first."""
_MLX = "quantization"


def config_parts(config: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Mapping[str, Any]]]:
    """A configuration and those inside it, two levels deep, the outer ones first; each with its path."""
    level: list[tuple[KeyPath, Mapping[str, Any]]] = [((), config)]
    for _ in range(3):
        yield from level
        level = [
            ((*path, name), part)
            for path, each in level for name, part in each.items()
            if name.endswith(PART) and name not in QUANTIZATION_KEYS and isinstance(part, dict)
        ]  # fmt: skip


def declaration_paths(config: Mapping[str, Any]) -> tuple[KeyPath, ...]:
    """The paths of all declarations in a configuration."""
    return tuple(
        (*path, key)
        for path, part in config_parts(config) for key in (*QUANTIZATION_KEYS, _MLX)
        if isinstance(part.get(key), dict) or (key != _MLX and part.get(key))
    )  # fmt: skip


def without_declarations(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without what it states of the storage of tensors."""
    return without_keys(config, declaration_paths(config))


def dropped_declarations(config: Mapping[str, Any]) -> tuple[Dropped, ...]:
    """The declarations of a configuration that is written without them."""
    paths = map(".".join, declaration_paths(config))
    return tuple(Dropped("declaration", path, "not how the tensors are written", CONFIG_FILE) for path in paths)


def storage_declarations(files: CheckpointFiles) -> dict[str, tuple[KeyPath, ...]]:
    """`Index.declarations` of a checkpoint whose declaration has been followed: that of every file beside it."""
    declarations: dict[str, tuple[KeyPath, ...]] = {name: ((),) for name in DECLARING if name in files.index.assets}
    if paths := declaration_paths(files.json(CONFIG_FILE)):
        declarations[CONFIG_FILE] = paths
    return declarations
