"""Files of a model folder that cannot be parsed: a typed error that names the file, and nothing is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_tokenizer import TOKENIZER
from squish_cli.app import run
from squish_models.api import check_model
from squish_testing import write_model

import squish_core as squish

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "rope_theta": 10000.0,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "torch_dtype": "float32",
    "hidden_act": "silu", "eos_token_id": 3,
}  # fmt: skip
FILES = {
    **TOKENIZER, "special_tokens_map.json": b'{"eos_token": "<|end|>"}', "added_tokens.json": b"{}",
    "merges.txt": b"a b\n", "vocab.json": b'{"a": 0}', "chat_template.jinja": b"{{ messages }}",
}  # fmt: skip
CONFIG = json.dumps(LLAMA).encode()
DAMAGED = {
    "text": (b"hello", "json", 0), "empty": (b"", "json", 0), "list": (b"[1]", "json", 0),
    "truncated": (CONFIG[:20], "json", None), "nested": (b'{"a":' * 200_000, None, None),
    "UTF-16": (CONFIG.decode().encode("utf-16"), "json", 0), "twice": (b'{"a": 1, "a": 1}', "duplicate", None),
}  # fmt: skip
"""A file's content, the code of the error, and the offset."""
DIRECTIONS = (
    ("hf", "gguf"), ("hf", "mlx"), ("hf", "uqff"), ("hf", "hf"), ("mlx", "hf"), ("mlx", "gguf"), ("uqff", "hf"),
    ("uqff", "gguf"),
)  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as a folder of each format that has a config.json."""
    base = tmp_path_factory.mktemp("models")
    write_model(base / "hf", "llama", LLAMA, dtype="f32", files=FILES)
    squish.convert(base / "hf", base / "mlx", "mlx")
    squish.convert(base / "hf", base / "uqff", "uqff")
    return base


def damaged(folder: Path, copy: Path, name: str, data: bytes) -> Path:
    """A copy of a folder with another file."""
    copy.mkdir()
    for path in folder.iterdir():
        if path.name != name:
            (copy / path.name).hardlink_to(path)
    (copy / name).write_bytes(data)
    return copy


def refusal(source: Path, to: str) -> squish.SquishError:
    target = source.with_name("out")
    with pytest.raises(squish.SquishError) as caught:
        squish.convert(source, target, to)
    assert [path.name for path in source.parent.iterdir()] == [source.name]
    assert caught.value.file == str(source)
    return caught.value


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize(("form", "to"), DIRECTIONS)
def test_a_config_that_cannot_be_parsed_is_refused_in_each_direction(
    form: str, to: str, damage: str, folders: Path, tmp_path: Path
) -> None:
    data, code, offset = DAMAGED[damage]
    error = refusal(damaged(folders / form, tmp_path / "model", "config.json", data), to)
    assert (error.code, error.part) == (code or "depth", "config.json")
    assert error.hint
    assert offset is None or error.offset == offset


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, damage) for name in ("tokenizer.json", "vocab.json") for damage in DAMAGED),
        *(
            (name, "truncated")
            for name in (
                "tokenizer_config.json", "generation_config.json", "special_tokens_map.json", "added_tokens.json",
            )
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("to", ["gguf", "mlx", "hf"])
def test_a_tokenizer_that_cannot_be_parsed_is_refused(
    to: str, name: str, damage: str, folders: Path, tmp_path: Path
) -> None:
    data, code, offset = DAMAGED[damage]
    error = refusal(damaged(folders / "hf", tmp_path / "model", name, data), to)
    assert (error.code, error.part) == (code or "json", name)
    assert error.hint
    assert offset is None or error.offset == offset


@pytest.mark.parametrize("name", ["merges.txt", "chat_template.jinja"])
@pytest.mark.parametrize("to", ["gguf", "mlx", "hf"])
def test_a_text_that_is_not_utf8_is_refused(to: str, name: str, folders: Path, tmp_path: Path) -> None:
    error = refusal(damaged(folders / "hf", tmp_path / "model", name, b"ab\xff"), to)
    assert (error.code, error.part, error.offset) == ("encoding", name, 2)


@pytest.mark.parametrize(("name", "code"), [("config.json", "json"), ("tokenizer.json", "json")])
def test_a_file_beside_a_gguf_that_cannot_be_parsed_is_refused(
    name: str, code: str, folders: Path, tmp_path: Path
) -> None:
    model = tmp_path / "m.gguf"
    squish.convert(folders / "hf", model, "gguf:keep=no")
    assets = damaged(folders / "hf", tmp_path / "assets", name, b"hello")
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(model, tmp_path / "out", "hf", assets=assets)
    assert (caught.value.code, caught.value.part) == (code, name)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("model_type", [5, True, ["llama"], {}])
@pytest.mark.parametrize("to", ["gguf", "mlx"])
def test_a_model_type_that_is_not_text_is_refused(to: str, model_type: Any, folders: Path, tmp_path: Path) -> None:
    data = json.dumps({**LLAMA, "model_type": model_type}).encode()
    error = refusal(damaged(folders / "hf", tmp_path / "model", "config.json", data), to)
    assert (error.code, error.part) == ("config", "config.json model_type")


@pytest.mark.parametrize("setting", ["hidden_size", "num_hidden_layers", "rms_norm_eps", "rope_theta", "vocab_size"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), "x", [], -1])
def test_a_size_that_is_not_a_number_is_refused(setting: str, value: Any, folders: Path, tmp_path: Path) -> None:
    data = json.dumps({**LLAMA, setting: value}).encode()
    error = refusal(damaged(folders / "hf", tmp_path / "model", "config.json", data), "gguf")
    assert (error.code, error.part) == ("config", f"config.json {setting}")


def test_kept_names_need_no_config(folders: Path, tmp_path: Path) -> None:
    model = damaged(folders / "hf", tmp_path / "model", "config.json", b"hello")
    squish.convert(model, tmp_path / "m.gguf", rename="keep")
    with squish.open(tmp_path / "m.gguf") as file:
        assert "model.embed_tokens.weight" in file


def test_the_command_names_the_file_and_ends_with_2(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = damaged(folders / "hf", tmp_path / "model", "config.json", b"hello")
    assert run(["convert", str(model), str(tmp_path / "m.gguf")]) == 2
    assert f"{model}: config.json" in capsys.readouterr().err
    assert not (tmp_path / "m.gguf").exists()


@pytest.mark.parametrize("engine", ["mlx", "transformers", "mistralrs"])
def test_the_check_names_a_config_that_cannot_be_parsed(engine: str, folders: Path, tmp_path: Path) -> None:
    model = damaged(folders / ("mlx" if engine == "mlx" else "hf"), tmp_path / "model", "config.json", b"hello")
    (problem,) = check_model(model, engine).problems
    assert (problem.code, problem.severity, problem.where) == ("json", "error", "config.json")
