"""`check_model` for folders and mistral.rs, measured with mistralrs 0.9.5 by `oracles.check_folders`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_tokenizer import TOKENIZER
from squish_models.api import check_model, small_config

import squish_core as squish
from squish_core.api import Typed
from squish_core.testing import expect_error, write_model

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "hidden_act": "silu",
}  # fmt: skip
MOE = {
    "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16, "mlp_only_layers": [],
    "decoder_sparse_step": 1, "norm_topk_prob": True, "max_window_layers": 2, "use_sliding_window": False,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "moe_intermediate_size": 16,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "attention_bias": False,
    "first_k_dense_replace": 1, "q_lora_rank": None,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"model_type": "llama"},
    "MistralForCausalLM": {"model_type": "mistral", "head_dim": 16},
    "Qwen2ForCausalLM": {"model_type": "qwen2"},
    "Qwen3MoeForCausalLM": {"model_type": "qwen3_moe", "head_dim": 8, **MOE},
    "Phi3ForCausalLM": {"model_type": "phi3", "original_max_position_embeddings": 64},
    "DeepseekV2ForCausalLM": {"model_type": "deepseek_v2", **LATENT},
    "Lfm2ForCausalLM": {
        "model_type": "lfm2", "layer_types": ["conv", "full_attention"], "block_multiple_of": 32,
        "tie_word_embeddings": True,
    },
}  # fmt: skip
Change = Callable[[dict[str, Any]], Any]


def shapes(name: str, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors of a model, written out here by what Transformers stores."""
    hidden, inner, heads, groups = 32, 64, 4, 2
    head = config.get("head_dim", hidden // heads)
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (64, hidden)}
    if not config.get("tie_word_embeddings"):
        found["lm_head.weight"] = (64, hidden)
    found["model.embedding_norm.weight" if name == "Lfm2ForCausalLM" else "model.norm.weight"] = (hidden,)
    for number in range(2):
        layer = f"model.layers.{number}."
        attention = {
            f"self_attn.{each}_proj.weight": (rows * head, hidden) for each, rows in zip("qkv", (heads, groups, groups))
        }
        gated = {
            "gate_proj.weight": (inner, hidden),
            "up_proj.weight": (inner, hidden),
            "down_proj.weight": (hidden, inner),
        }
        norms = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
        parts: dict[str, tuple[int, ...]] = {
            **attention, "self_attn.o_proj.weight": (hidden, heads * head), **norms,
            **{f"mlp.{each}": shape for each, shape in gated.items()},
        }  # fmt: skip
        if name == "Qwen2ForCausalLM":
            parts |= {each.replace("weight", "bias"): shape[:1] for each, shape in attention.items()}
        elif name == "Qwen3MoeForCausalLM":
            parts = {each: shape for each, shape in parts.items() if not each.startswith("mlp.")}
            parts |= {
                "self_attn.q_norm.weight": (head,),
                "self_attn.k_norm.weight": (head,),
                "mlp.gate.weight": (2, hidden),
            }
            for expert in range(2):
                parts |= {f"mlp.experts.{expert}.{each}_proj.weight": (16, hidden) for each in ("gate", "up")}
                parts[f"mlp.experts.{expert}.down_proj.weight"] = (hidden, 16)
        elif name == "Phi3ForCausalLM":
            parts = {
                **norms, "self_attn.qkv_proj.weight": ((heads + 2 * groups) * head, hidden),
                "self_attn.o_proj.weight": (hidden, hidden), "mlp.gate_up_proj.weight": (2 * inner, hidden),
                "mlp.down_proj.weight": (hidden, inner),
            }  # fmt: skip
        elif name == "DeepseekV2ForCausalLM":
            parts = {
                **norms, "self_attn.q_proj.weight": (64, hidden), "self_attn.kv_a_proj_with_mqa.weight": (24, hidden),
                "self_attn.kv_a_layernorm.weight": (16,), "self_attn.kv_b_proj.weight": (96, 16),
                "self_attn.o_proj.weight": (hidden, 64),
            }  # fmt: skip
            if number:
                parts["mlp.gate.weight"] = (4, hidden)
                for expert in range(4):
                    parts |= {f"mlp.experts.{expert}.{each}_proj.weight": (16, hidden) for each in ("gate", "up")}
                    parts[f"mlp.experts.{expert}.down_proj.weight"] = (hidden, 16)
            else:
                parts |= {f"mlp.{each}": shape for each, shape in gated.items()}
        elif name == "Lfm2ForCausalLM":
            parts = {"operator_norm.weight": (hidden,), "ffn_norm.weight": (hidden,)}
            parts |= {f"feed_forward.{each}.weight": (64, hidden) for each in ("w1", "w3")}
            parts["feed_forward.w2.weight"] = (hidden, 64)
            if number:
                parts |= {**attention, "self_attn.out_proj.weight": (hidden, hidden)}
                parts |= {f"self_attn.{each}_layernorm.weight": (head,) for each in "qk"}
            else:
                parts |= {"conv.in_proj.weight": (96, hidden), "conv.out_proj.weight": (hidden, hidden)}
                parts["conv.conv.weight"] = (hidden, 1, 3)
        found |= {layer + each: shape for each, shape in parts.items()}
    return found


