"""Folders that keep Hugging Face's names: the model is checked before anything is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_cli.app import run
from squish_convert.arrays import in_memory
from squish_convert.mapping.inventory import check_settings
from squish_convert.mapping.mapped import naming_of
from squish_testing import model_arrays
from test_models_bad_input import CONFIGS, family_of, opened
from test_models_unreadable_files import FILES, LLAMA

import squish_core as squish

LAYER = "model.layers.0."
TARGETS = {"hf": "bf16", "hf:method=gptq": "int4:group_size=32", "safetensors:max_shard_size=1GB": None}
"""A target with Hugging Face's names, and its `encode`."""
Arrays = dict[str, np.ndarray]
Change = Callable[[Arrays], Any]


def without(name: str) -> Change:
    return lambda arrays: arrays.pop(name)


def added(name: str, shape: tuple[int, ...] = (4,)) -> Change:
    return lambda arrays: arrays.update({name: np.ones(shape, np.float32)})


def respelled(name: str, other: str) -> Change:
    return lambda arrays: arrays.update({other: arrays.pop(name)})


def written(
    folder: Path, change: Change = dict, settings: Mapping[str, Any] = {}, files: Mapping[str, bytes] = FILES
) -> Path:
    """A float model with other tensors, and other settings in its config."""
    arrays = model_arrays("llama", LLAMA, "f32")
    change(arrays)
    config = {key: value for key, value in {**LLAMA, **settings}.items() if value is not None}
    assets = {**files, "config.json": json.dumps(config).encode()}
    with in_memory(arrays, {"format": "pt"}, assets) as file:
        squish.convert(file, folder, "safetensors:max_shard_size=1GB", rename="keep")
    return folder


def as_float_mlx(folder: Path, settings: Mapping[str, Any]) -> Path:
    """A float MLX folder with other settings in its config."""
    squish.convert(written(folder.with_name("source")), folder, "mlx")
    config = {**json.loads((folder / "config.json").read_text()), **settings}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def refusal(model: Path, to: str = "hf") -> squish.SquishError:
    out = model.with_name("out")
    with pytest.raises(squish.SquishError) as caught:
        squish.convert(model, out, to, TARGETS[to])
    assert not out.exists()
    assert caught.value.file == str(model)
    return caught.value


def notes(model: Path, **options: Any) -> str:
    return "\n".join(squish.convert(model, model.with_name("out"), "hf", "bf16", **options).notes)


CONTRADICTIONS = [
    ({"num_attention_heads": 8}, "contradiction", f"{LAYER}self_attn.k_proj.weight"),
    ({"num_attention_heads": 3}, "config", "config.json hidden_size"),
    ({"hidden_size": 64}, "contradiction", "lm_head.weight"),
    ({"num_hidden_layers": 2}, "unmapped", "model.layers.1.input_layernorm.weight"),
    ({"num_hidden_layers": 0}, "contradiction", f"{LAYER}input_layernorm.weight"),
    ({"tie_word_embeddings": True}, "contradiction", "lm_head.weight"),
    ({"vocab_size": 32}, "contradiction", "lm_head.weight"),
    ({"rope_theta": float("nan")}, "config", "config.json rope_theta"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "code", "place"), CONTRADICTIONS)
@pytest.mark.parametrize("to", TARGETS)
def test_a_config_that_contradicts_the_tensors_is_refused(
    to: str, settings: dict[str, Any], code: str, place: str, tmp_path: Path
) -> None:
    error = refusal(written(tmp_path / "model", settings=settings), to)
    assert (error.code, error.tensor or error.part) == (code, place)


@pytest.mark.parametrize(("settings", "code", "place"), CONTRADICTIONS)
def test_a_float_folder_of_mlx_is_checked_like_a_checkpoint(
    settings: dict[str, Any], code: str, place: str, tmp_path: Path
) -> None:
    error = refusal(as_float_mlx(tmp_path / "model", settings))
    assert (error.code, error.tensor or error.part) == (code, place)


@pytest.mark.parametrize(
    ("change", "code", "place"),
    [
        (without(f"{LAYER}mlp.up_proj.weight"), None, None),  # no layer has it: part of a model
        (without("lm_head.weight"), "unmapped", "lm_head.weight"),
        (added(f"{LAYER}self_attn.q_proj.bias", (7,)), "contradiction", f"{LAYER}self_attn.q_proj.bias"),
        (added(f"{LAYER}self_attn.rotary_emb.inv_freq"), None, None),
        (added(f"{LAYER}self_attn.k_scale"), None, None),
    ],
)
def test_missing_tensors_and_wrong_shapes_are_refused_and_extra_ones_are_not(
    change: Change, code: str | None, place: str | None, tmp_path: Path
) -> None:
    model = written(tmp_path / "model", change)
    if code is None:
        assert squish.convert(model, tmp_path / "out", "hf", "bf16")
        return
    error = refusal(model)
    assert (error.code, error.tensor) == (code, place)


