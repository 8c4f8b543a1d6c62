"""What llama.cpp's compute graph requires of a model's hyperparameters; it aborts after loading a file without it."""

from __future__ import annotations

from collections.abc import Iterator

from squish_core.api import Problem

from .keys import MIXED_LAYERS, PATTERNS, Hyperparameters, problem

ROTATES_ALL = (
    "llama", "granite", "qwen2", "qwen2vl", "qwen3", "qwen3moe", "olmo2", "starcoder2", "gpt-oss", "granitemoe",
    "qwen3vl", "qwen2moe", "mistral3", "smollm3", "seed_oss", "ernie4_5", "hunyuan-dense", "exaone4", "olmoe",
    "llama4", "qwen3vlmoe", "arcee", "dots1", "ernie4_5-moe", "hunyuan-moe", "exaone-moe", "afmoe", "mellum", "apertus",
    "falcon", "internlm2", "codeshell", "exaone", "olmo", "orion", "xverse",
)  # fmt: skip
"""Architectures that rotate whole heads."""
HAS_NO_ROPE = (
    "gpt2", "mamba", "mamba2", "jamba", "nemotron_h", "nemotron_h_moe", "bloom", "mpt", "starcoder", "bert",
    "jina-bert-v2", "t5encoder", "kimi-linear",
)  # fmt: skip
DOUBLES = ("granitehybrid", "jamba", "mamba")
"""Architectures whose states are twice as wide as the embeddings."""
OWN_VALUES = ("mimo2",)
"""Architectures whose heads of values have another size than those of keys."""
SPLIT_HEADS = ("deepseek2", "deepseek32", "glm-dsa", "mistral4", "kimi-linear")
"""Architectures whose value heads and key heads have their own sizes."""
FILLS_EMBEDDING = (
    "qwen2", "qwen2vl", "phi3", "olmo2", "starcoder2", "gpt2", "lfm2", "lfm2moe", "qwen2moe", "olmoe", "cohere2",
    "command-r", "exaone4", "falcon", "gptneox", "phi2", "stablelm", "internlm2", "bloom", "mpt", "nemotron", "olmo",
    "starcoder", "codeshell", "orion", "xverse", "bert",
    "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "modern-bert", "eurobert",
)  # fmt: skip
"""Architectures whose heads together are as wide as the embeddings."""


GATING_FUNCTIONS = range(5)
"""Ids of gating functions of experts; 0 is none, for which DeepSeek has a default."""


def graph_problems(numbers: Hyperparameters) -> Iterator[Problem]:
    """Yield hyperparameters that the loader accepts and the compute graph does not."""
    architecture = numbers.architecture

    def of(name: str, message: str) -> Problem:
        return problem(f"{architecture}.{name}", f"{message}, and llama.cpp ends")

    heads, groups = numbers.number("attention.head_count"), numbers.number("attention.head_count_kv")
    keys, values, rotated = (numbers.head_size(name) for name in ("key", "value", "rope"))
    if architecture not in SPLIT_HEADS:
        if values != keys and architecture not in OWN_VALUES:
            yield of("attention.value_length", f"is {values}, and heads of keys have {keys}")
        if groups and heads % groups:
            yield of("attention.head_count_kv", f"is {groups}, which does not divide {heads} heads")
    else:
        yield from _latent_problems(numbers)
    if architecture in FILLS_EMBEDDING and keys * heads != numbers.number("embedding_length"):
        yield of("attention.key_length", f"is {keys}: {heads} such heads are not the embeddings")
    if architecture in ROTATES_ALL and rotated != keys:
        yield of("rope.dimension_count", f"is {rotated}, and heads have {keys}")
    elif _rotates(numbers) and not (0 < rotated <= keys and rotated % 2 == 0):
        yield of("rope.dimension_count", f"is {rotated}, and not an even number up to a head's {keys}")
    inner, scanned = numbers.number("ssm.inner_size"), numbers.number("ssm.time_step_rank")
    if architecture in DOUBLES and inner != 2 * numbers.number("embedding_length"):
        yield of("ssm.inner_size", f"is {inner}, which is not twice the embeddings")
    if numbers.number("ssm.group_count") and inner and (not scanned or inner % scanned):
        yield of("ssm.time_step_rank", f"is {scanned}, which does not divide the inner size of {inner}")
    windows = "attention.sliding_window_pattern"
    if PATTERNS.get(architecture) == 0 and not any(numbers.of_layer(windows, n) for n in range(numbers.layers)):
        yield of(windows, "gives no layer a window")
    used = [numbers.of_layer("expert_used_count", layer) for layer in range(numbers.layers)]
    if max(used) > used[0]:
        yield of("expert_used_count", f"is {used[0]} in the first layer and {max(used)} in another")


def _rotates(numbers: Hyperparameters) -> bool:
    """Return whether a model has rotary positions, which Granite 4 states by another key."""
    if numbers.architecture == "granitehybrid":
        return bool(numbers.number("rope.scaling.finetuned"))
    return numbers.architecture not in HAS_NO_ROPE


def _latent_problems(numbers: Hyperparameters) -> Iterator[Problem]:
    """Yield problems with what DeepSeek's attention caches: latent values with the rotated rows, or whole heads."""

    def of(name: str, message: str) -> Problem:
        return problem(f"{numbers.architecture}.{name}", f"{message}, and llama.cpp ends")

    heads = numbers.number("attention.head_count")
    stated = [numbers.of_layer("attention.head_count_kv", layer) for layer in range(max(numbers.trunk, 1))]
    groups = max(stated) if numbers.architecture in MIXED_LAYERS and max(stated) == 1 else stated[0]
    keys, latent = numbers.head_size("key"), numbers.number("attention.kv_lora_rank") + numbers.head_size("rope")
    if numbers.number("attention.key_length_mla") and numbers.number("attention.value_length_mla"):
        if groups != 1:
            yield of("attention.head_count_kv", f"is {groups}, and latent keys are one head")
        if keys != latent:
            yield of("attention.key_length", f"is {keys}, and latent keys have {latent}")
    elif groups != heads:
        yield of("attention.head_count_kv", f"is {groups}, and each of {heads} heads has keys")
    gating = numbers.number("expert_gating_func")
    if gating not in GATING_FUNCTIONS[numbers.architecture == "kimi-linear" :]:
        yield of("expert_gating_func", f"is {gating}, which is no function that llama.cpp knows")