def folder(place: Path, name: str = "LlamaForCausalLM", drop: str = "", dtypes: Any = None, **settings: Any) -> Path:
    """A folder of a class, without the tensors that end with `drop`, and with other settings (`...`: without)."""
    config = {"architectures": [name], **SIZES, **MODELS[name], **settings}
    place = place / "m"
    place.mkdir()
    arrays = {
        each: np.zeros(shape, next((kind for end, kind in (dtypes or {}).items() if each.endswith(end)), np.float32))
        for each, shape in shapes(name, {**SIZES, **MODELS[name]}).items()
        if not drop or not each.endswith(drop)
    }
    squish.save(place / "model.safetensors", arrays)
    kept = {key: value for key, value in config.items() if value is not ...}
    (place / "config.json").write_text(json.dumps(kept))
    (place / "tokenizer.json").write_bytes(TOKENIZER["tokenizer.json"])
    return place


def found(path: Path) -> list[tuple[str, str]]:
    return [(each.severity, each.where) for each in check_model(path, "mistralrs").problems]


@pytest.mark.parametrize("name", MODELS)
def test_a_whole_model_loads(name: str, tmp_path: Path) -> None:
    assert found(folder(tmp_path, name)) == []


OTHERS: dict[str, dict[str, Any]] = {
    "gemma": {"attention_bias": False}, "smollm3": {}, "hunyuan-dense": {},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "glm4_moe": {"partial_rotary_factor": 0.5, "n_group": 1, "topk_group": 1},
    "glm4_moe_lite": {"num_key_value_heads": 4},
}  # fmt: skip
"""Families whose rows are those of mistral.rs's source: what it reads beside the settings of a small model."""


def small(place: Path, family: str, **settings: Any) -> Path:
    """A small model of a family; `...`: without the setting."""
    config = {"hidden_act": "silu", **small_config(family), **OTHERS[family]}
    path = write_model(place / "m", family, config, files=TOKENIZER)
    kept = {key: value for key, value in {**config, **settings}.items() if value is not ...}
    (path / "config.json").write_text(json.dumps(kept))
    return path


@pytest.mark.parametrize("family", OTHERS)
def test_a_small_model_of_a_family_loads(family: str, tmp_path: Path) -> None:
    assert [each for each in found(small(tmp_path, family)) if each[0] == "error"] == []


@pytest.mark.parametrize("family", [name for name in OTHERS if name != "glm4_moe_lite"])
def test_a_gguf_of_a_family_loads_and_is_refused_without_a_tensor(family: str, tmp_path: Path) -> None:
    squish.convert(small(tmp_path, family), tmp_path / "m.gguf")
    assert [each for each in found(tmp_path / "m.gguf") if each[0] == "error"] == []
    with squish.open(tmp_path / "m.gguf") as file:
        name = next(name for name in reversed(list(file)) if "ffn_down" in name)
        squish.convert(file, tmp_path / "cut.gguf", rename="keep", only=[each for each in file if each != name])
    assert ("error", name) in found(tmp_path / "cut.gguf")


