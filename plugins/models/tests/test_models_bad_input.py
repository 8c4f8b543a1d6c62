"""Input that does not fit a family: every family refuses it, and names the tensor, before anything is written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import published_old
import pytest
import test_models_conformance as conformance
from published_configs import PUBLISHED
from squish_convert.arrays import in_memory
from squish_convert.expressions import Expression, Permute, source_names
from squish_convert.families import Family, Rule
from squish_convert.mapping.coverage import shape_of, sizes_at
from squish_convert.mapping.mapped import MappedFile, map_file, missing_tensors, model_of, naming_of
from squish_convert.mapping.names import fill, members
from squish_testing import FamilySuite, model_arrays

import squish_core as squish
from squish_core.errors import SquishError
from squish_core.file import File

Config = Mapping[str, Any]
SUITES = [each for each in vars(conformance).values() if isinstance(each, type) and issubclass(each, FamilySuite)]
CONFIGS: dict[str, Config] = {
    f"{suite.family}: {label}": config
    for suite in SUITES
    if suite.family
    for label, config in suite().configs().items()
}
CONFIGS |= {
    f"{family}: {model}": {**config, "torch_dtype": "bfloat16"}
    for model, (family, config) in published_old.PUBLISHED.items()
}
FIRST = {name.partition(":")[0]: config for name, config in reversed(CONFIGS.items())}
"""A family -> its first config."""
LIKE_PUBLISHED = (
    "llama4", "qwen3vlmoe", "arcee", "dots1", "solar_open", "ernie4_5_moe", "hunyuan-moe", "exaone_moe", "afmoe",
    "mellum", "bailing_moe", "mimo_v2_flash", "step35",
)  # fmt: skip
"""Families with the config of a published model."""
ALL = CONFIGS | {f"{name}: {model}": config for model, (name, config) in PUBLISHED.items() if name in LIKE_PUBLISHED}
ALL_FIRST = {name.partition(":")[0]: config for name, config in reversed(ALL.items())}


def family_of(name: str) -> Family:
    return squish.registry().implementation("family", name.partition(":")[0])


def opened(arrays: Mapping[str, np.ndarray], config: Config) -> File:
    return in_memory(arrays, assets={"config.json": json.dumps(config).encode()})


def mapped(arrays: Mapping[str, np.ndarray], config: Config, layout: str = "gguf") -> MappedFile:
    file = opened(arrays, config)
    return map_file(file, layout, {}, naming_of(file))


def refusal(arrays: Mapping[str, np.ndarray], config: Config) -> SquishError:
    with pytest.raises(SquishError) as caught:
        mapped(arrays, config)
    return caught.value


@pytest.mark.parametrize("name", ALL_FIRST)
def test_a_tensor_that_is_left_out_is_named_in_both_directions(name: str) -> None:
    arrays = model_arrays(family_of(name), ALL_FIRST[name])
    there = mapped(arrays, ALL_FIRST[name])
    for tensor in [each for each in arrays if ".layers." not in each or ".layers.0." in each]:
        error = refusal({key: values for key, values in arrays.items() if key != tensor}, ALL_FIRST[name])
        assert error.code in ("unmapped", "config"), f"{name} without {tensor}: {error}"
    stored = {each: there[each].numpy() for each in there}
    for tensor in [each for each in stored if not each.startswith("blk.") or each.startswith("blk.0.")]:
        if tensor in there.carried.constants or tensor == "output.weight":  # without it, the head is tied
            continue
        file = in_memory({key: values for key, values in stored.items() if key != tensor}, dict(there.index.meta))
        with pytest.raises(SquishError) as caught:
            map_file(file, "hf", {}, naming_of(file))
        assert caught.value.code == "unmapped", f"{name} without {tensor}: {caught.value}"


def other_forms(name: str, layouts: tuple[str, ...], present: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Tensors of a layer in forms that a model does not have, such as fused ones; optional tensors are left out."""
    family, config = family_of(name), ALL_FIRST[name]
    settings = family.settings(model_of(opened({}, config), family, "hf"))
    sizes = sizes_at({"experts": 0, **family.sizes(settings)}, {"n": 1})
    shapes = {each.name: each.shape for each in family.tensors}
    absent = {*family.absent(settings), *(each.name for each in family.tensors if not each.required)}
    forms = {}
    rules = [rule for layout in layouts for rule in family.names.get(layout, ()) if rule.reading or layout != "gguf"]
    for rule in rules:
        numbers = {"n": 1, "e": 0}
        optional = any(leaf in absent for leaf in source_names(rule.of))
        target = fill(rule.name, numbers)
        if target not in present and not optional and not absent.intersection(leaves(rule, numbers, sizes)):
            forms[target] = np.zeros(shape_of(rule.of, shapes, sizes), np.float32)
    return forms


