"""The tokenizer of a GGUF as llama.cpp loads it: what it refuses, where it aborts, what it ignores."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from squish_core.api import Problem, Typed

from ..requirements import PRETOKENIZERS
from .keys import wrong_type

PREFIX = "tokenizer.ggml."
BPE, SENTENCEPIECE, GEMMA4, WORDPIECE, UNIGRAM = "gpt2", "llama", "gemma4", "bert", "t5"
MERGING = (BPE, GEMMA4)
NONE = 0xFFFFFFFF
NO_TOKENIZER = ("none", "no_vocab")
OTHER_MODELS = ("rwkv", "test", "plamo2", "plamo3", "hybriddna", "whitespace")
"""Tokenizers of llama.cpp that this table does not describe."""
KINDS: Mapping[str, str] = {
    "model": "str", "pre": "str", "token_type_count": "u32", "add_space_prefix": "bool",
    "remove_extra_whitespaces": "bool", "add_bos_token": "bool", "add_eos_token": "bool", "add_sep_token": "bool",
    "normalizer.lowercase": "bool", "normalizer.strip_accents": "bool",
}  # fmt: skip
IDS = (
    "bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask", "fim_pre", "fim_suf", "fim_mid", "fim_pad",
    "fim_rep", "fim_sep", "prefix", "suffix", "middle",
)  # fmt: skip
ARRAYS: Mapping[str, tuple[str, ...]] = {
    "tokens": ("str",), "scores": ("f32", "i32"), "token_type": ("i32",), "merges": ("str",),
    "suppress_tokens": ("i32",),
}  # fmt: skip
"""Array -> element types that llama.cpp reads."""
ADDED = {GEMMA4: (("bos", NONE),), WORDPIECE: (("bos", 101), ("seperator", 102))}
"""Kind -> the tokens that llama.cpp adds to every text, and their ids where no key states them."""
CHARSMAP, HEADER = "precompiled_charsmap", 4
"""Key of the table of replacements, and the bytes in which it states the size of its first part."""
BYTE = 6
"""The type of tokens that stand for one byte."""
ONE_A_TOKEN = ("scores", "token_type")


def model_of(meta: Mapping[str, Any]) -> str | None:
    """Return the kind of the tokenizer, or None if no string states it."""
    stored = meta.get(f"{PREFIX}model")
    return stored.value if isinstance(stored, Typed) and stored.type == "str" else None


def number_of_tokens(meta: Mapping[str, Any], architecture: str) -> int | None:
    """Return the number of tokens listed, or without a tokenizer the number in a key; None if neither can be read."""
    if model_of(meta) in NO_TOKENIZER:
        size = meta.get(f"{architecture}.vocab_size")
        return int(size.value) if isinstance(size, Typed) and size.type == "u32" else 0
    tokens = meta.get(f"{PREFIX}tokens")
    return len(tokens.value) if isinstance(tokens, Typed) and tokens.type == "array:str" else None


def vocabulary_problems(meta: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield everything about the tokenizer that llama.cpp refuses, aborts with, or reads differently."""
    model = model_of(meta)
    if f"{PREFIX}model" not in meta:
        yield problem("model", "is missing: llama.cpp does not load a model without a tokenizer")
        return
    kinds = KINDS if model not in NO_TOKENIZER else {name: KINDS[name] for name in ("model", "pre", "token_type_count")}
    for name, kind in kinds.items():
        yield from _type_problem(name, meta, kind)
    if model is None or model in NO_TOKENIZER or model in OTHER_MODELS:
        return
    if model not in (*MERGING, SENTENCEPIECE, WORDPIECE, UNIGRAM):
        yield problem("model", f"is {model[:40]!r}, which llama.cpp does not know")
        return
    yield from _array_problems(meta, model)
    if model == BPE:
        yield from _split_problems(meta)
    tokens = meta.get(f"{PREFIX}tokens")
    if isinstance(tokens, Typed) and tokens.type == "array:str":
        yield from _duplicates(tokens.value)
        yield from _byte_problems(meta, tokens.value)
        yield from _id_problems(meta, len(tokens.value))
        for role, default in ADDED.get(model, ()):
            yield from _added_problems(meta, len(tokens.value), role, default)
    if model == UNIGRAM:
        yield from _charsmap_problems(meta)


def _type_problem(name: str, meta: Mapping[str, Any], kind: str) -> Iterator[Problem]:
    value = meta.get(f"{PREFIX}{name}")
    message = wrong_type(value, kind, None) if isinstance(value, Typed) else None
    if message is not None:
        yield problem(name, message)


