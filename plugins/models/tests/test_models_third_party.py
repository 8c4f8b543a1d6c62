"""A family that a third party brings in one file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from squish_core.testing import FamilySuite


class TestAcme(FamilySuite):
    plugin = "acme_models"
    family = "acme.lm"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        return {
            "small": {
                "model_type": "acme", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "vocab_size": 64, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
                "tie_word_embeddings": True,
            },
        }  # fmt: skip
