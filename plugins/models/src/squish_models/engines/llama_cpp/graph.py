"""What llama.cpp's computation wants of the numbers of a model; without it, it ends after it has loaded the file."""

from __future__ import annotations

from collections.abc import Iterator

from squish_core.api import Problem

from .keys import Hyperparameters, problem

ROTATES_ALL = ("llama", "granite", "qwen2", "qwen2vl", "qwen3", "qwen3moe", "olmo2", "starcoder2", "gpt-oss")
"""Architectures whose heads are rotated as a whole."""
HAS_NO_ROPE = ("gpt2",)
SPLIT_HEADS = ("deepseek2",)
"""Architectures whose heads of values, and of keys, have sizes of their own."""
FILLS_EMBEDDING = ("qwen2", "qwen2vl", "phi3", "olmo2", "starcoder2", "gpt2", "lfm2")
"""Architectures whose heads together have the size of the embeddings."""


def graph_problems(numbers: Hyperparameters) -> Iterator[Problem]:
    """Numbers with which the loader is content and the computation is not."""
    architecture = numbers.architecture

    def of(name: str, message: str) -> Problem:
        return problem(f"{architecture}.{name}", f"{message}, and llama.cpp ends")

    heads, groups = numbers.number("attention.head_count"), numbers.number("attention.head_count_kv")
    keys, values, rotated = (numbers.head_size(name) for name in ("key", "value", "rope"))
    if architecture not in SPLIT_HEADS:
        if values != keys:
            yield of("attention.value_length", f"is {values}, and heads of keys have {keys}")
        if groups and heads % groups:
            yield of("attention.head_count_kv", f"is {groups}, which does not divide {heads} heads")
    if architecture in FILLS_EMBEDDING and keys * heads != numbers.number("embedding_length"):
        yield of("attention.key_length", f"is {keys}: {heads} such heads are not the embeddings")
    if architecture in ROTATES_ALL and rotated != keys:
        yield of("rope.dimension_count", f"is {rotated}, and heads have {keys}")
    elif architecture not in HAS_NO_ROPE and (rotated > keys or rotated % 2):
        yield of("rope.dimension_count", f"is {rotated}, which is odd or more than a head's {keys}")
