"""Text layers and a vision tower in two GGUFs become one folder, under the names and with the files of the whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import published_towers
import pytest
from layers_behind import arrays_of as arrays_with_layers_behind
from layers_behind import is_behind
from published_configs import PUBLISHED
from published_towers_qwen import MODELS as TOWERS_OF_QWEN
from squish_models.api import small_tokenizer
from test_models_components import CONFIG, IMAGES, TEXT, VISION

import squish_core as squish
from squish_core.testing import expect_error, model_arrays

GEMMA3 = {**CONFIG, "torch_dtype": "bfloat16", "architectures": ["Gemma3ForConditionalGeneration"]}
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 320, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip
SMOLVLM = {
    "model_type": "smolvlm", "text_config": LLAMA, "vision_config": {**VISION, "model_type": "smolvlm_vision"},
    "scale_factor": 2, "torch_dtype": "bfloat16", "architectures": ["SmolVLMForConditionalGeneration"],
    "tie_word_embeddings": False,
}  # fmt: skip
MODELS: dict[str, tuple[str, Mapping[str, Any], dict[str, str]]] = {
    "gemma3, published": ("gemma3", GEMMA3, {"model.": "language_model.model."}),
    "gemma3, as Transformers has it": (
        "gemma3", GEMMA3, {
            "model.": "model.language_model.", "vision_tower.vision_model.": "model.vision_tower.",
            "multi_modal_projector.": "model.multi_modal_projector.",
        },
    ),
    "smolvlm": ("smolvlm", SMOLVLM, {"model.": "model.text_model."}),
}  # fmt: skip
"""Name -> family, config.json, and prefixes of the families' names -> those in the folder."""


def save(folder: Path, name: str, *, changes: Mapping[str, Any] | None = None) -> Path:
    """A folder with text layers and a tower; `changes` are those to its config.json."""
    family, config, prefixes = MODELS[name]
    config = {**config, **(changes or {})}
    text = model_arrays(family, config["text_config"] if family == "gemma3" else config)
    tower = model_arrays(f"{family}.vision", config)
    of_text = {key: value for key, value in prefixes.items() if key == "model."}
    of_tower = {key: value for key, value in prefixes.items() if key != "model."}
    arrays = {named(each, of_text): array for each, array in text.items()}
    arrays |= {named(each, of_tower): array for each, array in tower.items()}
    files = {"config.json": config, "preprocessor_config.json": IMAGES}
    assets = {each: json.dumps(content, indent=1).encode() for each, content in files.items()}
    assets |= small_tokenizer(config["text_config"]["vocab_size"])
    squish.save(folder, arrays, format="safetensors:max_shard_size=1GB", assets=assets)
    return folder


def named(name: str, prefixes: Mapping[str, str]) -> str:
    prefix = next((each for each in prefixes if name.startswith(each)), "")
    return prefixes.get(prefix, "") + name.removeprefix(prefix)


def split(folder: Path, target: Path, *, keep: str = "") -> tuple[Path, Path]:
    """The GGUFs of a folder's text layers and tower."""
    text, tower = target / "text.gguf", target / "mmproj.gguf"
    squish.convert(folder, text, f"gguf{keep}")
    squish.convert(folder, tower, f"gguf{keep}", part="vision")
    return text, tower


