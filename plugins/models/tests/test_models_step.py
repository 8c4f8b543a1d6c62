"""Step 3.5: settings for each layer in two spellings, stacks of experts, mlx-lm's norms, what no engine computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from every_family import arrays_of, config_of, mapped
from oracles import converter, engines, families
from small_tokenizer import TOKENIZER
from squish_models.api import check_model
from squish_testing import write_model

import squish_core as squish
from squish_core.api import Typed
from squish_core.errors import SquishError

FAMILY, ARCHITECTURE = "step35", "step35"
KINDS = ["full_attention", *["sliding_attention"] * 3]


def nested() -> dict[str, Any]:
    """The config of a Step 3.7 as Transformers saves it, with the same text part."""
    config = config_of(FAMILY)
    scaling, other = config["rope_scaling"], config["attention_other_setting"]
    names = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings",
        "vocab_size", "head_dim", "rms_norm_eps", "moe_intermediate_size", "share_expert_dim", "sliding_window",
        "moe_router_scaling_factor",
    )  # fmt: skip
    text = {
        **{name: config[name] for name in names}, "model_type": "step3p5", "num_key_value_heads": 2,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "layer_types": KINDS,
        "mlp_layer_types": ["dense", *["sparse"] * 3], "num_sliding_attention_heads": other["num_attention_heads"],
        "per_layer_config": {str(layer): {"num_attention_heads": 6} for layer in (1, 2, 3)},
        "query_pre_attn_scalar": config["head_dim"], "num_nextn_predict_layers": 0, "mtp_layer_types": None,
        "swiglu_limits": config["swiglu_limits"][:4], "swiglu_limits_shared": [None, None, None, 16.0],
        "rope_parameters": {
            "full_attention": {**scaling, "rope_theta": 5000000.0, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        },
    }  # fmt: skip
    return {
        "architectures": ["Step3p7ForConditionalGeneration"], "model_type": "step3p7", "text_config": text,
        "vision_config": {"hidden_size": 16}, "tie_word_embeddings": False,
    }  # fmt: skip


def keys_of(config: dict[str, Any]) -> dict[str, Any]:
    meta = mapped(arrays_of(FAMILY), config).index.meta
    return {key: np.asarray(value.value).tolist() for key, value in meta.items() if key.startswith(ARCHITECTURE)}


def folder(path: Path, **settings: Any) -> Path:
    return write_model(path, FAMILY, {**config_of(FAMILY), **settings}, files=TOKENIZER)


def values(path: Path) -> dict[str, np.ndarray]:
    with squish.open(path) as file:
        return {name: file[name].numpy() for name in file}


def test_both_spellings_of_a_config_give_the_same_keys() -> None:
    published = keys_of(config_of(FAMILY))
    assert keys_of(nested()) == published
    assert [published[f"{ARCHITECTURE}.{name}"] for name in ("attention.head_count", "attention.head_count_kv")] == [
        [4, 6, 6, 6],
        [2] * 4,
    ]


def test_the_text_part_of_a_step_3_7_becomes_a_step_3_5(tmp_path: Path) -> None:
    arrays = {**arrays_of(FAMILY), "vision_model.conv1.weight": np.ones((16, 3, 14, 14), np.float32)}
    (tmp_path / "m").mkdir()
    squish.save(tmp_path / "m" / "model.safetensors", arrays)
    for name, data in {**TOKENIZER, "config.json": json.dumps(nested()).encode()}.items():
        (tmp_path / "m" / name).write_bytes(data)
    report = squish.convert(tmp_path / "m", tmp_path / "m.gguf")
    assert [each.part for each in report.left_out] == ["vision"]
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    own = config_of(FAMILY)
    for name in ("model_type", "attention_other_setting", "moe_layers_enum", "moe_num_experts", "yarn_only_types"):
        assert config[name] == own[name], name
    for name in ("rope_theta", "partial_rotary_factors", "swiglu_limits_shared", "layer_types"):
        assert config[name] == own[name][:4], name
    assert values(tmp_path / "back").keys() == arrays_of(FAMILY).keys()


def test_mlx_lm_has_norms_with_one_added_under_names_of_its_own(tmp_path: Path) -> None:
    source = folder(tmp_path / "m")
    squish.convert(source, tmp_path / "mlx", "mlx")
    before, mlx = values(source), values(tmp_path / "mlx")
    np.testing.assert_array_equal(mlx["model.norm.weight"], before["model.norm.weight"].astype(np.float32) + 1)
    assert mlx["model.layers.1.mlp.switch_mlp.down_proj.weight"].shape == (4, 32, 24)
    assert not [name for name in mlx if ".moe." in name]
    squish.convert(tmp_path / "mlx", tmp_path / "back", "hf")
    squish.convert(tmp_path / "mlx", tmp_path / "m.gguf")
    for name, array in values(tmp_path / "back").items():
        np.testing.assert_allclose(array, before[name], atol=1e-6, err_msg=name)
    gguf = values(tmp_path / "m.gguf")
    np.testing.assert_allclose(gguf["blk.2.attn_q_norm.weight"], mlx["model.layers.2.self_attn.q_norm.weight"])


def test_layers_that_predict_more_tokens_are_left_out(tmp_path: Path) -> None:
    source = folder(tmp_path / "m")
    arrays = values(source)
    more = {name.replace("layers.0.", "layers.4."): each for name, each in arrays.items() if "layers.0." in name}
    more["model.layers.4.transformer.shared_head.norm.weight"] = arrays["model.norm.weight"]
    squish.save(source / "model.safetensors", {**arrays, **more})
    squish.convert(source, tmp_path / "m.gguf")
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    assert values(tmp_path / "back").keys() == arrays.keys()


def test_a_gguf_with_layers_that_predict_more_tokens_is_read_without_them(tmp_path: Path) -> None:
    squish.convert(folder(tmp_path / "m"), tmp_path / "m.gguf", "gguf:keep=no")
    with squish.open(tmp_path / "m.gguf") as file:
        meta, tensors = dict(file.index.meta), {name: file[name].numpy() for name in file}
    tensors |= {name.replace("blk.0.", "blk.4."): each for name, each in tensors.items() if name.startswith("blk.0.")}
    tensors["blk.4.nextn.eh_proj.weight"] = np.ones((32, 64), np.float32)
    lists = {
        "attention.head_count": np.array([4, 6, 6, 6, 4], np.int32),
        "attention.head_count_kv": np.array([2] * 5, np.int32),
        "attention.sliding_window_pattern": np.array([0, 1, 1, 1, 0], bool),
        "swiglu_clamp_exp": np.array([0, 0, 0, 7, 0], np.float32),
        "swiglu_clamp_shexp": np.array([0, 0, 0, 16, 0], np.float32),
    }
    meta |= {f"{ARCHITECTURE}.{key}": Typed(meta[f"{ARCHITECTURE}.{key}"].type, each) for key, each in lists.items()}
    meta |= {f"{ARCHITECTURE}.block_count": Typed("u32", 5), f"{ARCHITECTURE}.nextn_predict_layers": Typed("u32", 1)}
    squish.save(tmp_path / "n.gguf", tensors, metadata=meta)
    squish.convert(tmp_path / "n.gguf", tmp_path / "back", "hf")
    assert values(tmp_path / "back").keys() == arrays_of(FAMILY).keys()
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (config["num_hidden_layers"], config["swiglu_limits"]) == (4, [0.0, 0.0, 0.0, 7.0])


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"layer_types": ["full_attention"] * 5}, ""),
        ({"layer_types": KINDS[:3]}, "layer_types"),
        ({"rope_theta": [5000000.0, 10000.0]}, "rope_theta"),
        ({"rope_theta": [5000000.0, 10000.0, 20000.0, 10000.0]}, "rope_theta"),
        ({"rope_theta": "many"}, "rope_theta"),
        ({"partial_rotary_factors": [1.0] * 4}, "partial_rotary_factors"),
        ({"yarn_only_types": []}, "yarn_only_types"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_scaling"),
        ({"rope_scaling": ["llama3"]}, "rope_scaling"),
        ({"rope_parameters": {"full_attention": {}, "sliding_attention": 7}}, "rope_parameters"),
        ({"attention_other_setting": [6]}, "attention_other_setting"),
        ({"attention_other_setting": {"num_attention_heads": 5}}, ""),
        ({"attention_other_setting": {"num_attention_heads": 6, "head_dim": 8}}, "attention_other_setting"),
        ({"per_layer_config": {"1": {"num_attention_heads": 8}}}, "per_layer_config"),
        ({"moe_layers_enum": "1,two"}, "moe_layers_enum"),
        ({"moe_layers_enum": "0,1,2,3"}, ""),
        ({"moe_router_activation": "softmax"}, "moe_router_activation"),
        ({"swiglu_limits": [0.0, 7.0]}, "swiglu_limits"),
        ({"swiglu_limits": [0.0, 0.0, 0.0, -7.0]}, "swiglu_limits"),
        ({"swiglu_limits_shared": "16"}, "swiglu_limits_shared"),
        ({"use_head_wise_attn_gate": False}, "use_head_wise_attn_gate"),
        ({"zero_centered": False}, "zero_centered"),
        ({"query_pre_attn_scalar": 8}, "query_pre_attn_scalar"),
    ],
)
def test_a_message_names_the_setting_that_contradicts_others_or_llama_cpp(settings: dict[str, Any], place: str) -> None:
    with pytest.raises(SquishError) as caught:
        mapped(arrays_of(FAMILY), {**config_of(FAMILY), **settings})
    assert place in str(caught.value)


def test_a_model_without_a_window_is_refused_for_llama_cpp_which_ends_at_it() -> None:
    config = {
        **config_of(FAMILY), "layer_types": ["full_attention"] * 4, "partial_rotary_factors": [0.5] * 4,
        "rope_theta": 5000000.0, "attention_other_setting": {"num_attention_heads": 4},
    }  # fmt: skip
    arrays = dict(arrays_of(FAMILY))
    for layer in range(4):
        place = f"model.layers.{layer}.self_attn"
        arrays[f"{place}.q_proj.weight"] = arrays[f"{place}.q_proj.weight"][:64]
        arrays[f"{place}.o_proj.weight"] = arrays[f"{place}.o_proj.weight"][:, :64]
        arrays[f"{place}.g_proj.weight"] = arrays[f"{place}.g_proj.weight"][:4]
    with pytest.raises(SquishError) as caught:
        mapped(arrays, config)
    assert (caught.value.code, caught.value.part) == ("config", "config.json layer_types")
    assert "model.norm.weight" in mapped(arrays, config, "mlx").index.tensors


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope.dimension_count", Typed("u32", 8)),
        ("expert_gating_func", Typed("u32", 1)),
        ("nextn_predict_layers", Typed("u32", 4)),
        ("attention.head_count", Typed("array:i32", np.array([4, 6, 8, 6], np.int32))),
    ],
)
def test_a_message_names_the_key_that_no_folder_expresses(key: str, value: Typed, tmp_path: Path) -> None:
    squish.convert(folder(tmp_path / "m"), tmp_path / "m.gguf", "gguf:keep=no")
    with squish.open(tmp_path / "m.gguf") as file:
        meta, tensors = dict(file.index.meta), {name: file[name].numpy() for name in file}
    squish.save(tmp_path / "n.gguf", tensors, metadata={**meta, f"{ARCHITECTURE}.{key}": value})
    with pytest.raises(SquishError) as caught:
        squish.convert(tmp_path / "n.gguf", tmp_path / "back", "hf")
    assert key in f"{caught.value.part} {caught.value}"


@pytest.mark.oracle
def test_tensors_and_keys_are_those_of_the_converter_and_come_back_equal(tmp_path: Path) -> None:
    source = families.make("step3p5", tmp_path / "source")
    squish.convert(source, tmp_path / "plain.gguf", "gguf:keep=no")
    squish.convert(tmp_path / "plain.gguf", tmp_path / "hf", "hf")
    squish.convert(tmp_path / "hf", tmp_path / "ours.gguf")
    pre = {"theirs": "qwen2"}
    theirs = converter.convert({"theirs": tmp_path / "hf"}, tmp_path, pre, as_it_stands=True)["theirs"]
    ours_alone = {"rope.dimension_count"}  # llama.cpp would take the same
    with squish.open(theirs) as one, squish.open(tmp_path / "ours.gguf") as other:
        assert {*one} == {*other}
        for name in one:
            np.testing.assert_allclose(one[name].numpy(), other[name].numpy(), rtol=1e-6, err_msg=name)
        keys = {key for key in {*one.index.meta, *other.index.meta} if key.startswith(ARCHITECTURE)}
        for key in keys - {f"{ARCHITECTURE}.{name}" for name in ours_alone}:
            np.testing.assert_array_equal(one.index.meta[key].value, other.index.meta[key].value, err_msg=key)
    for path, engine in ((theirs, "llama.cpp"), (tmp_path / "hf", "mlx")):
        assert [each for each in check_model(path, engine).problems if each.severity == "error"] == []
    squish.convert(tmp_path / "ours.gguf", tmp_path / "back", "hf")
    for name in (path.name for path in (tmp_path / "hf").iterdir()):
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "hf" / name).read_bytes(), name
    answer = engines.ask("transformers", families.reference(source), tokens=4)
    assert engines.difference(answer, engines.ask("llama.cpp", theirs, answer.ids, tokens=4), 1e-4) == ""


@pytest.mark.oracle
def test_mlx_lm_runs_stacked_codes(tmp_path: Path) -> None:
    source = families.make("step3p5", tmp_path / "source")
    squish.convert(source, tmp_path / "mlx", "mlx", encode="*.moe.[gu]*_proj.*=int4:group_size=32")
    squish.convert(tmp_path / "mlx", tmp_path / "values", "mlx", encode="f32")
    values_, codes = (engines.ask("mlx", tmp_path / name) for name in ("values", "mlx"))
    assert engines.difference(values_, codes, 1e-3) == ""
