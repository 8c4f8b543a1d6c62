"""DeepSeek: keys and values that alternate by head, layers of two kinds, and modules that engines leave out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_tokenizer import TOKENIZER
from squish_convert.arrays import in_memory
from squish_convert.mapping.inventory import check_settings
from squish_convert.mapping.mapped import map_file, naming_of
from squish_models.api import check_model
from squish_testing import model_arrays, write_model

import squish_core as squish
from squish_core.errors import SquishError
from squish_core.model import Typed

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_act": "silu",
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 64, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False, "torch_dtype": "float32", "kv_lora_rank": 32, "q_lora_rank": 32,
    "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 64, "first_k_dense_replace": 1,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 2, "moe_intermediate_size": 32,
    "routed_scaling_factor": 2.5, "n_group": 2, "topk_group": 1, "norm_topk_prob": True, "rope_theta": 10000.0,
}  # fmt: skip
LITE = {**CONFIG, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "q_lora_rank": None}
FUSED = "model.layers.0.self_attn.kv_b_proj.weight"
FAMILY = "deepseek2"


def written(folder: Path, config: dict[str, Any] = CONFIG) -> Path:
    return write_model(folder, FAMILY, config, dtype="f32", files=TOKENIZER)


def weights(config: dict[str, Any] = CONFIG) -> dict[str, np.ndarray]:
    return model_arrays(FAMILY, config, "f32")


def opened(arrays: dict[str, np.ndarray], config: dict[str, Any] = CONFIG) -> squish.File:
    return in_memory(arrays, assets={"config.json": json.dumps(config).encode(), **TOKENIZER})


def test_keys_and_values_are_separated_by_head(tmp_path: Path) -> None:
    squish.convert(written(tmp_path / "m"), tmp_path / "m.gguf")
    with squish.open(tmp_path / "m") as source, squish.open(tmp_path / "m.gguf") as gguf:
        heads = source[FUSED].numpy().reshape(4, 32 + 64, 32)
        np.testing.assert_array_equal(gguf["blk.0.attn_k_b.weight"].numpy(), heads[:, :32].swapaxes(1, 2))
        np.testing.assert_array_equal(gguf["blk.0.attn_v_b.weight"].numpy(), heads[:, 32:])


@pytest.mark.parametrize("config", [CONFIG, LITE], ids=["3", "2 lite"])
def test_a_gguf_states_which_of_the_models_it_is(config: dict[str, Any], tmp_path: Path) -> None:
    squish.convert(written(tmp_path / "m", config), tmp_path / "m.gguf", "gguf:keep=no")
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    stated = json.loads((tmp_path / "back" / "config.json").read_text())
    assert {key: stated[key] for key in config if key != "torch_dtype"} == {
        key: value for key, value in config.items() if key != "torch_dtype"
    }
    assert {item.state for item in squish.diff(tmp_path / "m", tmp_path / "back").tensors} == {"bytes"}


def test_files_from_before_the_split_are_read() -> None:
    """llama.cpp stored keys and values as Hugging Face does, with as many heads."""
    file = opened(weights())
    mapped = map_file(file, "gguf", {}, naming_of(file))
    arrays = {name: mapped[name].numpy() for name in mapped}
    for layer in range(2):
        del arrays[f"blk.{layer}.attn_k_b.weight"], arrays[f"blk.{layer}.attn_v_b.weight"]
        arrays[f"blk.{layer}.attn_kv_b.weight"] = weights()[f"model.layers.{layer}.self_attn.kv_b_proj.weight"]
    meta = {name: value for name, value in mapped.index.meta.items() if not name.endswith("_mla")}
    for name, value in (("head_count_kv", 4), ("key_length", 48), ("value_length", 64)):
        key = f"deepseek2.attention.{name}"
        meta[key] = type(meta[key])("u32", value)
    old = in_memory(arrays, meta)
    back = map_file(old, "hf", {}, naming_of(old))
    np.testing.assert_array_equal(back[FUSED].numpy(), weights()[FUSED])


def test_experts_keep_their_codes_in_mlx(tmp_path: Path) -> None:
    squish.convert(written(tmp_path / "m"), tmp_path / "m.gguf", encode={"*_exps.weight": "q8_0"})
    squish.convert(tmp_path / "m.gguf", tmp_path / "mlx", "mlx")
    squish.convert(tmp_path / "mlx", tmp_path / "back.gguf")
    assert {item.state for item in squish.diff(tmp_path / "m.gguf", tmp_path / "back.gguf").tensors} == {"bytes"}


def test_what_mlx_lm_makes_of_keys_and_values_is_read() -> None:
    arrays = weights()
    for layer in range(2):
        heads = arrays.pop(f"model.layers.{layer}.self_attn.kv_b_proj.weight").reshape(4, 32 + 64, 32)
        arrays[f"model.layers.{layer}.self_attn.embed_q.weight"] = heads[:, :32].swapaxes(1, 2).copy()
        arrays[f"model.layers.{layer}.self_attn.unembed_out.weight"] = heads[:, 32:].copy()
    file = opened(arrays)
    back = map_file(file, "hf", {}, naming_of(file))
    np.testing.assert_array_equal(back[FUSED].numpy(), weights()[FUSED])


def test_blocks_of_float8_go_to_gguf(tmp_path: Path) -> None:
    folder, fp8 = written(tmp_path / "m"), {"*_proj.weight": "fp8_block"}
    squish.convert(folder, tmp_path / "fp8", "hf:method=fp8", fp8)
    squish.convert(tmp_path / "fp8", tmp_path / "m.gguf", encode="f32")
    squish.convert(tmp_path / "fp8", tmp_path / "floats", "hf", encode="f32")
    squish.convert(tmp_path / "floats", tmp_path / "same.gguf")
    with squish.open(tmp_path / "fp8") as file:
        assert file[FUSED].spec.encodings[0].codec.id == "float8"
    assert {item.state for item in squish.diff(tmp_path / "m.gguf", tmp_path / "same.gguf").tensors} == {"bytes"}


@pytest.mark.parametrize("encode", ["q8_0", "int4:group_size=32"])
def test_the_refusal_of_coded_keys_and_values_names_rules_that_convert_them(encode: str, tmp_path: Path) -> None:
    form = "uqff" if encode == "q8_0" else "mlx"
    squish.convert(written(tmp_path / "m"), tmp_path / "coded", form, {"*_proj.weight": encode})
    with pytest.raises(SquishError) as caught:
        squish.convert(tmp_path / "coded", tmp_path / "m.gguf")
    error = caught.value
    assert (error.code, error.tensor) == ("refused", "blk.0.attn_k_b.weight")
    assert [each.where for each in error.findings] == ["ggml.q8_0" if form == "uqff" else "affine"]
    bits = {"q8_0": "8.5", "int4:group_size=32": "5"}[encode]
    assert all(f"of {bits} bits" in each.message for each in error.findings)
    assert not (tmp_path / "m.gguf").exists()
    rules = dict(re.findall(r"encode='([^=']+)=(bf16)'", error.hint or ""))
    for number, each in enumerate((rules, {"*kv_b*": "bf16"})):  # of the hint, and of the documentation
        target = tmp_path / f"{number}.gguf"
        squish.convert(tmp_path / "coded", target, encode=each)
        with squish.open(tmp_path / "coded") as source, squish.open(target) as gguf:
            heads = source[FUSED].numpy().reshape(4, 32 + 64, 32)
            keys, values = (gguf[f"blk.0.attn_{name}_b.weight"].numpy() for name in "kv")
            np.testing.assert_allclose(keys, heads[:, :32].swapaxes(1, 2), rtol=2**-8)
            np.testing.assert_allclose(values, heads[:, 32:], rtol=2**-8)
            assert gguf["blk.1.ffn_down_exps.weight"].codec.startswith("ggml.")


PREDICTING = {**CONFIG, "num_nextn_predict_layers": 1}


def predicting() -> dict[str, np.ndarray]:
    arrays = weights()
    arrays |= {name.replace(".1.", ".2.", 1): values for name, values in arrays.items() if ".layers.1." in name}
    sizes = {"eh_proj": (64, 128), "enorm": (64,), "hnorm": (64,), "shared_head.norm": (64,), "embed_tokens": (64, 64)}
    more = {name: np.random.default_rng(0).random(size, np.float32) for name, size in sizes.items()}
    return arrays | {f"model.layers.2.{name}.weight": values for name, values in more.items()}


def test_a_layer_that_predicts_more_tokens_goes_to_gguf_and_back() -> None:
    file = opened(predicting(), PREDICTING)
    mapped = map_file(file, "gguf", {"keep": "no"}, naming_of(file))
    keys = {name: value.value for name, value in mapped.index.meta.items()}
    assert (keys["deepseek2.block_count"], keys["deepseek2.nextn_predict_layers"]) == (3, 1)
    assert not [item.name for item in mapped.dropped if item.kind == "tensor"]
    np.testing.assert_array_equal(mapped["blk.2.nextn.eh_proj.weight"].numpy(), file["model.layers.2.eh_proj.weight"])
    gguf = in_memory({name: mapped[name].numpy() for name in mapped}, mapped.index.meta)
    back = map_file(gguf, "hf", {}, naming_of(gguf))
    assert set(back) == set(file)
    assert all(np.array_equal(back[name].numpy(), file[name].numpy()) for name in file)
    config = json.loads(bytes(back.assets["config.json"].raw))
    assert (config["num_hidden_layers"], config["num_nextn_predict_layers"]) == (2, 1)


def test_a_config_may_state_a_layer_that_the_file_lacks() -> None:
    file = opened(weights(), PREDICTING)
    mapped = map_file(file, "gguf", {}, naming_of(file))
    assert mapped.index.meta["deepseek2.block_count"].value == 2
    assert "deepseek2.nextn_predict_layers" not in mapped.index.meta


@pytest.mark.parametrize("name", ["eh_proj.weight", "enorm.weight", "self_attn.q_b_proj.weight"])
def test_a_missing_tensor_of_a_layer_that_predicts_more_tokens_is_named(name: str) -> None:
    arrays = predicting()
    del arrays[f"model.layers.2.{name}"]
    file = opened(arrays, PREDICTING)
    with pytest.raises(SquishError) as caught:
        map_file(file, "gguf", {}, naming_of(file))
    assert (caught.value.code, caught.value.tensor) == ("unmapped", f"model.layers.2.{name}")


def drop(name: str) -> Callable[[dict[str, np.ndarray]], Any]:
    return lambda arrays: arrays.pop(name)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("model.layers.1.mlp.gate.e_score_correction_bias", CONFIG), ("model.layers.0.mlp.up_proj.weight", CONFIG),
        ("model.layers.1.self_attn.q_a_proj.weight", CONFIG), ("model.layers.0.self_attn.q_proj.weight", LITE),
        ("model.layers.1.mlp.experts.3.up_proj.weight", LITE), (FUSED.replace("0", "1"), LITE),
    ],
)  # fmt: skip
def test_a_missing_tensor_is_named(name: str, config: dict[str, Any]) -> None:
    arrays = weights(config)
    del arrays[name]
    file = opened(arrays, config)
    with pytest.raises(SquishError) as caught:
        map_file(file, "gguf", {}, naming_of(file))
    assert caught.value.code == "unmapped"
    assert caught.value.tensor == name.replace("kv_b_proj", "k_b_proj")


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"kv_lora_rank": None}, "config"), ({"v_head_dim": "64"}, "config"), ({"n_routed_experts": None}, "config"),
        ({"qk_nope_head_dim": 16}, "contradiction"), ({"moe_intermediate_size": 16}, "contradiction"),
        ({"scoring_func": "softmax"}, "config"), ({"norm_topk_prob": 1}, "config"), ({"moe_layer_freq": 2}, "config"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5}}, "rope"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope"), ({"first_k_dense_replace": 2}, "contradiction"),
    ],
)  # fmt: skip
def test_a_config_that_contradicts_the_tensors_or_llama_cpp_is_refused(settings: dict[str, Any], code: str) -> None:
    file = opened(weights(), {**CONFIG, **settings})
    with pytest.raises(SquishError) as caught:
        map_file(file, "gguf", {}, naming_of(file))
    assert caught.value.code == code


@pytest.mark.parametrize("kind", ["yarn", "linear"])
@pytest.mark.parametrize("to", ["hf", "mlx", "uqff"])
def test_a_scaling_of_a_gguf_that_only_llama_cpp_applies_to_attention_is_refused(to: str, kind: str) -> None:
    """Measured: log-probabilities of llama.cpp and transformers differ by more than 1."""
    scaling = {"type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    file = opened(weights(), {**CONFIG, "rope_scaling": scaling})
    mapped = map_file(file, "gguf", {"keep": "no"}, naming_of(file))
    key = "deepseek2.rope.scaling."
    meta = {**mapped.index.meta, f"{key}type": Typed("str", kind)}
    arrays = {name: mapped[name].numpy() for name in mapped}
    whole = in_memory(arrays, mapped.index.meta)
    assert map_file(whole, to, {}, naming_of(whole))
    del meta[f"{key}yarn_log_multiplier"]
    gguf = in_memory(arrays, meta)
    with pytest.raises(SquishError) as caught:
        map_file(gguf, to, {}, naming_of(gguf))
    assert (caught.value.code, caught.value.part) == ("rope", f"{key}yarn_log_multiplier")
    assert check_settings(gguf, naming_of(gguf), "gguf") == ()


@pytest.mark.parametrize(("engine", "to"), [("llama.cpp", "gguf"), ("mlx", "mlx"), ("transformers", "hf")])
def test_the_check_lets_what_is_written_pass(engine: str, to: str, tmp_path: Path) -> None:
    target = written(tmp_path / "m")
    if to != "hf":
        target = tmp_path / f"checked.{to}"
        squish.convert(tmp_path / "m", target, to)
    assert check_model(target, engine).problems == ()


@pytest.mark.parametrize(
    "key", ["attention.key_length_mla", "attention.value_length_mla", "rope.dimension_count", "expert_group_used_count"]
)
def test_keys_without_which_llama_cpp_ends_are_asked_for(key: str) -> None:
    file = opened(weights())
    mapped = map_file(file, "gguf", {}, naming_of(file))
    arrays = {name: mapped[name].numpy() for name in mapped}
    damaged = in_memory(arrays, {name: value for name, value in mapped.index.meta.items() if not name.endswith(key)})
    with pytest.raises(SquishError) as caught:
        map_file(damaged, "hf", {}, naming_of(damaged))
    assert caught.value.code == "config"


def test_the_whole_of_keys_and_values_beside_its_halves_is_left_out(tmp_path: Path) -> None:
    """ik_llama.cpp's files hold both."""
    squish.convert(written(tmp_path / "hf"), tmp_path / "split.gguf", "gguf:keep=no")
    with squish.open(tmp_path / "split.gguf") as file:
        arrays, keys = {name: file[name].numpy() for name in file}, dict(file.index.meta)
    extra = "blk.0.attn_kv_b.weight"
    arrays[extra] = weights()[FUSED]
    squish.save(tmp_path / "both.gguf", arrays, metadata=keys)
    report = squish.convert(tmp_path / "both.gguf", tmp_path / "back", "hf")
    assert [each.name for each in report.dropped] == [extra]
    with squish.open(tmp_path / "back") as back, squish.open(tmp_path / "hf") as source:
        assert np.array_equal(back[FUSED].numpy(), source[FUSED].numpy())
        assert back.index.assets.keys() >= source.index.assets.keys()
    squish.convert(tmp_path / "both.gguf", tmp_path / "copy.gguf")
    with squish.open(tmp_path / "copy.gguf") as copy:
        assert np.array_equal(copy[extra].numpy(), arrays[extra])
    (problem,) = check_model(tmp_path / "both.gguf", "llama.cpp").problems
    assert (problem.code, problem.where) == ("unmapped", extra)