@pytest.mark.parametrize(
    ("family", "settings", "where"),
    [
        ("gemma", {"attention_bias": ...}, "config.json attention_bias"),
        ("gemma", {"hidden_act": "gelu", "hidden_activation": "gelu"}, "config.json hidden_activation"),
        ("gemma", {"hidden_act": ..., "hidden_activation": ...}, "config.json hidden_activation"),
        ("gemma", {"head_dim": 32}, "model.layers.0.self_attn.q_proj.weight"),
        ("smollm3", {"no_rope_layer_interval": ...}, "config.json no_rope_layer_interval"),
        ("smollm3", {"no_rope_layers": [1]}, "config.json no_rope_layers"),
        ("hunyuan-dense", {"use_cla": True}, "config.json use_cla"),
        ("hunyuan-dense", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "config.json rope_scaling.type"),
        ("hunyuan-dense", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "config.json rope_scaling.alpha"),
        ("lfm2_moe", {"num_experts": 5}, "model.layers.1.feed_forward.gate.weight"),
        ("lfm2_moe", {"num_dense_layers": 0}, "model.layers.0.feed_forward.gate.weight"),
        ("glm4_moe", {"partial_rotary_factor": ...}, "config.json partial_rotary_factor"),
        ("glm4_moe", {"n_shared_experts": 2}, "model.layers.1.mlp.shared_experts.gate_proj.weight"),
        ("glm4_moe", {"n_group": 3}, "config.json n_group"),
        ("glm4_moe_lite", {"q_lora_rank": None}, "config.json q_lora_rank"),
        ("glm4_moe_lite", {"kv_lora_rank": 16}, "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"),
    ],
)  # fmt: skip
def test_settings_of_another_model_of_a_family_are_refused(
    family: str, settings: Mapping[str, Any], where: str, tmp_path: Path
) -> None:
    assert ("error", where) in found(small(tmp_path, family, **settings))


