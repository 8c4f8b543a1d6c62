"""Keys that a GGUF does not state: llama.cpp's defaults, in the table and in the config.json of a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_tokenizer import TOKENIZER
from squish_models import FAMILIES
from squish_models.config.gguf_defaults import ARCHITECTURES, COMMON, REQUIRED, LoadedKeys
from squish_testing import write_model

import squish_core as squish
from squish_core.model import Typed

SMALL = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float32",
}  # fmt: skip
GEMMA: dict[str, Any] = {"head_dim": 8, "query_pre_attn_scalar": 8, "tie_word_embeddings": True}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "norm_topk_prob": True}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma2": {**GEMMA, "sliding_window": 16, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    "gemma3": {**GEMMA, "model_type": "gemma3_text", "sliding_window": 16, "rope_local_base_freq": 10000.0},
    "granite": {"embedding_multiplier": 2.0, "attention_multiplier": 0.5, "residual_multiplier": 0.5,
                "logits_scaling": 4.0},
    "qwen3moe": {"model_type": "qwen3_moe", "head_dim": 8, **EXPERTS},
    "olmo2": {},
}  # fmt: skip
LINEAR = {"rope_type": "linear", "type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "a scale of 2023": ("llama", {"rope.scale_linear": 4.0}, {"rope_scaling": LINEAR}),
    "the newer key comes first": (
        "llama", {"rope.scale_linear": 2.0, "rope.scaling.factor": 4.0}, {"rope_scaling": LINEAR},
    ),
    "a factor without a type": ("llama", {"rope.scaling.factor": 4.0}, {"rope_scaling": LINEAR}),
    "a factor of none": ("llama", {"rope.scaling.factor": 4.0, "rope.scaling.type": "none"}, {"rope_scaling": None}),
    "a factor of 0": ("llama", {"rope.scaling.factor": 0.0}, {"rope_scaling": None}),
    "a factor of 1": ("llama", {"rope.scale_linear": 1.0}, {"rope_scaling": None}),
    "yarn without a length": (
        "llama", {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, {"rope_scaling": YARN},
    ),
    "yarn without a factor": ("llama", {"rope.scaling.type": "yarn"}, {"rope_scaling": None}),
    "heads of keys": ("llama", {"attention.head_count_kv": np.array([2, 2], np.int32)}, {"num_key_value_heads": 2}),
    "no base": ("llama", {"rope.freq_base": None}, {"rope_theta": 10000.0}),
    "no caps and no window": (
        "gemma2",
        {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention.sliding_window": None},
        {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "sliding_window": 4096},
    ),
    "no window at all": (
        "gemma3", {"attention.sliding_window": None}, {"sliding_window": 128, "sliding_window_pattern": 1},
    ),
    "a window of 0": (
        "gemma3", {"attention.sliding_window": 0}, {"sliding_window": 128, "sliding_window_pattern": 1},
    ),
    "a cap of 0": ("gemma3", {"final_logit_softcapping": 0.0}, {"final_logit_softcapping": None}),
    "the usual pattern": (
        "gemma3", {"attention.sliding_window_pattern": np.array([True, True])}, {"sliding_window": 16},
    ),
    "no scales": (
        "granite", {"residual_scale": None, "embedding_scale": None, "attention.scale": None},
        {"residual_multiplier": 1.0, "embedding_multiplier": 1.0, "attention_multiplier": 0.35355338},
    ),
    "no size of dense layers": ("qwen3moe", {"feed_forward_length": None}, {"intermediate_size": 16}),
    "no size of experts": (
        "qwen3moe", {"expert_feed_forward_length": None, "feed_forward_length": 16}, {"moe_intermediate_size": 16},
    ),
    "both ways": ("llama", {"attention.causal": False}, {"is_causal": False}),
}  # fmt: skip


def changed(family: str, changes: dict[str, Any], folder: Path) -> Path:
    """A GGUF of a family with other keys; None removes one."""
    config = {**SMALL, "model_type": family, **MODELS[family]}
    write_model(folder / "hf", family, config, dtype="f32", files=TOKENIZER)
    squish.convert(folder / "hf", folder / "own.gguf", "gguf:keep=no")
    with squish.open(folder / "own.gguf") as file:
        meta = {**file.index.meta, **{f"{family}.{name}": typed(value) for name, value in changes.items()}}
        arrays = {name: file[name].numpy() for name in file}
    target = folder / "m.gguf"
    squish.save(target, arrays, metadata={key: value for key, value in meta.items() if value is not None})
    return target


def typed(value: Any) -> Typed | None:
    kinds = {bool: "bool", int: "u32", float: "f32", str: "str"}
    if isinstance(value, np.ndarray):
        return Typed("array:bool", value.tolist()) if value.dtype == bool else Typed("array:i32", value)
    return None if value is None else Typed(kinds[type(value)], value)


@pytest.mark.parametrize("case", CASES)
def test_a_config_states_what_llama_cpp_takes(case: str, tmp_path: Path) -> None:
    family, changes, expected = CASES[case]
    squish.convert(changed(family, changes, tmp_path), tmp_path / "back", "hf")
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert {name: config.get(name) for name in expected} == expected
    squish.convert(tmp_path / "back", tmp_path / "again.gguf")  # and llama.cpp takes the same from that
    squish.convert(tmp_path / "again.gguf", tmp_path / "once", "hf")
    again = json.loads((tmp_path / "once" / "config.json").read_text())
    assert {name: again.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("family", "changes", "code", "place"),
    [
        ("llama", {"rope.scaling.type": "ntk", "rope.scaling.factor": 2.0}, "rope", "llama.rope.scaling.type"),
        ("gemma3", {"attention.sliding_window_pattern": 3}, "config", "gemma3.attention.sliding_window_pattern"),
        ("gemma2", {"rope.freq_base_swa": 5.0}, "config", "gemma2.rope.freq_base_swa"),
        (
            "olmo2",
            {"attention.sliding_window": 16, "attention.sliding_window_pattern": 3},
            "config",
            "olmo2.attention.sliding_window_pattern",
        ),
        ("granite", {"rope.scaling.finetuned": False}, "config", "granite.rope.scaling.finetuned"),
    ],
)
def test_what_no_config_can_express_is_refused_for_a_folder_alone(
    family: str, changes: dict[str, Any], code: str, place: str, tmp_path: Path
) -> None:
    model = changed(family, changes, tmp_path)
    with pytest.raises(squish.SquishError) as caught:
        squish.convert(model, tmp_path / "back", "hf")
    assert (caught.value.code, caught.value.part) == (code, place)
    assert not (tmp_path / "back").exists()
    squish.convert(model, tmp_path / "q8.gguf", encode="q8_0")
    with squish.open(tmp_path / "q8.gguf") as file:
        assert place in file.meta


@pytest.mark.parametrize("value", ["four", [1.0], float("nan")])
def test_a_scale_that_is_no_number_is_named_by_its_own_key(value: Any) -> None:
    from squish_models.config.rope import rope_settings

    keys = LoadedKeys("llama", {"llama.rope.scale_linear": value, "llama.context_length": 8})
    with pytest.raises(squish.SquishError) as caught:
        rope_settings(keys, {}, {})
    assert (caught.value.code, caught.value.part) == ("rope", "llama.rope.scale_linear")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_has_the_keys_of_every_family(family: str) -> None:
    implementation = squish.registry().implementation("family", family)
    architecture = implementation.architecture
    defaults = {**COMMON, **ARCHITECTURES[architecture]}
    own = {key.gguf for key in implementation.keys}
    unread = {"attention.layer_norm_epsilon", "vocab_size"}
    assert own - unread <= {*defaults}, "a key that the table lacks would have no default"
    missing = {name.removeprefix(f"{architecture}.") for name in LoadedKeys(architecture, {}).missing}
    assert {name for name, value in defaults.items() if value is REQUIRED} <= missing


def test_defaults_depend_on_other_keys() -> None:
    meta = {"llama.embedding_length": 64, "llama.attention.head_count": Typed("u32", 4)}
    keys = LoadedKeys("llama", meta)
    assert (keys["attention.key_length"], keys["attention.head_count_kv"]) == (16, 4)
    assert "llama.attention.key_length" not in keys.missing
    assert LoadedKeys("unknown", {})["rope.freq_base"] == 10000.0
    lite = LoadedKeys("deepseek2", {"deepseek2.block_count": 27})
    assert (lite["attention.q_lora_rank"], lite["expert_gating_func"]) == (0, 1)
    assert LoadedKeys("deepseek2", {"deepseek2.block_count": 61})["attention.q_lora_rank"] is REQUIRED
