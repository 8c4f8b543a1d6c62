"""Checkpoints written by mlx: the values of its own dequantisation; contradictions refuse one layer."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import squish_core as squish
from squish_core.api import SquishError

DATA = Path(__file__).with_name("data")
EXPECTED = json.loads((DATA / "expected.json").read_text())
OUTCOMES = json.loads((DATA / "malformed" / "outcomes.json").read_text())
LAYER = "model.layers.0.self_attn.k_proj"


def digest(values: np.ndarray) -> str:
    """As in expected.json."""
    return hashlib.sha256((values.astype("<f4") + np.float32(0)).tobytes()).hexdigest()


@pytest.mark.parametrize("name", EXPECTED)
def test_every_tensor_has_the_values_of_mlx(name: str) -> None:
    with squish.open(DATA / name) as file:
        assert (file.format, set(file), file.problems) == ("mlx", set(EXPECTED[name]), ())
        for key, (shape, wanted) in EXPECTED[name].items():
            assert (list(file[key].shape), digest(file[key].numpy())) == (shape, wanted), key


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_contradiction_refuses_one_layer_and_leaves_the_others(name: str) -> None:
    outcome = OUTCOMES[name]
    with squish.open(DATA / "malformed" / name) as file:
        for key, wanted in outcome["good"].items():
            assert digest(file[key].numpy()) == wanted
        for key in outcome["bad"]:
            with pytest.raises(SquishError, match=key):
                file[key].numpy()
            assert key in {problem.where for problem in file.problems}
            assert {"weight", "scales", "biases"} <= set(file[key].parts())


def changed(tmp_path: Path, **quantization: Any) -> squish.File:
    """The 4-bit checkpoint under another declaration."""
    folder = tmp_path / "changed"
    shutil.copytree(DATA / "mlx-affine_b4_g64", folder)
    config = {"quantization": {"group_size": 64, "bits": 4, **quantization}}
    (folder / "config.json").write_text(json.dumps(config))
    return squish.open(folder)


@pytest.mark.parametrize(
    ("quantization", "reason"),
    [
        ({"bits": 7}, "bits"),
        ({"bits": "4"}, "bits"),
        ({"mode": "quip"}, "mode"),
        ({"mode": "mxfp4", "group_size": 32}, "no biases"),
        ({LAYER: False}, "not quantised"),
        ({LAYER: {"group_size": 32, "bits": 4}}, "scales"),
        ({"bits": 3}, "does not fit|divide"),
    ],
)
def test_a_declaration_that_cannot_be_is_a_reason(quantization: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with changed(tmp_path, **quantization) as file:
        with pytest.raises(SquishError, match=reason):
            file[f"{LAYER}.weight"].numpy()
        assert file["model.norm.weight"].numpy().any()


def test_words_without_scales_are_no_plain_tensor(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(DATA / "mlx-quantization_only_key", folder)
    with squish.open(folder / "model-00002-of-00002.safetensors") as file, pytest.raises(SquishError, match="missing"):
        file[f"{LAYER}.weight"].numpy()


def test_an_override_that_names_nothing_is_noted(tmp_path: Path) -> None:
    with changed(tmp_path, **{"model.absent": {"bits": 8}}) as file:
        assert [(problem.severity, problem.where) for problem in file.problems] == [("note", "model.absent")]


def test_a_config_without_quantization_leaves_the_stored_tensors(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(DATA / "mlx-affine_b4_g64", folder)
    (folder / "config.json").write_text("{}")
    with squish.open(folder) as file:
        assert (file.format, file[f"{LAYER}.weight"].dtype) == ("safetensors", "u32")
