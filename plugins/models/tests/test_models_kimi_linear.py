"""Kimi Linear: layers numbered from 1 or listed, sizes that differ between layers, names of mlx-lm, quantized GGUFs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from every_family import arrays_of, config_of, mapped
from oracles import converter, engines, families
from small_tokenizer import TOKENIZER
from squish_convert.arrays import in_memory
from squish_convert.mapping.mapped import map_file, naming_of
from squish_models.api import check_model
from squish_testing import model_arrays

import squish_core as squish
from squish_core.api import Typed
from squish_core.errors import SquishError

FAMILY, ARCHITECTURE, PART = "kimi_linear", "kimi-linear", "linear_attn_config"
KINDS = ["linear_attention"] * 3 + ["full_attention"]
RENAMED = {
    "model.layers.0.mlp.up_proj.weight": "model.layers.0.block_sparse_moe.up_proj.weight",
    "model.layers.0.mlp.gate_proj.weight": "model.layers.0.block_sparse_moe.gate_proj.weight",
    "model.layers.0.mlp.down_proj.weight": "model.layers.0.block_sparse_moe.down_proj.weight",
}
"""Dense layers as Transformers 5 saves them."""


def saved() -> dict[str, Any]:
    """The config as Transformers 5 saves it."""
    config = config_of(FAMILY)
    part = config.pop(PART)
    for name in ("first_k_dense_replace", "mla_use_nope", "rope_theta", "rope_scaling", "use_grouped_topk"):
        del config[name]
    return {
        **config, "linear_num_heads": part["num_heads"], "linear_head_dim": part["head_dim"],
        "linear_conv_kernel_dim": part["short_conv_kernel_size"], "layer_types": KINDS,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    }  # fmt: skip


def keys_of(config: Mapping[str, Any]) -> dict[str, Any]:
    meta = mapped(arrays_of(FAMILY), config).index.meta
    return {key: np.asarray(value.value).tolist() for key, value in meta.items() if key.startswith(ARCHITECTURE)}


def gguf(folder: Path, **changes: np.ndarray) -> Path:
    """A GGUF of the small model without kept files, with other tensors in place of some."""
    file = in_memory(arrays_of(FAMILY), assets={"config.json": json.dumps(config_of(FAMILY)).encode(), **TOKENIZER})
    squish.convert(file, folder / "own.gguf", "gguf:keep=no")
    with squish.open(folder / "own.gguf") as own:
        tensors = {name: own[name].numpy() for name in own}
        squish.save(folder / "other.gguf", {**tensors, **changes}, metadata=dict(own.index.meta))
    return folder / "other.gguf"


def test_both_spellings_of_a_config_give_the_same_keys() -> None:
    published = keys_of(config_of(FAMILY))
    assert keys_of(saved()) == published
    assert published[f"{ARCHITECTURE}.attention.head_count_kv"] == [0, 0, 0, 1]


def test_dense_layers_under_the_names_of_transformers_5_are_read() -> None:
    arrays = {RENAMED.get(name, name): values for name, values in arrays_of(FAMILY).items()}
    ours, others = mapped(arrays_of(FAMILY), config_of(FAMILY)), mapped(arrays, saved())
    for name in ours.index.tensors:
        np.testing.assert_array_equal(ours[name].numpy(), others[name].numpy(), err_msg=name)


def test_sizes_of_queries_and_outputs_differ_between_layers() -> None:
    specs = mapped(arrays_of(FAMILY), config_of(FAMILY)).index.tensors
    assert [specs[f"blk.{layer}.attn_q.weight"].shape[0] for layer in range(4)] == [64, 64, 64, 96]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({PART: [4]}, PART),
        ({PART: {"full_attn_layers": [4], "kda_layers": [1, 2]}}, PART),
        ({PART: {"full_attn_layers": [3], "kda_layers": [0, 1, 2]}}, PART),
        ({PART: {"full_attn_layers": [4], "kda_layers": [1, 2, 3, 4]}}, PART),
        ({PART: {"full_attn_layers": [4], "kda_layers": "123"}}, PART),
        ({PART: {"num_heads": 2}}, ""),
        ({PART: {"head_dim": 32}}, ""),
        ({"layer_types": KINDS[::-1]}, "layer_types"),
        ({"layer_types": KINDS[:3]}, "layer_types"),
        ({"mlp_layer_types": ["sparse", "dense", "sparse", "sparse"]}, "mlp_layer_types"),
        ({"linear_head_dim": 32}, "head_dim"),
        ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func"),
        ({"moe_renormalize": False}, "moe_renormalize"),
        ({"mla_use_nope": False}, "mla_use_nope"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_scaling"),
        ({"num_nextn_predict_layers": 1}, "num_nextn_predict_layers"),
    ],
)
def test_a_message_names_the_setting_that_contradicts_others_or_llama_cpp(
    change: Mapping[str, Any], place: str
) -> None:
    config = config_of(FAMILY)
    for name, value in change.items():
        both = isinstance(value, dict) and isinstance(config.get(name), dict)
        config[name] = {**config[name], **value} if both else value
    with pytest.raises(SquishError) as caught:
        mapped(arrays_of(FAMILY), config)
    assert place in str(caught.value)


def test_llama_cpp_has_as_many_heads_of_the_delta_rule_as_of_attention() -> None:
    config = config_of(FAMILY)
    config[PART] = {**config[PART], "num_heads": 2}
    arrays = model_arrays(FAMILY, config)
    assert "model.layers.0.self_attn.q_proj.weight" in mapped(arrays, config, "hf").index.tensors
    with pytest.raises(SquishError) as caught:
        mapped(arrays, config)
    assert (caught.value.code, caught.value.part) == ("config", f"config.json {PART} num_heads")


def test_mlx_lm_has_its_own_names_of_convolutions_and_experts() -> None:
    specs = mapped(arrays_of(FAMILY), config_of(FAMILY), "mlx").index.tensors
    assert specs["model.layers.1.self_attn.k_conv.conv.weight"].shape == (64, 4, 1)
    assert specs["model.layers.1.mlp.switch_mlp.down_proj.weight"].shape == (4, 32, 24)
    assert not [name for name in specs if "block_sparse_moe" in name]


def test_queries_of_a_rank_are_mapped_and_refused_for_mlx_lm() -> None:
    config, arrays = {**config_of(FAMILY), "q_lora_rank": 12}, dict(arrays_of(FAMILY))
    attention = "model.layers.3.self_attn."
    rows, columns = arrays.pop(f"{attention}q_proj.weight").shape
    shapes = {"q_a_proj": (12, columns), "q_a_layernorm": (12,), "q_b_proj": (rows, 12)}
    arrays |= {f"{attention}{name}.weight": np.ones(shape, np.float32) for name, shape in shapes.items()}
    found = mapped(arrays, config).index.tensors
    assert found["blk.3.attn_q_b.weight"].shape == (rows, 12)
    assert "blk.3.attn_q.weight" not in found
    with pytest.raises(SquishError) as caught:
        mapped(arrays, config, "mlx")
    assert caught.value.code == "engine"


def test_a_gguf_whose_axes_of_1_were_cut_comes_back(tmp_path: Path) -> None:
    arrays = arrays_of(FAMILY)
    with squish.open(gguf(tmp_path)) as own:
        cut = {
            **{name: own[name].numpy()[0] for name in own if "ssm_conv1d_" in name},
            **{name: own[name].numpy().reshape(1, 1, -1, 1) for name in own if name.endswith("ssm_a")},
        }
    squish.convert(gguf(tmp_path, **cut), tmp_path / "back", "hf")
    with squish.open(tmp_path / "back") as back:
        assert {*back} == {*arrays}
        for name in back:
            np.testing.assert_allclose(back[name].numpy(), arrays[name], atol=1e-6, err_msg=name)
        config = json.loads(bytes(back.assets["config.json"].raw))
    own = config_of(FAMILY)
    assert {name: config.get(name) for name in own if name in config} == {
        name: value for name, value in own.items() if name in config
    }


def test_fused_projections_and_matrices_of_keys_and_values_are_read(tmp_path: Path) -> None:
    arrays = arrays_of(FAMILY)
    file = in_memory(arrays, assets={"config.json": json.dumps(config_of(FAMILY)).encode(), **TOKENIZER})
    whole = map_file(file, "gguf", {"keep": "no"}, naming_of(file))
    tensors = {name: whole[name].numpy() for name in whole.index.tensors}
    for layer in range(3):
        tensors[f"blk.{layer}.attn_qkv.weight"] = np.concatenate(
            [tensors.pop(f"blk.{layer}.attn_{each}.weight") for each in "qkv"]
        )
    for each in "kv":
        del tensors[f"blk.3.attn_{each}_b.weight"]
    tensors["blk.3.attn_kv_b.weight"] = arrays["model.layers.3.self_attn.kv_b_proj.weight"]
    squish.save(tmp_path / "fused.gguf", tensors, metadata=dict(whole.index.meta))
    squish.convert(tmp_path / "fused.gguf", tmp_path / "back", "hf")
    with squish.open(tmp_path / "back") as back:
        for name in arrays:
            np.testing.assert_allclose(back[name].numpy(), arrays[name], atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("key", "value"),
    [("attention.head_count_kv", [0, 0, 0, 2]), ("attention.head_count_kv", [0, 1]), ("expert_gating_func", 1)],
)
def test_a_message_names_the_key_of_no_kimi_linear(key: str, value: Any, tmp_path: Path) -> None:
    path = gguf(tmp_path)
    with squish.open(path) as own:
        tensors, meta = {name: own[name].numpy() for name in own}, dict(own.index.meta)
    old = meta[f"{ARCHITECTURE}.{key}"]
    meta[f"{ARCHITECTURE}.{key}"] = Typed(old.type, np.array(value, np.int32) if isinstance(value, list) else value)
    squish.save(tmp_path / "wrong.gguf", tensors, metadata=meta)
    with pytest.raises(SquishError) as caught:
        squish.convert(tmp_path / "wrong.gguf", tmp_path / "back", "hf")
    assert key in str(caught.value)


@pytest.mark.oracle
def test_tensors_and_keys_are_those_of_the_converter_and_come_back_equal(tmp_path: Path) -> None:
    source = families.make(FAMILY, tmp_path / "source")
    squish.convert(source, tmp_path / "plain.gguf", "gguf:keep=no")
    squish.convert(tmp_path / "plain.gguf", tmp_path / "hf", "hf")  # as published, which the converter reads
    squish.convert(tmp_path / "hf", tmp_path / "ours.gguf")
    theirs = converter.convert({"theirs": tmp_path / "hf"}, tmp_path, {"theirs": "llama-bpe"})["theirs"]
    with squish.open(theirs) as one, squish.open(tmp_path / "ours.gguf") as other:
        assert {*one} == {*other}
        for name in one:
            np.testing.assert_allclose(one[name].numpy().ravel(), other[name].numpy().ravel(), rtol=1e-6, err_msg=name)
        for key in [key for key in {*one.index.meta, *other.index.meta} if key.startswith(ARCHITECTURE)]:
            np.testing.assert_array_equal(one.index.meta[key].value, other.index.meta[key].value, err_msg=key)
    for path, engine in ((theirs, "llama.cpp"), (tmp_path / "hf", "transformers"), (tmp_path / "hf", "mlx")):
        assert [each for each in check_model(path, engine).problems if each.severity == "error"] == []
    squish.convert(tmp_path / "ours.gguf", tmp_path / "back", "hf")
    for name in (path.name for path in (tmp_path / "hf").iterdir()):
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "hf" / name).read_bytes(), name
    answer = engines.ask("transformers", source, tokens=4)
    assert engines.difference(answer, engines.ask("llama.cpp", theirs, tokens=4), 1e-4) == ""


@pytest.mark.oracle
def test_mlx_lm_runs_stacked_codes(tmp_path: Path) -> None:
    source = families.make(FAMILY, tmp_path / "source")
    squish.convert(source, tmp_path / "mlx", "mlx", encode="*experts*=int4:group_size=32")
    squish.convert(tmp_path / "mlx", tmp_path / "values", "hf", encode="f32")
    values, codes = engines.ask("transformers", tmp_path / "values"), engines.ask("mlx", tmp_path / "mlx")
    assert engines.difference(values, codes, 1e-3) == ""
