"""Layers behind the last one, which predict more tokens: a GGUF of their own, and back into one model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layers_behind import MODELS, SHARED, config_of, is_behind, write
from squish_convert.components import components

import squish_core as squish
from squish_core.testing import expect_error

OF_THE_TENSORS = ("general.size_label", "general.file_type")
"""Keys that depend on which tensors a file has."""


def keys_of(path: Path, *without: str) -> dict[str, Any]:
    with squish.open(path) as file:
        others = {key: value for key, value in file.metadata.items() if not key.startswith("squish.")}
        return {key: np.asarray(value).tolist() for key, value in others.items() if key not in without}


def assert_same_tensors(one: Path, other: Path, names: set[str] | None = None) -> None:
    with squish.open(one) as first, squish.open(other) as second:
        for name in names or {*first} | {*second}:
            assert np.array_equal(first[name].numpy(), second[name].numpy()), name


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A model, and a place with its folder, the GGUFs of the whole, of its text layers and of what is behind them."""
    place = tmp_path_factory.mktemp("mtp")
    write(place / "model", request.param)
    squish.convert(place / "model", place / "whole.gguf")
    squish.convert(write(place / "text", request.param, whole=False), place / "text.gguf")
    squish.convert(place / "model", place / "mtp.gguf", part="mtp")
    return request.param, place


@pytest.fixture(scope="module")
def glm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("glm")
    write(place / "model", "GLM-4.5-Air")
    squish.convert(place / "model", place / "whole.gguf")
    squish.convert(write(place / "text", "GLM-4.5-Air", whole=False), place / "text.gguf")
    squish.convert(place / "model", place / "mtp.gguf", part="mtp")
    return place


def test_the_layers_have_their_names_in_the_whole_file(model: tuple[str, Path]) -> None:
    name, place = model
    layers = config_of(name)[1]["num_hidden_layers"]
    with squish.open(place / "whole.gguf") as whole, squish.open(place / "mtp.gguf") as own:
        expected = {each for each in whole if is_behind(each, layers)} | SHARED.intersection(whole)
        assert {*own} == expected
        assert {"text", "mtp"} == {*components(whole)}
        assert [*components(own)] == ["mtp"]
    assert_same_tensors(place / "mtp.gguf", place / "whole.gguf", expected)
    assert keys_of(place / "mtp.gguf", *OF_THE_TENSORS) == keys_of(place / "whole.gguf", *OF_THE_TENSORS)


def test_a_gguf_gives_the_same_file_of_its_layers(model: tuple[str, Path], tmp_path: Path) -> None:
    _, place = model
    report = squish.convert(place / "whole.gguf", tmp_path / "mtp.gguf", part="mtp")
    assert_same_tensors(place / "mtp.gguf", tmp_path / "mtp.gguf")
    assert keys_of(place / "mtp.gguf", *OF_THE_TENSORS) == keys_of(tmp_path / "mtp.gguf", *OF_THE_TENSORS)
    assert [item.part for item in report.left_out] == ["text"]


def test_they_are_joined_with_the_text_layers_again(model: tuple[str, Path], tmp_path: Path) -> None:
    _, place = model
    joined = {"part": {"mtp": place / "mtp.gguf"}}
    squish.convert(place / "text.gguf", tmp_path / "whole.gguf", **joined)
    assert_same_tensors(place / "whole.gguf", tmp_path / "whole.gguf")
    assert keys_of(place / "whole.gguf") == keys_of(tmp_path / "whole.gguf")
    squish.convert(place / "text.gguf", tmp_path / "back", "hf", **joined)
    assert_same_tensors(place / "model", tmp_path / "back")
    assert (place / "model/config.json").read_bytes() == (tmp_path / "back/config.json").read_bytes()


@pytest.mark.parametrize("target", ["mlx", "uqff"])
def test_what_a_target_leaves_out_is_listed_with_the_option_that_writes_it(
    target: str, glm: Path, tmp_path: Path
) -> None:
    for source in ("model", "whole.gguf"):
        report = squish.convert(glm / source, tmp_path / f"{source}.{target}", target, dry_run=True)
        [item] = report.to_dict()["left_out"]
        assert (item["part"], item["option"], len(item["tensors"]) > 0) == ("mtp", "part='mtp'", True)


def test_a_file_of_these_layers_lists_the_text_layers(glm: Path, tmp_path: Path) -> None:
    report = squish.convert(glm / "model", tmp_path / "mtp.gguf", part="mtp", dry_run=True)
    [item] = report.to_dict()["left_out"]
    with squish.open(glm / "text") as text:
        written = {name for step in report.steps for name in [step.name] if not name.startswith("blk.4.")}
        assert (item["part"], item["option"]) == ("text", None)
        assert len(item["tensors"]) == len(text) - len(written)


def test_a_job_writes_the_same_file(glm: Path, tmp_path: Path) -> None:
    squish.convert(glm / "model", tmp_path / "mtp.gguf", part="mtp", job="local:1")
    assert (tmp_path / "mtp.gguf").read_bytes() == (glm / "mtp.gguf").read_bytes()
    joined = {"part": {"mtp": str(glm / "mtp.gguf")}, "job": "local:1"}
    squish.convert(glm / "text.gguf", tmp_path / "whole.gguf", **joined)
    assert_same_tensors(glm / "whole.gguf", tmp_path / "whole.gguf")


