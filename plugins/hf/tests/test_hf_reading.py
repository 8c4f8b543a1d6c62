"""Checkpoints written by the packages that define each method: their values; contradictions refuse one layer."""

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


def digest(values: np.ndarray) -> str:
    """As in expected.json."""
    return hashlib.sha256((values.astype("<f4") + np.float32(0)).tobytes()).hexdigest()


@pytest.mark.parametrize("name", EXPECTED)
def test_every_tensor_has_the_values_of_the_package(name: str) -> None:
    with squish.open(DATA / name) as file:
        assert (file.format, set(file), file.problems) == ("hf", set(EXPECTED[name]), ())
        for key, (shape, values_digest) in EXPECTED[name].items():
            assert (list(file[key].shape), digest(file[key].numpy())) == (shape, values_digest), key


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_malformed_checkpoint_has_its_outcome(name: str) -> None:
    outcome = OUTCOMES[name]
    try:
        file = squish.open(DATA / "malformed" / name)
    except SquishError:
        assert "reject at open" in (outcome["outcome"], *outcome["also_ok"])
        return
    with file:
        for key, expected in outcome["good"].items():
            assert digest(file[key].numpy()) == expected
        if outcome["outcome"] == "accept with problem":
            assert file.problems
        for key in outcome["bad"]:
            if key in file:
                with pytest.raises(SquishError) as caught:
                    file[key].numpy()
                assert caught.value.tensor == key
                assert file[key].parts()
            else:
                assert file.problems


@pytest.mark.parametrize(
    ("weights", "form", "code"),
    [
        ({"num_bits": 8}, None, "shape"),
        ({"group_size": 48}, None, "group_size"),
        ({"symmetric": False}, None, "missing"),
        ({"num_bits": 9}, None, "config"),
        ({}, "mxfp6-pack-quantized", "config"),
        ({}, "marlin-24", "marlin"),
    ],
)
def test_a_group_that_contradicts_its_layer_fails_only_that_layer(
    weights: dict[str, Any], form: str | None, code: str, tmp_path: Path
) -> None:
    source, layer = DATA / "compressed-tensors-w4_g32_sym", "model.layers.0.self_attn.k_proj"
    shutil.copytree(source, tmp_path / "model")
    config = json.loads((source / "config.json").read_text())
    (group,) = config["quantization_config"]["config_groups"].values()
    own = {**group, "targets": [layer], "weights": {**group["weights"], **weights}}
    if form:
        own["format"] = form
    config["quantization_config"]["config_groups"]["own"] = own
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with squish.open(tmp_path / "model") as file:
        with pytest.raises(SquishError) as caught:
            file[f"{layer}.weight"].numpy()
        assert caught.value.tensor == f"{layer}.weight"
        assert {(problem.code, problem.where) for problem in file.problems} == {(code, f"{layer}.weight")}
        assert "weight_packed" in file[f"{layer}.weight"].parts()
        for name, (_, expected) in EXPECTED[source.name].items():
            if name != f"{layer}.weight":
                assert digest(file[name].numpy()) == expected
