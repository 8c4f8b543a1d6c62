"""Mixtures of experts and their relatives: stacks in two forms, layers by lists, what GGUF cannot express."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published_configs import LAGUNA, PUBLISHED
from small_tokenizer import TOKENIZER
from squish_models.families.apertus import NUMBERS
from squish_testing import model_arrays, write_model

import squish_core as squish
from squish_core.api import Typed

LLAMA4, QWEN, EXAONE = "Llama-4-Scout-17B-16E-Instruct", "Qwen3-VL-30B-A3B-Instruct", "K-EXAONE-236B-A23B"
SHARE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": "half"}
MELLUM, ERNIE = "Mellum2-12B-A2.5B", "ERNIE-4.5-21B-A3B-PT"
APERTUS = {
    "architectures": ["ApertusForCausalLM"], "attention_bias": False, "hidden_act": "xielu", "hidden_size": 32,
    "intermediate_size": 48, "max_position_embeddings": 512, "mlp_bias": False, "model_type": "apertus",
    "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "post_norm": False, "qk_norm": True,
    "rms_norm_eps": 1e-05, "rope_scaling": {
        "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 12000000, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 64,
}  # fmt: skip
"""config.json of Apertus-8B-Instruct-2509 with small sizes."""


def changed(model: str, **settings: Any) -> tuple[str, dict[str, Any]]:
    """A published config with other settings in its text part."""
    family, config = PUBLISHED[model]
    if "text_config" in config:
        return family, {**config, "text_config": {**config["text_config"], **settings}}
    return family, {**config, **settings}


def save(folder: Path, arrays: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> Path:
    folder.mkdir()
    squish.save(folder / "model.safetensors", arrays)
    for name, data in {**TOKENIZER, "config.json": json.dumps(config).encode()}.items():
        (folder / name).write_bytes(data)
    return folder


def tensors(path: Path) -> dict[str, np.ndarray]:
    with squish.open(path) as file:
        return {name: file[name].numpy() for name in file}


def stacked(arrays: Mapping[str, np.ndarray], *, turned: bool) -> dict[str, np.ndarray]:
    """Experts as one stack for gate and up and one for down, as [in, out] if they are `turned`."""
    found = {name: values for name, values in arrays.items() if ".experts." not in name}
    for layer in range(4):
        module = f"model.layers.{layer}.mlp.experts"
        names = [[f"{module}.{expert}.{part}_proj.weight" for expert in range(4)] for part in ("gate", "up", "down")]
        gate, up, down = (np.stack([arrays[name] for name in part]) for part in names)
        for name, values in (("gate_up_proj", np.concatenate([gate, up], 1)), ("down_proj", down)):
            found[f"{module}.{name}"] = np.ascontiguousarray(values.swapaxes(1, 2)) if turned else values
    return {f"model.language_{name}" if name.startswith("model.") else name: each for name, each in found.items()}


@pytest.mark.parametrize("size", [24, 16])  # with 16, gate and up together are square
@pytest.mark.parametrize("turned", [False, True])
def test_stacks_are_read_as_their_shape_says(turned: bool, size: int, tmp_path: Path) -> None:
    family, config = changed(QWEN, moe_intermediate_size=size)
    arrays = model_arrays(family, config, "f32")
    squish.convert(save(tmp_path / "one", arrays, config), tmp_path / "one.gguf")
    squish.convert(save(tmp_path / "two", stacked(arrays, turned=turned), config), tmp_path / "two.gguf")
    one, two = tensors(tmp_path / "one.gguf"), tensors(tmp_path / "two.gguf")
    assert one.keys() == two.keys()
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_a_stack_that_is_square_in_every_layer_is_refused(tmp_path: Path) -> None:
    family, config = changed(QWEN, moe_intermediate_size=16)
    arrays = stacked(model_arrays(family, config, "f32"), turned=True)
    own = {name: values for name, values in arrays.items() if not name.endswith("experts.down_proj")}
    with pytest.raises(squish.TensorError) as caught:
        squish.convert(save(tmp_path / "m", own, config), tmp_path / "m.gguf", rename="gguf")
    assert (caught.value.code, str(caught.value.tensor)[-12:]) == ("contradiction", "gate_up_proj")


@pytest.mark.parametrize(
    ("model", "setting", "value"),
    [
        (LLAMA4, "attention_chunk_size", 4096), (LLAMA4, "use_qk_norm", False), (LLAMA4, "attn_scale", 0.2),
        (LLAMA4, "no_rope_layers", [1, 0, 1, 0]), (LLAMA4, "layer_types", ["full_attention"] * 4),
        (LLAMA4, "moe_layers", [1, 3]), (LLAMA4, "attn_temperature_tuning", False), (LLAMA4, "attention_bias", True),
        ("dots.llm1.inst", "n_group", 2), ("Solar-Open-100B", "use_qk_norm", True), ("AFM-4.5B", "hidden_act", "silu"),
        ("Hunyuan-A13B-Instruct", "num_shared_expert", [1, 2, 1, 1]), ("Hunyuan-A13B-Instruct", "use_cla", True),
        ("Hunyuan-A13B-Instruct", "moe_intermediate_size", [32] * 4), (EXAONE, "scoring_func", "softmax"),
        (EXAONE, "mlp_layer_types", ["sparse"] * 4), (EXAONE, "n_group", 2), (EXAONE, "layer_types", ["full"] * 4),
        (EXAONE, "layer_types", ["full_attention"]), ("Trinity-Mini", "mup_enabled", False),
        ("Trinity-Mini", "layer_types", ["full_attention"] * 4), ("Trinity-Mini", "score_func", "softmax"),
        (MELLUM, "layer_types", None), ("Ling-mini-2.0", "use_qk_norm", False), ("Ling-mini-2.0", "norm_head", True),
        ("Ling-mini-2.0", "score_function", "softmax"), ("Ling-mini-2.0", "moe_router_enable_expert_bias", False),
    ],
)  # fmt: skip
def test_a_message_names_what_llama_cpp_computes_otherwise(
    model: str, setting: str, value: Any, tmp_path: Path
) -> None:
    family, config = PUBLISHED[model]
    arrays = model_arrays(family, config, "f32")
    source = save(tmp_path / "m", arrays, changed(model, **{setting: value})[1])
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(source, tmp_path / "m.gguf")
    assert caught.value.code == "config"
    assert setting in str(caught.value)
    assert not (tmp_path / "m.gguf").exists()


def test_bases_of_the_rotation_that_differ_are_refused_in_words(tmp_path: Path) -> None:
    family, config = PUBLISHED[MELLUM]
    local = {**config["rope_parameters"], "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    source = write_model(tmp_path / "m", family, {**config, "rope_parameters": local}, files=TOKENIZER)
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(source, tmp_path / "m.gguf")
    assert (caught.value.code, "rope_local_base_freq" in str(caught.value)) == ("config", True)


def test_llama_4_is_a_part_of_a_model_for_mlx_lm(tmp_path: Path) -> None:
    family, config = changed(LLAMA4, interleave_moe_layer_step=2)
    source = write_model(tmp_path / "m", family, config, dtype="f32", files=TOKENIZER)
    squish.convert(source, tmp_path / "mlx", "mlx")
    squish.convert(tmp_path / "mlx", tmp_path / "back", "hf")
    before, there, after = tensors(source), tensors(tmp_path / "mlx"), tensors(tmp_path / "back")
    assert all(name.startswith("language_model.") for name in there)
    fused = before["model.layers.1.feed_forward.experts.gate_up_proj"]
    gate = there["language_model.model.layers.1.feed_forward.experts.gate_proj.weight"]
    assert np.array_equal(gate, fused[..., :24].swapaxes(1, 2))
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    written = json.loads((tmp_path / "mlx" / "config.json").read_text())
    assert (written["model_type"], written["text_config"]["model_type"]) == ("llama4", "llama4_text")
    assert "hidden_size" not in written
    several = write_model(tmp_path / "n", family, changed(LLAMA4, num_experts_per_tok=2)[1], files=TOKENIZER)
    with pytest.raises(squish.UsageError) as caught:
        squish.convert(several, tmp_path / "other", "mlx")
    assert caught.value.code == "engine"


@pytest.mark.parametrize("windows", [4, [True, True, True, False], [1, 1, 1, 0], None])
def test_windows_of_layers_are_read_from_a_pattern_and_from_switches(windows: Any, tmp_path: Path) -> None:
    family, config = PUBLISHED[EXAONE]
    source = write_model(tmp_path / "m", family, config, dtype="f32", files=TOKENIZER)
    squish.convert(source, tmp_path / "m.gguf", "gguf:keep=no")
    with squish.open(tmp_path / "m.gguf") as file:
        arrays, meta = {name: file[name].numpy() for name in file}, dict(file.index.meta)
    key = "exaone-moe.attention.sliding_window_pattern"
    assert [*meta.pop(key).value] == [True, True, True, False]
    if windows is not None:
        kind = "u32" if isinstance(windows, int) else "array:bool" if windows[0] is True else "array:i32"
        meta[key] = Typed(kind, windows)
    squish.save(tmp_path / "n.gguf", arrays, metadata=meta)
    squish.convert(tmp_path / "n.gguf", tmp_path / "back", "hf")
    written = json.loads((tmp_path / "back" / "config.json").read_text())
    assert written["layer_types"] == config["layer_types"]
    assert written["mlp_layer_types"] == config["mlp_layer_types"]
    assert "windows" not in written
    assert "shared_size" not in written


def test_a_key_that_contradicts_a_product_is_refused(tmp_path: Path) -> None:
    family, config = PUBLISHED[ERNIE]
    source = write_model(tmp_path / "m", family, config, dtype="f32", files=TOKENIZER)
    squish.convert(source, tmp_path / "m.gguf", "gguf:keep=no")
    with squish.open(tmp_path / "m.gguf") as file:
        arrays, meta = {name: file[name].numpy() for name in file}, dict(file.index.meta)
    key = "ernie4_5-moe.expert_shared_feed_forward_length"
    assert meta[key].value == 48
    bias = "blk.1.exp_probs_b.bias"
    squish.save(tmp_path / "n.gguf", {**arrays, bias: arrays[bias][None]}, metadata=meta)  # as the converter has it
    squish.convert(tmp_path / "n.gguf", tmp_path / "back", "hf")
    before, after = tensors(source), tensors(tmp_path / "back")
    assert all(np.array_equal(before[name], after[name]) for name in before)
    squish.save(tmp_path / "o.gguf", arrays, metadata={**meta, key: Typed("u32", 32)})
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(tmp_path / "o.gguf", tmp_path / "other", "hf")
    assert (caught.value.code, caught.value.part) == ("contradiction", key)


def test_layers_that_predict_tokens_are_left_out_and_listed(tmp_path: Path) -> None:
    family, config = PUBLISHED[EXAONE]
    arrays = {**model_arrays(family, config, "f32"), "mtp.fc.weight": np.ones((32, 64), np.float32)}
    report = squish.convert(save(tmp_path / "m", arrays, config), tmp_path / "m.gguf")
    assert [each.name for each in report.dropped if each.kind == "tensor"] == ["mtp.fc.weight"]


def test_a_limit_of_an_engine_is_a_note(tmp_path: Path) -> None:
    family, config = PUBLISHED[ERNIE]
    source = write_model(tmp_path / "m", family, config, files=TOKENIZER)
    report = squish.convert(source, tmp_path / "mlx", "mlx")
    assert any("bias" in note for note in report.notes)


def apertus() -> dict[str, np.ndarray]:
    arrays = model_arrays("apertus", APERTUS)
    numbers = np.random.default_rng(1)
    for layer in range(2):
        for name, shape in NUMBERS.items():
            values = numbers.standard_normal(shape).astype(np.float32)
            arrays[f"model.layers.{layer}.mlp.act_fn.{name}"] = values.astype(arrays["lm_head.weight"].dtype)
    return arrays


@pytest.mark.parametrize("layout", ["gguf", "mlx"])
def test_the_numbers_of_an_activation_are_kept(layout: str, tmp_path: Path) -> None:
    source = save(tmp_path / "m", apertus(), APERTUS)
    target = tmp_path / ("m.gguf" if layout == "gguf" else layout)
    squish.convert(source, target, layout)
    squish.convert(target, tmp_path / "back", "hf")
    before, after = tensors(source), tensors(tmp_path / "back")
    assert before.keys() == after.keys()
    for name, values in before.items():
        assert np.array_equal(after[name].astype(np.float32), values.astype(np.float32)), name
        assert layout != "gguf" or after[name].dtype == values.dtype
    if layout == "gguf":
        with squish.open(target) as file:
            assert [len(file.metadata[f"xielu.{name}"]) for name in NUMBERS] == [2] * 4


@pytest.mark.parametrize("wrong", ["missing", "another layer", "infinite"])
def test_numbers_of_an_activation_that_are_missing_are_named(wrong: str, tmp_path: Path) -> None:
    arrays, name = apertus(), "model.layers.1.mlp.act_fn.beta"
    values = arrays.pop(name)
    if wrong == "another layer":
        arrays[name.replace("1", "7")] = values
    elif wrong == "infinite":
        arrays[name] = values * np.inf
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(save(tmp_path / "m", arrays, APERTUS), tmp_path / "m.gguf")
    assert (caught.value.code, "act_fn.beta" in str(caught.value.part)) == ("unmapped", True)


def laguna(**settings: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and a config; layers have heads of their own number."""
    config, generator = {**LAGUNA, **settings}, np.random.default_rng(0)
    family = squish.registry().implementation("family", "laguna")
    numbers = {**config, "experts": 4, "kv_rows": 32}
    wide = 16 if config["gating"] == "per-element" else 1
    arrays = {}
    for tensor in family.tensors:
        for layer, expert in [(layer, expert) for layer in range(4) for expert in range(4)]:
            name = tensor.name.format(n=layer, e=expert)
            is_dense, heads = (
                config["mlp_layer_types"][layer] == "dense",
                config["num_attention_heads_per_layer"][layer],
            )
            parts = (".experts.", "shared", "mlp.gate.")
            if ".mlp." in name and is_dense == any(part in name for part in parts):
                continue
            rows = heads * (wide if "g_proj" in name else 16)
            shape = [rows if size == "*" else numbers[size] for size in tensor.shape]
            arrays.setdefault(name, generator.standard_normal(shape).astype(np.float32))
    return arrays, config


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gating": "per-element", "gating_types": ["per_element"] * 4},
        {"layer_types": ["full_attention"] * 4, "sliding_window": None, "num_attention_heads_per_layer": [4] * 4},
        {"mlp_layer_types": ["dense"] * 3 + ["sparse"]},
    ],
)
@pytest.mark.parametrize("keep", ["yes", "no"])
def test_layers_with_other_numbers_of_heads_come_back(keep: str, settings: dict[str, Any], tmp_path: Path) -> None:
    arrays, config = laguna(**settings)
    source = save(tmp_path / "m", arrays, config)
    squish.convert(source, tmp_path / "m.gguf", f"gguf:keep={keep}")
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    squish.convert(tmp_path / "back", tmp_path / "again.gguf", f"gguf:keep={keep}")
    squish.convert(source, tmp_path / "mlx", "mlx")
    after = tensors(tmp_path / "back")
    assert after.keys() == arrays.keys()
    assert all(np.array_equal(after[name], values) for name, values in arrays.items())
    written = json.loads((tmp_path / "back" / "config.json").read_text())
    names = ("layer_types", "mlp_layer_types", "num_attention_heads_per_layer", "gating", "moe_routed_scaling_factor")
    assert {name: written[name] for name in names} == {name: config[name] for name in names}
    assert written["rope_parameters"]["full_attention"]["partial_rotary_factor"] == 0.5
    with squish.open(tmp_path / "m.gguf") as one, squish.open(tmp_path / "again.gguf") as two:
        assert keep == "no" or one.metadata.keys() == two.metadata.keys()
        assert all(np.array_equal(one[name].numpy(), two[name].numpy()) for name in one)