def changed(source: Path, target: Path, keys: dict[str, Any], *, without: str = "") -> Path:
    """A GGUF with other keys, or without some tensors."""
    from squish_core.api import Typed

    with squish.open(source) as file:
        meta = dict(file.index.meta)
        meta |= {key: Typed(meta[key].type, value) for key, value in keys.items()}
        arrays = {name: file[name].numpy() for name in file if not without or without not in name}
        squish.save(target, arrays, metadata=meta)
    return target


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("of another width", "contradiction"), ("of another depth", "contradiction"), ("a whole model", "usage"),
        ("text layers", "usage"), ("joined twice", "usage"), ("of another family", "contradiction"),
        ("a lost tensor", "unmapped"), ("a missing file", "missing"), ("a folder", "usage"),
    ],
)  # fmt: skip
def test_files_that_do_not_belong_together_are_refused(name: str, code: str, glm: Path, tmp_path: Path) -> None:
    text, part = glm / "text.gguf", glm / "mtp.gguf"
    if name == "of another width":
        part = changed(part, tmp_path / "x.gguf", {"glm4moe.expert_feed_forward_length": 48})
    elif name == "of another depth":
        part = changed(part, tmp_path / "x.gguf", {"glm4moe.block_count": 4})
    elif name == "a lost tensor":
        part = changed(part, tmp_path / "x.gguf", {}, without="nextn.enorm")
    elif name == "of another family":
        squish.convert(write(tmp_path / "q", "Qwen3.5-4B"), tmp_path / "x.gguf", part="mtp")
        part = tmp_path / "x.gguf"
    elif name == "joined twice":
        text = glm / "whole.gguf"
    else:
        part = {
            "a whole model": glm / "whole.gguf", "text layers": text, "a folder": glm / "model",
            "a missing file": tmp_path / "absent.gguf",
        }[name]  # fmt: skip
    with expect_error(squish.SquishError, code=code):
        squish.convert(text, tmp_path / "whole.gguf", part={"mtp": part})
        squish.convert(text, tmp_path / "back", "hf", part={"mtp": part})
    assert not (tmp_path / "back").exists()


def test_a_contradiction_names_file_key_and_values_in_its_text(glm: Path, tmp_path: Path) -> None:
    part = changed(glm / "mtp.gguf", tmp_path / "x.gguf", {"glm4moe.expert_feed_forward_length": 48})
    with pytest.raises(squish.SquishError) as caught:
        squish.convert(glm / "text.gguf", tmp_path / "back", "hf", part={"mtp": part})
    words = ("x.gguf", "glm4moe.expert_feed_forward_length", "text.gguf", "expected", "found 48")
    assert [word for word in words if word not in str(caught.value)] == []


def test_another_shape_is_an_error_of_its_file(glm: Path, tmp_path: Path) -> None:
    with squish.open(glm / "mtp.gguf") as file:
        arrays = {name: file[name].numpy() for name in file}
        arrays["blk.4.nextn.enorm.weight"] = np.ones(7, np.float32)
        squish.save(tmp_path / "x.gguf", arrays, metadata=dict(file.index.meta))
    for target in ("hf", "mlx"):
        with pytest.raises(squish.SquishError) as caught:
            squish.convert(glm / "text.gguf", tmp_path / "back", target, part={"mtp": tmp_path / "x.gguf"})
        error = caught.value
        assert (error.code, error.tensor) == ("contradiction", "blk.4.nextn.enorm.weight")
        assert (str(error.file), error.found) == (str(tmp_path / "x.gguf"), [7])


def test_the_layers_alone_are_no_folder(glm: Path, tmp_path: Path) -> None:
    with expect_error(squish.SquishError, code="usage"):
        squish.convert(glm / "mtp.gguf", tmp_path / "back", "hf")
    squish.convert(glm / "mtp.gguf", tmp_path / "copy.gguf")
    assert_same_tensors(glm / "mtp.gguf", tmp_path / "copy.gguf")


@pytest.mark.parametrize(("part", "source"), [("mtp", "text"), ("vision", "model"), ("audio", "model")])
def test_a_component_that_a_model_lacks_is_refused(part: str, source: str, glm: Path, tmp_path: Path) -> None:
    with expect_error(squish.SquishError, code="unmapped"):
        squish.convert(glm / source, tmp_path / "x.gguf", part=part)


@pytest.mark.parametrize("target", ["hf", "mlx", "safetensors"])
def test_these_layers_have_a_file_only_in_gguf(target: str, glm: Path, tmp_path: Path) -> None:
    with expect_error(squish.SquishError, code="usage"):
        squish.convert(glm / "model", tmp_path / "x", target, part="mtp")


def test_the_config_states_the_joined_layers(glm: Path, tmp_path: Path) -> None:
    squish.convert(glm / "model", tmp_path / "mtp.gguf", "gguf:keep=no", part="mtp")
    squish.convert(glm / "text", tmp_path / "text.gguf", "gguf:keep=no")
    squish.convert(tmp_path / "text.gguf", tmp_path / "back", "hf", part={"mtp": tmp_path / "mtp.gguf"})
    config = json.loads((tmp_path / "back/config.json").read_text())
    assert config["num_nextn_predict_layers"] == 1
