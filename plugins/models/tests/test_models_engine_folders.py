"""Folders of engines whose names are Hugging Face's: they are checked like mapped models before anything is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from squish_cli.app import run
from squish_testing import write_model
from test_models_unreadable_files import FILES, LLAMA

import squish_core as squish

CODES = {"mlx": "int4:group_size=32", "uqff": "q8_0"}


def coded(form: str, folder: Path, **settings: Any) -> Path:
    """A model with codes in an engine's format, and other settings in its config."""
    source = write_model(folder / "source", "llama", LLAMA, dtype="f32", files=FILES)
    model = folder / form
    squish.convert(source, model, form, {"*_proj.weight": CODES[form]})
    config = {**json.loads((model / "config.json").read_text()), **settings}
    (model / "config.json").write_text(json.dumps(config))
    return model


@pytest.mark.parametrize("form", CODES)
@pytest.mark.parametrize(
    ("settings", "code", "place"),
    [
        ({"num_attention_heads": 8}, "contradiction", "model.layers.0.self_attn.k_proj.weight"),
        ({"num_attention_heads": 3}, "config", "config.json hidden_size"),
        ({"hidden_size": 64}, "contradiction", "lm_head.weight"),
        ({"num_hidden_layers": 2}, "unmapped", "model.layers.1.input_layernorm.weight"),
        ({"tie_word_embeddings": True}, "contradiction", "lm_head.weight"),
        ({"vocab_size": 32}, "contradiction", "lm_head.weight"),
        ({"rope_theta": float("nan")}, "config", "config.json rope_theta"),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_refused(
    settings: dict[str, Any], code: str, place: str, form: str, tmp_path: Path
) -> None:
    model = coded(form, tmp_path, **settings)
    with pytest.raises(squish.SquishError) as caught:
        squish.convert(model, tmp_path / "out", "hf", "f32")
    error = caught.value
    assert (error.file, error.code, error.tensor or error.part) == (str(model), code, place)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", CODES)
def test_a_model_that_fits_its_config_is_written(form: str, tmp_path: Path) -> None:
    model = coded(form, tmp_path)
    squish.convert(model, tmp_path / "out", "hf", "f32")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "hidden_size": 64}))
    assert run(["convert", str(model), str(tmp_path / "no"), "--to", "hf", "--encode", "f32"]) == 2
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("form", CODES)
def test_a_folder_without_a_tokenizer_is_refused(form: str, tmp_path: Path) -> None:
    model = coded(form, tmp_path)
    for name in FILES:
        (model / name).unlink(missing_ok=True)
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(model, tmp_path / "out", "hf", "f32")
    assert (caught.value.file, caught.value.code) == (str(model), "tokenizer")
    assert not (tmp_path / "out").exists()
    squish.convert(model, tmp_path / "out", "hf", "f32", rename="hf")