@pytest.mark.parametrize(
    ("name", "settings", "where"),
    [
        ("LlamaForCausalLM", {"architectures": []}, "architectures"),
        ("LlamaForCausalLM", {"architectures": ["LlamaModel"]}, "architectures"),
        ("LlamaForCausalLM", {"hidden_size": 32.0}, "hidden_size"),
        ("LlamaForCausalLM", {"rope_theta": ...}, "rope_theta"),
        ("LlamaForCausalLM", {"hidden_act": "quick_gelu"}, "hidden_act"),
        ("LlamaForCausalLM", {"hidden_act": "swiglu"}, "hidden_act"),
        ("LlamaForCausalLM", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_scaling.rope_type"),
        ("LlamaForCausalLM", {"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "rope_scaling.factor"),
        ("LlamaForCausalLM", {"rope_scaling": {"rope_type": "linear", "factor": 0}}, "rope_scaling.factor"),
        ("LlamaForCausalLM", {"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "rope_scaling.low_freq_factor"),
        ("LlamaForCausalLM", {"num_hidden_layers": 0}, "num_hidden_layers"),
        ("LlamaForCausalLM", {"rope_theta": -1.0}, "rope_theta"),
        ("LlamaForCausalLM", {"max_position_embeddings": 1}, "max_position_embeddings"),
        ("LlamaForCausalLM", {"max_position_embeddings": 2_000_000_000_000}, "max_position_embeddings"),
        ("LlamaForCausalLM", {"quantization_config": {}}, "quantization_config.bits"),
        ("MistralForCausalLM", {"sliding_window": 0}, "sliding_window"),
        ("MistralForCausalLM", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn"}}, "rope_parameters.factor"),
        ("Qwen2ForCausalLM", {"layer_types": ["full_attention"]}, "layer_types"),
        ("Qwen2ForCausalLM", {"layer_types": ["sliding_attention"] * 2}, "layer_types"),
        ("Qwen3MoeForCausalLM", {"max_window_layers": ...}, "max_window_layers"),
        ("Qwen3MoeForCausalLM", {"num_experts_per_tok": 3}, "num_experts_per_tok"),
        ("Phi3ForCausalLM", {"bos_token_id": [1]}, "bos_token_id"),
        ("Phi3ForCausalLM", {"partial_rotary_factor": 2.0}, "partial_rotary_factor"),
        ("DeepseekV2ForCausalLM", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling"),
        ("DeepseekV2ForCausalLM", {"topk_method": "group_limited_greedy", "n_group": 3}, "n_group"),
        ("Lfm2ForCausalLM", {"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters.rope_type"),
    ],
)  # fmt: skip
def test_a_setting_that_is_not_read_or_not_computed_is_refused(
    name: str, settings: Mapping[str, Any], where: str, tmp_path: Path
) -> None:
    assert ("error", f"config.json {where}") in found(folder(tmp_path, name, **settings))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("LlamaForCausalLM", {"head_dim": "x", "model_type": ["llama"], "attention_bias": 7, "bos_token_id": [1]}),
        ("LlamaForCausalLM", {"hidden_act": {"elu": 1.0}}),
        ("LlamaForCausalLM", {"tie_word_embeddings": ..., "model_type": ...}),
        ("LlamaForCausalLM", {"quantization": {"bits": 4, "group_size": 32}}),
        ("LlamaForCausalLM", {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}}),
        ("LlamaForCausalLM", {"quantization_config": {"quant_method": "fp8"}}),
        ("MistralForCausalLM", {"rope_scaling": [1], "rope_theta": ...}),
        ("Qwen2ForCausalLM", {"sliding_window": 0}),
        ("Qwen3MoeForCausalLM", {"num_experts_per_tok": 0}),
        ("DeepseekV2ForCausalLM", {"n_group": 0}),
        ("Lfm2ForCausalLM", {"layer_types": ..., "full_attn_idxs": [1]}),
    ],
)
def test_a_setting_that_is_not_read_is_no_fault(name: str, settings: Mapping[str, Any], tmp_path: Path) -> None:
    assert [each for each in found(folder(tmp_path, name, **settings)) if each[0] == "error"] == []


@pytest.mark.parametrize(
    "settings", [{"max_position_embeddings": 4}, {"rms_norm_eps": -0.5}, {"architectures": ["PhiForCausalLM"]}]
)
def test_what_depends_on_values_or_is_not_described_is_not_known(settings: Mapping[str, Any], tmp_path: Path) -> None:
    with expect_error(squish.FormatError, code="names"):
        check_model(folder(tmp_path, **settings), "mistralrs")


@pytest.mark.parametrize(
    ("name", "drop", "severity"),
    [
        ("LlamaForCausalLM", "layers.1.mlp.down_proj.weight", "error"),
        ("LlamaForCausalLM", "lm_head.weight", "error"),
        ("Qwen2ForCausalLM", "layers.0.self_attn.k_proj.bias", "warning"),
        ("Qwen3MoeForCausalLM", "layers.0.mlp.experts.1.up_proj.weight", "error"),
        ("Lfm2ForCausalLM", "layers.0.conv.conv.weight", "error"),
    ],
)
def test_a_missing_tensor_is_refused_and_a_missing_bias_left_out(
    name: str, drop: str, severity: str, tmp_path: Path
) -> None:
    (problem,) = found(folder(tmp_path, name, drop))
    assert problem[0] == severity
    assert problem[1].endswith(drop)


@pytest.mark.parametrize(
    ("end", "dtype", "loads"),
    [
        ("q_proj.weight", np.float16, True), ("q_proj.weight", np.float64, False), ("norm.weight", np.int32, False),
        ("embed_tokens.weight", np.float64, True), ("lm_head.weight", np.uint8, False),
    ],
)  # fmt: skip
def test_integers_and_doubles_run_only_where_they_are_converted(
    end: str, dtype: Any, loads: bool, tmp_path: Path
) -> None:
    assert (found(folder(tmp_path, dtypes={end: dtype})) == []) == loads


def test_codes_of_mlx_run_without_experts(tmp_path: Path) -> None:
    path = folder(tmp_path)
    squish.convert(path, tmp_path / "mlx", "mlx", "affine:bits=4,group_size=32")
    assert [each for each in found(tmp_path / "mlx") if each[0] == "error"] == []
    config = json.loads((tmp_path / "mlx" / "config.json").read_text())
    config["quantization_config"]["group_size"] = 64
    (tmp_path / "mlx" / "config.json").write_text(json.dumps(config))
    assert ("error", "model.embed_tokens.weight") not in found(tmp_path / "mlx")
    assert ("error", "model.embed_tokens.scales") in found(tmp_path / "mlx")


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("config.json", '{"architectures": ["LlamaForCausalLM"], "architectures": []}', "config.json architectures"),
        ("config.json", '{"a": NaN}', "config.json"),
        ("config.json", '{"a": 1e999}', "config.json"),
        ("config.json", "[]", "config.json"),
        ("params.json", "{}", "params.json architectures"),
        ("tokenizer_config.json", '{"legacy": "yes"}', "tokenizer_config.json legacy"),
        ("tokenizer_config.json", '{"eos_token": "zzz"}', "tokenizer_config.json eos_token"),
        ("tokenizer_config.json", '{"additional_special_tokens": [{}]}',
         "tokenizer_config.json additional_special_tokens"),
        ("tokenizer_config.json", "", "tokenizer_config.json"),
        ("generation_config.json", '{"eos_token_id": 5000}', "generation_config.json eos_token_id"),
        ("generation_config.json", '{"repetition_penalty": 0}', "generation_config.json repetition_penalty"),
        ("processor_config.json", "[]", "processor_config.json"),
        ("model.safetensors.index.json", '{"weight_map": {"x": "other.safetensors"}}', "other.safetensors"),
        ("model.safetensors.index.json", "{}", "model.safetensors.index.json"),
    ],
)  # fmt: skip
def test_a_file_that_mistral_rs_does_not_read_is_refused(name: str, text: str, where: str, tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / name).write_text(text)
    assert [each for each in found(path) if each[1].startswith(where)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("generation_config.json", "["),  # then config.json is read in its place
        ("chat_template.json", "[]"),
        ("model.safetensors.index.json", '{"weight_map": {"x": "model.safetensors"}}'),
    ],
)
def test_a_file_that_mistral_rs_does_not_need_is_no_fault(name: str, text: str, tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / name).write_text(text)
    assert found(path) == []


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda tree: tree.update(zzz=1), "zzz"),
        (lambda tree: tree.update(decoder=None), "decoder"),
        (lambda tree: tree.update(decoder={"type": "Fuse"}), "decoder"),
        (lambda tree: tree.pop("added_tokens"), "added_tokens"),
        (
            lambda tree: tree["model"].update(
                vocab={"a": 0, "bc": 1, "abc": 2}, merges=[["a", "bc"]], continuing_subword_prefix="x"
            ),
            "model.merges",
        ),
    ],
)
def test_a_tokenizer_that_mistral_rs_does_not_read_is_refused(change: Change, where: str, tmp_path: Path) -> None:
    path = folder(tmp_path)
    tree = json.loads((path / "tokenizer.json").read_text())
    change(tree)
    (path / "tokenizer.json").write_text(json.dumps(tree))
    assert ("error", f"tokenizer.json {where}") in found(path)


