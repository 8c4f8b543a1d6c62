"""`check_model` for folders: which files, names, settings, heads and codes each engine takes. Measured: the engines."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_tokenizer import TOKENIZER
from squish_models.api import ModelCheck, check_model
from squish_testing import write_model
from test_models_bad_input import FIRST

import squish_core as squish

FILES = {"tokenizer.json": TOKENIZER["tokenizer.json"]}
PLAIN = {"rope_scaling": None, "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "num_key_value_heads": 2}
Names = Callable[[str], str]


def model(place: Path, family: str, names: Names = lambda name: name, **settings: Any) -> Path:
    """A small folder, with its tensors renamed and other settings in its config.json."""
    folder = write_model(place / "m", family, {**FIRST[family], **PLAIN}, dtype="f32", files=FILES)
    with squish.open(folder) as file:
        arrays = {names(name): file[name].numpy() for name in file}
    (path,) = folder.glob("*.safetensors")
    for each in folder.glob("*.index.json"):
        each.unlink()
    path.unlink()
    squish.save(folder / "model.safetensors", arrays)
    config = json.loads((folder / "config.json").read_text())
    changed = {**config, **settings}
    (folder / "config.json").write_text(json.dumps({key: value for key, value in changed.items() if value is not ...}))
    return folder


def errors(check: ModelCheck) -> list[str]:
    return [each.where for each in check.problems if each.severity == "error"]


@pytest.mark.parametrize("engine", ["transformers", "mlx"])
@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"vocab_size": "64"}, "config.json vocab_size"),
        ({"hidden_act": None}, "config.json hidden_act"),
        ({"rms_norm_eps": 1}, "config.json rms_norm_eps"),
        ({"use_cache": "yes"}, "config.json use_cache"),
        ({"bos_token_id": [1]}, "config.json bos_token_id"),
        ({"initializer_range": -0.5}, "config.json initializer_range"),
        ({"rope_scaling": {"rope_type": None, "factor": 2.0}}, "config.json rope_scaling.rope_type"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "config.json rope_scaling.factor"),
        ({"torch_dtype": ["float32"]}, "config.json torch_dtype"),
    ],
)
def test_a_setting_of_another_type_is_refused(
    settings: Mapping[str, Any], where: str, engine: str, tmp_path: Path
) -> None:
    assert where in errors(check_model(model(tmp_path, "llama", **settings), engine))


@pytest.mark.parametrize(
    ("engine", "settings", "loads"),
    [
        ("transformers", {"hidden_act": "nonsense"}, False),
        ("mlx", {"hidden_act": "nonsense"}, True),
        ("transformers", {"pad_token_id": 5000}, False),
        ("mlx", {"pad_token_id": 5000}, True),
        ("mlx", {"model_file": "x.py"}, False),
        ("transformers", {"model_file": "x.py"}, True),
        ("mistralrs", {"architectures": []}, False),
        ("mistralrs", {"hidden_size": 32.0}, False),
        ("transformers", {"intermediate_size": ...}, False),  # 11008
    ],
)
def test_a_setting_that_one_engine_checks(
    engine: str, settings: Mapping[str, Any], loads: bool, tmp_path: Path
) -> None:
    assert (errors(check_model(model(tmp_path, "llama", **settings), engine)) == []) == loads


@pytest.mark.parametrize(
    ("name", "transformers", "mlx", "mistralrs"),
    [
        ("model.safetensors", True, True, True),
        ("model-00001-of-00001.safetensors", False, True, True),
        ("model-extra.safetensors", False, True, False),
        ("consolidated.safetensors", False, False, True),
    ],
)
def test_weights_have_the_name_that_the_engine_opens(
    name: str, transformers: bool, mlx: bool, mistralrs: bool, tmp_path: Path
) -> None:
    folder = model(tmp_path, "llama")
    (folder / "model.safetensors").rename(folder / name)
    for engine, loads in (("transformers", transformers), ("mlx", mlx), ("mistralrs", mistralrs)):
        codes = [each.code for each in check_model(folder, engine).problems]
        assert ("engine-format" not in codes) == loads, engine


@pytest.mark.parametrize(("prefix", "transformers"), [("", True), ("other.", False), ("language_model.", False)])
def test_names_that_transformers_does_not_find_would_be_random(prefix: str, transformers: bool, tmp_path: Path) -> None:
    folder = model(tmp_path, "gemma3", lambda name: prefix + name, model_type="gemma3_text")
    assert (errors(check_model(folder, "transformers")) == []) == transformers


def test_transformers_loads_names_without_the_prefix_of_a_model_with_a_head(tmp_path: Path) -> None:
    folder = model(tmp_path, "llama", lambda name: name.removeprefix("model."))
    assert errors(check_model(folder, "transformers")) == []
    assert errors(check_model(folder, "mlx"))


def test_mlx_lm_refuses_tensors_that_the_model_does_not_have(tmp_path: Path) -> None:
    folder = model(tmp_path, "llama")
    with squish.open(folder) as file:
        arrays = {name: file[name].numpy() for name in file}
    squish.save(folder / "model.safetensors", {**arrays, "extra.weight": np.ones(4, np.float32)})
    assert errors(check_model(folder, "mlx")) == ["extra.weight"]
    assert errors(check_model(folder, "transformers")) == []


@pytest.mark.parametrize("differs", [False, True])
def test_a_tied_head_that_mlx_lm_drops_is_compared_to_the_last_row(differs: bool, tmp_path: Path) -> None:
    folder = model(tmp_path, "qwen2", tie_word_embeddings=True)
    with squish.open(folder) as file:
        arrays = {name: file[name].numpy() for name in file}
    head = arrays["model.embed_tokens.weight"].copy()
    head[-1, -1] += differs
    squish.save(folder / "model.safetensors", {**arrays, "lm_head.weight": head})
    warnings = [each.where for each in check_model(folder, "mlx").problems if each.severity == "warning"]
    assert ("lm_head.weight" in warnings) == differs
    assert "lm_head.weight" not in [each.where for each in check_model(folder, "transformers").problems]


@pytest.mark.parametrize(
    ("method", "encode", "loads"),
    [("awq", "int4:group_size=32", True), ("fp8", "fp8", False)],
)
def test_codes_that_mlx_lm_reads(method: str, encode: str, loads: bool, tmp_path: Path) -> None:
    source = model(tmp_path, "llama")
    squish.convert(source, tmp_path / "out", f"hf:method={method}", {"*.self_attn.*_proj.weight": encode})
    codes = [each.code for each in check_model(tmp_path / "out", "mlx").problems]
    assert ("engine-type" not in codes) == loads


@pytest.mark.parametrize("engine", ["transformers", "mlx", "mistralrs"])
@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda tree: tree.update(version="2.0"), "version"),
        (lambda tree: tree.update(decoder=[1]), "decoder"),
        (lambda tree: tree.pop("model"), "model"),
        (lambda tree: tree["model"].update(type="Other"), "model.type"),
        (lambda tree: tree["model"].update(dropout=7), "model.dropout"),
        (lambda tree: tree["model"].update(fuse_unk="yes"), "model.fuse_unk"),
        (lambda tree: tree["model"]["vocab"].update(zzz=-1), "model.vocab"),
        (lambda tree: tree["model"]["merges"].append(["qq", "zz"]), "model.merges"),
        (lambda tree: tree.update(added_tokens="all"), "added_tokens"),
    ],
)
def test_a_tokenizer_that_cannot_be_read_is_refused(
    change: Callable[[dict[str, Any]], Any], field: str, engine: str, tmp_path: Path
) -> None:
    folder = model(tmp_path, "llama")
    tree = json.loads((folder / "tokenizer.json").read_text())
    change(tree)
    (folder / "tokenizer.json").write_text(json.dumps(tree))
    assert f"tokenizer.json {field}" in errors(check_model(folder, engine))