@pytest.mark.parametrize(
    ("settings", "code", "named"),
    [
        ({"num_attention_heads_per_layer": [4, 4, 6, 6]}, "contradiction", "q_proj"),
        ({"num_attention_heads_per_layer": [4, 5, 6, 6]}, "config", "num_attention_heads_per_layer"),
        ({"num_attention_heads_per_layer": [4, 6]}, "config", "num_attention_heads_per_layer"),
        ({"gating": "per-element"}, "contradiction", "g_proj"),
        ({"gating_types": ["per_element"] * 4}, "config", "gating_types"),
        ({"moe_router_logit_softcapping": 30.0}, "config", "moe_router_logit_softcapping"),
        ({"mlp_layer_types": ["dense", "sparse", "dense", "sparse"]}, "config", "mlp_layer_types"),
        ({"rope_parameters": {**LAGUNA["rope_parameters"], "sliding_attention": SHARE}}, "rope", "sliding_attention"),
    ],
)
def test_a_message_names_settings_of_layers_that_contradict_the_tensors(
    settings: dict[str, Any], code: str, named: str, tmp_path: Path
) -> None:
    arrays, config = laguna()
    with pytest.raises(squish.SquishError) as caught:
        squish.convert(save(tmp_path / "m", arrays, {**config, **settings}), tmp_path / "m.gguf")
    assert (caught.value.code, named in f"{caught.value.part} {caught.value}") == (code, True)