def gguf(place: Path, name: str, keys: Mapping[str, Any], arrays: Mapping[str, Any]) -> Path:
    """A GGUF of a class with other keys and arrays (`...`: without)."""
    more: dict[str, Any] = {"norm_eps": 1e-5, "conv_bias": False, "conv_L_cache": 3} if name == LFM else {}
    squish.convert(folder(place, name, **more), place / "m.gguf", "gguf")
    with squish.open(place / "m.gguf") as file:
        meta = {**file.index.meta, "tokenizer.ggml.eos_token_id": Typed("u32", 1), **keys}
        stored = {**{each: file[each].numpy() for each in file}, **arrays}
    kept = ({key: value for key, value in each.items() if value is not ...} for each in (stored, meta))
    squish.save(place / "changed.gguf", next(kept), metadata=next(kept))
    return place / "changed.gguf"


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


LLAMA, QWEN, MOE_QWEN, PHI, LFM = (
    "LlamaForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Phi3ForCausalLM",
    "Lfm2ForCausalLM",
)


@pytest.mark.parametrize("name", [LLAMA, QWEN, MOE_QWEN, PHI, LFM])
def test_a_whole_gguf_loads(name: str, tmp_path: Path) -> None:
    assert found(gguf(tmp_path, name, {}, {})) == []