def assert_same_model(one: Path, other: Path, *, files: bool = True) -> None:
    with squish.open(one) as first, squish.open(other) as second:
        assert {*first} == {*second}
        for name in first:
            assert first[name].dtype == second[name].dtype, name
            assert np.array_equal(first[name].numpy(), second[name].numpy()), name
        if files:
            assert {each: bytes(first.assets[each].raw) for each in first.assets} == {
                each: bytes(second.assets[each].raw) for each in second.assets
            }


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A folder, and the GGUFs of its text layers and tower."""
    place = tmp_path_factory.mktemp("joined")
    folder = save(place / "model", "gemma3, published")
    return (folder, *split(folder, place))


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_comes_back_from_both_ggufs(name: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "model", name)
    text, tower = split(folder, tmp_path)
    report = squish.convert(text, tmp_path / "back", "hf", part={"vision": tower})
    assert report.left_out == ()
    assert_same_model(folder, tmp_path / "back")


@pytest.mark.parametrize("name", ["gemma3, published", "smolvlm"])
def test_ggufs_without_kept_files_get_the_published_names_and_a_config_of_both(name: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "model", name)
    text, tower = split(folder, tmp_path, keep=":keep=no")
    squish.convert(text, tmp_path / "back", "hf:max_shard_size=1GB", part={"vision": tower})
    with squish.open(folder) as source, squish.open(tmp_path / "back") as back:
        assert {*source} == {*back}
        assert all(np.array_equal(source[each].numpy(), back[each].numpy()) for each in source)
    config = json.loads((tmp_path / "back/config.json").read_text())
    stated = MODELS[name][1]
    assert (config["model_type"], config["architectures"]) == (stated["model_type"], stated["architectures"])
    sizes = {key: value for key, value in stated["vision_config"].items() if key != "model_type"}
    assert sizes.items() <= config["vision_config"].items()
    assert config["text_config"]["hidden_size"] == stated["text_config"]["hidden_size"]
    outer = {key: stated[key] for key in ("mm_tokens_per_image", "scale_factor") if key in stated}
    assert outer.items() <= config.items()
    images = json.loads((tmp_path / "back/preprocessor_config.json").read_text())
    assert [images["image_mean"], images["image_std"]] == [IMAGES["image_mean"], IMAGES["image_std"]]
    squish.convert(tmp_path / "back", tmp_path / "again.gguf", part="vision")
    with squish.open(tower) as one, squish.open(tmp_path / "again.gguf") as other:
        assert all(other.metadata[key] == value for key, value in one.metadata.items() if not isinstance(value, list))


def test_a_config_beside_the_ggufs_is_taken(parts: tuple[Path, Path, Path], tmp_path: Path) -> None:
    folder, _, _ = parts
    text, tower = split(folder, tmp_path, keep=":keep=no")
    squish.convert(text, tmp_path / "back", "hf", part={"vision": tower}, assets=folder)
    assert (tmp_path / "back/config.json").read_bytes() == (folder / "config.json").read_bytes()


def test_tokens_of_images_are_found_in_the_vocabulary(parts: tuple[Path, Path, Path], tmp_path: Path) -> None:
    from squish_gguf.api import text_array

    folder, _, _ = parts
    text, tower = split(folder, tmp_path, keep=":keep=no")
    with squish.open(text) as file:
        meta = dict(file.index.meta)
        tokens = [*file.metadata["tokenizer.ggml.tokens"]]
        tokens[7:9] = ["<image_soft_token>", "<start_of_image>"]
        meta["tokenizer.ggml.tokens"] = squish.api.Typed("array:str", text_array([t.encode() for t in tokens]))
        squish.save(tmp_path / "other.gguf", {name: file[name].numpy() for name in file}, metadata=meta)
    squish.convert(tmp_path / "other.gguf", tmp_path / "back", "hf", part={"vision": tower})
    config = json.loads((tmp_path / "back/config.json").read_text())
    assert (config["image_token_index"], config["boi_token_index"]) == (7, 8)


def test_patterns_match_names_of_both(parts: tuple[Path, Path, Path], tmp_path: Path) -> None:
    _, text, tower = parts
    rules = ["vision_tower.*=f32", "blk.0.*=f16", "mm.*=f16"]
    report = squish.convert(text, tmp_path / "back", "hf", rules, part={"vision": tower}, dry_run=True)
    targets = {step.name: step.target for step in report.steps}
    assert targets["vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight"] == "f32"
    assert targets["language_model.model.layers.0.mlp.up_proj.weight"] == "f16"
    assert targets["multi_modal_projector.mm_input_projection_weight"] == "f16"
    assert not (tmp_path / "back").exists()


def test_a_job_writes_the_same_folder(parts: tuple[Path, Path, Path], tmp_path: Path) -> None:
    folder, text, tower = parts
    plan = tmp_path / "plan.json"
    arguments = {"part": {"vision": str(tower)}, "plan": plan}
    squish.convert(text, tmp_path / "back", "hf", **arguments, job="local:1")
    assert_same_model(folder, tmp_path / "back")
    document = json.loads(plan.read_text())
    assert document["arguments"]["part"] == {"vision": str(tower)}
    assert [each["name"] for each in document["source"]["files"]] == ["text/text.gguf", "vision/mmproj.gguf"]
    again = squish.convert(dst=tmp_path / "back", plan=plan, dry_run=True)
    assert len(again.steps) == 67


def test_open_files_are_joined_and_stay_open(parts: tuple[Path, Path, Path], tmp_path: Path) -> None:
    folder, text, tower = parts
    with squish.open(text, mmap=False) as source, squish.open(tower) as other:
        squish.convert(source, tmp_path / "back", "hf", part={"vision": other})
        assert source["token_embd.weight"].numpy().shape == (320, 64)
        assert other["mm.input_projection.weight"].numpy().shape == (32, 64)
    assert_same_model(folder, tmp_path / "back")


@pytest.mark.parametrize(
    ("name", "family", "prefix"),
    [
        ("qwen2_vl", "qwen2vl", "model.language_model."),
        ("qwen2_5_vl", "qwen2vl", "model.language_model."),
        ("qwen3_vl", "qwen3vl", "model.language_model."),
        ("internvl", "qwen2", "language_model.model."),
        ("pixtral", "llama", "language_model.model."),
    ],
)
def test_other_towers_are_joined_by_what_their_ggufs_keep(name: str, family: str, prefix: str, tmp_path: Path) -> None:
    """InternVL and Pixtral have text layers of families that know nothing of them."""
    model = published_towers.MODELS[name]
    config = {**model["config"], "torch_dtype": "bfloat16", "tie_word_embeddings": False}
    text = config.get("text_config", config)
    text |= {"rope_theta": 10000.0, "tie_word_embeddings": False}
    layers = model_arrays(family, text)
    places = {"model.": prefix, **({"lm_head.": "language_model.lm_head."} if prefix[0] == "l" else {})}
    arrays = {**published_towers.arrays_of(name), **{named(each, places): array for each, array in layers.items()}}
    images = {**published_towers.COLORS, **model.get("images", {})}
    contents = {"config.json": config, "preprocessor_config.json": images, **model.get("files", {})}
    assets = {file: json.dumps(content).encode() for file, content in contents.items()}
    place = "safetensors:max_shard_size=1GB"
    squish.save(tmp_path / "model", arrays, format=place, assets=assets)
    squish.save(tmp_path / "text", layers, format=place, assets={"config.json": json.dumps(text).encode()})
    squish.convert(tmp_path / "text", tmp_path / "text.gguf", rename="gguf")
    squish.convert(tmp_path / "model", tmp_path / "mmproj.gguf", part="vision")
    joined = {"part": {"vision": tmp_path / "mmproj.gguf"}, "rename": "hf"}
    squish.convert(tmp_path / "text.gguf", tmp_path / "back", "hf", **joined)
    assert_same_model(tmp_path / "model", tmp_path / "back", files=False)
    for file in ("config.json", "preprocessor_config.json"):
        assert (tmp_path / "model" / file).read_bytes() == (tmp_path / "back" / file).read_bytes()


def test_a_tower_and_layers_behind_the_last_one_are_joined_together(tmp_path: Path) -> None:
    config = {**PUBLISHED["Qwen3.5-4B"][1], "torch_dtype": "bfloat16"}
    text, tower = config["text_config"], TOWERS_OF_QWEN["qwen3_5"]["config"]["vision_config"]
    config["vision_config"] = {**tower, "out_hidden_size": text["hidden_size"]}
    layers, place = arrays_with_layers_behind("Qwen3.5-4B"), "safetensors:max_shard_size=1GB"
    layers = {named(each, {"model.": "model.language_model."}): array for each, array in layers.items()}
    arrays = {**layers, **model_arrays("qwen3vl.vision", config)}
    files = {"config.json": config, "preprocessor_config.json": published_towers.COLORS}
    assets = {file: json.dumps(content).encode() for file, content in files.items()}
    assets |= small_tokenizer(text["vocab_size"])
    squish.save(tmp_path / "model", arrays, format=place, assets=assets)
    of_text = {each: array for each, array in arrays.items() if not is_behind(each, text["num_hidden_layers"])}
    squish.save(tmp_path / "text", of_text, format=place, assets=assets)
    squish.convert(tmp_path / "text", tmp_path / "text.gguf")
    for part in ("vision", "mtp"):
        report = squish.convert(tmp_path / "model", tmp_path / f"{part}.gguf", part=part)
        others = {"vision": ["text", "mtp"], "mtp": ["text", "vision"]}[part]
        assert [item.part for item in report.left_out] == others
    parts = {part: tmp_path / f"{part}.gguf" for part in ("vision", "mtp")}
    squish.convert(tmp_path / "text.gguf", tmp_path / "back", "hf", part=parts)
    assert_same_model(tmp_path / "model", tmp_path / "back")


Change = Callable[[Path, Path, Path, Path], Mapping[str, Any]]


def other_tower(place: Path, name: str, **changes: Any) -> Path:
    folder = save(place / "other", name, changes=changes)
    return split(folder, place)[1]


def damaged(tower: Path, place: Path, name: str, array: np.ndarray | None) -> Path:
    """The tower with another tensor, or without it."""
    with squish.open(tower) as file:
        arrays = {each: file[each].numpy() for each in file}
        arrays |= {} if array is None else {name: array}
        arrays = {each: values for each, values in arrays.items() if array is not None or each != name}
        squish.save(place / "damaged.gguf", arrays, metadata=dict(file.index.meta))
    return place / "damaged.gguf"


def cut(tower: Path, place: Path, *, start: int = 0) -> Path:
    """The tower without its last bytes, or without the first ones."""
    (place / "cut.gguf").write_bytes(tower.read_bytes()[start:-100])
    return place / "cut.gguf"


def with_keys(tower: Path, place: Path, keys: Mapping[str, Any]) -> Path:
    """The tower with other keys and without the files that it keeps; None leaves one out."""
    with squish.open(tower) as file:
        meta = {key: value for key, value in file.index.meta.items() if not key.startswith("squish.")} | {**keys}
        meta = {key: value for key, value in meta.items() if value is not None}
        squish.save(place / "keys.gguf", {name: file[name].numpy() for name in file}, metadata=meta)
    return place / "keys.gguf"


NARROW = {**TEXT, "hidden_size": 32}
REFUSED: dict[str, tuple[str, Change]] = {
    "of other models": ("contradiction", lambda f, t, m, p: {"part": {"vision": other_tower(p, "smolvlm")}}),
    "of a narrower model": (
        "contradiction",
        lambda f, t, m, p: {"part": {"vision": other_tower(p, "gemma3, published", text_config=NARROW)}},
    ),
    "a whole model": ("usage", lambda f, t, m, p: {"part": {"vision": t}}),
    "cut off": ("bounds", lambda f, t, m, p: {"part": {"vision": cut(m, p)}}),
    "no model": ("magic", lambda f, t, m, p: {"part": {"vision": cut(m, p, start=9)}}),
    "a list": ("usage", lambda f, t, m, p: {"part": ["vision"]}),
    "a folder": ("usage", lambda f, t, m, p: {"part": {"vision": f}}),
    "a missing file": ("missing", lambda f, t, m, p: {"part": {"vision": p / "absent.gguf"}}),
    "no file": ("usage", lambda f, t, m, p: {"part": {"vision": ""}}),
    "a lost tensor": (
        "unmapped", lambda f, t, m, p: {"part": {"vision": damaged(m, p, "mm.input_projection.weight", None)}},
    ),
    "another shape": (
        "contradiction", lambda f, t, m, p: {
            "part": {"vision": damaged(m, p, "mm.input_projection.weight", np.ones((64, 32), np.float32))},
        },
    ),
    "the text layers": ("usage", lambda f, t, m, p: {"part": {"text": m}}),
    "audio": ("unmapped", lambda f, t, m, p: {"part": {"audio": m}}),
    "no component": ("usage", lambda f, t, m, p: {"part": {"visio": m}}),
    "a tower as source": ("usage", lambda f, t, m, p: {"src": m, "part": {"vision": m}}),
    "a folder as source": ("usage", lambda f, t, m, p: {"src": f, "part": {"vision": m}}),
    "for llama.cpp": ("usage", lambda f, t, m, p: {"to": "gguf", "dst": p / "x.gguf", "part": {"vision": m}}),
    "for mlx-lm": ("usage", lambda f, t, m, p: {"to": "mlx", "part": {"vision": m}}),
    "for no engine": ("usage", lambda f, t, m, p: {"to": None, "dst": p / "x.zt", "part": {"vision": m}}),
    "names kept": ("usage", lambda f, t, m, p: {"rename": "keep", "part": {"vision": m}}),
    "the source deleted": ("delete", lambda f, t, m, p: {"delete_source": True, "part": {"vision": m}}),
}  # fmt: skip
"""What is wrong -> code of the error, and the arguments for folder, text layers, tower and a place for files."""


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_do_not_belong_together_are_refused(
    name: str, parts: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    code, change = REFUSED[name]
    arguments = {"src": parts[1], "dst": tmp_path / "back", "to": "hf", **change(*parts, tmp_path)}
    with expect_error(squish.SquishError, code=code):
        squish.convert(**arguments)
    assert not arguments["dst"].exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("of other models", ("mmproj.gguf", "idefics3", "gemma3", "smolvlm")),
        ("of a narrower model", ("mmproj.gguf", "clip.vision.projection_dim", "64", "32")),
        ("a whole model", ("text.gguf", "general.type", "mmproj", "text layers")),
        ("a lost tensor", ("damaged.gguf", "mm.input_projection.weight")),
        ("another shape", ("damaged.gguf", "mm.input_projection.weight", "[32, 64]", "[64, 32]")),
        ("audio", ("audio", "part={'vision': FILE}", "part={'mtp': FILE}")),
        ("for llama.cpp", ("llama.cpp", "mmproj.gguf", "to='hf'")),
    ],
)
def test_a_refusal_names_file_key_and_values_in_its_text(
    name: str, words: tuple[str, ...], parts: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(squish.SquishError) as caught:
        squish.convert(**{"src": parts[1], "dst": tmp_path / "back", "to": "hf", **REFUSED[name][1](*parts, tmp_path)})
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize("value", [3, "model.", [1, 2]])
def test_prefixes_that_are_no_texts_are_ignored(value: Any, parts: tuple[Path, Path, Path], tmp_path: Path) -> None:
    _, text, tower = parts
    other = with_keys(tower, tmp_path, {"squish.prefixes": value})
    squish.convert(text, tmp_path / "back", "hf", part={"vision": other}, rename="hf")
    with squish.open(tmp_path / "back") as file:
        assert "language_model.model.norm.weight" in file


@pytest.mark.parametrize("keys", [{"image_mean": None}, {"image_std": 1}])
def test_a_tower_without_colors_is_refused(
    keys: dict[str, Any], parts: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    text, tower = split(parts[0], tmp_path, keep=":keep=no")
    other = with_keys(tower, tmp_path, {f"clip.vision.{key}": value for key, value in keys.items()})
    with expect_error(squish.SquishError, code="config"):
        squish.convert(text, tmp_path / "back", "hf", part={"vision": other})


def test_a_config_of_another_tower_beside_the_ggufs_is_refused(parts: tuple[Path, Path, Path], tmp_path: Path) -> None:
    folder, text, tower = parts
    other = tmp_path / "other"
    other.mkdir()
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"]["patch_size"] = 28
    (other / "config.json").write_text(json.dumps(config))
    with expect_error(squish.SquishError, code="contradiction"):
        squish.convert(text, tmp_path / "back", "hf", part={"vision": tower}, assets=other)
