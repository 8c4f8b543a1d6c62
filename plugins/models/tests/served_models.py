"""Models with the sizes of published ones and fewer layers, as GGUFs with made-up weights: what llama.cpp takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from every_family import config_of, text_part
from oracles.gguf_file import ARRAY, BOOL, F32, F64, I8, I16, I32, I64, STRING, U8, U16, U32, U64, Gguf, Key, Tensor
from squish_convert.api import Model
from squish_convert.mapping.coverage import shape_of, sizes_at
from squish_convert.mapping.mapped import map_file, naming_of
from squish_convert.mapping.names import fill

import squish_core as squish
from squish_core.model import Typed

TYPES = {
    "u8": U8, "i8": I8, "u16": U16, "i16": I16, "u32": U32, "i32": I32, "f32": F32, "bool": BOOL, "str": STRING,
    "u64": U64, "i64": I64, "f64": F64,
}  # fmt: skip
HYBRID = {"layer_types": ["linear_attention"] * 3 + ["full_attention"]}
EXPERTS = {"num_experts": 16, "num_experts_per_tok": 8}
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "SmolLM2-360M": ("llama", {
        "hidden_size": 960, "intermediate_size": 2560, "num_attention_heads": 15, "num_key_value_heads": 5,
        "vocab_size": 49152, "num_hidden_layers": 8,
    }),
    "Qwen2.5-1.5B": ("qwen2", {
        "hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12, "num_key_value_heads": 2,
        "vocab_size": 151936, "num_hidden_layers": 4,
    }),
    "Phi-3-mini": ("phi3", {
        "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 32,
        "vocab_size": 32064, "num_hidden_layers": 2,
    }),
    "gemma-3-1b": ("gemma3", {
        "hidden_size": 1152, "intermediate_size": 6912, "num_attention_heads": 4, "num_key_value_heads": 1,
        "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 512, "vocab_size": 262144,
        "num_hidden_layers": 13,
    }),
    "gemma-2-2b": ("gemma2", {
        "hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096, "vocab_size": 256000,
        "num_hidden_layers": 4,
    }),
    "Command-R7B": ("cohere2", {
        "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "sliding_window": 4096, "vocab_size": 64000, "num_hidden_layers": 4,
    }),
    "DeepSeek-V2-Lite": ("deepseek2", {
        "hidden_size": 2048, "intermediate_size": 10944, "num_attention_heads": 16, "num_key_value_heads": 16,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
        "n_routed_experts": 8, "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "vocab_size": 102400,
        "num_hidden_layers": 27,
    }),
    "GLM-4.7-Flash": ("glm4_moe_lite", {
        "hidden_size": 2048, "intermediate_size": 10240, "num_attention_heads": 20, "num_key_value_heads": 20,
        "kv_lora_rank": 512, "q_lora_rank": 768, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192, "v_head_dim": 256,
        "n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 1536, "vocab_size": 154880,
        "num_hidden_layers": 4,
    }),
    "Qwen3-30B-A3B": ("qwen3moe", {
        **EXPERTS, "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 32, "num_key_value_heads": 4,
        "head_dim": 128, "moe_intermediate_size": 768, "vocab_size": 151936, "num_hidden_layers": 4,
    }),
    "gpt-oss-20b": ("gpt-oss", {
        "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "sliding_window": 128, "num_local_experts": 8, "num_experts_per_tok": 4, "vocab_size": 201088,
        "layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4,
    }),
    "Qwen3.5-4B": ("qwen35", {
        **HYBRID, "hidden_size": 2560, "intermediate_size": 9216, "num_attention_heads": 16, "num_key_value_heads": 4,
        "head_dim": 256, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "vocab_size": 248320, "mtp_num_hidden_layers": 0,
    }),
    "Qwen3.5-35B-A3B": ("qwen35moe", {
        **HYBRID, **EXPERTS, "hidden_size": 2048, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "vocab_size": 248320,
        "mtp_num_hidden_layers": 0,
    }),
    "LFM2-1.2B": ("lfm2", {
        "hidden_size": 2048, "block_dim": 2048, "intermediate_size": 12288, "block_ff_dim": 12288,
        "block_multiple_of": 256, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 65536,
    }),
    "granite-4.0-h-micro": ("granitehybrid", {
        "hidden_size": 2048, "intermediate_size": 8192, "shared_intermediate_size": 8192, "num_attention_heads": 32,
        "num_key_value_heads": 8, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_heads": 64, "vocab_size": 100352,
    }),
    "Nemotron-Nano-9B-v2": ("nemotron_h", {
        "hidden_size": 4480, "intermediate_size": 15680, "num_attention_heads": 40, "num_key_value_heads": 8,
        "head_dim": 128, "mamba_head_dim": 80, "mamba_num_heads": 128, "n_groups": 8, "ssm_state_size": 128,
        "vocab_size": 131072,
    }),
    "Falcon-H1-1.5B": ("falcon_h1", {
        "hidden_size": 2048, "intermediate_size": 4096, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 128, "mamba_d_head": 64, "mamba_d_state": 256, "mamba_n_heads": 48, "mamba_d_ssm": 3072,
        "vocab_size": 65537,
    }),
    "mamba2-1.3b": ("mamba2", {
        "hidden_size": 2048, "head_dim": 64, "num_heads": 64, "state_size": 128, "n_groups": 1, "vocab_size": 50288,
    }),
    "mamba-1.4b": ("mamba", {
        "hidden_size": 2048, "d_model": 2048, "intermediate_size": 4096, "d_inner": 4096, "time_step_rank": 128,
        "vocab_size": 50280,
    }),
    "Jamba-Reasoning-3B": ("jamba", {
        "hidden_size": 2560, "intermediate_size": 8192, "num_attention_heads": 20, "num_key_value_heads": 1,
        "mamba_dt_rank": 160, "vocab_size": 65536,
    }),
    "Llama-4-Scout": ("llama4", {
        "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 2, "vocab_size": 202048,
    }),
    "gemma-4-31b": ("gemma4", {
        "hidden_size": 5376, "intermediate_size": 21504, "num_attention_heads": 32, "num_key_value_heads": 16,
        "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 4, "attention_k_eq_v": True,
        "sliding_window": 1024, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
        "use_double_wide_mlp": False, "vocab_size": 262144,
    }),
    "Qwen3-VL-4B": ("qwen3vl", {
        "hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 151936,
    }),
}  # fmt: skip
"""Name -> family, and the settings in which it differs from the family's small model."""


