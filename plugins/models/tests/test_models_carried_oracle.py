"""Models that Squish does not know, saved by Transformers 5 and carried over for mlx-lm, which computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
from oracles import carried
from squish_models import mlx_folder
from squish_models.config import mlx_models
from squish_models.mlx_types import MLX_TYPES, UNCOMPARED

import squish_core as squish

pytestmark = pytest.mark.oracle
REFUSED = {
    "bailing_hybrid": "it needs n_group, group_norm_size",
    "bitnet": "it needs tensors like *.weight_scale",
    "minimax": "it needs shared_intermediate_size",
    "muse_glimmer": "it has no model.vision_",
    "nanochat": "it has no model.embed_tokens.weight",
    "olmo_hybrid": "it has no model.layers.0.attention_layer_norm.weight",
}
"""Model type -> why mlx-lm does not run what Transformers 5 saves of it."""
OTHERWISE: dict[str, tuple[dict[str, Any], str]] = {
    "glm": ({"rope_parameters": {**carried.PLAIN, "partial_rotary_factor": 0.5}}, "partial_rotary_factor of 1.0"),
    "jamba": ({"num_experts": 4, "num_experts_per_tok": 2}, "num_experts of 1"),
    "longcat_flash": ({"zero_expert_num": 2}, "mlp.experts.4."),
    "minicpm3": ({"tie_word_embeddings": True}, "tie_word_embeddings of False"),
    "phimoe": ({"attention_bias": False}, "attention_bias of True"),
    "recurrent_gemma": ({"num_key_value_heads": 2}, "num_key_value_heads of 1"),
}  # fmt: skip
"""Model type -> settings with which mlx-lm would fail or compute otherwise, and what the refusal says."""


def difference(logprobs: np.ndarray, folder: Path) -> float:
    """The largest difference between Transformers' log-probabilities and those of mlx-lm for a folder."""
    answer = oracles.peer("mlx-lm").run(carried.mlx_logprobs, path=str(folder), tokens=carried.TOKENS)
    return float(np.abs(answer - logprobs).max())


@pytest.mark.parametrize("model_type", carried.MODELS)
def test_mlx_lm_computes_what_transformers_does_or_a_reason_is_given(model_type: str, tmp_path: Path) -> None:
    logprobs = carried.make(model_type, tmp_path / "m")
    if model_type in REFUSED:
        with pytest.raises(squish.UsageError) as caught:
            squish.convert(tmp_path / "m", tmp_path / "out", "mlx")
        assert (caught.value.code, REFUSED[model_type] in str(caught.value)) == ("engine", True), str(caught.value)
        squish.convert(tmp_path / "m", tmp_path / "kept", "mlx", rename="keep")
        with pytest.raises(oracles.OracleError):  # and so it is
            difference(logprobs, tmp_path / "kept")
        return
    squish.convert(tmp_path / "m", tmp_path / "out", "mlx")
    assert difference(logprobs, tmp_path / "out") < 1e-3


@pytest.mark.parametrize("model_type", OTHERWISE)
def test_what_mlx_lm_computes_otherwise_is_refused_with_the_reason(model_type: str, tmp_path: Path) -> None:
    settings, reason = OTHERWISE[model_type]
    carried.make(model_type, tmp_path / "m", **settings)
    with pytest.raises(squish.UsageError) as caught:
        squish.convert(tmp_path / "m", tmp_path / "out", "mlx")
    assert (caught.value.code, reason in str(caught.value)) == ("engine", True), str(caught.value)


def test_the_settings_that_mlx_lm_requires_are_those_of_its_models() -> None:
    types = sorted({*MLX_TYPES, *mlx_folder.TYPES})
    found = oracles.peer("mlx-lm").run(required, model_types=types)
    assert {kind: tuple(name for name in names if name not in mlx_models.USUAL) for kind, names in found.items()} == {
        kind: mlx_models.REQUIRED.get(kind, ()) for kind in types
    }


def required(model_types: list[str]) -> dict[str, list[str]]:
    """Runs in the peer: the settings of each model without a default."""
    import dataclasses

    from mlx_lm.utils import _get_classes

    classes = {kind: _get_classes({"model_type": kind})[1] for kind in model_types}
    missing = dataclasses.MISSING
    return {
        kind: [each.name for each in dataclasses.fields(of) if each.default is each.default_factory is missing]
        for kind, of in classes.items()
    }


def test_the_types_that_were_compared_are_those_that_the_report_names() -> None:
    assert {*MLX_TYPES} - UNCOMPARED == ({*carried.MODELS} - {*REFUSED}).intersection(MLX_TYPES)


def test_every_type_that_both_have_is_compared() -> None:
    shared = oracles.peer("transformers").run(known, model_types=list(MLX_TYPES))
    assert sorted(shared) == sorted([*carried.MODELS, *carried.NOT_MADE])


def known(model_types: list[str]) -> list[str]:
    """Runs in the peer: the types of which Transformers makes models of text."""
    from transformers.models.auto import modeling_auto as auto

    tables = (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    return [kind for kind in model_types if any(kind in table for table in tables)]
