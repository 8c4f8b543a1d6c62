"""Keys and tensors of a GGUF whose types mistral.rs does not read, whatever its family is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from squish_core.api import File, Problem, Typed

WHOLE = ("u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64")
REAL = ("f32", "f64")
SIZES = (
    "block_count", "context_length", "embedding_length", "attention.sliding_window", "expert_count",
    "expert_used_count",
)  # fmt: skip
NUMBERS = (
    "rope.freq_base", "rope.scaling.factor", "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon",
    "attn_logit_softcapping", "final_logit_softcapping",
)  # fmt: skip
END, OTHERS = "eos_token_id", ("bos_token_id", "unknown_token_id")
SWITCHES = ("add_bos_token", "add_space_prefix")
SPLIT = ("split.no", "split.count")
FACTORS = "rope_freqs.weight"
TOKENIZER = "tokenizer.ggml."
FLOATS = ("f32", "f16", "bf16")


def key_type_problems(file: File, architecture: str) -> Iterator[Problem]:
    """Find keys of a type that mistral.rs does not read, ids beyond the tokens, and tensors of integers."""
    meta = file.index.meta
    for names, kinds, expected in ((SIZES, WHOLE, "a whole number"), (NUMBERS, REAL, "a number of f32 or f64")):
        for name in names:
            yield from _of_type(meta, f"{architecture}.{name}", kinds, expected)
    for name in SWITCHES:
        yield from _of_type(meta, TOKENIZER + name, ("bool",), "a bool")
    if file.metadata.get(f"{TOKENIZER}model") == "llama":
        yield from _of_type(meta, f"{TOKENIZER}scores", ("array:f32",), "an array of f32")
    tokens: Any = file.metadata.get(f"{TOKENIZER}tokens")
    yield from _of_type(meta, TOKENIZER + END, ("u32",), "an id of u32")
    for name in (END, *OTHERS):
        value = meta.get(TOKENIZER + name)
        is_id = isinstance(value, Typed) and value.type == "u32"
        if is_id and isinstance(tokens, Sequence) and file.metadata[TOKENIZER + name] >= len(tokens):
            yield _key(TOKENIZER + name, f"is an id beyond the {len(tokens)} tokens")
    yield from _whole_problems(file, architecture)
    yield from _list_problems(file.metadata)
    for name, spec in file.index.tensors.items():
        is_dense = bool(spec.encodings) and spec.encodings[0].codec.id == "dense"
        if is_dense and spec.dtype not in FLOATS and name.endswith(".weight"):
            message = f"is stored as {spec.dtype}, which mistral.rs does not run"
            yield Problem(code="engine-type", severity="error", where=name, message=message)


def _whole_problems(file: File, architecture: str) -> Iterator[Problem]:
    """Keys that do not fit each other, or the tensors."""
    meta = file.metadata
    length, factor = (meta.get(f"{architecture}.{name}") for name in ("context_length", "rope.scaling.factor"))
    if type(length) is int and length <= 1:
        yield _key(f"{architecture}.context_length", f"is {length}, and mistral.rs takes shorter prompts only")
    if architecture == "llama" and factor == 0:
        yield _key(f"{architecture}.rope.scaling.factor", "is 0, with which the logits of mistral.rs are not numbers")
    for name, other in (SPLIT, SPLIT[::-1]):
        if name in meta and other not in meta:
            yield _key(other, f"is missing beside {name}")
    is_llama = architecture == "llama" and not meta.get("llama.expert_count")
    if FACTORS in file.index.tensors and not is_llama:
        message = f"has rope factors, which mistral.rs does not read for {architecture}"
        yield Problem(code="engine-tensor", severity="error", where=FACTORS, message=message)


def _list_problems(meta: Mapping[str, Any]) -> Iterator[Problem]:
    kinds, merges = meta.get(f"{TOKENIZER}token_type"), meta.get(f"{TOKENIZER}merges")
    if kinds is not None and isinstance(kinds, str | int | float):
        yield _key(f"{TOKENIZER}token_type", "is not an array")
    if (
        meta.get(f"{TOKENIZER}model") == "llama"
        and meta.get(f"{TOKENIZER}scores") is not None
        and not len(meta[f"{TOKENIZER}scores"])
    ):
        yield _key(f"{TOKENIZER}scores", "is empty")
    tokens = meta.get(f"{TOKENIZER}tokens")
    if not isinstance(merges, Sequence) or not isinstance(tokens, Sequence) or meta.get(f"{TOKENIZER}model") != "gpt2":
        return
    known = set(map(str, tokens))
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else []
        if len(pair) != 2 or not {*pair, "".join(pair)} <= known:
            yield _key(f"{TOKENIZER}merges", f"has {str(merge)[:40]!r}, which is not two tokens that make one")
            return


def _of_type(meta: Mapping[str, Any], name: str, kinds: tuple[str, ...], expected: str) -> Iterator[Problem]:
    value = meta.get(name)
    if value is not None and not (isinstance(value, Typed) and value.type in kinds):
        yield _key(name, f"is not {expected}, as mistral.rs expects")


def _key(name: str, message: str) -> Problem:
    code = "tokenizer" if name.startswith(TOKENIZER) else "engine-key"
    return Problem(code=code, severity="error", where=name, message=message)