@pytest.mark.parametrize(
    ("name", "keys", "arrays", "where"),
    [
        (LLAMA, {"llama.block_count": Typed("array:u32", [2])}, {}, "llama.block_count"),
        (LLAMA, {"llama.rope.freq_base": Typed("u32", 10000)}, {}, "llama.rope.freq_base"),
        (LLAMA, {"llama.context_length": Typed("u32", 1)}, {}, "llama.context_length"),
        (LLAMA, {"llama.context_length": Typed("i32", 64)}, {}, ""),
        (LLAMA, {"llama.vocab_size": Typed("str", "64")}, {}, "llama.vocab_size"),
        (LLAMA, {"llama.vocab_size": Typed("u32", 4_000_000_000)}, {}, "llama.vocab_size"),
        (LLAMA, {"llama.attention.value_length": Typed("str", "x")}, {}, ""),
        (LLAMA, {"llama.feed_forward_length": Typed("u32", 65)}, {}, ""),
        (LLAMA, {"llama.expert_count": Typed("u32", 2)}, {}, "llama.expert_used_count"),
        (LLAMA, {"llama.rope.scaling.type": Typed("str", "yarn")}, {}, "llama.rope.scaling.type"),
        (LLAMA, {"general.architecture": Typed("str", "olmo2")}, {}, "general.architecture"),
        (LLAMA, {"general.name": Typed("str", "Mistral 7B")}, {}, "general.name"),
        (LLAMA, {"split.count": Typed("u16", 1)}, {}, "split.no"),
        (LLAMA, {"own.key": Typed("str", "x")}, {}, ""),
        (LLAMA, {}, {"rope_freqs.weight": zeros(3)}, "rope_freqs.weight"),
        (LLAMA, {}, {"rope_freqs.weight": zeros(4)}, ""),
        (LLAMA, {}, {"blk.0.attn_q.bias": zeros(3)}, "blk.0.attn_q.bias"),
        (LLAMA, {}, {"blk.0.attn_q.bias": zeros(32)}, ""),
        (LLAMA, {}, {"blk.0.attn_norm.weight": zeros(32).astype(np.float16)}, ""),
        (LLAMA, {}, {"blk.0.attn_norm.weight": zeros(32).astype(np.float64)}, "blk.0.attn_norm.weight"),
        (LLAMA, {}, {"blk.0.ffn_up.weight": zeros(65, 32)}, "blk.0.ffn_gate.weight"),
        (LLAMA, {}, {"blk.0.ffn_norm.weight": ...}, "blk.0.ffn_norm.weight"),
        (LLAMA, {}, {"token_embd.weight": zeros(2000, 32)}, ""),
        (QWEN, {}, {"rope_freqs.weight": zeros(4)}, "rope_freqs.weight"),
        (QWEN, {"qwen2.rope.freq_base": ...}, {}, "qwen2.rope.freq_base"),
        (QWEN, {"qwen2.attention.sliding_window": Typed("f32", 8.0)}, {}, "qwen2.attention.sliding_window"),
        (MOE_QWEN, {"qwen3moe.expert_feed_forward_length": ...}, {}, "qwen3moe.expert_feed_forward_length"),
        (MOE_QWEN, {"qwen3moe.expert_used_count": Typed("u32", 3)}, {}, "qwen3moe.expert_used_count"),
        (MOE_QWEN, {}, {"blk.0.ffn_up_exps.weight": zeros(1, 16, 32)}, "blk.0.ffn_up_exps.weight"),
        (MOE_QWEN, {}, {"blk.0.ffn_up_exps.weight": zeros(3, 16, 32)}, ""),
        (MOE_QWEN, {"qwen3moe.expert_count": Typed("u32", 4_000_000_000)}, {}, "blk.0.ffn_down_exps.weight"),
        (LLAMA, {"llama.block_count": Typed("u32", 4_000_000_000)}, {}, "llama.block_count"),
        (PHI, {"phi3.rope.dimension_count": Typed("u32", 9)}, {}, "phi3.rope.dimension_count"),
        (PHI, {}, {"rope_factors_long.weight": zeros(4)}, "rope_factors_long.weight"),
        (LFM, {"lfm2.rope.scaling.type": Typed("str", "linear")}, {}, "lfm2.rope.scaling.type"),
        (LFM, {"lfm2.rope.dimension_count": Typed("u32", 0)}, {}, ""),
        (LFM, {"lfm2.attention.key_length": Typed("str", "x")}, {}, ""),
        (LLAMA, {"tokenizer.ggml.add_bos_token": Typed("u8", 1)}, {}, "tokenizer.ggml.add_bos_token"),
        (LLAMA, {"tokenizer.ggml.eos_token_id": Typed("u64", 1)}, {}, "tokenizer.ggml.eos_token_id"),
        (LLAMA, {"tokenizer.ggml.unknown_token_id": Typed("u32", 10**6)}, {}, "tokenizer.ggml.unknown_token_id"),
        (LLAMA, {"tokenizer.ggml.merges": Typed("array:str", ["qqq zzz"])}, {}, "tokenizer.ggml.merges"),
        (LLAMA, {"tokenizer.ggml.token_type": Typed("str", "x")}, {}, "tokenizer.ggml.token_type"),
        (LLAMA, {"tokenizer.ggml.pre": Typed("str", "")}, {}, "tokenizer.ggml.pre"),
        (LLAMA, {"tokenizer.ggml.add_eos_token": Typed("u8", 1)}, {}, ""),
        (LLAMA, {"tokenizer.chat_template": Typed("u32", 1)}, {}, "tokenizer.chat_template"),
    ],
)
def test_a_gguf_is_refused_for_what_mistral_rs_reads(
    name: str, keys: dict[str, Any], arrays: dict[str, Any], where: str, tmp_path: Path
) -> None:
    errors = [place for severity, place in found(gguf(tmp_path, name, keys, arrays)) if severity == "error"]
    assert errors[:1] == ([where] if where else [])


