"""BERT's tokenizer: the longest tokens of each word, those within it with "##"; GGUF marks the first one instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

import numpy as np

from squish_core.api import parse_text

from .affixes import affixes_of
from .token_table import TokenTable, flat_steps, mark_added, vocabulary_texts
from .vocabulary import (
    SPACE,
    TOKENS,
    Kind,
    Normalizer,
    Tokenizer,
    tokenizer_error,
)

INNER = "##"
"""The start of a token within a word."""
LONGEST_WORD = 100
"""Letters of the longest word that Transformers does not replace with the unknown token."""
REQUIRED: Mapping[str, Mapping[str, Any]] = {
    "model": {"continuing_subword_prefix": INNER},
    "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
}
"""Settings of a tokenizer.json that llama.cpp cannot change."""
CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer")
"""Classes that read vocab.txt alone, with the same special tokens."""
SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
"""Special tokens of these classes, unless tokenizer_config.json states others."""


def read(
    document: Mapping[str, Any], declared: Sequence[Mapping[str, Any]], options: Mapping[str, Any], table: TokenTable
) -> Normalizer:
    """Fill the table with the tokens of a tokenizer.json, and return what happens to a text before.

    Parameters
    ----------
    document
        The tokenizer.json.
    declared, options
        Added tokens and other settings of tokenizer_config.json.
    table
        The table to fill.

    Raises
    ------
    FormatError
        `tokenizer` for a step that llama.cpp cannot leave out or add.
    """
    parts = {name: _only_step(document.get(name), name) for name in REQUIRED}
    for name, settings in REQUIRED.items():
        for key, expected in settings.items():
            found = parts[name].get(key, None if key == "type" else expected)
            if found != expected:
                raise tokenizer_error(
                    f"llama.cpp has no WordPiece tokenizer with this {name}.{key}", repr(expected), repr(found)
                )
    affixes = affixes_of(document)
    if not affixes.before or not affixes.after:
        raise tokenizer_error(
            "llama.cpp adds a token before and after each text of a WordPiece tokenizer",
            "a post_processor that adds both, such as [CLS] and [SEP]",
            f"{affixes.before or 'nothing'} and {affixes.after or 'nothing'}",
        )
    texts, ids, added = vocabulary_texts(document, parts["model"], declared)
    table.fill(texts, ids, added)
    mark_added(table, added)
    return _normalizer(parts["normalizer"], options)


def _only_step(step: Any, name: str) -> Mapping[str, Any]:
    steps = flat_steps(step)
    if len(steps) != 1:
        found = ", ".join(str(each.get("type")) for each in steps) or "none"
        raise tokenizer_error(f"llama.cpp has no WordPiece tokenizer with this {name}", "one step", found)
    return steps[0]


def _normalizer(stored: Mapping[str, Any], options: Mapping[str, Any]) -> Normalizer:
    """Return the normalizer; BERT's classes in Transformers take its switches from tokenizer_config.json."""
    if str(options.get("tokenizer_class")).removesuffix("Fast") not in CLASSES:
        options = {}
    accents = options.get("strip_accents", stored.get("strip_accents"))
    return Normalizer(
        lowercase=bool(options.get("do_lower_case", stored.get("lowercase", True))),
        strip_accents=None if accents is None else bool(accents),
    )


