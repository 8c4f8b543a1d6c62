"""Tokenizer requirements of engines: GGUF keys, or files of a folder."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

from squish_core.api import File, Problem, SquishError, load_json

from .requirements import Engine

PREFIX = "tokenizer.ggml."
WHOLE = 64 << 20
"""Maximum size of a tokenizer.json, in bytes."""


def tokenizer_problems(file: File, engine: Engine, *, gguf: bool, rows: int | None) -> Iterator[Problem]:
    """Find what a tokenizer lacks; `rows` is the number of embedding rows, which llama.cpp compares with the tokens."""
    yield from _key_problems(file, engine, rows) if gguf else _file_problems(file, engine)


def _key_problems(file: File, engine: Engine, rows: int | None) -> Iterator[Problem]:
    meta = file.metadata
    model = meta.get(f"{PREFIX}model")
    if model is None:
        yield _problem(f"{PREFIX}model", f"is missing: {engine.title} does not load a model without a tokenizer")
        return
    if not isinstance(model, str) or model not in engine.tokenizer_keys:
        legal = ", ".join(engine.tokenizer_keys)
        yield _problem(f"{PREFIX}model", f"is {str(model)[:40]!r}; only {legal} are checked")
        return
    for key in (f"{PREFIX}tokens", *engine.tokenizer_keys[model]):
        if key not in meta:
            yield _problem(key, f"is missing, and {engine.title} does not load without it")
    if model == "llama" and engine.unigram:
        message = f"are read as those of a unigram model: {engine.title} splits some texts into other tokens"
        yield _problem(f"{PREFIX}scores", message, "warning")
    pre = str(meta.get(f"{PREFIX}pre", "default"))
    if model == "gpt2" and engine.pretokenizers and pre not in engine.pretokenizers:
        yield _problem(f"{PREFIX}pre", f"is {pre[:40]!r}, which {engine.title} does not know")
    tokens: Any = meta.get(f"{PREFIX}tokens")
    if tokens is not None and not isinstance(tokens, Sized):
        yield _problem(f"{PREFIX}tokens", f"are {str(tokens)[:40]!r} instead of a list")
    elif tokens is not None and rows is not None and len(tokens) != rows:
        yield _problem(f"{PREFIX}tokens", f"are {len(tokens)}, and token_embd.weight has {rows} rows")


def _file_problems(file: File, engine: Engine) -> Iterator[Problem]:
    present = [name for name in engine.tokenizers if name in file.assets]
    if engine.tokenizers and not present:
        yield _problem(" or ".join(engine.tokenizers), f"is missing: {engine.title} has no tokenizer without it")
    for name in present:
        if name.endswith(".json"):
            try:
                load_json(bytes(file.assets[name].raw), "file", file.limits, piece=WHOLE, constants=True)
            except SquishError as error:
                yield _problem(name, error.reason())


def _problem(where: str, message: str, severity: str = "error") -> Problem:
    return Problem(code="tokenizer", severity=severity, where=where, message=message)