def test_a_length_of_few_tokens_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(squish.SquishError) as caught:
        check_model(gguf(tmp_path, LLAMA, {"llama.context_length": Typed("u32", 4)}, {}), "mistralrs")
    assert caught.value.code == "names"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_file_that_takes_too_much_memory_is_not_read(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    path = folder(tmp_path)
    monkeypatch.setattr("squish_models.engines.mistralrs.types.MOST_VALUES", 1000)
    (path / name).write_text(json.dumps({**json.loads((path / name).read_text()), "more": [0] * 1001}))
    with pytest.raises(squish.LimitError):
        check_model(path, "mistralrs")


@pytest.mark.parametrize(("number", "refused"), [(48, True), (0, True), (1 << 21, False)])
def test_an_alignment_that_only_squish_refuses_is_not_known(number: int, refused: bool, tmp_path: Path) -> None:
    path = gguf(tmp_path, LLAMA, {"general.alignment": Typed("u32", 64)}, {})
    path.write_bytes(
        path.read_bytes().replace(b"alignment\4\0\0\0\x40\0\0\0", b"alignment\4\0\0\0" + number.to_bytes(4, "little"))
    )
    if refused:
        assert found(path)
    else:
        with pytest.raises(squish.SquishError):
            check_model(path, "mistralrs")


def test_a_gguf_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    squish.convert(folder(tmp_path), tmp_path / "m.gguf", "gguf")
    data = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(data[:-1000])
    assert found(tmp_path / "m.gguf")
