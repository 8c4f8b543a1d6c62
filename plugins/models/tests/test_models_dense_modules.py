"""EmbeddingGemma: its dense modules lie in subfolders of a folder, and in the same GGUF."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published_configs import PUBLISHED
from small_tokenizer import TOKENIZER
from squish_models.api import check_model, small_config
from squish_testing import write_model

import squish_core as squish

CONFIG = PUBLISHED["embeddinggemma-300m"][1]
SIZE, INNER = CONFIG["hidden_size"], 96
IDENTITY = "torch.nn.modules.linear.Identity"
MODULES = ("Transformer", "Pooling", "Dense", "Dense", "Normalize")
PROMPTS = b'{"prompts": {"query": "task: search result | query: "}}'


def modules(*kinds: str) -> list[dict[str, Any]]:
    """The list in modules.json."""
    return [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(kinds)
    ]


def add_module(folder: Path, outputs: int, inputs: int, **stated: Any) -> None:
    """Write a dense module."""
    weight = np.random.default_rng(outputs).standard_normal((outputs, inputs), np.float32)
    folder.mkdir()
    squish.save(folder / "model.safetensors", {"linear.weight": weight}, metadata={"format": "pt"})
    settings = {"in_features": inputs, "out_features": outputs, "bias": False, "activation_function": IDENTITY}
    (folder / "config.json").write_text(json.dumps({**settings, **stated}, indent=2))


def embedding_model(folder: Path, family: str = "embeddinggemma", config: dict[str, Any] = CONFIG) -> Path:
    """A folder with all modules of EmbeddingGemma."""
    write_model(folder, family, config, files=TOKENIZER)
    add_module(folder / "2_Dense", INNER, config["hidden_size"])
    add_module(folder / "3_Dense", config["hidden_size"], INNER)
    (folder / "modules.json").write_text(json.dumps(modules(*MODULES), indent=2))
    (folder / "config_sentence_transformers.json").write_bytes(PROMPTS)
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": config["hidden_size"], "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    """All files but the shards, whose names differ."""
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: data for name, data in files.items() if not name.startswith("model")} | {
        "modules.json": files["modules.json"]
    }


def test_a_gguf_has_the_dense_modules_with_their_sizes(tmp_path: Path) -> None:
    source = embedding_model(tmp_path / "m")
    squish.convert(source, tmp_path / "m.gguf")
    with squish.open(source) as folder, squish.open(tmp_path / "m.gguf") as file:
        for name, path in (("dense_2", "2_Dense"), ("dense_3", "3_Dense")):
            np.testing.assert_array_equal(file[f"{name}.weight"].numpy(), folder[f"{path}/linear.weight"].numpy())
        sizes = [file.meta[f"gemma-embedding.dense_{n}_feat_{side}"] for n in (2, 3) for side in ("in", "out")]
        assert sizes == [SIZE, INNER, INNER, SIZE]
        assert file.meta["gemma-embedding.pooling_type"] == 1
    assert check_model(tmp_path / "m.gguf", "llama.cpp").loads


def test_a_folder_with_modules_comes_back_byte_for_byte(tmp_path: Path) -> None:
    source = embedding_model(tmp_path / "m")
    squish.convert(source, tmp_path / "m.gguf")
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    assert files_of(tmp_path / "back") == files_of(source)
    assert {item.state for item in squish.diff(source, tmp_path / "back").tensors} == {"bytes"}
    assert check_model(tmp_path / "back", "transformers").loads


def test_modules_are_rebuilt_from_a_gguf_without_files(tmp_path: Path) -> None:
    source = embedding_model(tmp_path / "m")
    squish.convert(source, tmp_path / "m.gguf", "gguf:keep=no")
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    written = json.loads((tmp_path / "back" / "modules.json").read_text())
    assert [each["path"] for each in written] == ["", "1_Pooling", "2_Dense", "3_Dense"]
    for name in ("2_Dense", "3_Dense"):
        assert files_of(tmp_path / "back")[f"{name}/config.json"] == files_of(source)[f"{name}/config.json"]
        assert files_of(tmp_path / "back")[f"{name}/model.safetensors"] == files_of(source)[f"{name}/model.safetensors"]


def test_a_preset_reaches_dense_modules(tmp_path: Path) -> None:
    squish.convert(embedding_model(tmp_path / "m"), tmp_path / "m.gguf", encode="q8_0")
    with squish.open(tmp_path / "m.gguf") as file:
        codecs = [file[name].spec.encodings[0].codec.id for name in ("dense_2.weight", "dense_3.weight")]
    assert codecs == ["ggml.q8_0"] * 2
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf", encode="f32")
    with squish.open(tmp_path / "back" / "2_Dense" / "model.safetensors") as file:
        assert file["linear.weight"].shape == (INNER, SIZE)


def test_modules_of_other_families_are_listed_as_left_out(tmp_path: Path) -> None:
    report = squish.convert(embedding_model(tmp_path / "m", "qwen3", small_config("qwen3")), tmp_path / "m.gguf")
    assert {"2_Dense/linear.weight", "3_Dense/linear.weight"} <= {item.name for item in report.dropped}


def break_activation(folder: Path) -> None:
    (folder / "2_Dense" / "config.json").write_text('{"activation_function": "torch.nn.modules.activation.Tanh"}')


def break_bias(folder: Path) -> None:
    (folder / "3_Dense" / "config.json").write_text('{"bias": true}')


def break_sizes(folder: Path) -> None:
    (folder / "2_Dense" / "config.json").write_text('{"out_features": 81}')


def break_chain(folder: Path) -> None:
    (folder / "3_Dense" / "model.safetensors").unlink()
    (folder / "3_Dense" / "config.json").unlink()
    (folder / "3_Dense").rmdir()
    (folder / "modules.json").write_text(json.dumps(modules(*MODULES[:3])))


def lose_weights(folder: Path) -> None:
    (folder / "2_Dense" / "model.safetensors").unlink()


def add_another(folder: Path) -> None:
    add_module(folder / "4_Dense", SIZE, SIZE)
    (folder / "modules.json").write_text(json.dumps(modules(*MODULES[:4], "Dense")))


REFUSED = {
    "an activation": (break_activation, "config", "2_Dense/config.json activation_function"),
    "a bias": (break_bias, "config", "3_Dense/config.json bias"),
    "other sizes than the matrix has": (break_sizes, "config", "2_Dense/config.json out_features"),
    "outputs of another size than the vectors": (break_chain, "contradiction", "modules.json"),
    "no weights": (lose_weights, "unmapped", "modules.json"),
    "a third module": (add_another, "unmapped", "modules.json"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_modules_that_llama_cpp_does_not_compute_are_refused(case: str, tmp_path: Path) -> None:
    change, code, place = REFUSED[case]
    change(source := embedding_model(tmp_path / "m"))
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(source, tmp_path / "m.gguf")
    assert (caught.value.code, caught.value.part) == (code, place)
    assert not (tmp_path / "m.gguf").exists()


def test_a_gguf_whose_keys_contradict_its_dense_modules_is_refused(tmp_path: Path) -> None:
    squish.convert(embedding_model(tmp_path / "m"), tmp_path / "m.gguf", "gguf:keep=no")
    with squish.open(tmp_path / "m.gguf") as file:
        arrays, meta = {each: file[each].numpy() for each in file}, dict(file.index.meta)
    meta.pop("gemma-embedding.dense_2_feat_out")
    squish.save(tmp_path / "other.gguf", arrays, metadata=meta)
    with pytest.raises(squish.SquishError):
        squish.convert(tmp_path / "other.gguf", tmp_path / "back", "hf")
    assert not check_model(tmp_path / "other.gguf", "llama.cpp").loads


def test_engines_that_attend_in_one_direction_are_refused(tmp_path: Path) -> None:
    source = embedding_model(tmp_path / "m")
    for target in ("mlx", "uqff"):
        with pytest.raises(squish.UsageError) as caught:
            squish.convert(source, tmp_path / target, target)
        assert caught.value.code == "engine"
    assert not check_model(source, "mlx").loads
