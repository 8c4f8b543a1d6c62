"""Gemma 3n: rows that GGUF repeats, numbers that llama.cpp has in its source, and mlx-lm's layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles import converter, engines, families
from small_tokenizer import TOKENIZER
from squish_testing import model_arrays, write_model
from test_models_bad_input import FIRST, mapped, refusal

import squish_core as squish

SMALL = FIRST["gemma3n"]
ROWS = "per_layer_token_embd.weight"
EMBEDDINGS = "model.embed_tokens_per_layer.weight"
LAYERS = {
    **SMALL, "num_hidden_layers": 22, "num_kv_shared_layers": 2, "layer_types": SMALL["layer_types"] * 11,
    "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 12,
}  # fmt: skip


def test_tokens_without_an_embedding_in_the_layers_have_the_first_one() -> None:
    """As in Transformers and mlx-lm; llama.cpp reads a row for every token."""
    arrays = model_arrays("gemma3n", SMALL)
    rows = mapped(arrays, SMALL)[ROWS].numpy()
    assert rows.shape[0] == 64
    np.testing.assert_array_equal(rows[:60], arrays[EMBEDDINGS])
    np.testing.assert_array_equal(rows[60:], np.repeat(arrays[EMBEDDINGS][:1], 4, axis=0))


@pytest.mark.parametrize("encoding", ["q8_0", "q4_k", "bf16"])
def test_repeated_rows_are_cut_from_codes(encoding: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "m", "gemma3n", SMALL, files=TOKENIZER)
    squish.convert(source, tmp_path / "m.gguf", encode=f"{EMBEDDINGS}={encoding}")
    with squish.open(tmp_path / "m.gguf") as file:
        expected = file[ROWS].numpy()
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf", f"{EMBEDDINGS}=f32")
    with squish.open(tmp_path / "back") as file:
        np.testing.assert_array_equal(file[EMBEDDINGS].numpy(), expected[:60])


def test_a_stack_has_one_projection_less_than_inputs() -> None:
    arrays = model_arrays("gemma3n", SMALL)
    there = mapped(arrays, SMALL)
    for number in range(3):
        projection = arrays[f"model.altup_projections.{number}.weight"]
        np.testing.assert_array_equal(there["altup_proj.weight"].numpy()[number], projection)


@pytest.mark.parametrize(
    "change",
    [
        {"altup_active_idx": 1},
        {"laurel_rank": 32},
        {"hidden_size_per_layer_input": 128},
        {"altup_num_inputs": 2},
        {"activation_sparsity_pattern": [0.95, 0.0]},
        {"activation_sparsity_pattern": [0.5, 0.5]},
        {"final_logit_softcapping": 20.0},
        {"intermediate_size": [48, 64]},
        {"hidden_activation": "relu"},
    ],
)
def test_another_number_than_llama_cpp_computes_with_is_refused_in_words(change: Mapping[str, Any]) -> None:
    config = {**SMALL, **change}
    error = refusal(model_arrays("gemma3n", config), config)
    assert error.code == "config"
    assert next(iter(change)) in str(error)


def test_layers_that_take_keys_may_lack_them_only_where_no_engine_loads_them() -> None:
    """Transformers does not save them; llama.cpp and mlx-lm do not load a model without them."""
    shared = [f"model.layers.{n}.self_attn.{name}.weight" for n in (20, 21) for name in ("k_norm", "k_proj", "v_proj")]
    arrays = model_arrays("gemma3n", LAYERS)
    assert mapped(arrays, LAYERS)["blk.21.attn_k.weight"].shape == (16, 32)
    fewer = {name: values for name, values in arrays.items() if name not in shared}
    error = refusal(fewer, LAYERS)
    assert (error.code, error.tensor) == ("unmapped", shared[0])
    assert shared[0] not in mapped(fewer, LAYERS, "hf")


def test_mlx_lm_gets_the_layout_of_the_multimodal_model(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m", "gemma3n", SMALL, files=TOKENIZER)
    squish.convert(source, tmp_path / "m.gguf")
    for number, each in enumerate((source, tmp_path / "m.gguf")):
        folder = tmp_path / f"mlx{number}"
        squish.convert(each, folder, "mlx")
        config = json.loads((folder / "config.json").read_text())
        assert (config["model_type"], config["text_config"]["model_type"]) == ("gemma3n", "gemma3n_text")
        assert config["text_config"]["rope_local_base_freq"] == 10000.0
        with squish.open(folder) as file:
            assert all(name.startswith("model.language_model.") for name in file)
    squish.convert(tmp_path / "mlx0", tmp_path / "back", "hf")
    assert {item.state for item in squish.diff(source, tmp_path / "back").tensors} == {"bytes"}


@pytest.mark.oracle
def test_llama_cpp_computes_what_it_does_with_the_file_of_its_converter(tmp_path: Path) -> None:
    """It differs from Transformers by 0.6 in a model this small, whoever wrote the file: see docs/models.md."""
    source = families.make("gemma3n_text", tmp_path / "m")
    squish.convert(source, tmp_path / "m.gguf")
    theirs = converter.convert({"theirs": source}, tmp_path, {"theirs": "default"})["theirs"]
    ours, other = (engines.ask("llama.cpp", path) for path in (tmp_path / "m.gguf", theirs))
    assert ours.ids == other.ids
    assert ours.greedy == other.greedy
    np.testing.assert_array_equal(ours.logprobs, other.logprobs)