def test_a_tensor_under_another_name_is_missing(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"

    def change(arrays: Arrays) -> None:
        for tensor in [each for each in arrays if each.startswith(LAYER)]:
            arrays[tensor.replace(".0.", ".1.")] = arrays[tensor]
        respelled(name, "model.layers.1.mlp.upp_proj.weight")(arrays)

    error = refusal(written(tmp_path / "model", change, {"num_hidden_layers": 2}))
    assert (error.code, error.tensor) == ("unmapped", name)


def test_tensors_beyond_the_family_are_listed_and_copied(tmp_path: Path) -> None:
    names = [f"{LAYER}self_attn.{letter}_scale" for letter in "kv"] + ["medusa.weight"]

    def change(arrays: Arrays) -> None:
        for name in names:
            added(name)(arrays)

    text = notes(written(tmp_path / "model", change))
    assert "3 tensors" in text
    assert names[0] in text
    with squish.open(tmp_path / "out") as file:
        assert set(names) <= set(file)


def test_a_model_with_another_head_is_converted(tmp_path: Path) -> None:
    """A classifier has a matrix of its own in place of the head."""
    text = notes(written(tmp_path / "model", respelled("lm_head.weight", "score.weight")))
    assert "score.weight" in text
    assert "lm_head.weight" in text


def test_a_tensor_in_a_form_of_another_method_is_converted(tmp_path: Path) -> None:
    """Quantization methods that Squish does not know store other parts of a module."""

    def change(arrays: Arrays) -> None:
        for tensor in [each for each in arrays if each.startswith(LAYER)]:
            arrays[tensor.replace(".0.", ".1.")] = arrays[tensor]
        respelled("model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.codes")(arrays)

    text = notes(written(tmp_path / "model", change, {"num_hidden_layers": 2}))
    assert "model.layers.1.mlp.up_proj.codes" in text


def test_a_tied_head_that_is_stored_twice_is_converted(tmp_path: Path) -> None:
    def change(arrays: Arrays) -> None:
        arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"]

    assert "lm_head" not in notes(written(tmp_path / "model", change, {"tie_word_embeddings": True}))


def test_a_setting_that_transformers_has_a_default_for_is_noted(tmp_path: Path) -> None:
    assert "max_position_embeddings" in notes(written(tmp_path / "model", settings={"max_position_embeddings": None}))


def test_a_missing_tokenizer_is_noted(tmp_path: Path) -> None:
    assert "tokenizer" in notes(written(tmp_path / "model", files={}))


def test_part_of_a_model_is_noted_and_keeps_its_names(tmp_path: Path) -> None:
    model = written(tmp_path / "model", without("model.norm.weight"), {"hidden_size": 64})
    assert "model.norm.weight is missing" in notes(model)


@pytest.mark.parametrize(("settings", "code", "place"), CONTRADICTIONS)
def test_kept_names_are_not_checked(settings: dict[str, Any], code: str, place: str, tmp_path: Path) -> None:
    assert notes(written(tmp_path / "model", settings=settings), rename="keep") == ""


def test_a_model_that_fits_its_config_has_no_notes(tmp_path: Path) -> None:
    assert notes(written(tmp_path / "model")) == ""


def test_codes_of_a_checkpoint_are_checked_too(tmp_path: Path) -> None:
    model = tmp_path / "model"
    squish.convert(written(tmp_path / "source"), model, "hf:method=gptq", TARGETS["hf:method=gptq"])
    assert notes(model) == ""
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 4}))
    (tmp_path / "out").rename(tmp_path / "first")
    error = refusal(model)
    assert (error.code, error.tensor) == ("contradiction", f"{LAYER}self_attn.k_proj.weight")


def test_the_command_names_the_tensor_and_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = written(tmp_path / "model", settings={"num_attention_heads": 8})
    assert run(["convert", str(model), str(tmp_path / "out"), "--to", "hf", "--encode", "bf16"]) == 2
    assert f"{LAYER}self_attn.k_proj.weight" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def checked(arrays: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> tuple[str, ...]:
    file = opened(arrays, config)
    return check_settings(file, naming_of(file), "hf")


@pytest.mark.parametrize("name", CONFIGS)
def test_every_family_is_checked(name: str) -> None:
    arrays = model_arrays(family_of(name), CONFIGS[name])
    assert checked(arrays, CONFIGS[name]) == ("transformers will lack tokenizer",)
    for tensor in [each for each in arrays if ".layers.1." in each or "lm_head" in each]:
        with pytest.raises(squish.SquishError) as caught:
            checked({key: values for key, values in arrays.items() if key != tensor}, CONFIGS[name])
        assert caught.value.code == "unmapped"
    for tensor, values in arrays.items():
        with pytest.raises(squish.SquishError) as caught:
            checked({**arrays, tensor: np.concatenate([values, values])}, CONFIGS[name])
        assert (caught.value.code, caught.value.tensor) == ("contradiction", tensor)


def test_many_layers_and_unknown_tensors_take_little_time() -> None:
    """Neither the number of layers in a config nor that of unknown tensors is searched through."""
    arrays = model_arrays("llama", LLAMA, "f32")
    extra = {f"{LAYER}{'a.' * 50}{number}": np.ones(1, np.float32) for number in range(5000)}
    with pytest.raises(squish.SquishError) as caught:
        checked({**arrays, **extra}, {**LLAMA, "num_hidden_layers": 1 << 18})
    assert caught.value.code == "unmapped"
