"""LoRA adapters of every family: in GGUF they add to each tensor what the map makes of what PEFT adds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from every_family import FAMILIES, arrays_of, config_of, mapped, one_of_each
from squish_convert.arrays import in_memory
from squish_convert.mapping.mapped import MappedFile, map_file, naming_of

from squish_core.errors import SquishError

RANK = 2
REFUSED = ("adapter", "unmapped")
Arrays = Mapping[str, np.ndarray]


def adapter(matrices: Arrays, config: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of a PEFT folder, and the config of the base model."""
    targets = sorted({name.rpartition(".lora_")[0].rpartition(".")[2] for name in matrices})
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": targets}
    return {"adapter_config.json": json.dumps(settings).encode(), "config.json": json.dumps(config).encode()}


def to_gguf(matrices: Arrays, config: Mapping[str, Any]) -> MappedFile:
    file = in_memory(matrices, assets=adapter(matrices, config))
    return map_file(file, "gguf", {}, naming_of(file))


def matrices_of(modules: list[str], shape: tuple[int, int]) -> dict[str, np.ndarray]:
    """Seeded A and B of each module, small integers so that products are exact."""
    generator, matrices = np.random.default_rng(0), {}
    for module in modules:
        for side, size in (("A", (RANK, shape[1])), ("B", (shape[0], RANK))):
            name = f"base_model.model.{module}.lora_{side}.weight"
            matrices[name] = generator.integers(-3, 4, size).astype(np.float32)
    return matrices


def is_adaptable(name: str, values: np.ndarray) -> bool:
    """Whether PEFT has a LoRA for the weight of a linear module."""
    return name.endswith(".weight") and values.ndim == 2 and "layers." in name and "conv" not in name


def pairs_of(matrices: Arrays, config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The tensors of the adapter in GGUF; none if it is refused."""
    try:
        file = to_gguf(matrices, config)
        return {name: file[name].numpy() for name in file}
    except SquishError as error:
        return {} if error.code in REFUSED else {error.code: np.zeros(0)}


NOT_HERE = ("gpt2", "falcon_h1")
"""Families with matrices as [in, out] (test_models_adapters), and with factors that no adapter can have."""


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in NOT_HERE])
def test_an_adapter_adds_what_the_map_makes_of_its_weights(family: str) -> None:
    weights, config = arrays_of(family), config_of(family)
    zeros = {each: np.zeros(values.shape, np.float32) for each, values in weights.items()}
    adapted = []
    for name in [name for name in one_of_each(weights) if is_adaptable(name, weights[name])]:
        pattern = re.compile(re.escape(name).replace(r"experts\.0\.", r"experts\.\d+\."))
        names = [each for each in weights if pattern.fullmatch(each)]
        matrices = matrices_of([each.removesuffix(".weight") for each in names], weights[name].shape)
        products = [second @ first for first, second in batched(matrices.values())]
        pairs, whole = pairs_of(matrices, config), mapped({**zeros, **dict(zip(names, products))}, config)
        for target in {each.rpartition(".lora_")[0] for each in pairs}:
            added = pairs[f"{target}.lora_b"] @ pairs[f"{target}.lora_a"]
            np.testing.assert_array_equal(added, whole[target].numpy(), err_msg=f"{name} -> {target}")
        adapted += [name] if pairs else []
    refused = {name for name in one_of_each(weights) if is_adaptable(name, weights[name])}.difference(adapted)
    assert {name.split(".")[-2] for name in refused} <= UNADAPTED.get(family, set())


def test_an_adapter_of_a_family_whose_weights_are_multiplied_is_refused() -> None:
    weights, config = arrays_of("falcon_h1"), config_of("falcon_h1")
    name = "model.layers.0.self_attn.q_proj"
    with pytest.raises(SquishError) as caught:
        to_gguf(matrices_of([name], weights[f"{name}.weight"].shape), config)
    assert caught.value.code == "names"


def batched(values: Iterable[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """A and B of each module."""
    pairs = iter(values)
    return zip(pairs, pairs)


_LATENT = {"q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"}
_INDEXED = {*_LATENT, "wq_b", "wk", "weights_proj"}
_FUSED = {"input_linear", "output_linear"}
UNADAPTED = {
    **dict.fromkeys(("deepseek2", "glm4_moe_lite", "kimi", "mistral4"), _LATENT), "deepseek32": _INDEXED,
    "glm-dsa": _INDEXED, **dict.fromkeys(("granitehybrid", "granitehybrid_moe", "granite4"), _FUSED),
    "kimi_linear": {
        *_LATENT, *(f"{each}_proj" for each in ("k", "v", "o", "f_a", "f_b", "b", "g_a", "g_b")),
    },
    "internlm2": {"wqkv"}, "qwen3next": {"in_proj_qkvz"},
}  # fmt: skip
"""Modules whose adapters are refused: llama.cpp ignores them, or has several tensors for them."""