MIMO = "MiMo-V2-Flash"


def mimo(folder: Path, **settings: Any) -> tuple[Path, dict[str, np.ndarray]]:
    """A folder of a small MiMo V2, and its arrays."""
    family, config = PUBLISHED[MIMO]
    arrays = model_arrays(family, config)
    return save(folder, arrays, {**config, **settings}), arrays


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"layer_types": ["full_attention"] * 4}, "layer_types"),
        ({"hybrid_layer_pattern": [0, 1, 2, 0]}, "hybrid_layer_pattern"),
        ({"moe_layer_freq": [0, 1, 1]}, "moe_layer_freq"),
        ({"swa_num_key_value_heads": 3}, "swa_num_key_value_heads"),
        ({"swa_head_dim": 16}, "swa_head_dim"),
        ({"add_full_attention_sink_bias": True}, "add_full_attention_sink_bias"),
        ({"n_shared_experts": 1}, "n_shared_experts"),
        ({"routed_scaling_factor": 2.5}, "routed_scaling_factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling"),
    ],
)
def test_mimo_is_refused_with_settings_that_contradict_or_that_llama_cpp_lacks(
    settings: dict[str, Any], named: str, tmp_path: Path
) -> None:
    source, _ = mimo(tmp_path / "m", **settings)
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(source, tmp_path / "m.gguf")
    assert (caught.value.code, named in f"{caught.value.part} {caught.value}") == ("config", True), str(caught.value)


