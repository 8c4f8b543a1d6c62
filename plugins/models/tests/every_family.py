"""A small model of every declared family, new ones included, for the tests that hold for all of them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
import test_models_bad_input as bad_input
from published_configs import PUBLISHED
from squish_convert.arrays import in_memory
from squish_convert.mapping.mapped import MappedFile, map_file, naming_of
from squish_models.api import small_config
from squish_testing import model_arrays

import squish_core as squish

Config = Mapping[str, Any]
BY_HAND = {
    "apertus": "test_models_mixtures.py", "laguna": "test_models_mixtures.py", "deepseek4": "test_models_deepseek4.py",
    "mistral_large_3": "test_models_latent.py",
}  # fmt: skip
"""Families whose tensors the kit cannot make -> the tests that make them, which have their own bad input."""
FAMILIES = [
    entry.id
    for entry in squish.registry().families.values()
    if not entry.info.layouts and entry.info.part == "text" and entry.id not in BY_HAND
]
MOST_LAYERS = 4


def config_of(family: str) -> dict[str, Any]:
    """The config of a published model, or of the kit's tests, or a small one made of the declaration."""
    published = [config for name, config in PUBLISHED.values() if name == family]
    few = [config for config in published if text_part(config).get("num_hidden_layers", 0) <= MOST_LAYERS]
    stated = few or [bad_input.FIRST[family]] if few or family in bad_input.FIRST else []
    return copy.deepcopy(dict(stated[0])) if stated else small_config(family)


def text_part(config: Config) -> Any:
    """The settings of the text model."""
    return config.get("text_config", config)


@cache
def arrays_of(family: str) -> Mapping[str, np.ndarray]:
    """The tensors of the small model."""
    return model_arrays(family, config_of(family))


def mapped(arrays: Mapping[str, np.ndarray], config: Config, layout: str = "gguf") -> MappedFile:
    """The model in another layout; the specs of all its tensors are computed."""
    file = in_memory(arrays, assets={"config.json": json.dumps(config).encode()})
    result = map_file(file, layout, {}, naming_of(file))
    list(result.index.tensors.values())
    return result


def one_of_each(names: Mapping[str, Any]) -> list[str]:
    """The first tensor of each kind: numbers of layers and experts do not count."""
    first: dict[str, str] = {}
    for name in names:
        kind = "".join("#" if digit else "".join(text) for digit, text in groupby(name, str.isdigit))
        first.setdefault(kind, name)
    return list(first.values())


def paths(config: Config, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The places of all settings, those of the text part and of the rotation included."""
    for key, value in config.items():
        inner = isinstance(value, dict) and key != "vision_config"
        if not (inner and key == "text_config"):
            yield (*before, key)
        if inner:
            yield from paths(value, (*before, key))


def setting(config: Config, path: tuple[str, ...]) -> Any:
    """The value at a place."""
    value: Any = config
    for key in path:
        value = value[key]
    return value


def replaced(config: Config, path: tuple[str, ...], *value: Any) -> dict[str, Any]:
    """The config with another value at a place, or without it."""
    whole = copy.deepcopy(dict(config))
    place = setting(whole, path[:-1])
    del place[path[-1]]
    if value:
        place[path[-1]] = value[0]
    return whole
