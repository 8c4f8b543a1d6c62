"""Models that an engine refuses, or computes differently, because of their settings. Measured: docs/models.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from attrs import frozen

from ..config.rope import rope_kind
from ..config.spelling import BEHIND

FOLDER, GGUF = "folder", "gguf"
Settings = Mapping[str, Any]
Test = Callable[[Settings], bool]


@frozen
class Difference:
    """A case that an engine handles differently from the model's own software.

    `severity` is "error" if the engine refuses the model, "warning" if its results differ, and "note" if they differ
    by rounding or depend on how the model is loaded. `forms` are the kinds of files, `where` is the setting.
    """

    families: tuple[str, ...]
    forms: tuple[str, ...]
    severity: str
    where: str
    message: str
    applies: Test = lambda settings: True


def _has_own_head_size(settings: Settings) -> bool:
    """Return whether the head size differs from the hidden size divided by the number of heads."""
    return bool(settings["head_dim"] * settings["num_attention_heads"] != settings["hidden_size"])


def _has_other_value_heads(settings: Settings) -> bool:
    """Return whether value heads and key heads differ in size."""
    return bool(settings["v_head_dim"] != settings["qk_nope_head_dim"] + settings["qk_rope_head_dim"])


def _has_sigmoid_experts(settings: Settings) -> bool:
    """Return whether any layer has experts that are chosen as in DeepSeek 3."""
    return (
        settings.get("model_type") == "deepseek_v3"
        and settings["first_k_dense_replace"] < settings["num_hidden_layers"]
    )


def _has_yarn_without(name: str) -> Test:
    """Return a test whether YaRN scaling lacks a setting."""

    def applies(settings: Settings) -> bool:
        scaling = settings.get("rope_scaling") or {}
        return rope_kind(scaling) == "yarn" and scaling.get(name) is None

    return applies


def _has_inexact_root(settings: Settings) -> bool:
    """Return whether bf16 rounds the square root of the hidden size."""
    root = np.float64(settings["hidden_size"]) ** 0.5
    return bool(np.float32(root) != root) or bool(np.float32(root).view(np.uint32) & 0xFFFF)


_HEADS = "states heads of another size than the hidden size by their number, which mistral.rs refuses for {family}"
LLAMA_CPP = (
    Difference(
        (
            "gemma2", "gemma3", "gpt2", "starcoder2", "falcon", "gpt_neox", "phi", "bloom", "mpt", "gpt_bigcode",
            "codeshell",
        ),
        (GGUF,), "note", "general.architecture",
        "is {family}: llama.cpp reads GELU from a table of f16, so log-probabilities differ by up to 0.002",
    ),
    Difference(
        ("falcon_mamba",), (FOLDER, GGUF), "note", "general.architecture",
        "is {family}: llama.cpp norms steps and states with the epsilon of the layers, so log-probabilities differ",
    ),
    Difference(
        ("qwen2vl",), (GGUF,), "note", "general.architecture",
        "is {family}: llama.cpp's positions of text differ from Qwen 2's by rounding, log-probabilities by 0.0024",
    ),
)  # fmt: skip
MLX = (
    Difference(
        ("gpt2",), (FOLDER,), "error", "config.json n_inner",
        "is not 4 * n_embd, the only size that mlx-lm runs",
        lambda settings: bool(settings["intermediate_size"] != 4 * settings["hidden_size"]),
    ),
    Difference(
        ("gemma3",), (FOLDER,), "note", "config.json hidden_size",
        "has a square root that mlx-lm rounds to bf16 when it scales the embeddings", _has_inexact_root,
    ),
    Difference(
        ("deepseek2", "kimi"), (FOLDER,), "error", "config.json num_nextn_predict_layers",
        "states a layer behind the last one that the folder has, and mlx-lm ignores it only if its number is 61",
        lambda settings: bool(settings.get(BEHIND)) and settings["num_hidden_layers"] != 61,
    ),
    Difference(
        ("glm-dsa",), (FOLDER,), "error", "config.json indexer_types",
        "has layers without an indexer of their own, which mlx-lm does not load",
        lambda settings: not all(settings["full_indexers"]),
    ),
    Difference(
        ("kimi_linear",), (FOLDER,), "error", "config.json q_lora_rank", "is a size, and mlx-lm has no such matrices",
        lambda settings: bool(settings.get("q_lora_rank")),
    ),
    Difference(
        ("jamba",), (FOLDER,), "warning", "config.json num_experts", "are experts that mlx-lm computes otherwise",
        lambda settings: settings["num_experts"] > 1,
    ),
    Difference(
        ("mamba2",), (FOLDER,), "warning", "config.json n_groups", "are norms of groups, and mlx-lm has one of all",
        lambda settings: settings["n_groups"] > 1,
    ),
    Difference(
        ("falcon_h1",), (FOLDER,), "warning", "config.json mamba_n_groups",
        "are norms of groups, and mlx-lm has one of all",
        lambda settings: settings["mamba_n_groups"] > 1 and settings["mamba_rms_norm"],
    ),
    Difference(
        ("falcon_h1",), (FOLDER,), "warning", "config.json key_multiplier",
        "is a number that mlx-lm does not multiply keys by; --to mlx multiplies them",
        lambda settings: settings["key_multiplier"] != 1,
    ),
)  # fmt: skip
MISTRAL_RS = (
    Difference(
        ("granite4",), (FOLDER,), "error", "config.json layer_types",
        "has no layer of Mamba, without which mistral.rs does not run the model",
    ),
    Difference(
        ("deepseek2", "kimi"), (FOLDER,), "error", "config.json v_head_dim",
        "is not qk_nope_head_dim + qk_rope_head_dim, and mistral.rs runs no other heads of values",
        _has_other_value_heads,
    ),
    Difference(
        ("deepseek2", "kimi"), (FOLDER,), "error", "config.json rope_scaling",
        "has no mscale, without which mistral.rs does not run YaRN in DeepSeek", _has_yarn_without("mscale"),
    ),
    Difference(
        ("deepseek2", "kimi"), (FOLDER,), "warning", "config.json model_type",
        "is that of DeepSeek 3, whose experts mistral.rs computes otherwise", _has_sigmoid_experts,
    ),
    Difference(
        ("llama", "mixtral"), (FOLDER,), "error", "config.json head_dim", _HEADS,
        lambda settings: settings.get("model_type") != "mistral" and _has_own_head_size(settings),
    ),
    Difference(
        ("gemma3",), (FOLDER,), "note", "config.json architectures",
        "are Gemma3ForCausalLM, which mistral.rs refuses as a text model and loads as a multimodal one",
    ),
    Difference(
        ("gpt-oss",), (FOLDER,), "warning", "config.json rope_scaling",
        "does not set YaRN's truncate to false, as mistral.rs assumes unless it is true",
        _has_yarn_without("truncate"),
    ),
    Difference(
        ("gpt-oss",), (FOLDER,), "note", "config.json model_type",
        "is {family}: log-probabilities of mistral.rs differ by 0.002 from those of Transformers",
    ),
    Difference(
        ("hunyuan-moe",), (FOLDER,), "warning", "config.json model_type",
        "is hunyuan_v1_moe, whose experts mistral.rs computes otherwise",
    ),
)  # fmt: skip