def test_mimo_for_mlx_states_the_window_that_a_folder_for_transformers_does_not_count_twice(tmp_path: Path) -> None:
    source, _ = mimo(tmp_path / "m", sliding_window_size=None)
    squish.convert(source, tmp_path / "mlx", "mlx")
    squish.convert(tmp_path / "mlx", tmp_path / "hf", "hf")
    mlx, hf = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("mlx", "hf"))
    assert (mlx["sliding_window_size"], hf["sliding_window"], hf.get("sliding_window_size")) == (128, 128, None)


def test_layers_of_mimo_that_predict_more_tokens_are_left_out(tmp_path: Path) -> None:
    source, arrays = mimo(tmp_path / "m")
    squish.convert(source, tmp_path / "m.gguf", "gguf:keep=no")
    with squish.open(tmp_path / "m.gguf") as file:
        meta, found = dict(file.index.meta), {name: file[name].numpy() for name in file}
    like = {
        name: name.replace("blk.1.", "blk.4.") for name in found if name.startswith(("blk.1.attn", "blk.1.ffn_norm"))
    }
    found |= {copy: found[name] for name, copy in like.items()}
    found["blk.4.nextn.eh_proj.weight"] = np.ones((32, 64), np.float32)
    keys = {"block_count": 5, "nextn_predict_layers": 1}
    meta |= {f"mimo2.{name}": Typed("u32", value) for name, value in keys.items()}
    meta["mimo2.attention.head_count_kv"] = Typed("array:i32", np.array([2, 4, 4, 2, 4], np.int32))
    meta["mimo2.attention.sliding_window_pattern"] = Typed("array:bool", np.array([0, 1, 1, 0, 1], bool))
    squish.save(tmp_path / "n.gguf", found, metadata=meta)
    squish.convert(tmp_path / "n.gguf", tmp_path / "back", "hf")
    assert tensors(tmp_path / "back").keys() == arrays.keys()
    assert json.loads((tmp_path / "back" / "config.json").read_text())["num_hidden_layers"] == 4


