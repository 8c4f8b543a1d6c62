"""Quantization declarations in a checkpoint's JSON files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from squish_core.api import Dropped, Problem, without_keys

from ..folder import CONFIG_FILE, DECLARING
from .files import CheckpointFiles

KeyPath = tuple[str, ...]
PART = "_config"
"""Suffix of the keys of a configuration for the configurations of the model's parts (`text_config`)."""
QUANTIZATION_KEYS = ("quantization_config", "compression_config")
"""Keys of a method's declaration, the newer one first."""
MLX = "quantization"
"""Key of mlx-lm's declaration."""


def config_parts(config: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Mapping[str, Any]]]:
    """Return a configuration and its nested ones, two levels deep, outer first, with their paths.

    Parameters
    ----------
    config : mapping
        The object in a config.json.

    Yields
    ------
    tuple
        Keys that lead to a configuration, and the configuration.

    Examples
    --------
    >>> config = {"text_config": {"num_hidden_layers": 2}}
    >>> [path for path, part in config_parts(config)]
    [(), ('text_config',)]
    """
    level: list[tuple[KeyPath, Mapping[str, Any]]] = [((), config)]
    for _ in range(3):
        yield from level
        level = [
            ((*path, name), part)
            for path, settings in level
            for name, part in settings.items()
            if name.endswith(PART) and name not in QUANTIZATION_KEYS and isinstance(part, dict)
        ]


def declaration_paths(config: Mapping[str, Any]) -> tuple[KeyPath, ...]:
    """Return the paths of all declarations in a configuration."""
    return tuple(
        (*path, key)
        for path, part in config_parts(config)
        for key in (*QUANTIZATION_KEYS, MLX)
        if isinstance(part.get(key), dict) or (key != MLX and part.get(key))
    )


def without_declarations(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without its quantization declarations.

    Parameters
    ----------
    config : mapping
        The object in a config.json.

    Returns
    -------
    dict
        A copy; nested configurations lose their declarations, too.

    Examples
    --------
    >>> without_declarations({"model_type": "llama", "quantization_config": {"quant_method": "gptq"}})
    {'model_type': 'llama'}
    """
    return without_keys(config, declaration_paths(config))


def dropped_declarations(config: Mapping[str, Any]) -> tuple[Dropped, ...]:
    """Return the declarations dropped from a written configuration.

    Parameters
    ----------
    config : mapping
        The object in the source's config.json.

    Returns
    -------
    tuple of Dropped
        One for each declaration, with its path as the name.

    Examples
    --------
    >>> [dropped] = dropped_declarations({"text_config": {"quantization": {"bits": 4}}})
    >>> dropped.kind, dropped.name, dropped.where
    ('declaration', 'text_config.quantization', 'config.json')
    """
    paths = map(".".join, declaration_paths(config))
    return tuple(Dropped("declaration", path, "does not describe the written tensors", CONFIG_FILE) for path in paths)


def storage_declarations(files: CheckpointFiles) -> dict[str, tuple[KeyPath, ...]]:
    """Return `Index.declarations` of a refined checkpoint: the declarations in all its files.

    Parameters
    ----------
    files : CheckpointFiles
        The files of the checkpoint.

    Returns
    -------
    dict of str to tuple
        File name -> the key paths of its declarations; `()` is the whole file.

    Examples
    --------
    >>> from squish_core.api import Limits
    >>> from pathlib import Path
    >>> _ = Path("config.json").write_text('{"quantization": {"bits": 4}}')
    >>> with squish.open("model.safetensors", "safetensors") as file:
    ...     storage_declarations(CheckpointFiles(file.index, file.source, Limits()))
    {'config.json': (('quantization',),)}
    """
    declarations: dict[str, tuple[KeyPath, ...]] = {name: ((),) for name in DECLARING if name in files.index.assets}
    if paths := declaration_paths(files.json(CONFIG_FILE)):
        declarations[CONFIG_FILE] = paths
    return declarations


def ignored_declaration(files: CheckpointFiles) -> Iterator[Problem]:
    """Note the declaration of a checkpoint that is opened explicitly as safetensors, whose values are the codes."""
    config = files.json(CONFIG_FILE)
    stated = next(
        (part[key] for _, part in config_parts(config) for key in QUANTIZATION_KEYS if part.get(key)), None
    )  # the one that hf reads
    where, reader = CONFIG_FILE, "hf"
    if isinstance(config.get(MLX), dict):
        stated, reader = {"quant_method": "mlx"}, "mlx"
    if not stated:
        where, stated = next(((name, fields) for name in DECLARING if (fields := files.json(name))), ("", None))
    if not stated:
        return
    method = stated.get("quant_method") if isinstance(stated, dict) else stated
    named = f"the quantization method {method!r:.40}" if method else "a quantization"
    message = (
        f"declares {named}, which reading as safetensors ignores: the values of codes are the codes themselves. "
        f"Use {{option:format={reader}}} to read the weights"
    )
    yield Problem(code="quant-method", severity="note", where=where, message=message)
