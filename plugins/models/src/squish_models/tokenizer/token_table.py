"""Tokens of a Hugging Face folder by id."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from operator import eq
from typing import Any, cast

import numpy as np

from squish_core.api import LimitError

from .vocabulary import MAX_TOKENS, SPACE, Kind, looks_special, tokenizer_error

Texts = list[str | None]
"""Text by id; None for an id without a token."""


class TokenTable:
    """Collects tokens and kinds by id.

    Attributes
    ----------
    tokens, kinds, ids
        Text by id, kind by id, and id by text.
    beyond
        Added tokens that the model has no embedding for, by id.
    """

    def __init__(self, size: Any) -> None:
        self.size = size if isinstance(size, int) and not isinstance(size, bool) else None
        self.tokens: list[str] = []
        self.kinds = np.empty(0, np.int32)
        self.ids: Mapping[str, int] = {}
        self.beyond: dict[int, str] = {}

    def fill(self, texts: Sequence[str | None], ids: Mapping[str, int], added: Iterable[Mapping[str, Any]]) -> None:
        """Set the tokens; ids without a text are padding. Added tokens without an embedding are left out."""
        if self.size is not None and len(texts) > self.size:
            self.beyond = {each["id"]: each["content"] for each in added if each["id"] >= self.size}
            others = [
                number
                for number in range(self.size, len(texts))
                if texts[number] is not None and number not in self.beyond
            ]
            if others:
                raise tokenizer_error(
                    "the tokenizer has more tokens than the config", f"vocab_size {self.size}", others[-1] + 1
                )
            texts = texts[: self.size]
        rows = self.size if self.size is not None and self.size <= MAX_TOKENS else len(texts)
        padded: Texts = [*texts, *[None] * (rows - len(texts))]
        missing = [number for number, text in enumerate(padded) if text is None] if None in padded else []
        for number in missing:
            padded[number] = f"[PAD{number}]"
        self.tokens, self.kinds = cast("list[str]", padded), np.full(rows, Kind.NORMAL, np.int32)
        self.kinds[missing] = Kind.UNUSED
        self.ids = ids

    def mark(self, token: str, kind: Kind) -> bool:
        """Set the kind of a token, if the vocabulary has it."""
        exists = token in self.ids and self.ids[token] not in self.beyond
        if exists:
            self.kinds[self.ids[token]] = kind
        return exists


def flat_steps(step: Any) -> list[Mapping[str, Any]]:
    """Return the steps of a normalizer or pre-tokenizer of tokenizer.json: itself, or those of its sequences."""
    if not isinstance(step, Mapping):
        return []
    if step.get("type") != "Sequence":
        return [step]
    inner = step.get("normalizers", step.get("pretokenizers"))
    return [each for part in inner for each in flat_steps(part)] if isinstance(inner, list) else []


def place(texts: Texts, number: int, text: str) -> None:
    """Set the text of an id; LimitError for an id beyond any vocabulary."""
    if not 0 <= number < MAX_TOKENS:
        raise LimitError("a token's id is out of range", expected=f"0 to {MAX_TOKENS - 1}", found=number, code="count")
    texts += [None] * (number + 1 - len(texts))
    texts[number] = text


def vocabulary_texts(
    stored: Mapping[str, Any], model: Mapping[str, Any], declared: Sequence[Mapping[str, Any]] = ()
) -> tuple[Texts, Mapping[str, int], list[dict[str, Any]]]:
    """Return text by id and id by text, of the vocabulary with the added tokens, and the added tokens.

    `declared`: those of tokenizer_config.json, which override tokens of tokenizer.json with the same text.
    """
    vocabulary, added = model.get("vocab"), stored.get("added_tokens") or []
    if not isinstance(vocabulary, dict) or not {*map(type, vocabulary.values())} <= {int}:
        raise tokenizer_error(
            "tokenizer.json has no vocabulary of ids", "model.vocab: token to id", type(vocabulary).__name__
        )
    if not all(
        isinstance(each, dict) and isinstance(each.get("content"), str) and type(each.get("id")) is int
        for each in (*added, *declared)
    ):
        raise tokenizer_error("an added token is invalid", "id and content", "something else")
    added = _with_declared(added, declared, vocabulary)
    in_order = len(vocabulary) <= MAX_TOKENS and all(map(eq, vocabulary.values(), count()))
    texts: Texts = [*vocabulary] if in_order else []
    pairs = [(each["content"], each["id"]) for each in added]
    for text, number in (*(() if in_order else vocabulary.items()), *pairs):
        other = texts[number] if 0 <= number < len(texts) else None
        if other is not None and other != text:
            raise tokenizer_error(f"id {number} has two tokens", repr(other[:40]), repr(text[:40]))
        place(texts, number, text)
    return texts, ChainMap(dict(pairs), vocabulary), added


def _with_declared(
    added: list[dict[str, Any]], declared: Sequence[Mapping[str, Any]], vocabulary: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Return the added and the declared tokens, under the tokenizer's ids if it has them."""
    by_text = {each["content"]: each for each in added}
    for each in declared:
        text = each["content"]
        number = by_text[text]["id"] if text in by_text else vocabulary.get(text, each["id"])
        by_text[text] = {**each, "id": number}
    return [*by_text.values()] if declared else added


def mark_added(table: TokenTable, added: list[dict[str, Any]]) -> None:
    """Set the kinds of the added tokens."""
    for each in added:
        token = each["content"]
        special = bool(each.get("special")) or looks_special(token)
        exists = table.mark(token, Kind.CONTROL if special else Kind.USER_DEFINED)
        if exists and not special:  # llama.cpp searches the text for these before it replaces spaces with U+2581
            table.tokens[table.ids[token]] = token.replace(SPACE, " ")