@pytest.mark.parametrize("windows", [4, 5])
def test_layers_of_k_exaone_that_predict_more_tokens_are_left_out(windows: int, tmp_path: Path) -> None:
    family, config = PUBLISHED[EXAONE]
    arrays = model_arrays(family, config)
    squish.convert(save(tmp_path / "m", arrays, config), tmp_path / "m.gguf", "gguf:keep=no")
    with squish.open(tmp_path / "m.gguf") as file:
        meta, found = dict(file.index.meta), {name: file[name].numpy() for name in file}
    found |= {name.replace("blk.0.", "blk.4."): each for name, each in found.items() if name.startswith("blk.0.")}
    found["blk.4.nextn.eh_proj.weight"] = np.ones((32, 64), np.float32)
    meta |= {
        f"exaone-moe.{key}": Typed("u32", each) for key, each in {"block_count": 5, "nextn_predict_layers": 1}.items()
    }
    pattern = np.array([1, 1, 1, 0, 1][:windows], bool)
    meta["exaone-moe.attention.sliding_window_pattern"] = Typed("array:bool", pattern)
    squish.save(tmp_path / "n.gguf", found, metadata=meta)
    report = squish.convert(tmp_path / "n.gguf", tmp_path / "back", "hf")
    assert [each.part for each in report.left_out] == ["mtp"]
    assert tensors(tmp_path / "back").keys() == arrays.keys()
    assert json.loads((tmp_path / "back" / "config.json").read_text())["num_hidden_layers"] == 4


