"""Families with latent attention: int4 experts of Kimi K2, indexers of GLM 5, the scaled queries of Mistral 4."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from published_configs import GLM5, KIMI, MISTRAL4, PUBLISHED
from small_tokenizer import TOKENIZER
from squish_convert.arrays import in_memory
from squish_convert.mapping.mapped import map_file, naming_of
from squish_models.api import check_model
from squish_testing import model_arrays, write_model

import squish_core as squish
from squish_core.errors import SquishError, UsageError
from squish_core.file import File
from squish_core.model import Typed

Config = Mapping[str, Any]
WIDE = {"hidden_size": 64, "moe_intermediate_size": 32}
INT4 = {
    "config_groups": {
        "group_0": {
            "input_activations": None, "output_activations": None, "targets": ["Linear"],
            "weights": {
                "actorder": None, "dynamic": False, "group_size": 32, "num_bits": 4, "strategy": "group",
                "symmetric": True, "type": "int",
            },
        },
    },
    "format": "pack-quantized", "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"],
    "quant_method": "compressed-tensors", "quantization_status": "compressed",
}  # fmt: skip
"""The declaration of Kimi K2.5, in its text part."""


def opened(arrays: Mapping[str, np.ndarray], config: Config) -> File:
    return in_memory(arrays, assets={"config.json": json.dumps(config).encode(), **TOKENIZER})


def kimi(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """A Kimi K2.5 as published, and the values of its experts by layer and projection."""
    text = {**KIMI, **WIDE}
    config = {**PUBLISHED["Kimi-K2.5"][1], "text_config": {**text, "quantization_config": INT4}}
    generator, stored, experts = np.random.default_rng(0), {}, {}
    for name, values in model_arrays("kimi", text, "bf16").items():
        own = f"language_model.{name}"
        if ".mlp.experts." not in name:
            stored[own] = values
            continue
        rows, columns = values.shape
        codes = generator.integers(0, 16, (rows, columns), np.uint32)
        scales = (generator.random((rows, columns // 32)) / 64 + 2**-9).astype(ml_dtypes.bfloat16)
        shifted = codes.reshape(rows, -1, 8) << (4 * np.arange(8, dtype=np.uint32))
        base = own.removesuffix("weight")
        stored[f"{base}weight_packed"] = np.bitwise_or.reduce(shifted, -1).view(np.int32)
        stored[f"{base}weight_scale"], stored[f"{base}weight_shape"] = scales, np.array([rows, columns], np.int32)
        experts[name] = (codes.astype(np.float32) - 8) * np.repeat(scales.astype(np.float32), 32, 1)
    stored["vision_tower.patch_embed.proj.weight"] = np.zeros((4, 4), ml_dtypes.bfloat16)
    with in_memory(stored, {"format": "pt"}, {"config.json": json.dumps(config).encode(), **TOKENIZER}) as file:
        squish.convert(file, folder, "safetensors:max_shard_size=1GB", rename="keep")
    return folder, experts


def test_int4_experts_become_the_same_codes_in_gguf(tmp_path: Path) -> None:
    source, experts = kimi(tmp_path / "kimi")
    report = squish.convert(source, tmp_path / "m.gguf")
    assert [each.name for each in report.dropped] == ["vision_tower.patch_embed.proj.weight"]
    with squish.open(tmp_path / "m.gguf") as gguf:
        for layer in range(1, KIMI["num_hidden_layers"]):
            for part in ("gate", "up", "down"):
                stack = gguf[f"blk.{layer}.ffn_{part}_exps.weight"]
                names = [f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight" for expert in range(4)]
                assert stack.codec == "ggml.q4_0"
                np.testing.assert_array_equal(stack.numpy(), [experts[name] for name in names])
    assert check_model(tmp_path / "m.gguf", "llama.cpp").problems == ()


def test_codes_of_gguf_become_int4_experts_again(tmp_path: Path) -> None:
    source, _ = kimi(tmp_path / "kimi")
    squish.convert(source, tmp_path / "m.gguf")
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf:method=compressed-tensors")
    with squish.open(source) as before, squish.open(tmp_path / "back") as after:
        for name in [each for each in after if ".experts." in each]:
            one, other = before[f"language_model.{name}"], after[name]
            assert one.spec.encodings[0].codec.params["bits"] == other.spec.encodings[0].codec.params["bits"] == 4
            np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_a_model_is_found_by_the_type_of_its_text_part() -> None:
    named = {}
    for model in ("Mistral-Small-4", "Ministral-3-3B-Instruct-2512"):
        config = PUBLISHED.get(model, (None, {"model_type": "mistral3", "text_config": {"model_type": "ministral3"}}))[
            1
        ]
        with in_memory({"x": np.zeros(1)}, assets={"config.json": json.dumps(config).encode()}) as file:
            named[model] = naming_of(file).family
    assert named == {"Mistral-Small-4": "mistral4", "Ministral-3-3B-Instruct-2512": "mistral3"}


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        ({}, "FFFF"), ({"index_topk_freq": 2}, "FFSF"), ({"index_topk_pattern": "FSSF"}, "FSSF"),
        ({"index_topk_freq": 3, "index_skip_topk_offset": 1}, "FSSF"),
    ],
)  # fmt: skip
def test_indexers_are_found_in_each_spelling(settings: Config, kinds: str) -> None:
    config = {**GLM5, **settings}
    mapped = map_file(opened(model_arrays("glm-dsa", config, "f32"), config), "gguf", {}, naming_of(opened({}, config)))
    assert "".join("F" if each else "S" for each in mapped.index.meta["glm-dsa.attention.indexer.types"].value) == kinds
    assert sum(name.endswith("indexer.proj.weight") for name in mapped) == kinds.count("F")


@pytest.mark.parametrize(("length", "count"), [(512, 4), (1 << 20, 3)])
def test_a_gguf_that_does_not_say_which_layers_have_indexers_is_read_as_llama_cpp_does(length: int, count: int) -> None:
    config = {**GLM5, "max_position_embeddings": length, "indexer_types": ["full", "full", "full", "shared"]}
    config["indexer_types"] = config["indexer_types"] if count == 3 else ["full"] * 4
    file = opened(model_arrays("glm-dsa", config, "f32"), config)
    mapped = map_file(file, "gguf", {"keep": "no"}, naming_of(file))
    meta = {name: value for name, value in mapped.index.meta.items() if not name.endswith("indexer.types")}
    gguf = in_memory({name: mapped[name].numpy() for name in mapped}, meta)
    back = json.loads(bytes(map_file(gguf, "hf", {}, naming_of(gguf)).assets["config.json"].raw))
    assert back["indexer_types"] == config["indexer_types"]


def changed(**settings: Any) -> Callable[[Config], Config]:
    return lambda config: {**config, **settings}


@pytest.mark.parametrize(
    ("family", "config", "part"),
    [
        ("glm-dsa", {**GLM5, "indexer_types": ["shared"] * 4}, "config.json indexer_types"),
        ("glm-dsa", {**GLM5, "indexer_types": ["full"]}, "config.json indexer_types"),
        ("glm-dsa", {**GLM5, "indexer_types": ["full", "none", "full", "full"]}, "config.json indexer_types"),
        ("glm-dsa", {**GLM5, "index_topk_freq": "2"}, "config.json indexer_types"),
        ("glm-dsa", {**GLM5, "q_lora_rank": None}, "config.json"),
        ("glm-dsa", {**GLM5, "index_topk": "8"}, "config.json index_topk"),
        ("glm-dsa", {**GLM5, "indexer_rope_interleave": False}, "config.json"),
        ("mistral4", {**MISTRAL4, "rope_parameters": {**MISTRAL4["rope_parameters"], "partial_rotary_factor": 0.5}},
         "config.json partial_rotary_factor"),
        ("mistral4", {**MISTRAL4, "rope_parameters": {**MISTRAL4["rope_parameters"], "mscale": 0.5}}, "config.json"),
        ("mistral4", {**MISTRAL4, "scoring_func": "sigmoid"}, "config.json"),
    ],
)  # fmt: skip
def test_a_setting_that_llama_cpp_computes_otherwise_is_refused(family: str, config: Config, part: str) -> None:
    good = GLM5 if family == "glm-dsa" else MISTRAL4
    file = opened(model_arrays(family, good, "f32"), config)
    with pytest.raises(SquishError) as caught:
        map_file(file, "gguf", {}, naming_of(file))
    assert caught.value.part == part


@pytest.mark.parametrize(
    ("key", "value"),
    [("attention.temperature_length", Typed("u32", 64)), ("rope.scaling.type", Typed("str", "linear"))],
)
def test_a_gguf_that_scales_queries_otherwise_is_refused(key: str, value: Typed) -> None:
    file = opened(model_arrays("mistral4", MISTRAL4, "f32"), MISTRAL4)
    mapped = map_file(file, "gguf", {"keep": "no"}, naming_of(file))
    gguf = in_memory({name: mapped[name].numpy() for name in mapped}, {**mapped.index.meta, f"mistral4.{key}": value})
    with pytest.raises(SquishError) as caught:
        map_file(gguf, "hf", {}, naming_of(gguf))
    assert caught.value.code in ("contradiction", "rope")


def mistral_large(**keys: Typed) -> tuple[File, File]:
    """A GGUF of Mistral 4, and the same as one of Mistral Large 3, with DeepSeek's keys and others."""
    file = opened(model_arrays("mistral4", MISTRAL4, "f32"), MISTRAL4)
    mapped = map_file(file, "gguf", {"keep": "no"}, naming_of(file))
    arrays, meta = {name: mapped[name].numpy() for name in mapped}, dict(mapped.index.meta)
    large = {key.replace("mistral4.", "deepseek2.", 1): value for key, value in meta.items()}
    large |= {"general.architecture": Typed("str", "deepseek2"), **keys}
    return in_memory(arrays, meta), in_memory(arrays, large)


