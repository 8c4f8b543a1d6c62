"""Text layers and towers of Qwen's and GLM's models become one folder again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import published_towers_qwen as towers
import pytest
from squish_models.api import small_tokenizer
from test_models_joined import assert_same_model, split

import squish_core as squish
from squish_core.testing import model_arrays

TEXT = {
    "qwen3_vl": "qwen3vl",
    "qwen3_vl_moe": "qwen3vlmoe",
    "qwen2_5_vl": "qwen2vl",
    "qwen2_vl": "qwen2vl",
    "qwen3_5": "qwen35",
}
"""Name of a tower -> the family of its text layers."""
NEW = {"model.": "model.language_model."}


def stacked(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Experts as published: stacks of matrices that are [in, out], the gate fused with up."""
    result = {name: array for name, array in arrays.items() if ".experts." not in name}
    for layer in range(towers.SIZES["num_hidden_layers"]):
        module = f"model.layers.{layer}.mlp.experts."
        gate, up, down = (
            np.stack([arrays[f"{module}{e}.{name}.weight"].T for e in range(towers.EXPERTS["num_experts"])])
            for name in ("gate_proj", "up_proj", "down_proj")
        )
        result |= {f"{module}gate_up_proj": np.concatenate([gate, up], -1), f"{module}down_proj": down}
    return result


def save(folder: Path, name: str) -> Path:
    """A folder with text layers and a tower under their published names."""
    model, prefixes = towers.MODELS[name], {} if name.startswith("qwen2") else NEW
    config = {**model["config"], "torch_dtype": "bfloat16"}
    arrays = {}
    text = model_arrays(TEXT[name], config)
    for tensor, array in (stacked(text) if name == "qwen3_vl_moe" else text).items():
        prefix = next((each for each in prefixes if tensor.startswith(each)), "")
        arrays[prefixes.get(prefix, "") + tensor.removeprefix(prefix)] = array
    files = {"config.json": config, "preprocessor_config.json": towers.IMAGES}
    files["video_preprocessor_config.json"] = {**towers.IMAGES, "video_processor_type": "Qwen3VLVideoProcessor"}
    assets = {file: json.dumps(content, indent=1).encode() for file, content in files.items()}
    vocabulary = small_tokenizer(towers.SIZES["vocab_size"])
    squish.save(
        folder,
        {**arrays, **model_arrays(model["family"], config)},
        format="safetensors:max_shard_size=1GB",
        assets={**assets, **vocabulary},
    )
    return folder


@pytest.mark.parametrize("name", TEXT)
def test_a_folder_comes_back_from_both_ggufs(name: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "model", name)
    text, tower = split(folder, tmp_path)
    report = squish.convert(text, tmp_path / "back", "hf", part={"vision": tower})
    assert report.left_out == ()
    assert_same_model(folder, tmp_path / "back")


@pytest.mark.parametrize("name", TEXT)
def test_ggufs_without_kept_files_get_the_published_names_and_a_config_of_both(name: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "model", name)
    text, tower = split(folder, tmp_path, keep=":keep=no")
    squish.convert(text, tmp_path / "back", "hf:max_shard_size=1GB", part={"vision": tower})
    with squish.open(folder) as source, squish.open(tmp_path / "back") as back:
        assert {*source} == {*back}
        assert all(np.array_equal(source[each].numpy(), back[each].numpy()) for each in source)
    config: dict[str, Any] = json.loads((tmp_path / "back/config.json").read_text())
    stated = towers.MODELS[name]["config"]
    assert (config["model_type"], config["architectures"]) == (stated["model_type"], stated["architectures"])
    others = ("in_chans", "in_channels", "initializer_range", "model_type", "spatial_patch_size", "tokens_per_second")
    sizes = {key: value for key, value in stated["vision_config"].items() if key not in others}
    assert sizes.items() <= config["vision_config"].items()
    squish.convert(tmp_path / "back", tmp_path / "again.gguf", part="vision")
    with squish.open(tower) as one, squish.open(tmp_path / "again.gguf") as other:
        assert all(other.metadata[key] == value for key, value in one.metadata.items())
