"""`check_model`: what an engine needs of a whole model, and what is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_tokenizer import TOKENIZER
from squish_cli.app import run
from squish_models.api import check_model
from squish_testing import write_model

import squish_core as squish
from squish_core.model import Typed

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "head_dim": 16,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": False,
    "torch_dtype": "float32", "hidden_act": "silu", "max_window_layers": 2, "use_sliding_window": False,
    "eos_token_id": 3,
}  # fmt: skip
LLAMA = {
    **{key: value for key, value in CONFIG.items() if key not in ("head_dim", "max_window_layers", "rope_theta")},
    "model_type": "llama", "architectures": ["LlamaForCausalLM"],
}  # fmt: skip
GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4,
    "n_positions": 128, "vocab_size": 64, "layer_norm_epsilon": 1e-5, "torch_dtype": "float32", "eos_token_id": 3,
}  # fmt: skip
Edit = Callable[[dict[str, Any]], Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "qwen3", "qwen3", CONFIG, dtype="f32", files=TOKENIZER)


def model_for(engine: str, folder: Path) -> Path:
    """The model in the format that the engine is for."""
    target = folder.parent / engine
    to = {"llama.cpp": "gguf", "mlx": "mlx", "mistralrs": "uqff"}
    if engine == "transformers":
        return folder
    squish.convert(folder, target, to[engine])
    return target


def changed(folder: Path, edit: Edit) -> Path:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    edit(config)
    path.write_text(json.dumps(config))
    return folder


def edited(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Path:
    """A GGUF with other tensors or keys."""
    with squish.open(path) as file:
        arrays, meta = {name: file[name].numpy() for name in file}, dict(file.index.meta)
    change(arrays, meta)
    squish.save(path.with_name("edited.gguf"), arrays, metadata=meta)
    return path.with_name("edited.gguf")


@pytest.mark.parametrize("engine", ["llama.cpp", "mlx", "transformers", "mistralrs"])
def test_what_convert_writes_for_an_engine_loads_there(engine: str, folder: Path) -> None:
    result = check_model(model_for(engine, folder), engine)
    assert (result.problems, result.loads, result.family) == ((), True, "qwen3")


@pytest.mark.parametrize("engine", ["llama.cpp", "mlx"])
def test_gpt_2_loads_where_an_engine_has_it(engine: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "gpt2", "gpt2", GPT2, dtype="f32", files=TOKENIZER)
    assert check_model(model_for(engine, folder), engine).loads


def test_a_family_that_mistral_rs_does_not_have_is_named_and_not_written(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "gpt2", "gpt2", GPT2, dtype="f32", files=TOKENIZER)
    result = check_model(folder, "mistralrs")
    assert not result.loads
    assert [each.where for each in result.problems if each.severity == "error"] == ["config.json architectures"]
    with pytest.raises(squish.UsageError) as caught:
        squish.convert(folder, tmp_path / "uqff", "uqff")
    assert caught.value.code == "engine"
    squish.convert(folder, tmp_path / "uqff", "uqff", rename="keep")
    result = check_model(tmp_path / "uqff", "mistralrs")
    assert [each.code for each in result.problems if each.severity == "error"] == ["engine-family"]


@pytest.mark.parametrize("engine", ["mlx", "transformers", "mistralrs"])
def test_each_setting_that_an_engine_asks_for_is_named(engine: str, folder: Path) -> None:
    setting = {"mlx": "head_dim", "transformers": "model_type", "mistralrs": "max_window_layers"}[engine]
    model = changed(model_for(engine, folder), lambda config: config.pop(setting))
    result = check_model(model, engine)
    assert not result.loads
    if setting != "model_type":
        assert ("engine-key", f"config.json {setting}") in [(each.code, each.where) for each in result.problems]


@pytest.mark.parametrize(
    "key", ["qwen3.block_count", "qwen3.attention.layer_norm_rms_epsilon", "tokenizer.ggml.model",
            "tokenizer.ggml.tokens", "tokenizer.ggml.merges"],
)  # fmt: skip
def test_each_key_that_llama_cpp_needs_is_named(key: str, folder: Path) -> None:
    model = edited(model_for("llama.cpp", folder), lambda _, meta: meta.pop(key))
    assert key in [each.where for each in check_model(model, "llama.cpp").problems]


def test_a_setting_that_an_engine_takes_to_be_another_is_a_warning(tmp_path: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    config = {**LLAMA, "rope_parameters": scaling}
    model = write_model(tmp_path / "llama", "llama", config, files=TOKENIZER)
    (problem,) = check_model(model, "mlx").problems
    assert (problem.code, problem.severity, problem.where) == ("engine-default", "warning", "config.json rope_scaling")
    assert check_model(model, "transformers").loads


@pytest.mark.parametrize("settings", [{"num_key_value_heads": 3}, {"hidden_size": "32"}])
def test_an_invalid_setting_is_an_error(settings: dict[str, Any], folder: Path) -> None:
    changed(folder, lambda config: config.update(settings))
    codes = ("config", "engine-setting")
    problems = [each for each in check_model(folder, "transformers").problems if each.code in codes]
    assert [each.severity for each in problems] == ["error"]


@pytest.mark.parametrize(("kind", "problems"), [("yarn", 1), ("dynamic", 1), ("linear", 0)])
def test_a_rope_scaling_that_an_engine_does_not_know_is_named(kind: str, problems: int, tmp_path: Path) -> None:
    config = {**LLAMA, "rope_theta": 10000.0, "rope_scaling": {"rope_type": kind, "factor": 2.0}}
    source = write_model(tmp_path / "llama", "llama", config, dtype="f32", files=TOKENIZER)
    squish.convert(source, tmp_path / "out", "uqff")
    reasons = check_model(tmp_path / "out", "mistralrs").problems
    assert [(each.code, each.where) for each in reasons] == [("engine-key", "config.json rope_scaling")] * problems


def test_missing_and_unknown_tensors_are_named_once_for_all_layers(folder: Path) -> None:
    def change(arrays: dict[str, Any], _: dict[str, Any]) -> None:
        arrays["blk.0.extra.weight"] = np.zeros((2, 32), np.float32)
        del arrays["blk.0.attn_norm.weight"], arrays["blk.1.attn_norm.weight"]

    result = check_model(edited(model_for("llama.cpp", folder), change), "llama.cpp")
    assert [(each.code, each.where) for each in result.problems] == [
        ("unmapped", "blk.0.extra.weight"),
        ("unmapped", "blk.0.attn_norm.weight"),
    ]


def test_types_that_an_engine_does_not_run_are_grouped(folder: Path) -> None:
    def change(arrays: dict[str, Any], _: dict[str, Any]) -> None:
        for name in ("blk.0.ffn_up.weight", "blk.1.ffn_up.weight"):
            arrays[name] = arrays[name].astype(np.float64)
        arrays["output_norm.weight"] = arrays["output_norm.weight"].astype(np.float16)

    result = check_model(edited(model_for("llama.cpp", folder), change), "llama.cpp")
    assert sorted((each.code, each.where) for each in result.problems) == [
        ("engine-type", "blk.0.ffn_up.weight"),
        ("engine-type", "output_norm.weight"),
    ]


def test_embeddings_with_another_number_of_rows_than_tokens_do_not_load(folder: Path) -> None:
    def change(_: dict[str, Any], meta: dict[str, Any]) -> None:
        tokens = meta["tokenizer.ggml.tokens"]
        meta["tokenizer.ggml.tokens"] = type(tokens)(tokens.type, list(tokens.value)[:-1])

    result = check_model(edited(model_for("llama.cpp", folder), change), "llama.cpp")
    assert [(each.code, each.where) for each in result.problems] == [("tokenizer", "tokenizer.ggml.tokens")]


@pytest.mark.parametrize("engine", ["mlx", "transformers", "mistralrs"])
def test_a_folder_without_a_tokenizer_does_not_load(engine: str, folder: Path) -> None:
    model = model_for(engine, folder)
    (model / "tokenizer.json").unlink()
    assert [each.code for each in check_model(model, engine).problems] == ["tokenizer"]


@pytest.mark.parametrize(
    ("model", "engine", "code"),
    [("llama.cpp", "mlx", "engine-format"), ("mlx", "llama.cpp", "engine-format"), ("mlx", "transformers", "")],
)
def test_a_format_that_an_engine_does_not_read_is_said(model: str, engine: str, code: str, folder: Path) -> None:
    problems = check_model(model_for(model, folder), engine).problems
    assert [each.code for each in problems] == ([code] if code else [])


@pytest.mark.parametrize(("key", "value"), [("model", Typed("array:str", ["gpt2"])), ("tokens", Typed("u32", 64))])
def test_keys_of_a_tokenizer_of_another_type_are_named(key: str, value: Typed, folder: Path) -> None:
    name = f"tokenizer.ggml.{key}"
    model = edited(model_for("llama.cpp", folder), lambda _, meta: meta.update({name: value}))
    assert [problem.where for problem in check_model(model, "llama.cpp").problems] == [name]


def test_the_names_of_another_layout_are_said(folder: Path) -> None:
    target = folder.parent / "kept.gguf"
    squish.convert(folder, target, rename="keep")
    (problem,) = check_model(target, "llama.cpp").problems
    assert problem.code in ("names", "engine-tensor")


def test_nothing_is_said_about_a_family_that_is_unknown(folder: Path) -> None:
    changed(folder, lambda config: config.update(model_type="rwkv7"))
    with pytest.raises(squish.FormatError) as caught:
        check_model(folder, "mlx")
    assert caught.value.code == "names"


def test_an_engine_that_does_not_exist_is_a_usage_error(folder: Path) -> None:
    with pytest.raises(squish.UsageError) as caught:
        check_model(folder, "vllm")
    assert caught.value.code == "engine-name"


@pytest.mark.parametrize(
    ("name", "engine"), [("mlx-lm", "mlx"), ("llamacpp", "llama.cpp"), ("transformer", "transformers")]
)
def test_the_text_about_an_engine_names_the_closest_one(folder: Path, name: str, engine: str) -> None:
    with pytest.raises(squish.UsageError) as caught:
        check_model(folder, name)
    assert caught.value.hint == f"The closest is {engine}."


def test_the_command_answers_with_exit_codes_and_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check-model", str(folder), "--for", "mlx", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loads"] is True
    changed(folder, lambda config: config.pop("head_dim"))
    assert run(["check-model", str(folder), "--for", "mlx"]) == 1
    assert "config.json head_dim" in capsys.readouterr().out
    assert run(["check-model", str(folder), "--for", "vllm"]) == 2