def _array_problems(meta: Mapping[str, Any], model: str) -> Iterator[Problem]:
    required = ("tokens", "merges") if model in MERGING and _pre(meta) != "kimi-k2" else ("tokens",)
    tokens = meta.get(f"{PREFIX}tokens")
    count = len(tokens.value) if isinstance(tokens, Typed) and tokens.type.startswith("array:") else 0
    for name, types in ARRAYS.items():
        stored = meta.get(f"{PREFIX}{name}")
        if stored is None:
            if name in required:
                yield problem(name, "is missing, and llama.cpp does not load without it")
            continue
        if name == "merges" and model not in MERGING:
            continue
        if stored.type not in [f"array:{each}" for each in types]:
            found = stored.type.replace("array:", "an array of ")
            yield problem(name, f"is {found}, and llama.cpp reads an array of {' or '.join(types)}")
        elif name in ONE_A_TOKEN and len(stored.value) < count:
            yield problem(name, f"has {len(stored.value)} elements for {count} tokens, and llama.cpp wants one a token")


def _pre(meta: Mapping[str, Any]) -> str:
    stored = meta.get(f"{PREFIX}pre")
    return stored.value if isinstance(stored, Typed) and stored.type == "str" else ""


def _split_problems(meta: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield problems with how a byte-level tokenizer splits text before merging."""
    pre = _pre(meta)
    if pre and pre not in PRETOKENIZERS:
        yield problem("pre", f"is {pre[:40]!r}, which llama.cpp does not know")
    elif not pre:
        message = "is missing: llama.cpp splits texts by its default, and the model's answers are worse"
        yield problem("pre", message, "warning")
    elif pre == "default":
        yield problem("pre", "is default: llama.cpp splits texts by no tokenizer's own pattern", "note")


def _duplicates(tokens: Collection[str | bytes]) -> Iterator[Problem]:
    """Yield the first duplicate token, after llama.cpp has named the empty ones."""
    places: dict[str | bytes, int] = {}
    for number, token in enumerate(tokens):
        text = token or f"[EMPTY_{number}]"
        text = text.encode(errors="surrogateescape") if isinstance(text, str) else text
        if (first := places.setdefault(text, number)) != number:
            shown = repr(text[:40].decode(errors="replace"))
            yield problem("tokens", f"has the duplicate token {shown} (ids {first} and {number}), and llama.cpp ends")
            return


def _byte_problems(meta: Mapping[str, Any], tokens: Collection[str | bytes]) -> Iterator[Problem]:
    """Yield the first byte token that is too short for its digits."""
    types = meta.get(f"{PREFIX}token_type")
    if isinstance(types, Typed) and types.type == "array:i32":
        for number, (token, kind) in enumerate(zip(tokens, types.value)):
            size = len(token.encode(errors="surrogateescape") if isinstance(token, str) else token)
            if kind == BYTE and 0 < size < len("<0x"):
                yield problem("tokens", f"has the byte {number} without digits (expected text such as <0x0A>)")
                return


def _id_problems(meta: Mapping[str, Any], count: int) -> Iterator[Problem]:
    for name in IDS:
        key = f"{name}_token_id"
        yield from _type_problem(key, meta, "u32")
        stored = meta.get(f"{PREFIX}{key}")
        if isinstance(stored, Typed) and stored.type == "u32" and stored.value >= count:
            message = f"is {stored.value} with {count} tokens; llama.cpp ignores it"
            yield problem(key, message, "warning")


def _added_problems(meta: Mapping[str, Any], count: int, role: str, default: int) -> Iterator[Problem]:
    """Yield the absence of a token that llama.cpp adds to every text."""
    stored = meta.get(f"{PREFIX}{role}_token_id")
    is_beyond = stored is None or (isinstance(stored, Typed) and stored.type == "u32" and stored.value >= count)
    if is_beyond and default >= count:
        place = "before" if role == "bos" else "behind"
        yield problem(f"{role}_token_id", f"is not a token, and llama.cpp ends: it adds one {place} every text")


def _charsmap_problems(meta: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a table of replacements that llama.cpp does not read."""
    stored = meta.get(f"{PREFIX}{CHARSMAP}")
    if not isinstance(stored, Typed):
        return
    if stored.type not in ("array:i8", "array:u8"):
        yield problem(CHARSMAP, f"is {stored.type.replace('array:', 'an array of ')}, and llama.cpp reads bytes")
        return
    data = np.asarray(stored.value).astype(np.uint8).tobytes()
    if len(data) < HEADER or int.from_bytes(data[:HEADER], "little") + HEADER >= len(data):
        yield problem(CHARSMAP, "is shorter than its header says, and llama.cpp does not load it")


def problem(name: str, message: str, severity: str = "error") -> Problem:
    """Return a problem of a tokenizer key."""
    return Problem(code="tokenizer", severity=severity, where=f"{PREFIX}{name}", message=message)
