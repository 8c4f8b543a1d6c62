"""Families with a gated delta rule: decays as logarithms, heads of values in tiles, and what codes cannot follow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from published_configs import PUBLISHED
from small_tokenizer import TOKENIZER
from squish_convert.arrays import in_memory
from squish_convert.mapping.mapped import map_file, naming_of
from squish_testing import model_arrays, write_model

import squish_core as squish
from squish_core.errors import SquishError

WIDE = {"linear_key_head_dim": 64, "linear_value_head_dim": 64, "hidden_size": 256, "num_attention_heads": 4}
OUT = "model.layers.0.linear_attn.out_proj.weight"


def config_of(model: str, **settings: Any) -> tuple[str, dict[str, Any]]:
    family, config = PUBLISHED[model]
    if "text_config" in config:
        config = {**config, "text_config": {**config["text_config"], **settings}}
    return family, {**config, **settings} if "text_config" not in config else config


def converted(folder: Path, model: str, *, dtype: str = "f32", **settings: Any) -> tuple[dict[str, Any], Path]:
    """A model's arrays, and its GGUF."""
    family, config = config_of(model, **settings)
    source = write_model(folder / "m", family, config, dtype=dtype, files=TOKENIZER)
    squish.convert(source, folder / "m.gguf")
    with squish.open(source) as file:
        return {name: file[name].numpy() for name in file}, folder / "m.gguf"


