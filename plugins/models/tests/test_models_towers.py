"""Vision towers of the published checkpoints: into llama.cpp's GGUF, back, and what is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import published_towers as towers
import published_towers_qwen
import pytest
from every_family import one_of_each
from squish_convert.arrays import in_memory
from squish_convert.components import components
from squish_convert.mapping.mapped import model_of

import squish_core as squish
from squish_core.testing import expect_error


@pytest.mark.parametrize("name", towers.MODELS)
def test_a_tower_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    expected = towers.mapped_arrays(name)
    squish.convert(towers.save(tmp_path / "model", name), tmp_path / "tower.gguf", part="vision")
    result = towers.back(tmp_path / "tower.gguf")
    assert {*result} == {*expected}
    for tensor, value in result.items():
        assert np.array_equal(value, expected[tensor]), tensor


@pytest.mark.parametrize("name", towers.MODELS)
def test_a_towers_gguf_is_copied_and_named(name: str, tmp_path: Path) -> None:
    squish.convert(towers.save(tmp_path / "model", name), tmp_path / "tower.gguf", part="vision")
    squish.convert(tmp_path / "tower.gguf", tmp_path / "copy.gguf")
    assert squish.diff(tmp_path / "tower.gguf", tmp_path / "copy.gguf").same
    with squish.open(tmp_path / "tower.gguf") as file:
        assert [*components(file)] == ["vision"]


@pytest.mark.parametrize("name", towers.MODELS)
def test_a_tower_without_a_tensor_or_with_another_shape_is_refused(name: str) -> None:
    source = towers.arrays_of(name)
    for tensor in one_of_each(source):
        with expect_error(squish.SquishError, code="unmapped"):
            towers.mapped(name, {key: value for key, value in source.items() if key != tensor})
        if tensor != towers.MODELS[name].get("embedding"):
            rows = np.atleast_1d(source[tensor])
            longer = np.concatenate([rows, rows[:1]])
            with expect_error(squish.SquishError, code="contradiction"):
                towers.mapped(name, {**source, tensor: longer})


@pytest.mark.parametrize("name", towers.MODELS)
def test_a_towers_gguf_without_a_key_is_refused(name: str, tmp_path: Path) -> None:
    squish.convert(towers.save(tmp_path / "model", name), tmp_path / "tower.gguf", part="vision")
    with squish.open(tmp_path / "tower.gguf") as file:
        meta, arrays = dict(file.index.meta), {tensor: file[tensor].numpy() for tensor in file}
    sizes = [key for key in meta if key.startswith("clip.vision.") and key.endswith(("_size", "_length", "_count"))]
    squish.save(tmp_path / "whole.gguf", arrays, metadata=meta)
    assert towers.back(tmp_path / "whole.gguf")
    for number, key in enumerate(sizes):
        lacking = {each: value for each, value in meta.items() if each != key}
        squish.save(tmp_path / f"{number}.gguf", arrays, metadata=lacking)
        with expect_error(squish.SquishError):
            towers.back(tmp_path / f"{number}.gguf")


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("mistral3", {"vision_config.hidden_act": "relu"}, "config"),
    ("mistral3", {"vision_config.hidden_act": ["silu"]}, "config"),
    ("mistral3", {"vision_config.rope_theta": 500.0}, "config"),
    ("mistral3", {"vision_config.rope_parameters": {"rope_theta": 500.0, "rope_type": "axial"}}, "config"),
    ("mistral3", {"vision_feature_layer": -2}, "config"),
    ("mistral3", {"projector_hidden_act": "relu"}, "config"),
    ("mistral3", {"spatial_merge_size": 3}, "contradiction"),
    ("mistral3", {"spatial_merge_size": "2"}, "config"),
    ("pixtral", {"vision_config.model_type": "clip_vision_model"}, "unmapped"),
    ("pixtral", {"spatial_merge_size": 2}, "unmapped"),
    ("internvl", {"vision_config.norm_type": "rms_norm"}, "config"),
    ("internvl", {"vision_config.use_qk_norm": True}, "config"),
    ("internvl", {"vision_config.attention_bias": False}, "contradiction"),
    ("internvl", {"vision_config.use_mean_pooling": False}, "config"),
    ("internvl", {"vision_config.image_size": [56, 28]}, "config"),
    ("internvl", {"vision_config.image_size": [112, 112]}, "contradiction"),
    ("internvl", {"downsample_ratio": 0.3}, "config"),
    ("internvl", {"downsample_ratio": "half"}, "config"),
    ("internvl", {"downsample_ratio": 0.25}, "contradiction"),
    ("internvl", {"vision_feature_layer": -4}, "config"),
    ("internvl_chat", {"ps_version": "v1"}, "config"),
    ("internvl_chat", {"vision_config.qkv_bias": False}, "contradiction"),
    ("internvl_chat", {"llm_config": None}, "config"),
    ("gemma4", {"vision_config.hidden_activation": "gelu"}, "config"),
    ("gemma4", {"vision_config.rope_parameters": {"rope_theta": 10.0}}, "config"),
    ("gemma4", {"vision_config.pooling_kernel_size": 2}, "config"),
    ("gemma4", {"vision_config.head_dim": 8}, "config"),
    ("gemma4", {"vision_config.num_key_value_heads": 1}, "config"),
    ("gemma4", {"vision_config.attention_bias": True}, "config"),
    ("gemma4", {"vision_config.standardize": False}, "contradiction"),
    ("gemma4", {"vision_config.standardize": "yes"}, "config"),
    ("gemma4", {"vision_config.use_clipped_linears": True}, "unmapped"),
    ("gemma4", {"vision_config.position_embedding_size": 21}, "contradiction"),
    ("gemma4", {"vision_config.position_embedding_size": -1}, "config"),
    ("gemma4_clipped", {"vision_config.use_clipped_linears": False}, "contradiction"),
    ("kimi_vl", {"vision_config.merge_kernel_size": [4, 4]}, "config"),
    ("kimi_vl", {"vision_config.init_pos_emb_height": 5}, "config"),
    ("kimi_vl", {"vision_config.init_pos_emb_width": "6"}, "config"),
    ("kimi_vl", {"vision_config.init_pos_emb_height": 5, "vision_config.init_pos_emb_width": 5}, "contradiction"),
    ("kimi_vl", {"vision_config.hidden_size": 30}, "contradiction"),
    ("kimi_k25", {"vision_config.projector_hidden_act": "silu"}, "config"),
    ("kimi_k25", {"vision_config.merge_type": "mean"}, "config"),
    ("kimi_k25", {"vision_config.vt_hidden_size": "32"}, "config"),
    ("kimi_k25", {"vision_config.vt_num_attention_heads": 16}, "heads"),
    ("kimi_k25", {"vision_config.init_pos_emb_time": "4"}, "config"),
    ("lfm2_vl", {"projector_bias": False}, "config"),
    ("lfm2_vl", {"projector_hidden_act": "silu"}, "config"),
    ("lfm2_vl", {"projector_use_layernorm": False}, "contradiction"),
    ("lfm2_vl", {"vision_feature_layer": -2}, "config"),
    ("lfm2_vl", {"downsample_factor": 3}, "contradiction"),
    ("lfm2_vl", {"downsample_factor": "2"}, "config"),
    ("lfm2_vl", {"projector_hidden_size": 41}, "contradiction"),
    ("lfm2_vl", {"projector_hidden_size": [40]}, "config"),
    ("lfm2_vl", {"vision_config.num_patches": 25}, "contradiction"),
    ("lfm2_vl", {"vision_config.num_patches": None}, "config"),
    ("lfm2_vl", {"vision_config.patch_size": 8}, "contradiction"),
    ("lfm2_vl", {"vision_config": []}, "config"),
    *published_towers_qwen.REFUSED,
]


@pytest.mark.parametrize(("name", "changes", "code"), REFUSED)
def test_settings_that_llama_cpp_does_not_compute_are_refused(
    name: str, changes: dict[str, Any], code: str, tmp_path: Path
) -> None:
    config = copy.deepcopy(towers.MODELS[name]["config"])
    for path, value in changes.items():
        *parents, key = path.split(".")
        place = config
        for parent in parents:
            place = place[parent]
        place[key] = value
    folder = towers.save(tmp_path / "model", name, config=config)
    with expect_error(squish.SquishError, code=code):
        squish.convert(folder, tmp_path / "tower.gguf", part="vision")
    assert not (tmp_path / "tower.gguf").exists()


@pytest.mark.parametrize("added", [{}, {"12": {"content": "[IMG]"}}, {"64": towers.BREAK["12"]}])
def test_a_pixtral_without_its_break_token_is_refused(added: dict[str, Any], tmp_path: Path) -> None:
    folder = towers.save(
        tmp_path / "model", "mistral3", files={"tokenizer_config.json": {"added_tokens_decoder": added}}
    )
    with expect_error(squish.FormatError):
        squish.convert(folder, tmp_path / "tower.gguf", part="vision")
    assert not (tmp_path / "tower.gguf").exists()


def test_a_pixtral_has_the_embedding_of_its_break_token(tmp_path: Path) -> None:
    source = towers.arrays_of("mistral3")
    squish.convert(towers.save(tmp_path / "model", "mistral3", source), tmp_path / "tower.gguf", part="vision")
    with squish.open(tmp_path / "tower.gguf") as tower:
        row = tower["v.token_embd.img_break"].numpy()
        assert tower.metadata["clip.use_silu"] is True
    assert np.array_equal(row, source[towers.MODELS["mistral3"]["embedding"]][12])


def test_an_internvl_of_the_authors_has_the_keys_of_its_tiles(tmp_path: Path) -> None:
    squish.convert(towers.save(tmp_path / "model", "internvl_chat"), tmp_path / "tower.gguf", part="vision")
    with squish.open(tmp_path / "tower.gguf") as tower:
        keys = tower.metadata
    assert (keys["clip.vision.preproc_min_tiles"], keys["clip.vision.preproc_max_tiles"]) == (1, 12)
    assert (keys["clip.vision.projector.scale_factor"], keys["clip.vision.projection_dim"]) == (2, 64)


def test_the_large_internvl_has_rms_norms_and_no_biases_of_queries() -> None:
    config = copy.deepcopy(towers.MODELS["internvl_chat"]["config"])
    config["vision_config"] |= {
        "hidden_size": 3200, "num_hidden_layers": 45, "norm_type": "rms_norm", "qk_normalization": True,
        "qkv_bias": False, "intermediate_size": 1, "patch_size": 1, "image_size": 1, "num_attention_heads": 25,
    }  # fmt: skip
    family = squish.registry().implementation("family", "internvl.vision")
    model = model_of(in_memory({}, assets={"config.json": json.dumps(config).encode()}), family, "hf")
    absent = family.absent(family.settings(model))
    assert "vision_tower.encoder.layer.44.layernorm_before.bias" in absent
    assert "vision_tower.encoder.layer.0.attention.q_proj.bias" in absent
    assert "vision_tower.encoder.layer.0.attention.q_norm.weight" not in absent


@pytest.mark.parametrize(("number", "method"), [(1, "lanczos"), (2, "bilinear"), (3, "bicubic"), (None, None)])
def test_an_lfm2_states_how_its_images_are_resized(number: int | None, method: str | None, tmp_path: Path) -> None:
    images = {**towers.COLORS, "resample": number}
    folder = towers.save(tmp_path / "model", "lfm2_vl", files={"preprocessor_config.json": images})
    squish.convert(folder, tmp_path / "tower.gguf", part="vision")
    with squish.open(tmp_path / "tower.gguf") as tower:
        assert tower.metadata.get("clip.vision.image_resize_algo") == method


@pytest.mark.parametrize("number", [0, 4, "bicubic", 2.0, True])
def test_images_that_llama_cpp_does_not_resize_so_are_refused(number: Any, tmp_path: Path) -> None:
    images = {**towers.COLORS, "resample": number}
    folder = towers.save(tmp_path / "model", "lfm2_vl", files={"preprocessor_config.json": images})
    with expect_error(squish.FormatError, code="config"):
        squish.convert(folder, tmp_path / "tower.gguf", part="vision")


def test_patches_have_the_first_color_of_all_pixels_first(tmp_path: Path) -> None:
    source = towers.arrays_of("lfm2_vl")
    squish.convert(towers.save(tmp_path / "model", "lfm2_vl", source), tmp_path / "tower.gguf", part="vision")
    stored = source["model.vision_tower.vision_model.embeddings.patch_embedding.weight"]
    with squish.open(tmp_path / "tower.gguf") as tower:
        patches = tower["v.patch_embd.weight"].numpy()
    assert np.array_equal(patches, stored.reshape(32, 16, 16, 3).transpose(0, 3, 1, 2))


def test_kimi_k25_has_rows_of_the_column_before_those_of_the_row(tmp_path: Path) -> None:
    source = towers.arrays_of("kimi_k25")
    squish.convert(towers.save(tmp_path / "model", "kimi_k25", source), tmp_path / "tower.gguf", part="vision")
    queries, keys, values = np.split(source["vision_tower.encoder.blocks.1.wqkv.weight"], 3)
    rotated = [each.reshape(2, 4, 2, 2, 32).swapaxes(1, 2).reshape(32, 32) for each in (queries, keys)]
    with squish.open(tmp_path / "tower.gguf") as tower:
        assert np.array_equal(tower["v.blk.1.attn_qkv.weight"].numpy(), np.concatenate([*rotated, values]))
        keys_of_tower = tower.metadata
    assert keys_of_tower["clip.vision.image_max_pixels"] == 4096 * 14 * 14
    assert keys_of_tower["vision.pos_emb_time"] == 4