def model_config(name: str) -> tuple[str, dict[str, Any]]:
    """The family of a model, and its config.json."""
    family, settings = MODELS[name]
    config = config_of(family)
    text_part(config).update(settings)
    return family, config


def write_folder(folder: Path, name: str, **settings: Any) -> Path:
    """Write a checkpoint with other settings of config.json, if some are given; the weights are a hole in the file."""
    family, config = model_config(name)
    text_part(config).update(settings)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    entries, place = {}, 0
    for tensor, shape in _shapes(family, config).items():
        end = place + 2 * prod(shape)
        entries[tensor] = {"dtype": "F16", "shape": shape, "data_offsets": (place, end)}
        place = end
    header = json.dumps(entries).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + place)
    return folder


def served_header(name: str, folder: Path) -> tuple[dict[str, Typed], dict[str, tuple[int, ...]]]:
    """The GGUF's keys and the shapes of its tensors, from a checkpoint that is written to the folder."""
    with squish.open(write_folder(folder, name)) as file:
        model = map_file(file, "gguf", {}, naming_of(file))
        meta = {key: value for key, value in model.index.meta.items() if not key.startswith(("tokenizer.", "squish."))}
        return meta, {tensor: spec.shape for tensor, spec in model.index.tensors.items()}


def write_served(path: Path, meta: Mapping[str, Typed], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Write a GGUF without a vocabulary: matrices in f16, vectors in f32, and all of them a hole in the file."""
    architecture = meta["general.architecture"].value
    keys = [Key("tokenizer.ggml.model", STRING, "none")]
    if f"{architecture}.vocab_size" not in meta:
        keys.append(Key(f"{architecture}.vocab_size", U32, shapes["token_embd.weight"][0]))
    keys += [_key(name, value) for name, value in meta.items()]
    tensors = [Tensor(name, shape[::-1], 1 if _is_matrix(name, shape) else 0) for name, shape in shapes.items()]
    Gguf(tuple(keys), tuple(tensors)).write(path)


def _key(name: str, value: Typed) -> Key:
    if value.type.startswith("array:"):
        return Key(name, ARRAY, np.asarray(value.value).tolist(), TYPES[value.type.removeprefix("array:")])
    return Key(name, TYPES[value.type], value.value)


def _is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    vectors = ("_norm", "conv1d", "ssm_a", "ssm_d", "shortconv.conv", "ffn_gate_inp")
    return len(shape) > 1 and not any(each in name for each in vectors)


def _shapes(family: str, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors that the settings call for."""
    model = squish.registry().implementation("family", family)
    assets = {"config.json": json.dumps(config).encode()}
    settings = model.settings(Model(name=family, layout="hf", meta={}, assets=assets, tensors={}, vectors={}))
    sizes = {"layers": 0, "experts": 0, **model.sizes(settings)}
    counts, absent = sizes_at(sizes, {}), model.absent(settings)
    templates = {tensor.name: tensor.shape for tensor in model.tensors}
    shapes = {}
    for tensor in model.tensors:
        if model.is_tied(settings, tensor) or not tensor.required:
            continue
        for layer in range(counts["layers"]) if "{n}" in tensor.name else (None,):
            shape = shape_of(tensor.name, templates, counts if layer is None else sizes_at(sizes, {"n": layer}))
            for expert in range(counts["experts"] if "{e}" in tensor.name else 1):
                name = fill(tensor.name, {"n": layer or 0, "e": expert})
                if name not in absent:
                    shapes[name] = shape
    return shapes