def tiled(values: np.ndarray, heads: int, axis: int) -> np.ndarray:
    """Heads of two keys, in the order of llama.cpp."""
    grid = np.moveaxis(values, axis, 0)
    parts = grid.reshape(2, heads // 2, -1, *grid.shape[1:]).swapaxes(0, 1).reshape(grid.shape)
    return np.moveaxis(parts, 0, axis)


@pytest.mark.parametrize("heads", [2, 4, 6])
def test_heads_of_values_are_tiled_and_decays_are_exponentials(heads: int, tmp_path: Path) -> None:
    arrays, path = converted(tmp_path, "Qwen3.5-4B", linear_num_value_heads=heads)
    prefix, keys = "model.layers.0.linear_attn.", 2 * 2 * 8
    with squish.open(path) as file:
        decays = -np.exp(tiled(arrays[f"{prefix}A_log"], heads, 0).astype(np.float64))
        np.testing.assert_array_equal(file["blk.0.ssm_a"].numpy(), decays.astype(np.float32))
        fused = arrays[f"{prefix}in_proj_qkv.weight"]
        expected = np.concatenate([fused[:keys], tiled(fused[keys:], heads, 0)])
        np.testing.assert_array_equal(file["blk.0.attn_qkv.weight"].numpy(), expected)
        taps = arrays[f"{prefix}conv1d.weight"][:, 0]
        expected = np.concatenate([taps[:keys], tiled(taps[keys:], heads, 0)])
        np.testing.assert_array_equal(file["blk.0.ssm_conv1d.weight"].numpy(), expected)
        out = tiled(arrays[f"{prefix}out_proj.weight"], heads, 1)
        np.testing.assert_array_equal(file["blk.0.ssm_out.weight"].numpy(), out)
        gates = tiled(arrays[f"{prefix}in_proj_b.weight"], heads, 0)
        np.testing.assert_array_equal(file["blk.0.ssm_beta.weight"].numpy(), gates)


def test_rows_of_each_key_head_become_those_of_all_heads(tmp_path: Path) -> None:
    arrays, path = converted(tmp_path, "Qwen3-Next-80B-A3B-Instruct")
    fused = arrays["model.layers.0.linear_attn.in_proj_qkvz.weight"].reshape(2, 48, -1)
    pieces = [piece.reshape(-1, 32) for piece in np.split(fused, [8, 16, 32], axis=1)]
    with squish.open(path) as file:
        np.testing.assert_array_equal(file["blk.0.attn_qkv.weight"].numpy(), np.concatenate(pieces[:3]))
        np.testing.assert_array_equal(file["blk.0.attn_gate.weight"].numpy(), pieces[3])


def test_whole_blocks_of_columns_move_as_codes(tmp_path: Path) -> None:
    _, path = converted(tmp_path, "Qwen3.5-4B", **WIDE)
    squish.convert(path, tmp_path / "q8.gguf", encode={"*ssm_out*": "q8_0"})
    squish.convert(tmp_path / "q8.gguf", tmp_path / "mlx", "mlx")
    with squish.open(tmp_path / "q8.gguf") as file, squish.open(tmp_path / "mlx") as other:
        codes = file["blk.0.ssm_out.weight"].numpy()
        np.testing.assert_array_equal(tiled(other[OUT].numpy(), 4, 1), codes)
        assert other[OUT].codec.startswith("affine")


def test_columns_within_a_block_are_refused_and_decoded_by_the_rule_in_the_text(tmp_path: Path) -> None:
    _, path = converted(tmp_path, "Qwen3.5-4B", **WIDE)
    squish.convert(path, tmp_path / "q4.gguf", encode={"*ssm_out*": "q4_k"})
    with pytest.raises(SquishError) as caught:
        squish.convert(tmp_path / "q4.gguf", tmp_path / "mlx", "mlx")
    assert caught.value.code == "refused"
    assert "64 columns" in caught.value.message
    assert "256 columns" in caught.value.message
    assert "out_proj.weight=bf16" in str(caught.value)
    squish.convert(tmp_path / "q4.gguf", tmp_path / "back", "hf", encode={"*out_proj.weight": "f32"})
    with squish.open(tmp_path / "q4.gguf") as file, squish.open(tmp_path / "back") as other:
        np.testing.assert_array_equal(tiled(other[OUT].numpy(), 4, 1), file["blk.0.ssm_out.weight"].numpy())


@pytest.mark.parametrize("decay", [1.0, 1e-30])
def test_a_decay_that_has_no_logarithm_is_refused(decay: float, tmp_path: Path) -> None:
    _, path = converted(tmp_path, "Qwen3.5-4B")
    with squish.open(path) as file:
        place = file.index.tensors["blk.0.ssm_a"].encodings[0].parts["data"].segments[0].offset
    data = bytearray(path.read_bytes())
    data[place : place + 4] = np.float32(decay).tobytes()
    path.write_bytes(data)
    with pytest.raises(SquishError) as caught:
        squish.convert(path, tmp_path / "back", "hf")
    assert (caught.value.code, caught.value.tensor) == ("values", "blk.0.ssm_a")


def test_a_logarithm_beyond_f32_is_refused(tmp_path: Path) -> None:
    family, config = config_of("Qwen3.5-4B")
    arrays = model_arrays(family, config, "f32")
    source = write_model(tmp_path / "m", family, config, dtype="f32", files=TOKENIZER)
    name = "model.layers.0.linear_attn.A_log"
    with squish.open(source) as file:
        place = file.index.tensors[name].encodings[0].parts["data"].segments[0].offset
        shard = next(source.glob("*.safetensors"))
    assert arrays[name].shape == (4,)
    data = bytearray(shard.read_bytes())
    data[place : place + 4] = np.float32(200.0).tobytes()
    shard.write_bytes(data)
    with pytest.raises(SquishError) as caught:
        squish.convert(source, tmp_path / "m.gguf")
    assert (caught.value.code, caught.value.tensor) == ("values", name)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"linear_num_value_heads": 3}, "config"),
        ({"linear_num_key_heads": 0}, "config"),
        ({"linear_value_head_dim": None}, "config"),
        ({"linear_conv_kernel_dim": "4"}, "config"),
        ({"layer_types": ["linear_attention"]}, "config"),
        ({"layer_types": ["full_attention"] * 4}, "contradiction"),
        ({"linear_num_value_heads": 6}, "contradiction"),
        ({"head_dim": 32}, "contradiction"),
    ],
)
def test_settings_that_contradict_themselves_or_the_tensors_are_refused(
    settings: dict[str, Any], code: str, tmp_path: Path
) -> None:
    family, config = config_of("Qwen3.5-4B")
    source = write_model(tmp_path / "m", family, config, files=TOKENIZER)
    _, other = config_of("Qwen3.5-4B", **settings)
    squish.convert(source, tmp_path / "n", "hf", rename="keep")
    (tmp_path / "n" / "config.json").write_text(json.dumps(other))
    with pytest.raises(SquishError) as caught:
        squish.convert(tmp_path / "n", tmp_path / "m.gguf")
    assert caught.value.code == code


def test_heads_of_keys_and_values_of_different_sizes_are_refused(tmp_path: Path) -> None:
    family, config = config_of("Qwen3.5-4B", linear_value_head_dim=16)
    source = write_model(tmp_path / "m", family, config, files=TOKENIZER)
    with pytest.raises(SquishError) as caught:
        squish.convert(source, tmp_path / "m.gguf")
    assert caught.value.code == "config"


def test_layers_in_no_interval_come_back(tmp_path: Path) -> None:
    kinds = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]
    _, path = converted(tmp_path, "Qwen3.5-4B", layer_types=kinds)
    squish.convert(path, tmp_path / "bare.gguf", "gguf:keep=no")
    squish.convert(tmp_path / "bare.gguf", tmp_path / "back", "hf")
    with squish.open(tmp_path / "back") as file:
        assert b"full_attention" in bytes(file.assets["config.json"].raw)
        assert "model.layers.1.self_attn.q_proj.weight" in file


