"""`check_model` for folders: settings at the edge of what Transformers and mlx-lm take. Measured: both engines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_models.api import check_model
from squish_models.engines.folders.rope import rope_problems
from squish_models.engines.folders.tokenizer_classes import FILE, tokenizer_class
from squish_models.engines.folders.tokenizer_files import SPM_DECODERS, gap_of, tokenizer_json_problems
from squish_models.engines.folders.towers import TOWERS, tower_problems
from test_models_check_folders import errors, model

import squish_core as squish
from squish_core.testing import expect_error

YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "settings", "transformers", "mlx"),
    [
        ("llama", {"rope_theta": 0.0}, True, True),
        ("llama", {"rope_theta": -1.0}, True, True),
        ("llama", {"rope_theta": [1.0]}, False, False),
        ("llama", {"max_position_embeddings": -5}, True, True),
        ("llama", {"initializer_range": -0.5}, False, False),
        ("qwen3", {"initializer_range": -0.5}, True, True),
        ("llama", {"sliding_window": "16"}, False, True),
        ("llama", {"head_dim": "8"}, False, False),
        ("llama", {"quantization": {"group_size": 64, "bits": 4}}, True, True),
        ("llama", {"model_type": "llamax"}, False, False),
        ("llama", {"vision_config": {"dtype": ["f"]}}, True, True),
        ("gemma2", {"sliding_window": None}, False, True),
        ("gemma2", {"sliding_window": 0}, False, True),
        ("gemma2", {"rms_norm_eps": -1e-6}, True, True),
        ("llama", {"rms_norm_eps": -1e-6}, True, False),
        ("gemma2", {"attn_logit_softcapping": 0.0}, True, True),
        ("gemma2", {"final_logit_softcapping": None}, True, False),
        ("mixtral", {"num_experts_per_tok": -1}, False, True),
        ("mixtral", {"num_experts_per_tok": 5000}, False, False),
    ],
)
def test_a_setting_is_judged_as_the_engine_takes_it(
    family: str, settings: Mapping[str, Any], transformers: bool, mlx: bool, tmp_path: Path
) -> None:
    folder = model(tmp_path, family, **settings)
    assert {name: not errors(check_model(folder, name)) for name in ("transformers", "mlx")} == {
        "transformers": transformers,
        "mlx": mlx,
    }


@pytest.mark.parametrize(
    ("scaling", "transformers", "mlx"),
    [
        (False, True, False),
        (YARN, True, True),
        (YARN | {"original_max_position_embeddings": 0}, False, False),
        (YARN | {"original_max_position_embeddings": -2}, False, False),
        (YARN | {"beta_fast": 0.0}, True, False),
        (YARN | {"beta_fast": -1.0}, False, False),
        (YARN | {"factor": None}, True, False),
        (YARN | {"mscale": [1.0]}, False, False),
        (YARN | {"rope_theta": 0.0}, False, False),
        (YARN | {"rope_type": ["yarn"]}, False, False),
        (LLAMA3, True, True),
        (LLAMA3 | {"high_freq_factor": 0.0}, False, False),
        (LLAMA3 | {"original_max_position_embeddings": True}, True, True),
    ],
)
def test_a_scaling_is_judged_as_the_engine_takes_it(
    scaling: Any, transformers: bool, mlx: bool, tmp_path: Path
) -> None:
    folder = model(tmp_path, "llama", rope_scaling=scaling)
    assert {name: not errors(check_model(folder, name)) for name in ("transformers", "mlx")} == {
        "transformers": transformers,
        "mlx": mlx,
    }


@pytest.mark.parametrize("engine", ["transformers", "mlx"])
def test_of_a_setting_that_appears_twice_the_last_counts(engine: str, tmp_path: Path) -> None:
    folder = model(tmp_path, "llama")
    path = folder / "config.json"
    path.write_text(path.read_text().replace("{", '{"vocab_size": 7, ', 1))
    assert errors(check_model(folder, engine)) == []


def test_nothing_is_said_about_a_model_that_transformers_has_and_squish_does_not_know(tmp_path: Path) -> None:
    with expect_error(squish.FormatError, code="names"):
        check_model(model(tmp_path, "llama", model_type="electra"), "transformers")


@pytest.mark.parametrize(
    ("model_type", "declared", "is_byte_level", "expected"),
    [
        ("llama", "LlamaTokenizer", False, "LlamaTokenizer"),
        ("llama", "LlamaTokenizerFast", True, FILE),
        ("llama", None, True, FILE),
        ("mistral", "LlamaTokenizer", False, FILE),
        ("phi3", "LlamaTokenizer", False, FILE),
        ("qwen2", "PreTrainedTokenizerFast", True, "Qwen2Tokenizer"),
        ("qwen3", "PreTrainedTokenizerFast", True, FILE),
        ("qwen3", "Qwen2Tokenizer", True, "Qwen2Tokenizer"),
        ("gpt2", None, True, "GPT2Tokenizer"),
        ("gemma2", ["GemmaTokenizer"], False, FILE),
    ],
)
def test_the_class_that_reads_a_tokenizer(model_type: str, declared: Any, is_byte_level: bool, expected: str) -> None:
    assert tokenizer_class(model_type, declared, is_byte_level) == expected


@pytest.mark.parametrize(("declared", "loads"), [("Qwen2Tokenizer", True), ("PreTrainedTokenizerFast", False)])
def test_a_class_that_builds_a_tokenizer_anew_needs_no_file(declared: str, loads: bool, tmp_path: Path) -> None:
    folder = model(tmp_path, "qwen3")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": declared}))
    assert (errors(check_model(folder, "transformers")) == []) == loads


def tokenizer(**model: Any) -> dict[str, Any]:
    bpe = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]], **model}
    return {"version": "1.0", "added_tokens": [], "model": bpe}


@pytest.mark.parametrize(
    ("document", "is_rebuilt", "fields"),
    [
        (tokenizer(), False, []),
        (tokenizer() | {"comment": "x"}, False, ["comment"]),
        (tokenizer(continuing_subword_prefix="x"), False, []),
        (tokenizer(continuing_subword_prefix="xy"), False, ["model.merges"]),
        (tokenizer(continuing_subword_prefix="xy"), True, []),
        (tokenizer(merges=[["a", "c"]]), False, ["model.merges"]),
        (tokenizer() | {"added_tokens": [{"id": 3}]}, False, ["added_tokens"]),
        (tokenizer() | {"added_tokens": [{"id": 3}]}, True, []),
        (tokenizer() | {"added_tokens": [{"content": "x"}]}, True, ["added_tokens"]),
    ],
)
def test_what_a_class_takes_from_a_tokenizer_file(
    document: dict[str, Any], is_rebuilt: bool, fields: list[str]
) -> None:
    assert [field for field, _ in tokenizer_json_problems(document, is_rebuilt)] == fields


@pytest.mark.parametrize(
    ("vocabulary", "decoder", "gap"),
    [
        ({"a": 0, "b": 1}, SPM_DECODERS[0], None),
        ({"a": 1, "b": 1}, SPM_DECODERS[0], 0),
        ({"a": 0, "b": 3}, SPM_DECODERS[1], 1),
        ({"a": 0, "b": 3}, {"type": "ByteLevel"}, None),
    ],
)
def test_an_id_without_a_token(vocabulary: dict[str, int], decoder: Any, gap: int | None) -> None:
    added = [{"id": 0, "content": "a"}]
    assert gap_of({"model": {"vocab": vocabulary}, "decoder": decoder, "added_tokens": added}) == gap


VISION = {
    "depth": 1, "hidden_size": 8, "embed_dim": 8, "intermediate_size": 16, "out_hidden_size": 24, "num_heads": 2,
    "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2, "in_channels": 3, "mlp_ratio": 4,
}  # fmt: skip


def shapes_of(model_type: str) -> dict[str, tuple[int, ...]]:
    """The tensors of a tower."""
    return {
        name.replace("{n}", "0"): tuple(
            int(np.prod([int(VISION.get(each, each)) for each in size.split("*")])) for size in sizes.split()
        )
        for name, sizes in TOWERS[model_type].shapes.items()
    }


@pytest.mark.parametrize(
    ("name", "value"), [("patch_size", [4, 4]), ("temporal_patch_size", [2]), ("num_heads", 0), ("num_heads", 9)]
)
def test_a_vision_setting_that_makes_no_tower(name: str, value: Any) -> None:
    config = {"vision_config": VISION | {name: value}}
    places = [place for place, _ in tower_problems(config, "qwen2_5_vl", shapes_of("qwen2_5_vl"))]
    assert places == [f"vision_config.{name}"]


@pytest.mark.parametrize(("section", "loads"), [([1, 1, 2], True), ([16, 24, 24], False), (None, False)])
def test_sections_fill_a_head(section: list[int] | None, loads: bool) -> None:
    parameters = {} if section is None else {"mrope_section": section}
    config = {"hidden_size": 32, "num_attention_heads": 4, "rope_parameters": parameters}
    found = list(rope_problems(config, "qwen2_5_vl", "transformers", "Transformers"))
    assert (found == []) == loads


@pytest.mark.parametrize("model_type", TOWERS)
@pytest.mark.parametrize("prefix", ["", "model."])
def test_each_tensor_of_a_vision_tower_has_its_shape(model_type: str, prefix: str) -> None:
    shapes = {prefix + name: shape for name, shape in shapes_of(model_type).items()}
    config = {"vision_config": VISION}
    assert list(tower_problems(config, model_type, shapes)) == []
    for name in shapes:
        others = shapes | {name: (*shapes[name], 1)}
        missing = {key: shape for key, shape in shapes.items() if key != name}
        for wrong in (others, missing):
            assert [each for each, _ in tower_problems(config, model_type, wrong)] == [name.removeprefix(prefix)]