def parts(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the parts of a tokenizer.json that are BERT's, without the vocabulary."""
    normalizer, unknown = tokenizer.normalizer or Normalizer(lowercase=True), tokenizer.special.get("unk")
    return {
        "model": {
            "type": "WordPiece",
            "unk_token": SPECIAL["unk"] if unknown is None else tokenizer.tokens[unknown],
            "continuing_subword_prefix": INNER,
            "max_input_chars_per_word": LONGEST_WORD,
        },
        "normalizer": {
            **REQUIRED["normalizer"],
            "strip_accents": normalizer.strip_accents,
            "lowercase": normalizer.lowercase,
        },
        "pre_tokenizer": REQUIRED["pre_tokenizer"],
        "decoder": {"type": "WordPiece", "prefix": INNER, "cleanup": True},
    }


def class_options(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the switches of BERT's class in tokenizer_config.json."""
    normalizer = tokenizer.normalizer or Normalizer(lowercase=True)
    return {
        "do_lower_case": normalizer.lowercase,
        "strip_accents": normalizer.strip_accents,
        "tokenize_chinese_chars": True,
    }


def write_words(tokenizer: Tokenizer) -> bytes:
    """Return vocab.txt: a token on each line."""
    count = len(tokenizer.tokens)
    while count and tokenizer.kinds[count - 1] == Kind.UNUSED:
        count -= 1
    return "".join(f"{token}\n" for token in tokenizer.tokens[:count]).encode()


def document_of(data: bytes, name: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the tokenizer.json that Transformers builds from vocab.txt, and the class's special tokens."""
    stated = str(options.get("tokenizer_class") or CLASSES[0]).removesuffix("Fast")
    if stated not in CLASSES:
        raise tokenizer_error(
            f"the tokenizer_class {stated[:40]} does not say what {name} alone means",
            f"a tokenizer.json, or one of {', '.join(CLASSES)}",
            stated[:40],
        )
    lines = StringIO(parse_text(data, name), newline=None)
    vocabulary = {line.rstrip("\n"): number for number, line in enumerate(lines)}
    values = {role: options.get(f"{role}_token") or text for role, text in SPECIAL.items()}
    texts = {role: value.get("content") if isinstance(value, dict) else value for role, value in values.items()}
    before, after = ({"SpecialToken": {"id": texts[role], "type_id": 0}} for role in ("cls", "sep"))
    one, other = ({"Sequence": {"id": letter, "type_id": 0}} for letter in "AB")
    document = {
        "added_tokens": [
            {"id": vocabulary[text], "content": text, "special": True} for text in texts.values() if text in vocabulary
        ],
        "normalizer": {
            **REQUIRED["normalizer"],
            "handle_chinese_chars": options.get("tokenize_chinese_chars", True),
            "strip_accents": options.get("strip_accents"),
            "lowercase": options.get("do_lower_case", True),
        },
        "pre_tokenizer": REQUIRED["pre_tokenizer"],
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [before, one, after],
            "pair": [before, one, after, other, after],
        },
        "model": {"type": "WordPiece", **REQUIRED["model"], "unk_token": texts["unk"], "vocab": vocabulary},
    }
    return document, {f"{role}_token": text for role, text in SPECIAL.items()}


def gguf_texts(tokens: Sequence[str], kinds: np.ndarray) -> list[str]:
    """Return tokens as GGUF has them: the first token of a word starts with U+2581, those within have no mark.

    Raises
    ------
    FormatError
        `tokenizer` if two tokens have the same text then.
    """
    texts = list(tokens)
    for number in np.flatnonzero(~_whole(kinds)).tolist():
        token = tokens[number]
        inner = token.startswith(INNER)
        texts[number] = token[len(INNER) :] if inner else SPACE + token
        if inner and len(texts[number]) > 1 and texts[number][0] == SPACE:
            raise _ambiguous(token)
    if len({*texts}) < len(texts):
        ids = dict(zip(texts, range(len(texts))))
        raise _ambiguous(next(tokens[number] for number, text in enumerate(texts) if ids[text] != number))
    return texts


def huggingface_texts(texts: Sequence[str], kinds: np.ndarray) -> tuple[str, ...]:
    """Return tokens as Hugging Face has them, the inverse of `gguf_texts`."""
    tokens, whole = list(texts), _whole(kinds)
    for number, (text, kind) in enumerate(zip(texts, kinds.tolist())):
        if not whole[number]:
            tokens[number] = text[1:] if len(text) > 1 and text[0] == SPACE else INNER + text
        elif kind == Kind.USER_DEFINED:  # llama.cpp's converter marks these too
            tokens[number] = text.removeprefix(SPACE)
    return tuple(tokens)


def _whole(kinds: np.ndarray) -> np.ndarray:
    """Return for each token whether texts are searched for it before they are split into words."""
    return np.isin(kinds, (Kind.CONTROL, Kind.USER_DEFINED))


def _ambiguous(token: str) -> Exception:
    return tokenizer_error(
        f"llama.cpp cannot tell the token {token[:40]!r} from another one", "other texts", "the same", TOKENS
    )
