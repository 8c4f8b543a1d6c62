"""Components beside the text layers: what a conversion leaves out, and vision towers as files of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layers_behind import write
from squish_cli.app import run
from squish_convert.components import components
from squish_models.api import small_tokenizer

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


AUDIO = {
    "model.audio_tower.conformer.0.attention.weight": "audio", "model.embed_audio.embedding.weight": "audio",
    "model.vision_tower.timm_model.conv_stem.weight": "vision",
}  # fmt: skip


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders and GGUFs of models with several components."""
    place = tmp_path_factory.mktemp("sources")
    save(place / "images", CONFIG, IMAGES)
    tokenizer = small_tokenizer(TEXT["vocab_size"])
    for name, data in tokenizer.items():
        (place / "images" / name).write_bytes(data)
    write(place / "predicting", "GLM-4.5-Air")
    squish.convert(place / "predicting", place / "predicting.gguf")
    squish.convert(place / "images", place / "images.gguf")
    with squish.open(place / "images.gguf") as file:  # as Ollama stores them
        arrays = {name: file[name].numpy() for name in file}
        towers = {
            name: np.ones((4, 4), np.float32) for name in ("v.blk.0.attn_q.weight", "mm.0.weight", "a.conv.weight")
        }
        squish.save(place / "ollama.gguf", {**arrays, **towers}, metadata=dict(file.index.meta))
    return place


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("images", "gguf", {"vision": "part='vision'"}),
        ("images", "mlx", {"vision": "part='vision'"}),
        ("images", "uqff", {"vision": "part='vision'"}),
        ("images", "hf", {}),
        ("images.gguf", "hf", {}),
        ("predicting", "gguf", {}),
        ("predicting", "hf", {}),
        ("predicting", "mlx", {"mtp": "part='mtp'"}),
        ("predicting", "uqff", {"mtp": "part='mtp'"}),
        ("predicting.gguf", "gguf", {}),
        ("predicting.gguf", "hf", {}),
        ("predicting.gguf", "mlx", {"mtp": "part='mtp'"}),
        ("predicting.gguf", "uqff", {"mtp": "part='mtp'"}),
        ("ollama.gguf", "gguf", {}),
        ("ollama.gguf", "hf", {"vision": None, "audio": None}),
        ("ollama.gguf", "mlx", {"vision": None, "audio": None}),
    ],
)
def test_each_direction_lists_what_it_leaves_out(
    source: str, target: str, expected: dict[str, str | None], sources: Path, tmp_path: Path
) -> None:
    suffix = {"gguf": ".gguf", "uqff": ".uqff"}.get(target, "")
    dry = squish.convert(sources / source, tmp_path / f"x{suffix}", target, dry_run=True)
    report = squish.convert(sources / source, tmp_path / f"x{suffix}", target)
    assert dry.left_out == report.left_out
    assert {each.part: each.option for each in report.left_out} == expected
    left_out = {name for each in report.left_out for name in each.tensors}
    with squish.open(sources / source) as file:
        names = {name for each in components(file).values() for name in each}
        assert left_out <= names


@pytest.mark.parametrize(("source", "target"), [("images", "gguf"), ("predicting.gguf", "mlx")])
def test_a_job_lists_what_it_leaves_out(source: str, target: str, sources: Path, tmp_path: Path) -> None:
    dry = squish.convert(sources / source, tmp_path / "x", target, dry_run=True)
    report = squish.convert(sources / source, tmp_path / "x", target, job="local:1")
    assert len(report.left_out) == 1
    assert dry.to_dict()["left_out"] == report.to_dict()["left_out"]


def test_info_lists_the_components(sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = {
        "images": {"text": 28, "vision": 40}, "images.gguf": {"text": 28}, "predicting.gguf": {"text": 54, "mtp": 18},
        "ollama.gguf": {"text": 28, "vision": 2, "audio": 1},
    }  # fmt: skip
    found = {}
    for source in expected:
        assert run(["info", "--json", str(sources / source)]) == 0
        found[source] = json.loads(capsys.readouterr().out)["components"]
    assert found == expected


def test_what_is_printed_of_components(sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["info", str(sources / "images")]) == 0
    assert "components: text (28 tensors), vision (40 tensors)" in capsys.readouterr().out


def test_the_command_line_writes_and_joins_components(sources: Path, tmp_path: Path) -> None:
    tower = str(tmp_path / "mmproj.gguf")
    assert run(["convert", "-q", str(sources / "images"), tower, "--part", "vision"]) == 0
    joined = ["convert", "-q", str(sources / "images.gguf"), str(tmp_path / "back"), "--to", "hf"]
    assert run([*joined, "--part", f"vision={tower}"]) == 0
    assert (tmp_path / "back/config.json").read_bytes() == (sources / "images/config.json").read_bytes()


@pytest.mark.parametrize(
    "parts",
    [["vision", "mtp"], ["vision=a.gguf", "vision=b.gguf"], ["vision", "mtp=a.gguf"], ["vision="], ["audio=a.gguf"]],
)
def test_components_that_contradict_each_other_are_refused_by_the_command_line(
    parts: list[str], sources: Path, tmp_path: Path
) -> None:
    options = [word for part in parts for word in ("--part", part)]
    assert run(["convert", str(sources / "images.gguf"), str(tmp_path / "back"), "--to", "hf", *options]) == 2
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("model", ["gemma3n", "gemma3"])
def test_audio_is_refused_by_name_with_what_can_be_written_in_its_text(model: str, tmp_path: Path) -> None:
    if model == "gemma3n":
        from every_family import arrays_of, config_of

        config = config_of("gemma3n")
        arrays = {**arrays_of("gemma3n"), **{name: np.ones((2, 2), np.float32) for name in AUDIO}}
        assets = {"config.json": json.dumps(config).encode()}
        squish.save(tmp_path / "model", arrays, format="safetensors:max_shard_size=1GB", assets=assets)
        with squish.open(tmp_path / "model") as file:
            parts = components(file)
        assert {name: part for part in ("vision", "audio") for name in parts[part]} == AUDIO
    else:
        save(tmp_path / "model", CONFIG, IMAGES)
    with pytest.raises(squish.SquishError) as caught:
        squish.convert(tmp_path / "model", tmp_path / "audio.gguf", part="audio")
    words = {
        "gemma3n": ("its audio component is not mapped", "gemma3n", "Without part="),
        "gemma3": ("its audio component is not there", "vision", "part='vision'"),
    }[model]  # fmt: skip
    assert [word for word in words if word not in str(caught.value)] == []
