"""Families with the config of a published model: there and back, with the kept files and from GGUF's keys alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published_configs import PUBLISHED, WITHOUT_MLX
from small_tokenizer import TOKENIZER
from squish_models.config.spelling import has_other_parts
from squish_testing import FamilySuite, write_model

import squish_core as squish

MULTIPLIED = [model for model, (_, config) in PUBLISHED.items() if "key_multiplier" in config]
"""Those whose weights GGUF multiplies by numbers of the config, which come back as 1."""
NOT_MLX = ("GLM-5.2", "Jamba-v0.1", "Mamba-Codestral-7B")
"""Those that mlx-lm computes otherwise."""
WITHOUT_MLX_FAMILIES = {PUBLISHED[model][0] for model in WITHOUT_MLX}
UNIT = {
    **dict.fromkeys((
        "attention_in_multiplier", "attention_out_multiplier", "embedding_multiplier", "key_multiplier",
        "lm_head_multiplier", "ssm_in_multiplier", "ssm_out_multiplier",
    ), 1.0), "mlp_multipliers": [1.0] * 2, "ssm_multipliers": [1.0] * 5,
}  # fmt: skip
"""These numbers as they come back."""


def configs_of(family: str) -> dict[str, dict[str, Any]]:
    return {model: config for model, (name, config) in PUBLISHED.items() if name == family}


def suite(name: str) -> type[FamilySuite]:
    """The kit's suite for a family, with the configs of its models."""

    def configs(self: FamilySuite) -> Mapping[str, Mapping[str, Any]]:
        models = {model: config for model, config in configs_of(name).items() if model not in NOT_MLX}
        return {model: {**config, **(UNIT if model in MULTIPLIED else {})} for model, config in models.items()}

    return type(f"Test_{name}", (FamilySuite,), {"family": name, "configs": configs, "layouts": layouts_of(name)})


def layouts_of(name: str) -> tuple[str, ...]:
    """The layouts whose engines have a family."""
    family = squish.registry().implementation("family", name)
    return tuple(
        layout
        for layout in FamilySuite.layouts
        if family.is_run(layout, {}) and not (layout == "mlx" and name in WITHOUT_MLX_FAMILIES)
    )


SUITES = {name: suite(name) for name in dict.fromkeys(name for name, _ in PUBLISHED.values())}
globals().update({f"Test_{name}": each for name, each in SUITES.items()})

TEXT_MODELS = [model for model, (_, config) in PUBLISHED.items() if not has_other_parts(config)]
"""Those without a tower, which would stay behind, so that the config would be another."""


def contents(folder: Path) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """A folder's files besides the weights, and the bytes of its tensors."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if "safetensors" not in path.name}
    with squish.open(folder) as file:
        return files, {name: file[name].numpy().tobytes() for name in file}


@pytest.mark.parametrize("model", [model for model in TEXT_MODELS if model not in MULTIPLIED])
def test_a_model_comes_back_from_gguf_byte_for_byte(model: str, tmp_path: Path) -> None:
    family, config = PUBLISHED[model]
    source = write_model(tmp_path / "m", family, {**config, "torch_dtype": "bfloat16"}, files=TOKENIZER)
    squish.convert(source, tmp_path / "m.gguf")
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    assert contents(tmp_path / "back") == contents(source)


@pytest.mark.parametrize("model", PUBLISHED)
def test_a_model_of_which_no_files_were_kept_gives_the_same_gguf_again(model: str, tmp_path: Path) -> None:
    family, config = PUBLISHED[model]
    source = write_model(tmp_path / "m", family, config, files=TOKENIZER)
    squish.convert(source, tmp_path / "m.gguf", "gguf:keep=no")
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    squish.convert(tmp_path / "back", tmp_path / "again.gguf", "gguf:keep=no")
    with squish.open(tmp_path / "m.gguf") as before, squish.open(tmp_path / "again.gguf") as after:
        # what states the model's name is not a setting of the model
        keys = {name: value for name, value in before.metadata.items() if not name.startswith("general.")}
        if not has_other_parts(config):  # without its tower, the text part is a Qwen 3 or a Mistral
            assert {name: after.metadata.get(name) for name in keys} == keys
        assert sorted(before) == sorted(after)  # a folder stores numbers of 4 bytes behind all others
        assert all(np.array_equal(before[name].numpy(), after[name].numpy()) for name in before)
    if model in NOT_MLX:
        with pytest.raises(squish.SquishError) as caught:
            squish.convert(source, tmp_path / "mlx", "mlx")
        assert caught.value.code == "engine"
    for layout in {"mlx", "uqff"}.intersection(layouts_of(family)):
        if layout == "mlx" and model in NOT_MLX:
            continue
        squish.convert(source, tmp_path / layout, layout)
        written = json.loads((tmp_path / layout / "config.json").read_text())
        assert written["model_type"] not in ("qwen3_vl", "mistral3", "phi4mm")
