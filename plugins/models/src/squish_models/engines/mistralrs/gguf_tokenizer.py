"""The tokenizer of a GGUF as mistral.rs builds it from the keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from squish_core.api import Problem, Typed

PREFIX = "tokenizer.ggml."
UNIGRAM = ("llama", "replit", "gemma")
TEXTS, TYPES, SCORES = "array:str", "array:i32", "array:f32"
PRETOKENIZERS = frozenset((
    "llama3", "llama-v3", "llama-bpe", "lfm2", "pixtral", "dbrx", "qwen2", "deepseek-r1-qwen", "qwen35", "gpt-2",
    "phi-2", "starcoder", "smollm", "glm4", "chatglm-bpe", "deepseek-llm", "deepseek-coder", "deepseek-v3",
    "hunyuan-dense", "hunyuan", "gpt-4o", "llama4", "tekken",
))  # fmt: skip
"""Supported values of `tokenizer.ggml.pre`."""
TEMPLATE = "tokenizer.chat_template"


def tokenizer_problems(meta: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what keeps mistral.rs from building a tokenizer."""
    wrong = [*_type_problems(meta)]
    yield from wrong
    if {f"{PREFIX}model", f"{PREFIX}tokens"} & {each.where for each in wrong}:
        return
    tokens: Sequence[Any] = meta[f"{PREFIX}tokens"].value
    if not len(tokens):
        yield _problem(f"{PREFIX}tokens", "are empty")
        return
    for name in ("eos", "bos", "unknown"):
        number = _value(meta, f"{name}_token_id", "u32")
        if number is not None and number >= len(tokens):
            yield _problem(f"{PREFIX}{name}_token_id", f"is an id beyond the {len(tokens)} tokens")
    model = meta[f"{PREFIX}model"].value
    if model in UNIGRAM:
        yield from _unigram_problems(meta, len(tokens))
    elif model == "gpt2":
        yield from _pair_problems(meta, tokens)
    else:
        yield _problem(f"{PREFIX}model", f"is {model[:40]!r}, which mistral.rs does not know for a text model")


def _type_problems(meta: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield keys that are missing or have another type; ids of another type are ignored, except that of the end."""
    for name, kind in (("model", "str"), ("tokens", TEXTS), ("eos_token_id", "u32")):
        if f"{PREFIX}{name}" not in meta:
            yield _problem(f"{PREFIX}{name}", "is missing, and mistral.rs does not load without it")
        else:
            yield from _of_type(meta, f"{PREFIX}{name}", kind)
    for name, kind in (("pre", "str"), ("add_bos_token", "bool"), ("add_space_prefix", "bool")):
        yield from _of_type(meta, f"{PREFIX}{name}", kind)
    yield from _of_type(meta, TEMPLATE, "str")
    kinds = meta.get(f"{PREFIX}token_type")
    if isinstance(kinds, Typed) and kinds.type != TYPES and not (kinds.type.startswith("array:") and not kinds.value):
        yield _problem(f"{PREFIX}token_type", f"is {kinds.type}, and mistral.rs expects {TYPES}")


def _of_type(meta: Mapping[str, Any], name: str, kind: str) -> Iterator[Problem]:
    value = meta.get(name)
    if isinstance(value, Typed) and value.type != kind and not (kind == TEXTS and _is_empty(value)):
        yield _problem(name, f"is of the type {value.type}, and mistral.rs expects {kind}")


def _is_empty(value: Typed) -> bool:
    return value.type.startswith("array:") and not len(value.value)


def _value(meta: Mapping[str, Any], name: str, kind: str) -> Any:
    """Return the value of a key if it has the type."""
    value = meta.get(f"{PREFIX}{name}")
    return value.value if isinstance(value, Typed) and (value.type == kind or _is_empty(value)) else None


def _unigram_problems(meta: Mapping[str, Any], count: int) -> Iterator[Problem]:
    scores, unknown = _value(meta, "scores", SCORES), _value(meta, "unknown_token_id", "u32") or 0
    if scores is None:
        yield _problem(f"{PREFIX}scores", f"are not {SCORES}, and mistral.rs does not load without them")
    elif not len(scores):
        yield _problem(f"{PREFIX}scores", "are empty")
    elif unknown >= min(count, len(scores)):
        yield _problem(f"{PREFIX}unknown_token_id", f"is {unknown}, and there are {len(scores)} scores")


def _pair_problems(meta: Mapping[str, Any], tokens: Sequence[Any]) -> Iterator[Problem]:
    pre, merges = _value(meta, "pre", "str"), _value(meta, "merges", TEXTS)
    if f"{PREFIX}pre" in meta and pre is None:
        return  # has another type, which is reported already
    if pre not in PRETOKENIZERS:
        shown = "is missing" if pre is None else f"is {pre[:40]!r}, which mistral.rs does not know"
        yield _problem(f"{PREFIX}pre", f"{shown}; it does not guess how to split texts")
    if merges is None:
        yield _problem(f"{PREFIX}merges", "are not texts, and mistral.rs does not load without them")
        return
    vocabulary = {_text(token) for token in tokens}
    for merge in map(_text, merges):
        left, _, right = merge.partition(" ")
        if not left or not right or not {left, right, left + right} <= vocabulary:
            yield _problem(f"{PREFIX}merges", f"has {merge[:40]!r}, which is not two tokens that make one")
            return


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _problem(where: str, message: str) -> Problem:
    return Problem(code="tokenizer", severity="error", where=where, message=message)
