"""A family that a third party brings in one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import acme_models
from small_tokenizer import TOKENIZER
from squish_models.api import check_model
from squish_testing import FamilySuite, write_model

import squish_core as squish


class TestAcme(FamilySuite):
    plugin = "acme_models"
    family = "acme.lm"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        return {
            "small": {
                "model_type": "acme",
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "vocab_size": 64,
                "max_position_embeddings": 128,
                "rms_norm_eps": 1e-5,
                "tie_word_embeddings": True,
            },
        }


def test_the_check_does_not_know_whether_an_engine_supports_the_family(tmp_path: Path) -> None:
    registry = squish.Registry()
    registry.register(acme_models)
    config = TestAcme().configs()["small"]
    folder = write_model(tmp_path / "acme", registry.implementation("family", "acme.lm"), config, files=TOKENIZER)
    with squish.open(folder, registry=registry) as file:
        check = check_model(file, "transformers")
    assert check.loads
    assert ("engine-family", "note") in {(each.code, each.severity) for each in check.problems}
