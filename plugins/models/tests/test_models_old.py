"""Families of 2022 to 2024: what of their settings llama.cpp cannot compute, and models in the order of the Hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published_old import PUBLISHED
from small_tokenizer import TOKENIZER
from squish_testing import write_model

import squish_core as squish

ALIBI_OFF = {"alibi": False, "alibi_bias_max": 8}


@pytest.mark.parametrize(
    ("model", "change", "key"),
    [
        ("falcon-7b", {"alibi": True}, "alibi"),
        ("falcon-7b", {"bias": True}, "bias"),
        ("falcon-7b", {"parallel_attn": False}, "parallel_attn"),
        ("falcon-7b", {"activation": "relu"}, "activation"),
        ("falcon-7b", {"multi_query": False, "num_kv_heads": 2}, "num_kv_heads"),
        ("pythia-70m", {"tie_word_embeddings": True}, "tie_word_embeddings"),
        ("pythia-70m", {"attention_bias": False}, "attention_bias"),
        ("pythia-70m", {"hidden_act": "relu"}, "hidden_act"),
        ("phi-2", {"qk_layernorm": True}, "qk_layernorm"),
        ("stablelm-3b-4e1t", {"qk_layernorm": True}, "qk_layernorm"),
        ("internlm2-7b", {"bias": True}, "bias"),
        ("bloom-560m", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm"),
        ("mpt-7b", {"attn_config": ALIBI_OFF}, "alibi"),
        ("mpt-7b", {"attn_config": {"qk_ln": True}}, "qk_ln"),
        ("mpt-7b", {"attn_config": {"softmax_scale": 0.5}}, "softmax_scale"),
        ("mpt-7b", {"logit_scale": "inv_sqrt_d_model"}, "logit_scale"),
        ("mpt-7b", {"no_bias": False}, "no_bias"),
        ("Nemotron-Mini-4B-Instruct", {"hidden_act": "silu"}, "hidden_act"),
        ("starcoderbase", {"multi_query": False}, "multi_query"),
        ("starcoderbase", {"scale_attn_weights": False}, "scale_attn_weights"),
        ("CodeShell-7B", {"position_embedding_type": "learned_absolute"}, "position_embedding_type"),
        ("MiniCPM-2B-sft-bf16", {"dim_model_base": 0}, "dim_model_base"),
        ("MiniCPM-2B-sft-bf16", {"scale_depth": "deep"}, "scale_depth"),
        ("EXAONE-3.5-2.4B-Instruct", {"activation_function": "gelu"}, "activation_function"),
        ("XVERSE-7B", {"tie_word_embeddings": True}, "tie_word_embeddings"),
    ],
)
def test_a_setting_that_llama_cpp_has_not_is_refused_by_name(
    model: str, change: dict[str, Any], key: str, tmp_path: Path
) -> None:
    family, config = PUBLISHED[model]
    ties = {name: value for name, value in change.items() if name == "tie_word_embeddings"}
    source = write_model(tmp_path / "m", family, {**config, **ties}, files=TOKENIZER)
    (source / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(source, tmp_path / "m.gguf")
    assert caught.value.code in ("config", "contradiction")
    assert key in f"{caught.value.part} {caught.value.message}"
    assert not (tmp_path / "m.gguf").exists()


@pytest.mark.parametrize(
    ("model", "groups", "group"),
    [("falcon-40b", 2, 2), ("falcon-7b", 1, 4), ("pythia-70m", 4, 1), ("bloom-560m", 4, 1), ("internlm2-7b", 2, 2)],
)
def test_queries_keys_and_values_of_a_head_are_sorted_in_gguf(
    model: str, groups: int, group: int, tmp_path: Path
) -> None:
    family, config = PUBLISHED[model]
    source = write_model(tmp_path / "m", family, {**config, "torch_dtype": "float32"}, files=TOKENIZER)
    squish.convert(source, tmp_path / "m.gguf")
    with squish.open(source) as file:
        name = next(each for each in file if ".0." in each and each.endswith(("query_key_value.weight", "wqkv.weight")))
        rows = file[name].numpy().reshape(groups, group + 2, 8, 32)
    queries, keys, values = rows[:, :-2], rows[:, -2], rows[:, -1]
    if family == "internlm2":  # llama.cpp rotates neighbouring rows
        queries, keys = (each.reshape(*each.shape[:-2], 2, 4, 32).swapaxes(-3, -2) for each in (queries, keys))
    expected = [np.ascontiguousarray(each).reshape(-1, 32) for each in (queries, keys, values)]
    with squish.open(tmp_path / "m.gguf") as file:
        names = (
            ["blk.0.attn_qkv.weight"] if "blk.0.attn_qkv.weight" in file else [f"blk.0.attn_{x}.weight" for x in "qkv"]
        )
        stored = [file[name].numpy() for name in names]
    np.testing.assert_array_equal(np.concatenate(stored), np.concatenate(expected))


def test_matrices_beside_adapters_are_those_of_a_phi_3(tmp_path: Path) -> None:
    family, config = PUBLISHED["Phi-4-multimodal-instruct"]
    source = write_model(tmp_path / "plain", family, config, files=TOKENIZER)
    with squish.open(source) as file:
        arrays = {name: file[name].numpy() for name in file}
    wrapped = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
    renamed = {
        f"{name.removesuffix('.weight')}.base_layer.weight" if name.split(".")[-2] in wrapped else name: values
        for name, values in arrays.items()
    }
    module = "model.layers.0.self_attn.qkv_proj"
    renamed |= {f"{module}.lora_{each}.vision.weight": np.ones((4, 4), np.float32) for each in "AB"}
    renamed["model.embed_tokens_extend.image_embed.glb_GN"] = np.ones((1, 1, 32), np.float32)
    squish.save(source / "model.safetensors", renamed)
    report = squish.convert(source, tmp_path / "m.gguf")
    assert {drop.name for drop in report.dropped if "lora" in drop.name or "embed_tokens_extend" in drop.name}
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    squish.convert(source, tmp_path / "mlx", "mlx")
    for folder in ("back", "mlx"):
        with squish.open(tmp_path / folder) as file:
            assert sorted(file) == sorted(arrays)
            assert all(np.array_equal(file[name].numpy(), arrays[name]) for name in arrays)
        assert json.loads((tmp_path / folder / "config.json").read_text())["model_type"] == "phi3"
