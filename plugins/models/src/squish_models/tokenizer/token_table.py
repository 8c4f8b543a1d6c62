"""Tokens of a Hugging Face folder by id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from squish_core.api import LimitError

from .base import MOST_TOKENS, SPACE, Kind, looks_special, tokenizer_error


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
        self.ids: dict[str, int] = {}
        self.beyond: dict[int, str] = {}

    def fill(self, texts: Mapping[int, str], added: Iterable[Mapping[str, Any]]) -> None:
        """Add tokens by id; ids without a token are padding. Added tokens without an embedding are left out."""
        largest = max(texts, default=-1)
        if min(texts, default=0) < 0 or largest >= MOST_TOKENS:
            raise LimitError(
                "a token's id is out of range", expected=f"0 to {MOST_TOKENS - 1}", found=largest, code="count"
            )
        if self.size is not None and largest >= self.size:
            self.beyond = {each["id"]: each["content"] for each in added if each["id"] >= self.size}
            texts = {number: text for number, text in texts.items() if number not in self.beyond}
            largest = max(texts, default=-1)
        if self.size is not None and largest >= self.size:
            raise tokenizer_error(
                "the tokenizer has more tokens than the config", f"vocab_size {self.size}", largest + 1
            )
        count = self.size if self.size is not None and self.size <= MOST_TOKENS else largest + 1
        in_order = len(texts) == count and list(texts) == list(range(count))
        self.tokens = list(texts.values()) if in_order else [texts.get(number, "") for number in range(count)]
        self.kinds = np.full(count, Kind.NORMAL, np.int32)
        if len(texts) < count:
            for number in set(range(count)).difference(texts):
                self.tokens[number], self.kinds[number] = f"[PAD{number}]", Kind.UNUSED
        self.ids = dict(zip(texts.values(), texts)) | {text: number for number, text in self.beyond.items()}

    def mark(self, token: str, kind: Kind) -> bool:
        """Set the kind of a token, if the vocabulary has it."""
        exists = token in self.ids and self.ids[token] not in self.beyond
        if exists:
            self.kinds[self.ids[token]] = kind
        return exists


def vocabulary_texts(
    stored: Mapping[str, Any], model: Mapping[str, Any]
) -> tuple[dict[int, str], list[dict[str, Any]]]:
    """Text by id of the vocabulary and the added tokens, and the added tokens."""
    vocabulary, added = model.get("vocab"), stored.get("added_tokens") or []
    if not isinstance(vocabulary, dict) or not {*map(type, vocabulary.values())} <= {int}:
        raise tokenizer_error(
            "tokenizer.json has no vocabulary of ids", "model.vocab: token to id", type(vocabulary).__name__
        )
    if not all(isinstance(each, dict) and isinstance(each.get("content"), str) and type(each.get("id")) is int
               for each in added):  # fmt: skip
        raise tokenizer_error("an added token is invalid", "id and content", "something else")
    texts = dict(zip(vocabulary.values(), vocabulary))
    repeated = vocabulary.items() if len(texts) < len(vocabulary) else ()
    for text, number in (*repeated, *((each["content"], each["id"]) for each in added)):
        if texts.setdefault(number, text) != text:
            raise tokenizer_error(f"id {number} has two tokens", repr(texts[number][:40]), repr(text[:40]))
    return texts, added


def mark_added(table: TokenTable, added: list[dict[str, Any]]) -> None:
    """Set the kinds of the added tokens."""
    for each in added:
        token = each["content"]
        special = bool(each.get("special")) or looks_special(token)
        exists = table.mark(token, Kind.CONTROL if special else Kind.USER_DEFINED)
        if exists and not special:  # llama.cpp searches the raw text for these, before it replaces spaces by U+2581
            table.tokens[table.ids[token]] = token.replace(SPACE, " ")
