"""Text layers and towers of Mistral 3, Gemma 4, LFM2-VL and Kimi become one folder again."""

from __future__ import annotations

import json
from pathlib import Path

import published_towers as towers
import pytest
from published_configs import PUBLISHED
from squish_models.api import small_tokenizer
from test_models_joined import assert_same_model, named, split

import squish_core as squish
from squish_core.testing import model_arrays

OLD = {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."}
NEW = {"model.": "model.language_model."}
MODELS = {
    "mistral3": ("Mistral-Small-3.1-24B", OLD),
    "gemma4": ("gemma-4-31B-it", NEW),
    "gemma4_clipped": ("gemma-4-26B-A4B-it", NEW),
    "kimi_k25": ("Kimi-K2.5", OLD),
    "kimi_vl": ("Kimi-VL-A3B-Instruct", OLD),
    "lfm2_vl": ("LFM2-VL-450M", NEW),
    "lfm2_5_vl": ("LFM2-VL-450M", NEW),
}
"""Name of a tower -> the published text layers, and prefixes of their names -> published ones."""


def save(folder: Path, name: str) -> Path:
    """A folder with text layers and a tower under their published names."""
    model, (published, prefixes) = towers.MODELS[name], MODELS[name]
    family, whole = PUBLISHED[published]
    text = {key: value for key, value in whole["text_config"].items() if not key.endswith("_token_id")}
    config = {**whole, **model["config"], "text_config": text, "torch_dtype": "bfloat16"}
    config = {key: value for key, value in config.items() if key != "eos_token_id"}
    arrays = {named(each, prefixes): array for each, array in model_arrays(family, config).items()}
    arrays |= model_arrays(model["family"], config)
    images = {**towers.COLORS, **model.get("images", {})}
    files = {"config.json": config, "preprocessor_config.json": images}
    assets = {file: json.dumps(content, indent=1).encode() for file, content in files.items()}
    assets |= tokenizer(text["vocab_size"])
    squish.save(folder, arrays, format="safetensors:max_shard_size=1GB", assets=assets)
    return folder


def tokenizer(size: int) -> dict[str, bytes]:
    """A tokenizer with the token after each row of patches."""
    files = small_tokenizer(size)
    content = json.loads(files["tokenizer.json"])
    content["model"]["vocab"]["[IMG_BREAK]"] = content["model"]["vocab"].pop("t8")
    content["added_tokens"].append({**content["added_tokens"][0], "id": 12, "content": "[IMG_BREAK]"})
    return {**files, "tokenizer.json": json.dumps(content).encode()}


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_comes_back_from_both_ggufs(name: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "model", name)
    text, tower = split(folder, tmp_path)
    report = squish.convert(text, tmp_path / "back", "hf", part={"vision": tower})
    assert report.left_out == ()
    assert_same_model(folder, tmp_path / "back")
