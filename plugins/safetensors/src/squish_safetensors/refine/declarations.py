"""Quantization declarations in a checkpoint's JSON files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from squish_core.api import Dropped, without_keys

from ..folder import CONFIG_FILE, DECLARING
from .layers import CheckpointFiles

KeyPath = tuple[str, ...]
PART = "_config"
"""Suffix of the keys of a configuration for the configurations of the model's parts (`text_config`)."""
QUANTIZATION_KEYS = ("quantization_config", "compression_config")
"""Keys of a method's declaration, the newer one first."""
_MLX = "quantization"


def config_parts(config: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Mapping[str, Any]]]:
    """Return a configuration and its nested ones, two levels deep, outer first, with their paths."""
    level: list[tuple[KeyPath, Mapping[str, Any]]] = [((), config)]
    for _ in range(3):
        yield from level
        level = [
            ((*path, name), part)
            for path, each in level for name, part in each.items()
            if name.endswith(PART) and name not in QUANTIZATION_KEYS and isinstance(part, dict)
        ]  # fmt: skip


def declaration_paths(config: Mapping[str, Any]) -> tuple[KeyPath, ...]:
    """Return the paths of all declarations in a configuration."""
    return tuple(
        (*path, key)
        for path, part in config_parts(config) for key in (*QUANTIZATION_KEYS, _MLX)
        if isinstance(part.get(key), dict) or (key != _MLX and part.get(key))
    )  # fmt: skip


def without_declarations(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without its quantization declarations."""
    return without_keys(config, declaration_paths(config))


def dropped_declarations(config: Mapping[str, Any]) -> tuple[Dropped, ...]:
    """Return the declarations dropped from a written configuration."""
    paths = map(".".join, declaration_paths(config))
    return tuple(Dropped("declaration", path, "does not describe the written tensors", CONFIG_FILE) for path in paths)


def storage_declarations(files: CheckpointFiles) -> dict[str, tuple[KeyPath, ...]]:
    """Return `Index.declarations` of a refined checkpoint: the declarations in all its files."""
    declarations: dict[str, tuple[KeyPath, ...]] = {name: ((),) for name in DECLARING if name in files.index.assets}
    if paths := declaration_paths(files.json(CONFIG_FILE)):
        declarations[CONFIG_FILE] = paths
    return declarations