def leaves(rule: Rule, numbers: Mapping[str, int], sizes: Mapping[str, int]) -> list[str]:
    """The names of the family's tensors in a tensor."""
    return [leaf for leaf, _ in members(rule.of, numbers, max(sizes["experts"], 1))]


@pytest.mark.parametrize("name", ALL_FIRST)
def test_a_tensor_in_two_forms_is_refused(name: str) -> None:
    arrays = model_arrays(family_of(name), ALL_FIRST[name])
    for tensor, values in other_forms(name, ("hf", "mlx", "uqff"), arrays).items():
        error = refusal({**arrays, tensor: values}, ALL_FIRST[name])
        assert error.code == "doubled", f"{name} with {tensor}: {error}"
    there = mapped(arrays, ALL_FIRST[name])
    stored = {each: there[each].numpy() for each in there}
    for tensor, values in other_forms(name, ("gguf",), stored).items():
        if tensor.endswith("attn_kv_b.weight"):  # llama.cpp's forks keep it beside what is made of it
            continue
        file = in_memory({**stored, tensor: values}, dict(there.index.meta))
        with pytest.raises(SquishError) as caught:
            map_file(file, "hf", {}, naming_of(file))
        assert caught.value.code == "doubled", f"{name} with {tensor}: {caught.value}"


def shapes_of(family: Family, config: Config) -> Mapping[str, tuple[int, ...]] | None:
    """The shapes of all tensors by a config, None if it contradicts itself."""
    try:
        return {name: values.shape for name, values in model_arrays(family, config).items()}
    except SquishError as error:
        return None if error.code in ("config", "contradiction", "rope") else {}


def greater_by_one(config: Config) -> Iterator[Config]:
    """The config with each of its integers greater by one, those of a text part included."""
    inner = config.get("text_config")
    if inner is not None:
        yield from ({**config, "text_config": other} for other in greater_by_one(inner))
    for key, value in config.items():
        if type(value) is int:
            yield {**config, key: value + 1}


@pytest.mark.parametrize("name", ALL)
def test_no_size_of_another_model_is_accepted(name: str) -> None:
    family, config = family_of(name), ALL[name]
    arrays, shapes, changes = model_arrays(family, config), shapes_of(family, config), 0
    for other in greater_by_one(config):
        expected = shapes_of(family, other)
        if expected is not None and expected != shapes:
            error = refusal(arrays, other)
            changes += 1
            assert error.code in ("contradiction", "unmapped", "config"), f"{name}: {error}"
    assert changes >= 2


def permuted(expression: Expression) -> bool:
    """Whether rows move within heads."""
    if isinstance(expression, str):
        return False
    parts = [part for part, _ in expression.of] if isinstance(expression.of, tuple) else [expression.of]
    return isinstance(expression, Permute) or any(map(permuted, parts))


PERMUTED = [name for name in ALL_FIRST if any(permuted(rule.of) for rule in family_of(name).names["gguf"])]


@pytest.mark.parametrize("name", PERMUTED)
def test_heads_with_an_odd_number_of_rows_are_refused(name: str) -> None:
    config = {**ALL_FIRST[name], "head_dim": 15}
    file = mapped(model_arrays(family_of(name), config), config)
    with pytest.raises(SquishError) as caught:
        list(file.index.tensors.values())
    fused = {"internlm2": "attention.wqkv"}
    module = fused.get(name.partition(":")[0], "self_attn.q_proj")
    assert (caught.value.code, caught.value.tensor) == ("heads", f"model.layers.0.{module}.weight")


def test_a_family_that_fails_does_not_hide_missing_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(family_of("llama")), "absent", lambda *_: 1 / 0)
    file = opened({"model.norm.weight": np.ones(32, np.float32)}, ALL_FIRST["llama"])
    missing = missing_tensors(file, naming_of(file))
    assert "model.layers.{n}.mlp.up_proj.weight" in missing
    assert "model.norm.weight" not in missing


@pytest.mark.parametrize("name", ALL_FIRST)
def test_rules_are_about_tensors_of_the_family(name: str) -> None:
    family = family_of(name)
    templates = {tensor.name for tensor in family.tensors}
    rules = [rule for layout in family.names.values() for rule in layout]
    assert [rule.name for rule in rules if not templates.issuperset(source_names(rule.of))] == []
