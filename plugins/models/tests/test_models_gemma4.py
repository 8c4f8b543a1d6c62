"""Gemma 4: sizes that differ between layers, proportional rotation, merges in GGUF, and what no engine computes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from squish_convert.arrays import in_memory
from squish_convert.mapping.mapped import map_file, model_of, naming_of
from squish_models.api import register_family
from squish_models.config.rope import proportional_factors, proportional_scaling
from squish_models.tokenizer import gguf_keys, read_gguf, read_huggingface
from squish_testing import model_arrays, write_model
from test_models_bad_input import CONFIGS, family_of, mapped, refusal

import squish_core as squish
from squish_core.errors import SquishError
from squish_core.model import Typed

SMALL, WIDE, EXPERTS, NEWER = (config for name, config in CONFIGS.items() if name.startswith("gemma4:"))
WINDOW, FULL = "sliding_attention", "full_attention"
SPACE = "\u2581"
DECLARED = """base = "qwen3"
model_type = "acme_layers"
[rows]
"self_attn.sinks" = { gguf = "attn_sinks", shape = ["heads"], suffix = "" }
[keys]
kv_heads = { gguf = "attention.head_count_kv", type = "sizes" }
num_key_value_heads = false
window_layers = { gguf = "attention.sliding_window_pattern", type = "array:bool" }
sliding_window = "attention.sliding_window"
sparsity = { gguf = "sparsity", type = "array:f32" }
heads = { gguf = "heads", type = "sizes" }
[sizes]
kv_rows = ["kv_heads", "head_dim"]
[per_layer]
kv_heads = { full_attention = "wide_kv_heads", others = "num_key_value_heads" }
heads = { full_attention = "wide_heads", others = "num_attention_heads" }
"""


def array(*values: int) -> Typed:
    return Typed("array:i32", np.array(values, np.int32))


def refused_keys(config: Mapping[str, Any], changes: Mapping[str, Any], left_out: str = "") -> SquishError:
    """The error about a GGUF with other keys, or without a tensor."""
    there = mapped(model_arrays("gemma4", config), config)
    arrays = {name: there[name].numpy() for name in there if name != left_out}
    with pytest.raises(SquishError) as caught:
        map_file(file := in_memory(arrays, {**there.index.meta, **changes}), "hf", {}, naming_of(file))
    return caught.value


def test_a_declared_family_has_sizes_of_each_kind_of_layers(tmp_path: Path) -> None:
    path = tmp_path / "acme.toml"
    path.write_text(DECLARED)
    family = squish.registry().implementation("family", register_family(path))
    config = {
        **{name: SMALL[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")},
        "num_hidden_layers": 3, "num_key_value_heads": 2, "wide_kv_heads": 1, "wide_heads": 3, "head_dim": 8,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "model_type": "acme_layers",
        "layer_types": [FULL, WINDOW, FULL], "sliding_window": 32, "sparsity": [0.5, 0.0, 0.25],
        "tie_word_embeddings": True,
    }  # fmt: skip
    there = mapped(model_arrays(family, config), config)
    keys = {name.partition(".")[2]: value.value for name, value in there.index.meta.items()}
    assert list(keys["attention.head_count_kv"]) == [1, 2, 1]
    assert list(keys["attention.sliding_window_pattern"]) == [False, True, False]
    assert list(keys["sparsity"]) == [0.5, 0.0, 0.25]
    assert there["blk.1.attn_k.weight"].shape == (16, 32)
    assert there["blk.2.attn_k.weight"].shape == (8, 32)
    assert there["blk.2.attn_sinks.weight"].shape == (3,)
    settings = family.settings(model_of(there, family, "gguf"))
    names = ("layer_types", "num_key_value_heads", "wide_kv_heads", "wide_heads", "sparsity", "sliding_window")
    assert {name: settings[name] for name in names} == {name: config[name] for name in names}


def test_a_gguf_states_what_a_layer_has_as_the_converter_writes_it() -> None:
    meta = mapped(model_arrays("gemma4", SMALL), SMALL).index.meta
    assert meta["gemma4.feed_forward_length"].type == "array:i32"
    assert list(meta["gemma4.feed_forward_length"].value) == [48, 48, 96, 96]
    assert meta["gemma4.attention.head_count_kv"].type == "u32"
    assert list(mapped(model_arrays("gemma4", WIDE), WIDE).index.meta["gemma4.attention.head_count_kv"].value) == [
        2, 1, 1, 1,
    ]  # fmt: skip


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_a_proportional_rotation_comes_back_from_its_factors(share: float) -> None:
    scaling = {"rope_type": "proportional", "partial_rotary_factor": share}
    assert proportional_scaling(proportional_factors(scaling, 64), 64) == scaling


SHARED = [f"model.layers.3.self_attn.{name}.weight" for name in ("k_proj", "k_norm", "v_proj")]


def test_keys_that_no_engine_reads_may_be_there(tmp_path: Path) -> None:
    """Published checkpoints have them in layers that take the keys of earlier ones."""
    arrays = model_arrays("gemma4", SMALL)
    more = {name: arrays[name.replace(".3.", ".1.")] for name in SHARED}
    there = mapped({**arrays, **more}, SMALL)
    assert there["blk.3.attn_k.weight"].shape == there["blk.1.attn_k.weight"].shape
    error = refusal({**arrays, SHARED[0]: arrays["model.layers.0.self_attn.k_proj.weight"]}, SMALL)
    assert (error.code, error.tensor) == ("contradiction", SHARED[0])


@pytest.mark.parametrize(
    ("config", "change", "part"),
    [
        (SMALL, {"layer_types": [FULL, WINDOW] * 2}, "layer_types"),
        (SMALL, {"layer_types": [WINDOW, FULL]}, "layer_types"),
        (SMALL, {"layer_types": ["full", "full"] * 2}, "layer_types"),
        (SMALL, {"num_kv_shared_layers": 4}, "num_kv_shared_layers"),
        (SMALL, {"num_kv_shared_layers": 3}, "num_kv_shared_layers"),
        (SMALL, {"use_double_wide_mlp": 1}, "use_double_wide_mlp"),
        (SMALL, {"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        (SMALL, {"hidden_activation": "silu"}, ""),
        (SMALL, {"attention_bias": True}, ""),
        (EXPERTS, {"top_k_experts": None}, ""),
        (EXPERTS, {"num_experts": "4"}, "num_experts"),
        (NEWER, {"per_layer_config": {"1": {"head_dim": 24}}}, "per_layer_config"),
        (NEWER, {"per_layer_config": {"1": {"head_dim": 24}, "3": {"head_dim": 16}}}, "per_layer_config.3"),
        (NEWER, {"per_layer_config": {"0": {"head_dim": 24}}}, "per_layer_config.0"),
        (NEWER, {"per_layer_config": {n: {"num_key_value_heads": 1} for n in "13"}}, "per_layer_config.num_key"),
        (NEWER, {"per_layer_config": 3}, "per_layer_config"),
        (NEWER, {"rope_parameters": {FULL: {"rope_theta": 1.0}}}, "rope_parameters"),
        (NEWER, {"rope_parameters": {**NEWER["rope_parameters"], WINDOW: {"rope_type": "yarn"}}}, "rope_parameters"),
        (NEWER, {"rope_parameters": {**NEWER["rope_parameters"], FULL: {"rope_type": "linear"}}}, "rope_parameters"),
    ],
)
def test_a_config_with_which_engines_differ_is_refused(
    config: Mapping[str, Any], change: Mapping[str, Any], part: str
) -> None:
    error = refusal(model_arrays("gemma4", config), {**config, **change})
    assert error.code == "config"
    assert (error.part or "").startswith(f"config.json {part}".strip())


def test_embeddings_of_fewer_tokens_than_the_vocabulary_are_refused() -> None:
    config = {**SMALL, "vocab_size_per_layer_input": 60}
    error = refusal(model_arrays("gemma4", config), config)
    assert (error.code, error.part) == ("config", "config.json vocab_size_per_layer_input")


@pytest.mark.parametrize(
    "change", [{"feed_forward_length": (48, 48, 48, 96)}, {"attention.head_count_kv": (2, 1, 2, 1)}]
)
def test_sizes_of_layers_that_no_config_states_stay_in_gguf(change: Mapping[str, tuple[int, ...]]) -> None:
    family, there = family_of("gemma4"), mapped(model_arrays("gemma4", SMALL), SMALL)
    model = model_of(there, family, "gguf")
    stated = {f"gemma4.{name}": array(*values) for name, values in change.items()}
    settings = family.settings(evolve(model, meta={**model.meta, **stated}))
    with pytest.raises(SquishError) as caught:
        family.check_for_folder(settings)
    assert (caught.value.code, caught.value.part) == ("config", next(iter(stated)))


@pytest.mark.parametrize("share", [-1, 2, "1", None])
def test_a_share_of_pairs_that_is_none_is_refused(share: Any) -> None:
    rope = {**NEWER["rope_parameters"], FULL: {"rope_type": "proportional", "partial_rotary_factor": share}}
    assert refusal(model_arrays("gemma4", NEWER), {**NEWER, "rope_parameters": rope}).code == "rope"


@pytest.mark.parametrize(
    ("changes", "left_out", "code"),
    [
        ({"gemma4.attention.sliding_window_pattern": array(1, 0)}, "", "contradiction"),
        ({"gemma4.attention.sliding_window_pattern": array(1, 0, 2, 0)}, "", "config"),
        ({"gemma4.attention.head_count_kv": array(2, 1, 2)}, "", "contradiction"),
        ({"gemma4.attention.head_count_kv": array(2, 1, 1, 1)}, "", "config"),
        ({"gemma4.feed_forward_length": array(48, 48, 48, 96)}, "", "contradiction"),
        ({"gemma4.attention.value_length": Typed("u32", 8)}, "", "contradiction"),
        ({"gemma4.rope.dimension_count_swa": Typed("u32", 4)}, "", "contradiction"),
        ({}, "rope_freqs.weight", "unmapped"),
        ({}, "blk.0.layer_output_scale.weight", "unmapped"),
        ({}, "blk.2.attn_output.weight", "unmapped"),
    ],
)
def test_a_gguf_that_no_config_expresses_is_refused(changes: Mapping[str, Typed], left_out: str, code: str) -> None:
    assert refused_keys(SMALL, changes, left_out).code == code


@pytest.mark.parametrize("wrong", [[1.0, 1e30, 1.0], [1e30] * 7 + [1.0], [1.0] * 7 + [2.0]])
def test_factors_of_no_proportional_rotation_are_refused(wrong: list[float]) -> None:
    there = mapped(model_arrays("gemma4", SMALL), SMALL)
    arrays = {name: there[name].numpy() for name in there}
    file = in_memory({**arrays, "rope_freqs.weight": np.array(wrong, np.float32)}, dict(there.index.meta))
    with pytest.raises(SquishError) as caught:
        map_file(file, "hf", {}, naming_of(file))
    assert caught.value.code == "rope"


VOCABULARY = ["<pad>", "<eos>", "<bos>", "<unk>", "<0x0A>", SPACE, "a", f"{SPACE}a", "<|channel>", "<|turn>"]


def tokenizer_files() -> dict[str, bytes]:
    special = [VOCABULARY.index(text) for text in ("<pad>", "<eos>", "<bos>", "<unk>", "<|channel>", "<|turn>")]
    stored = {
        "model": {
            "type": "BPE", "byte_fallback": True, "unk_token": "<unk>", "merges": [[SPACE, "a"]],
            "vocab": {text: number for number, text in enumerate(VOCABULARY)},
        },
        "added_tokens": [{"id": number, "content": VOCABULARY[number], "special": True} for number in special],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}},
        },
    }  # fmt: skip
    options = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
    generation = {"eos_token_id": [1], "suppress_tokens": [9]}
    return {
        "tokenizer.json": json.dumps(stored).encode(),
        "tokenizer_config.json": json.dumps(options).encode(),
        "generation_config.json": json.dumps(generation).encode(),
    }


def test_the_merges_of_a_sentencepiece_style_tokenizer_are_stored() -> None:
    tokenizer = read_huggingface(tokenizer_files(), {"vocab_size": 12}, merging="gemma4")
    assert tokenizer is not None
    keys = {name.removeprefix("tokenizer.ggml."): value for name, value in gguf_keys(tokenizer).items()}
    assert keys["model"].value == "gemma4"
    assert "pre" not in keys
    assert list(keys["merges"].value) == [f"{SPACE} a"]
    assert keys["token_type"].value.tolist() == [3, 3, 3, 3, 6, 1, 1, 1, 4, 3, 5, 5]
    assert set(keys["scores"].value.tolist()) == {-1000.0}
    assert (keys["add_bos_token"].value, keys["add_space_prefix"].value) == (True, False)
    assert keys["suppress_tokens"].value.tolist() == [9]
    back = read_gguf({f"tokenizer.ggml.{name}": value for name, value in keys.items()})
    assert back is not None
    assert back.kinds.tolist() == tokenizer.kinds.tolist()
    assert back.sampling == {"suppress_tokens": [9]}


def test_a_model_in_which_only_tokens_are_suppressed_stays_greedy(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m", "gemma4", {**SMALL, "vocab_size": 64}, files=tokenizer_files())
    squish.convert(source, tmp_path / "m.gguf", "gguf:keep=no")
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    generation = json.loads((tmp_path / "back" / "generation_config.json").read_text())
    assert generation["suppress_tokens"] == [9]
    assert "do_sample" not in generation
