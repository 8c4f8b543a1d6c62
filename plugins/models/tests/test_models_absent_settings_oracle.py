"""A setting that config.json does not state is the one that Transformers takes, or its absence is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from every_family import FAMILIES, arrays_of, config_of, mapped, paths, replaced
from oracles import peer

from squish_core.errors import SquishError

pytestmark = pytest.mark.oracle
NAMES = ("model_type", "architectures", "vision_config", "rope_type", "type")
"""What says which model it is, not how it computes."""
ROTATION = ("rope_theta", "partial_rotary_factor")


def readings(configs: list[dict[str, Any]]) -> list[dict[str, Any] | None]:
    """Runs in the peer: the settings that Transformers reads from each config, those of the text part."""
    import json

    from transformers import CONFIG_MAPPING, AutoConfig

    texts: list[dict[str, Any] | None] = []
    for config in configs:
        if config["model_type"] not in CONFIG_MAPPING:
            texts.append(None)
            continue
        try:
            read = AutoConfig.for_model(**config).to_dict()
        except Exception:  # Transformers refuses it, too
            texts.append(None)
            continue
        texts.append(json.loads(json.dumps(read.get("text_config") or read, default=str)))
    return texts


def read_value(settings: Mapping[str, Any], path: tuple[str, ...]) -> tuple[Any, ...]:
    """Transformers' value for a setting, in the old spelling; nothing if it has none."""
    key, rope = path[-1], settings.get("rope_parameters") or {}
    local, rope = rope.get("sliding_attention", {}), rope.get("full_attention", rope)
    if key == "rope_local_base_freq":
        return (local["rope_theta"],)
    if key == "rope_scaling":
        return (None if rope.get("rope_type") == "default" else rope,)
    place = rope if path[-2:-1] in (("rope_parameters",), ("rope_scaling",)) or key in ROTATION else settings
    return (place[key],) if key in place else ()


def answer(family: str, config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys of the GGUF, and the tensors that stand for settings."""
    model = mapped(arrays_of(family), config)
    prefix = (f"{model.index.meta['general.architecture'].value}.",)
    keys = {key: np.asarray(value.value).tolist() for key, value in model.index.meta.items() if key.startswith(prefix)}
    return keys, {name: values.tolist() for name, values in model.carried.constants.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_an_absent_setting_is_what_transformers_takes_or_is_refused(family: str) -> None:
    config, accepted = config_of(family), {}
    for path in (path for path in paths(config) if path[-1] not in NAMES):
        try:
            accepted[path] = answer(family, replaced(config, path))
        except SquishError:
            continue
    readings_ = peer("transformers").run(readings, configs=[replaced(config, path) for path in accepted])
    differing = []
    for (path, without), settings in zip(accepted.items(), readings_):
        if settings is None:
            continue
        try:
            stated = answer(family, replaced(config, path, *read_value(settings, path)))
        except SquishError as error:
            if error.tensor is None:  # else another model than that of the tensors
                differing.append(f"{'.'.join(path)}: {error}")
            continue
        if without != stated:
            differing.append(f"{'.'.join(path)}: {[*dict_difference(without[0], stated[0])]}")
    assert differing == [], "\n".join(differing)


def dict_difference(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What two tables differ in."""
    return {key: (one.get(key), other.get(key)) for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