def test_the_gguf_of_mistral_large_3_comes_back_as_mistral_4() -> None:
    small, large = mistral_large()
    assert naming_of(large).family == "mistral_large_3"
    one, other = (map_file(each, "hf", {}, naming_of(each)) for each in (small, large))
    assert [*one] == [*other]
    assert all(np.array_equal(one[name].numpy(), other[name].numpy()) for name in one)
    assert bytes(one.assets["config.json"].raw) == bytes(other.assets["config.json"].raw)


def test_the_gguf_of_deepseek_without_scaled_queries_is_none_of_mistral_large_3() -> None:
    _, large = mistral_large(**{"deepseek2.attention.temperature_scale": Typed("f32", 0.0)})
    assert naming_of(large).family == "deepseek2"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_gating_func", Typed("u32", 2)), ("attention.temperature_length", Typed("u32", 64)),
        ("rope.scaling.type", Typed("str", "linear")),
    ],
)  # fmt: skip
def test_a_gguf_of_mistral_large_3_with_what_it_has_not_is_refused(key: str, value: Typed) -> None:
    _, large = mistral_large(**{f"deepseek2.{key}": value})
    with pytest.raises(SquishError) as caught:
        map_file(large, "hf", {}, naming_of(large))
    assert caught.value.code in ("contradiction", "rope", "unmapped")


@pytest.mark.parametrize("model", ["DeepSeek-V3.2", "GLM-5", "GLM-5.2"])
@pytest.mark.parametrize(("engine", "to"), [("llama.cpp", "gguf"), ("mlx", "mlx"), ("transformers", "hf")])
def test_the_check_lets_what_is_written_pass(model: str, engine: str, to: str, tmp_path: Path) -> None:
    family, config = PUBLISHED[model]
    source = write_model(tmp_path / "m", family, config, files=TOKENIZER)
    target = tmp_path / f"checked.{to}" if to != "hf" else source
    if (model, engine) == ("GLM-5.2", "mlx"):
        with pytest.raises(UsageError) as caught:
            squish.convert(source, target, to)
        assert (caught.value.code, caught.value.part) == ("engine", "config.json indexer_types")
        assert [each.where for each in check_model(source, engine).problems] == ["config.json indexer_types"]
        return
    if to != "hf":
        squish.convert(source, target, to)
    assert not check_model(target, engine).problems