def test_rows_of_experts_one_by_one_that_become_codes_are_refused_by_mlx(tmp_path: Path) -> None:
    family, config = config_of("Qwen3-Next-80B-A3B-Instruct")
    source = write_model(tmp_path / "m", family, config, files=TOKENIZER)
    squish.convert(source, tmp_path / "floats", "mlx")
    with pytest.raises(SquishError) as caught:
        squish.convert(source, tmp_path / "codes", "mlx", encode={"*experts.*.gate_proj*": "int4:group_size=32"})
    assert caught.value.code == "engine"


def with_prediction(config: dict[str, Any], family: str) -> dict[str, np.ndarray]:
    """The tensors of a model and of a layer that predicts one more token, a copy of its last one."""
    arrays, last = model_arrays(family, config, "bf16"), f"model.layers.{config['num_hidden_layers'] - 1}."
    copies = {name.replace(last, "mtp.layers.0."): values for name, values in arrays.items() if name.startswith(last)}
    hidden, generator = config["hidden_size"], np.random.default_rng(0)
    norms = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    sizes = {"fc": (hidden, 2 * hidden), **dict.fromkeys(norms, (hidden,))}
    more = {f"mtp.{name}.weight": generator.random(size).astype(ml_dtypes.bfloat16) for name, size in sizes.items()}
    return arrays | copies | more


@pytest.mark.parametrize("model", ["Qwen3.5-4B", "Qwen3.6-35B-A3B", "Qwen3-Next-80B-A3B-Instruct"])
def test_a_layer_that_predicts_a_token_goes_to_gguf_and_back(model: str) -> None:
    family, config = config_of(model)
    text = config.get("text_config", config)
    file = in_memory(with_prediction(text, family), assets={"config.json": json.dumps(text).encode(), **TOKENIZER})
    mapped = map_file(file, "gguf", {"keep": "no"}, naming_of(file))
    keys = {name.partition(".")[2]: value.value for name, value in mapped.index.meta.items()}
    assert (keys["block_count"], keys["nextn_predict_layers"]) == (5, 1)
    assert [*keys["attention.recurrent_layers"]] == [True, True, True, False, False]
    assert not [each for each in mapped.dropped if each.kind == "tensor"]
    np.testing.assert_array_equal(mapped["blk.4.nextn.eh_proj.weight"].numpy(), file["mtp.fc.weight"].numpy())
    np.testing.assert_array_equal(
        mapped["blk.4.nextn.hnorm.weight"].numpy(), file["mtp.pre_fc_norm_hidden.weight"].numpy().astype("f4") + 1
    )
    gguf = in_memory({name: mapped[name].numpy() for name in mapped}, mapped.index.meta)
    back = map_file(gguf, "hf", {}, naming_of(gguf))
    assert set(back) == set(file)
    for name in [each for each in file if each.startswith("mtp.")]:
        np.testing.assert_array_equal(back[name].numpy().astype("f4"), file[name].numpy().astype("f4"))
    assert json.loads(bytes(back.assets["config.json"].raw))["mtp_num_hidden_layers"] == 1


@pytest.mark.parametrize("layout", ["mlx", "uqff"])
def test_what_engines_of_folders_do_not_load_of_it_is_left_out_and_listed(layout: str) -> None:
    family, config = config_of("Qwen3.5-4B")
    text = config["text_config"]
    arrays = with_prediction(text, family)
    file = in_memory(arrays, assets={"config.json": json.dumps(text).encode(), **TOKENIZER})
    mapped = map_file(file, layout, {}, naming_of(file))
    predicting = {name for name in arrays if name.startswith("mtp.")}
    assert set(mapped) == set(arrays) - predicting
    assert {each.name for each in mapped.dropped} == predicting


def test_a_missing_tensor_of_a_prediction_has_the_name_of_the_file() -> None:
    family, config = config_of("Qwen3.5-4B")
    arrays = with_prediction(config["text_config"], family)
    del arrays["mtp.layers.0.self_attn.q_norm.weight"]
    file = in_memory(arrays, assets={"config.json": json.dumps(config["text_config"]).encode()})
    with pytest.raises(SquishError) as caught:
        map_file(file, "gguf", {}, naming_of(file))
    assert (caught.value.code, caught.value.tensor) == ("unmapped", "mtp.layers.0.self_attn.q_norm.weight")


def test_a_folder_of_mlx_gets_the_name_that_transformers_reads(tmp_path: Path) -> None:
    config = PUBLISHED["Qwen3.5-4B"][1]["text_config"]
    write_model(tmp_path / "m", "qwen35", config, files=TOKENIZER)
    squish.convert(tmp_path / "m", tmp_path / "mlx", "mlx")
    squish.convert(tmp_path / "mlx", tmp_path / "back", "hf")
    names = [json.loads((tmp_path / name / "config.json").read_text())["model_type"] for name in ("m", "mlx", "back")]
    assert names == ["qwen3_5_text", "qwen3_5", "qwen3_5_text"]
