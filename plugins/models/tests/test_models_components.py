"""Components beside the text layers: what a conversion leaves out, and vision towers as files of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_convert.components import components

import squish_core as squish
from squish_core.testing import expect_error, model_arrays

TEXT = {
    "model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "query_pre_attn_scalar": 16, "vocab_size": 320,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "sliding_window": 32, "tie_word_embeddings": True,
    "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 56,
    "patch_size": 14, "model_type": "siglip_vision_model", "hidden_act": "gelu_pytorch_tanh",
}  # fmt: skip
CONFIG = {"model_type": "gemma3", "text_config": TEXT, "vision_config": VISION, "mm_tokens_per_image": 4}
IMAGES = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.6, 0.7], "image_seq_length": 4}
PROBE = "vision_tower.vision_model.head.probe"


def save(folder: Path, config: dict[str, Any], images: dict[str, Any] | None, **changes: np.ndarray) -> Path:
    """A folder with text layers and a tower, as they are published; `changes` replace tensors, by their last words."""
    text = {f"language_model.{name}": array for name, array in model_arrays("gemma3", TEXT).items()}
    tower = model_arrays("gemma3.vision", {**CONFIG, "vision_config": VISION})
    arrays = {**text, **tower, PROBE: np.ones((1, 1, 32), np.float32)}
    arrays |= {name: changes[name.rpartition(".")[2]] for name in arrays if name.rpartition(".")[2] in changes}
    assets = {"config.json": json.dumps(config).encode()}
    assets |= {} if images is None else {"preprocessor_config.json": json.dumps(images).encode()}
    squish.save(folder, arrays, format="safetensors:max_shard_size=1GB", assets=assets)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("vision") / "model", CONFIG, IMAGES)


def test_components_of_a_folder_are_named(folder: Path) -> None:
    with squish.open(folder) as file:
        parts = components(file)
    assert {part: len(names) for part, names in parts.items()} == {"text": 28, "vision": 40}
    assert all(name.startswith(("vision_tower.", "multi_modal_projector.")) for name in parts["vision"])


def test_a_conversion_of_the_text_lists_the_tower_that_it_leaves_out(folder: Path, tmp_path: Path) -> None:
    report = squish.convert(folder, tmp_path / "model.gguf", rename="gguf")
    [left_out] = report.to_dict()["left_out"]
    assert (left_out["part"], left_out["option"], len(left_out["tensors"])) == ("vision", "part='vision'", 40)


def test_what_is_left_out_is_one_printed_line(folder: Path, tmp_path: Path) -> None:
    report = str(squish.convert(folder, tmp_path / "model.gguf", rename="gguf", dry_run=True))
    assert "left out:\n  vision, 40 tensors: part='vision' writes it to a file of its own" in report
    assert "multi_modal_projector" not in report


def test_a_tower_has_llama_cpps_names_values_and_keys(folder: Path, tmp_path: Path) -> None:
    report = squish.convert(folder, tmp_path / "mmproj.gguf", part="vision")
    assert [item.part for item in report.left_out] == ["text"]
    with squish.open(tmp_path / "mmproj.gguf") as tower, squish.open(folder) as source:
        assert tower.index.kind == "mmproj"
        assert len(tower) == 39
        stored = source["multi_modal_projector.mm_soft_emb_norm.weight"].numpy()
        assert np.array_equal(tower["mm.soft_emb_norm.weight"].numpy(), stored.astype(np.float32) + 1)
        patches = source["vision_tower.vision_model.embeddings.patch_embedding.weight"].numpy()
        assert np.array_equal(tower["v.patch_embd.weight"].numpy(), patches)
        keys = tower.metadata
        assert keys["clip.projector_type"] == "gemma3"
        assert keys["clip.vision.projector.scale_factor"] == 2
        assert keys["clip.vision.projection_dim"] == 64
        assert {part: len(names) for part, names in components(tower).items()} == {"vision": 39}


def test_a_tower_that_is_a_gguf_is_copied(folder: Path, tmp_path: Path) -> None:
    squish.convert(folder, tmp_path / "mmproj.gguf", part="vision")
    squish.convert(tmp_path / "mmproj.gguf", tmp_path / "copy.gguf")
    assert squish.diff(tmp_path / "mmproj.gguf", tmp_path / "copy.gguf").same


@pytest.mark.parametrize(
    ("part", "target", "code"),
    [
        ("visio", "x.gguf", "usage"),
        ("audio", "x.gguf", "unmapped"),
        ("mtp", "x.gguf", "unmapped"),
        ("vision", "x.safetensors", "usage"),
        ("vision", "folder", "usage"),
    ],
)
def test_a_part_that_cannot_be_written_is_refused(
    folder: Path, tmp_path: Path, part: str, target: str, code: str
) -> None:
    to = "hf" if target == "folder" else None
    with expect_error(squish.SquishError, code=code):
        squish.convert(folder, tmp_path / target, to, part=part)
    assert not (tmp_path / target).exists()


@pytest.mark.parametrize(
    ("config", "images", "changes", "code"),
    [
        ({"vision_config": None}, IMAGES, {}, "config"),
        ({"vision_config": {**VISION, "patch_size": None}}, IMAGES, {}, "config"),
        ({"vision_config": {**VISION, "patch_size": "14"}}, IMAGES, {}, "config"),
        ({"vision_config": {**VISION, "patch_size": 0}}, IMAGES, {}, "contradiction"),
        ({"vision_config": {**VISION, "hidden_size": 64}}, IMAGES, {}, "contradiction"),
        ({"vision_config": {**VISION, "num_hidden_layers": 3}}, IMAGES, {}, "unmapped"),
        ({"vision_config": {**VISION, "num_hidden_layers": 1}}, IMAGES, {}, "contradiction"),
        ({"vision_config": {**VISION, "hidden_act": "relu"}}, IMAGES, {}, "config"),
        ({}, None, {}, "config"),
        ({}, {**IMAGES, "image_mean": [0.5]}, {}, "config"),
        ({}, {**IMAGES, "image_std": None}, {}, "config"),
        ({}, {**IMAGES, "image_seq_length": "many"}, {}, "config"),
        ({}, IMAGES, {"mm_input_projection_weight": np.ones((64, 32), np.float32)}, "contradiction"),
    ],
)
def test_a_tower_that_contradicts_its_settings_is_refused(
    tmp_path: Path, config: dict[str, Any], images: dict[str, Any] | None, changes: dict[str, np.ndarray], code: str
) -> None:
    source = save(tmp_path / "model", {**CONFIG, **config}, images, **changes)
    with expect_error(squish.SquishError, code=code):
        squish.convert(source, tmp_path / "mmproj.gguf", part="vision")
    assert not (tmp_path / "mmproj.gguf").exists()
