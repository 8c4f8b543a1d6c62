"""`check_model` says where an engine refuses a model, or computes otherwise, because of its settings or codes.

What the engines do was measured; `test_models_engine_differences_oracle.py` repeats a part.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_tokenizer import TOKENIZER
from squish_cli.app import run
from squish_models.api import check_model
from squish_models.tokenizer import Tokenizer, Vocabulary, huggingface_files
from squish_testing import write_model
from test_models_conformance import SMALL

import squish_core as squish

BASE = {**SMALL, "intermediate_size": 64, "torch_dtype": "float32", "rope_theta": 10000.0, "hidden_act": "silu"}
HEADS = {**BASE, "hidden_size": 64, "head_dim": 16, "attention_bias": False}
MIXTURE = {"num_experts_per_tok": 2, "num_local_experts": 4}
QWEN = {
    "max_window_layers": 2, "use_sliding_window": False, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "norm_topk_prob": True, "num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2,
}  # fmt: skip
DEEPSEEK = {
    **BASE, "num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": 32, "qk_rope_head_dim": 8, "n_group": 1,
    "qk_nope_head_dim": 24, "v_head_dim": 32, "first_k_dense_replace": 1, "n_routed_experts": 4, "topk_group": 1,
    "num_experts_per_tok": 2, "n_shared_experts": 2, "moe_intermediate_size": 32, "routed_scaling_factor": 1.5,
    "attention_bias": False,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {**BASE, "model_type": "llama"}),
    "mistral": ("llama", {**BASE, "model_type": "mistral"}),
    "mixtral": ("mixtral", {**BASE, **MIXTURE, "model_type": "mixtral"}),
    "qwen2": ("qwen2", {**BASE, "model_type": "qwen2"}),
    "qwen3moe": ("qwen3moe", {**HEADS, **QWEN, "model_type": "qwen3_moe"}),
    "qwen2vl": (
        "qwen2vl", {**BASE, "model_type": "qwen2_5_vl", "vision_config": {},
                    "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}},
    ),
    "gemma2": (
        "gemma2", {**HEADS, "model_type": "gemma2", "sliding_window": 64, "query_pre_attn_scalar": 16,
                   "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": 50.0,
                   "final_logit_softcapping": 30.0, "tie_word_embeddings": True},
    ),
    "gemma3": (
        "gemma3", {**HEADS, "model_type": "gemma3_text", "sliding_window": 64, "query_pre_attn_scalar": 16,
                   "sliding_window_pattern": 6, "rope_local_base_freq": 10000.0, "tie_word_embeddings": True},
    ),
    "gpt2": (
        "gpt2", {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": 64,
                 "layer_norm_epsilon": 1e-5, "torch_dtype": "float32"},
    ),
    "gpt-oss": (
        "gpt-oss", {**HEADS, **MIXTURE, "model_type": "gpt_oss", "sliding_window": 32,
                    "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "phi3": ("phi3", {**BASE, "model_type": "phi3"}),
    "deepseek 2": ("deepseek2", {**DEEPSEEK, "model_type": "deepseek_v2"}),
    "deepseek 3": ("deepseek2", {**DEEPSEEK, "model_type": "deepseek_v3", "norm_topk_prob": True}),
    "starcoder2": (
        "starcoder2", {**BASE, "model_type": "starcoder2", "norm_epsilon": 1e-5, "use_bias": True,
                       "hidden_act": "gelu_pytorch_tanh", "sliding_window": None},
    ),
}  # fmt: skip
CLASSES = {
    "llama": "Llama", "mistral": "Mistral", "mixtral": "Mixtral", "qwen2": "Qwen2", "qwen3moe": "Qwen3Moe",
    "gemma2": "Gemma2", "gemma3": "Gemma3", "gpt-oss": "GptOss", "phi3": "Phi3", "deepseek 2": "DeepseekV2",
    "deepseek 3": "DeepseekV3", "starcoder2": "Starcoder2",
}  # fmt: skip
LINEAR = {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}
YARN = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}}
DYNAMIC = {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
UNKNOWN = {"rope_scaling": {"rope_type": "acme", "type": "acme", "factor": 2.0}}


def written(name: str, settings: dict[str, Any], folder: Path, files: Any = TOKENIZER) -> Path:
    family, config = MODELS[name]
    config = {"eos_token_id": 3, "architectures": [f"{CLASSES.get(name, name)}ForCausalLM"], **config, **settings}
    model = write_model(folder / "model", family, config, dtype="f32", files=files)
    return with_biases(model) if family in ("qwen2", "qwen2vl") else model


def with_biases(model: Path) -> Path:
    """A model with the biases of queries, keys and values that each Qwen 2 has."""
    with squish.open(model) as file:
        arrays = {name: file[name].numpy() for name in file}
    for name in [name for name in arrays if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]:
        arrays[name.replace(".weight", ".bias")] = np.zeros(arrays[name].shape[0], np.float32)
    for path in (*model.glob("*.safetensors"), *model.glob("*.index.json")):
        path.unlink()
    squish.save(model / "model.safetensors", arrays)
    return model


def findings(name: str, settings: dict[str, Any], to: str, engine: str, folder: Path, encode: Any = None) -> list[Any]:
    target = folder / f"out.{to}"
    squish.convert(written(name, settings, folder), target, to, encode)
    return [(each.severity, each.code, each.where) for each in check_model(target, engine).problems]


ROPE = "config.json rope_scaling"
AFQ = "afq4:group_size=32"
CASES: list[tuple[str, dict[str, Any], str, str, list[tuple[str, str, str]]]] = [
    ("deepseek 2", {}, "gguf", "mistralrs", [("error", "engine-setting", "general.architecture")]),
    ("deepseek 3", {}, "gguf", "mistralrs", [("error", "engine-setting", "general.architecture")]),
    ("deepseek 2", {}, "uqff", "mistralrs", []),
    ("deepseek 2", {"v_head_dim": 16}, "uqff", "mistralrs", [("error", "engine-setting", "config.json v_head_dim")]),
    ("deepseek 3", {}, "uqff", "mistralrs", [("warning", "engine-result", "config.json model_type")]),
    ("deepseek 3", {"first_k_dense_replace": 2}, "uqff", "mistralrs", []),
    ("deepseek 2", YARN, "uqff", "mistralrs", [("error", "engine-setting", ROPE)]),
    ("deepseek 2", LINEAR, "uqff", "mistralrs", [("error", "engine-key", ROPE)]),
    ("deepseek 2", LINEAR, "mlx", "mlx", [("warning", "engine-result", ROPE)]),
    ("qwen2vl", {}, "gguf", "mistralrs", [("error", "engine-setting", "general.architecture")]),
    ("llama", {"head_dim": 16}, "gguf", "mistralrs", [("error", "engine-setting", "llama.attention.key_length")]),
    ("llama", {"head_dim": 16}, "uqff", "mistralrs", [("error", "engine-setting", "config.json head_dim")]),
    ("mistral", {"head_dim": 16}, "uqff", "mistralrs", []),
    ("mixtral", {"head_dim": 16}, "uqff", "mistralrs", [("error", "engine-setting", "config.json head_dim")]),
    ("llama", YARN, "gguf", "mistralrs", [("error", "engine-key", "llama.rope.scaling.type")]),
    ("llama", YARN, "uqff", "mistralrs", [("error", "engine-key", ROPE)]),
    ("llama", DYNAMIC, "uqff", "mistralrs", [("error", "engine-key", ROPE)]),
    ("llama", LINEAR, "gguf", "mistralrs", []),
    ("llama", LINEAR, "uqff", "mistralrs", []),
    ("mistral", YARN, "uqff", "mistralrs", [("warning", "engine-result", ROPE)]),
    ("qwen2", LINEAR, "uqff", "mistralrs", [("warning", "engine-result", ROPE)]),
    ("qwen2", YARN, "gguf", "mistralrs", [("error", "engine-key", "qwen2.rope.scaling.type")]),
    ("qwen3moe", YARN, "mlx", "mlx", [("warning", "engine-result", ROPE)]),
    ("mixtral", LINEAR, "mlx", "mlx", [("warning", "engine-result", ROPE)]),
    ("qwen2", YARN, "mlx", "mlx", []),
    ("llama", UNKNOWN, "mlx", "mlx", [("error", "engine-key", ROPE)]),
    ("llama", UNKNOWN, "hf", "transformers", [("error", "engine-key", ROPE)]),
    ("llama", {"rope_scaling": {"rope_type": "linear"}}, "mlx", "mlx", [("error", "engine-key", f"{ROPE}.factor")]),
    ("mixtral", {"rope_scaling": {"rope_type": "linear"}}, "mlx", "mlx", [
        ("warning", "engine-result", ROPE), ("error", "engine-key", f"{ROPE}.factor"),
    ]),
    ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "hf", "transformers", [
        ("error", "engine-key", f"{ROPE}.low_freq_factor"), ("error", "engine-key", f"{ROPE}.high_freq_factor"),
    ]),
    ("llama", DYNAMIC, "mlx", "mlx", []),
    ("llama", DYNAMIC, "hf", "transformers", []),
    ("mixtral", UNKNOWN, "mlx", "mlx", [("warning", "engine-result", ROPE)]),
    ("mixtral", UNKNOWN, "hf", "transformers", [("error", "engine-key", ROPE)]),
    ("deepseek 3", UNKNOWN, "mlx", "mlx", [("error", "engine-key", ROPE)]),
    ("gpt-oss", UNKNOWN, "mlx", "mlx", [("error", "engine-key", ROPE)]),
    ("qwen2vl", {}, "mlx", "mlx", []),
    ("qwen2vl", {}, "hf", "transformers", [("error", "engine-tensor", "visual.patch_embed.proj.weight")]),
    ("starcoder2", {}, "mlx", "mlx", []),
    ("starcoder2", {}, "uqff", "mistralrs", []),
    ("gemma2", {}, "mlx", "mlx", [("warning", "engine-result", "config.json")]),
    ("gemma2", {"sliding_window": 128}, "mlx", "mlx", []),
    ("gemma2", {}, "uqff", "mistralrs", []),
    ("gemma2", {}, "gguf", "llama.cpp", [("note", "engine-result", "general.architecture")]),
    ("phi3", {"sliding_window": 64}, "gguf", "llama.cpp", [("warning", "engine-result", "general.architecture")]),
    ("phi3", {"sliding_window": None}, "gguf", "llama.cpp", []),
    ("gemma3", {}, "uqff", "mistralrs", [("note", "engine-result", "config.json architectures")]),
    ("gemma3", {}, "mlx", "mlx", []),
    ("gemma3", {"hidden_size": 96}, "mlx", "mlx", [("note", "engine-result", "config.json hidden_size")]),
    ("gpt2", {"n_inner": 96}, "mlx", "mlx", [("error", "engine-setting", "config.json n_inner")]),
    ("gpt2", {"n_inner": 128}, "mlx", "mlx", []),
    ("gpt-oss", YARN, "gguf", "llama.cpp", [("warning", "engine-result", "general.architecture")]),
    ("gpt-oss", DYNAMIC, "mlx", "mlx", [("error", "engine-key", ROPE)]),
    ("gpt-oss", LINEAR, "uqff", "mistralrs", [
        ("note", "engine-result", "config.json model_type"), ("error", "engine-key", ROPE),
    ]),
    ("gpt-oss", YARN, "uqff", "mistralrs", [
        ("warning", "engine-result", ROPE), ("note", "engine-result", "config.json model_type"),
    ]),
]  # fmt: skip
"""A model, settings, target, engine, and what the check finds."""


@pytest.mark.parametrize(("name", "settings", "to", "engine", "expected"), CASES)
def test_settings_that_an_engine_handles_otherwise_are_named(
    name: str, settings: dict[str, Any], to: str, engine: str, expected: list[Any], tmp_path: Path
) -> None:
    assert sorted(findings(name, settings, to, engine, tmp_path)) == sorted(expected)


@pytest.mark.parametrize(
    ("name", "encode", "to", "severity"),
    [
        ("gpt-oss", "mxfp4", "gguf", "warning"), ("gpt-oss", "mxfp4", "uqff", "warning"),
        ("gpt-oss", "q8_0", "gguf", ""), ("gpt-oss", "q8_0", "uqff", ""),
        ("qwen3moe", "mxfp4", "gguf", "error"), ("qwen3moe", "mxfp4", "uqff", "error"),
        ("gpt-oss", AFQ, "uqff", "warning"), ("qwen3moe", "q8_0", "uqff", ""),
        ("qwen3moe", AFQ, "uqff", "warning"), ("mixtral", "q8_0", "uqff", ""), ("mixtral", "q8_0", "gguf", ""),
        ("mixtral", "mxfp4", "uqff", "error"), ("mixtral", AFQ, "uqff", "warning"),
        ("deepseek 2", "mxfp4", "uqff", "error"),
    ],
)  # fmt: skip
def test_experts_in_codes_that_mistral_rs_handles_otherwise_are_named(
    name: str, encode: str, to: str, severity: str, tmp_path: Path
) -> None:
    model = tmp_path / f"model.{to}"
    experts = "*_exps.weight" if to == "gguf" else "*.experts.*_proj.weight"
    squish.convert(written(name, {}, tmp_path), model, to, {experts: encode})
    problems = [each for each in check_model(model, "mistralrs").problems if each.code == "engine-type"]
    assert [each.severity for each in problems] == ([severity] if severity else [])
    assert all("exp" in each.where for each in problems)


@pytest.mark.parametrize("rename", [None, "keep"])
@pytest.mark.parametrize("encode", ["hqq4:group_size=32", "fp8", "f8q8"])
def test_experts_are_not_written_in_codes_that_mistral_rs_refuses(
    encode: str, rename: str | None, tmp_path: Path
) -> None:
    """If their names stay, they are separate matrices, which such codes suit."""
    squish.convert(written("qwen3moe", {}, tmp_path), tmp_path / "out", "uqff", encode, rename=rename)
    with squish.open(tmp_path / "out") as file:
        are_dense = [file[name].spec.encodings[0].codec.id == "dense" for name in file if ".experts." in name]
    problems = check_model(tmp_path / "out", "mistralrs").problems
    severities = {each.severity for each in problems if each.code == "engine-type"}
    assert (set(are_dense), severities) == (({False}, {"error"}) if rename else ({True}, set()))


@pytest.mark.parametrize("name", ["mixtral", "qwen3moe", "deepseek 2"])
def test_experts_of_a_uqff_have_the_names_of_mistral_rs(name: str, tmp_path: Path) -> None:
    source = written(name, {}, tmp_path)
    squish.convert(source, tmp_path / "out", "uqff", "q8_0")
    with squish.open(tmp_path / "out") as file:
        experts = {
            tensor: file[tensor].spec
            for tensor in file
            if tensor.startswith("model.layers.1.") and ".experts." in tensor
        }
    module = "block_sparse_moe" if name == "mixtral" else "mlp"
    assert experts.keys() == {f"model.layers.1.{module}.experts.{each}_proj.weight" for each in ("gate", "up", "down")}
    assert {(spec.shape[0], spec.encodings[0].codec.id) for spec in experts.values()} == {(4, "ggml.q8_0")}
    squish.convert(tmp_path / "out", tmp_path / "floats", "hf", "f32")
    with squish.open(source) as before, squish.open(tmp_path / "floats") as after:
        assert set(before) == set(after)


@pytest.mark.parametrize(("engine", "problems"), [("mistralrs", [("warning", "tokenizer.ggml.scores")]),
                                                  ("llama.cpp", [])])  # fmt: skip
def test_scores_that_mistral_rs_reads_otherwise_are_named(
    engine: str, problems: list[tuple[str, str]], tmp_path: Path
) -> None:
    tokens = ("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "a", "b", "ab")
    kinds = [2, 3, 3, *[6] * 256, 1, 1, 1]
    scores = [0.0] * (len(tokens) - 1) + [-1.0]
    vocabulary = Vocabulary(tokens=tokens, kinds=np.array(kinds, np.int32), scores=np.array(scores, np.float32))
    files = huggingface_files(Tokenizer(model="spm", vocabulary=vocabulary, special={"unk": 0, "bos": 1, "eos": 2}))
    source = written("llama", {"vocab_size": len(tokens), "eos_token_id": 2}, tmp_path, files)
    squish.convert(source, tmp_path / "m.gguf")
    result = check_model(tmp_path / "m.gguf", engine)
    assert [(each.severity, each.where) for each in result.problems] == problems


def test_notes_do_not_change_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    squish.convert(written("gemma2", {}, tmp_path), tmp_path / "m.gguf")
    assert run(["check-model", str(tmp_path / "m.gguf"), "--for", "llama.cpp", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["loads"], [each["severity"] for each in answer["problems"]]) == (True, ["note"])
    assert run(["check-model", str(tmp_path / "m.gguf"), "--for", "llama.cpp"]) == 0
    assert "note: general.architecture" in capsys.readouterr().out