def omni(folder: Path, **settings: Any) -> tuple[Path, dict[str, np.ndarray]]:
    """A folder of a small Qwen 3 Omni, and the arrays of its text part, which are those of a Qwen 3 VL."""
    family, config = PUBLISHED[QWEN]
    text = {**config["text_config"], "model_type": "qwen3_omni_moe_text", **settings}
    thinker = {
        "model_type": "qwen3_omni_moe_thinker", "text_config": text, "vision_config": {"depth": 1},
        "audio_config": {"d_model": 8}, "audio_token_id": 60,
    }  # fmt: skip
    whole = {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"], "model_type": "qwen3_omni_moe",
        "enable_audio_output": True, "thinker_config": thinker, "talker_config": {"text_config": {"hidden_size": 8}},
        "code2wav_config": {"hidden_size": 8},
    }  # fmt: skip
    arrays = model_arrays(family, config, "f32")
    places = (
        "thinker.visual.merger",
        "thinker.audio_tower.proj1",
        "talker.model.norm",
        "code2wav.pre_transformer.norm",
    )
    others = {f"{name}.weight": np.ones(8, np.float32) for name in places}
    return save(folder, {**{f"thinker.{name}": each for name, each in arrays.items()}, **others}, whole), arrays


def test_the_text_part_of_qwen_3_omni_is_that_of_a_qwen_3_vl(tmp_path: Path) -> None:
    source, arrays = omni(tmp_path / "m")
    _, config = PUBLISHED[QWEN]
    report = squish.convert(source, tmp_path / "omni.gguf")
    squish.convert(save(tmp_path / "vl", arrays, config), tmp_path / "vl.gguf")
    one, two = tensors(tmp_path / "omni.gguf"), tensors(tmp_path / "vl.gguf")
    assert one.keys() == two.keys()
    assert all(np.array_equal(one[name], two[name]) for name in one)
    with squish.open(tmp_path / "omni.gguf") as file, squish.open(tmp_path / "vl.gguf") as other:
        own = {key: file.index.meta[key].value for key in file.index.meta if key.startswith("qwen3vlmoe.")}
        differing = {key for key in own if not np.array_equal(own[key], other.index.meta[key].value)}
        assert (own["qwen3vlmoe.n_deepstack_layers"], differing) == (0, {"qwen3vlmoe.n_deepstack_layers"})
    found = {each.part: sorted(name.split(".")[0] for name in each.tensors) for each in report.left_out}
    assert found == {"vision": ["thinker"], "audio": ["code2wav", "talker", "thinker"]}
    assert [each.option for each in report.left_out] == [None, None]
    squish.convert(tmp_path / "omni.gguf", tmp_path / "back", "hf")
    assert tensors(tmp_path / "back").keys() == arrays.keys()
    squish.convert(source, tmp_path / "mlx", "mlx")
    for folder in ("back", "mlx"):
        assert json.loads((tmp_path / folder / "config.json").read_text())["model_type"] == "qwen3_moe"


@pytest.mark.parametrize("part", ["audio", "vision"])
def test_towers_of_qwen_3_omni_are_refused_by_name(part: str, tmp_path: Path) -> None:
    source, _ = omni(tmp_path / "m")
    with pytest.raises(squish.SquishError) as caught:
        squish.convert(source, tmp_path / "m.gguf", part=part)
    assert caught.value.code == "unmapped"
