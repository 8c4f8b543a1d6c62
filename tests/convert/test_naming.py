"""Which layout a conversion writes, by the target, by what is asked, and by what the file states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import squish_models
import toys
from squish_convert.mapping.mapped import naming_of
from squish_testing import model_arrays

import squish_core as squish
from squish_core.errors import FormatError, UsageError
from squish_core.plugins.registry import Registry

REGISTRY = Registry("", extra=[toys, squish_models], entry_points=list)
QWEN2 = {
    "model_type": "qwen2", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 4, "max_position_embeddings": 16, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True, "rope_theta": 1e6,
}  # fmt: skip


def model(**settings: Any) -> bytes:
    """A whole model in a container of any names."""
    arrays = model_arrays("qwen2", QWEN2, "f32")
    return toys.box(arrays, assets={"config.json": json.dumps({**QWEN2, **settings}).encode()})


def test_a_container_of_any_names_keeps_them(tmp_path: Path) -> None:
    kept = squish.convert(model(), tmp_path / "kept.box", registry=REGISTRY)
    assert [step.name for step in kept.steps][:2] == ["model.embed_tokens.weight", "model.norm.weight"]


@pytest.mark.parametrize("text", ["mlx", "llama", ":qwen2", "keep:qwen2"])
def test_other_names_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        squish.convert(model(), tmp_path / "o.box", rename=text, registry=REGISTRY)
    assert caught.value.code == "names"


@pytest.mark.parametrize("architecture", ["llama", "qwen2vl", "qwen3", ""])
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_family_that_the_file_does_not_state_is_refused(architecture: str, dry_run: bool, tmp_path: Path) -> None:
    with pytest.raises(FormatError) as caught:
        squish.convert(
            model(model_type=architecture),
            tmp_path / "o.box",
            rename="gguf:qwen2",
            dry_run=dry_run,
            registry=REGISTRY,
        )
    assert caught.value.code == "names"
    assert not list(tmp_path.iterdir())


def test_names_are_not_changed_without_a_family(tmp_path: Path) -> None:
    box = toys.box({"blk.0.ffn_up.weight": np.ones((2, 2), np.float32)})
    with pytest.raises(FormatError) as caught:
        squish.convert(box, tmp_path / "o.box", rename="hf", registry=REGISTRY)
    assert caught.value.code == "names"


def test_an_invalid_config_is_an_error_if_names_depend_on_it(tmp_path: Path) -> None:
    box = toys.box({"w": np.ones((2, 2), np.float32)}, assets={"config.json": b'{"model_type": "qwe'})
    with pytest.raises(FormatError) as caught:
        squish.convert(box, tmp_path / "o.box", rename="gguf:qwen2", registry=REGISTRY)
    assert caught.value.code == "json"


@pytest.mark.parametrize(("stated", "family"), [("qwen2", "qwen2"), ("qwen3_moe", "qwen3moe"), ("mistral", "llama")])
def test_a_config_states_the_family(stated: str, family: str) -> None:
    with squish.open(model(model_type=stated), registry=REGISTRY) as file:
        assert (naming_of(file).layout, naming_of(file).family) == ("hf", family)


@pytest.mark.parametrize(("experts", "family"), [(0, "llama"), (8, "mixtral")])
def test_the_number_of_experts_tells_families_of_one_architecture_apart(experts: int, family: str) -> None:
    meta = {"general.architecture": "llama", "llama.expert_count": experts}
    box = toys.box({"blk.0.ffn_up.weight": np.ones((2, 2), np.float32)}, meta=meta)
    with squish.open(box, registry=REGISTRY) as file:
        assert (naming_of(file).layout, naming_of(file).family) == ("gguf", family)
