"""SentencePiece's unigram tokenizer: the most probable tokens of a text, of T5 and XLM-RoBERTa."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import field, frozen

from .sentencepiece import Pieces
from .token_table import TokenTable, flat_steps, mark_added, vocabulary_texts
from .vocabulary import (
    CHARSMAP,
    SPACE,
    Kind,
    Normalizer,
    Tokenizer,
    check_charsmap,
    piece_texts,
    tokenizer_error,
)

MERGED = r"\A +| +(?= )| +\z"
"""The spaces that llama.cpp removes from a text."""
_MARKED = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_PREPENDED = {"type": "Prepend", "prepend": SPACE}
_MERGING = {"type": "Replace", "pattern": {"Regex": MERGED}, "content": ""}
METASPACE = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
WORDS = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE]}
"""How T5 and XLM-RoBERTa split texts."""


@frozen
class Layout:
    """How a class of Transformers makes a vocabulary out of a SentencePiece model.

    Parameters
    ----------
    head
        The first tokens, which replace as many pieces as `skipped`.
    skipped
        Number of pieces that the head replaces.
    tail
        Tokens after the pieces.
    before, after, between
        Tokens around a text, and between two texts.
    special
        Special tokens by role.
    """

    head: tuple[str, ...] = ()
    skipped: int = 0
    tail: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ("</s>",)
    between: tuple[str, ...] = ("</s>",)
    special: Mapping[str, str] = field(factory=lambda: {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"})


FAIRSEQ = Layout(
    ("<s>", "<pad>", "</s>", "<unk>"),
    3,
    ("<mask>",),
    before=("<s>",),
    after=("</s>",),
    between=("</s>", "</s>"),
    special={"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "mask": "<mask>"},
)
"""XLM-RoBERTa: fairseq's first four tokens instead of SentencePiece's three, so that all ids are one higher."""
CLASSES = {"T5Tokenizer": Layout(), "XLMRobertaTokenizer": FAIRSEQ}
FILES = {"sentencepiece.bpe.model": "XLMRobertaTokenizer", "spiece.model": "T5Tokenizer"}
"""File -> the class that reads it, unless tokenizer_config.json states one."""
EXTRA_IDS = 100
"""T5's tokens `<extra_id_99>` to `<extra_id_0>` behind the pieces, unless tokenizer_config.json states their number."""


def read(
    document: Mapping[str, Any], declared: Sequence[Mapping[str, Any]], table: TokenTable
) -> tuple[Normalizer, bool, np.ndarray]:
    """Fill the table with the tokens of a tokenizer.json.

    Returns
    -------
    Normalizer, bool, numpy.ndarray
        What happens to a text before, whether a space is added before it, and the scores.

    Raises
    ------
    FormatError
        `tokenizer` for a step or a setting that llama.cpp lacks.
    """
    model = document["model"]
    if model.get("byte_fallback"):
        raise tokenizer_error("llama.cpp has no unigram tokenizer with this model.byte_fallback", False, True)
    listed = model["vocab"]
    if not isinstance(listed, list) or not all(_is_piece(each) for each in listed):
        raise tokenizer_error("the vocabulary is not a list of pairs", "model.vocab: token and score", "something else")
    vocabulary = {text: number for number, (text, _) in enumerate(listed)}
    if len(vocabulary) < len(listed):
        twice = next(text for number, (text, _) in enumerate(listed) if vocabulary[text] != number)
        raise tokenizer_error(f"the token {twice[:40]!r} appears twice", "one id", f"two in {len(listed)} tokens")
    texts, ids, added = vocabulary_texts(document, {"vocab": vocabulary}, declared)
    table.fill(texts, ids, added)
    mark_added(table, added)
    unknown = model.get("unk_id")
    if unknown is None or not 0 <= unknown < len(listed):
        raise tokenizer_error(
            "the model.unk_id is not a token, and llama.cpp needs one",
            f"an id below {len(listed)}",
            unknown,
        )
    table.mark(listed[unknown][0], Kind.UNKNOWN)
    scores = np.zeros(len(table.tokens), np.float32)
    count = min(len(listed), len(scores))
    scores[:count] = [score for _, score in listed[:count]]
    return (*_effects(document), scores)


def _is_piece(entry: Any) -> bool:
    return (
        isinstance(entry, (list, tuple))
        and len(entry) == 2
        and isinstance(entry[0], str)
        and isinstance(entry[1], (int, float))
    )


def _effects(document: Mapping[str, Any]) -> tuple[Normalizer, bool]:
    """Return what the steps of a tokenizer.json do, and whether a space is added before the text."""
    charsmap, marked, prefix, merged = b"", False, False, False
    for place in ("normalizer", "pre_tokenizer"):
        for step in flat_steps(document.get(place)):
            kind, pattern = step.get("type"), step.get("pattern") or {}
            if kind == "Precompiled":
                charsmap = _decoded(step["precompiled_charsmap"] or "")
            elif kind == "Metaspace" and step.get("replacement") == SPACE:
                marked, prefix = True, prefix or _prepends(step)
            elif step == _MARKED:
                marked = True
            elif step == _PREPENDED:
                prefix = True
            elif kind == "WhitespaceSplit" or (kind == "Replace" and pattern.get("Regex") in (" {2,}", MERGED)):
                merged = True
            elif kind != "Strip":
                raise tokenizer_error(
                    f"llama.cpp has no unigram tokenizer with this {place}",
                    "Precompiled, Strip, Replace of spaces, WhitespaceSplit and Metaspace",
                    f"{kind} {pattern or ''}".strip()[:80],
                )
    if not marked or (merged and not prefix):
        raise tokenizer_error(
            f"llama.cpp writes U+2581 for spaces{', and one before the text, if it merges them' if marked else ''}",
            "a Metaspace that prepends one",
            "Metaspace with prepend_scheme never" if marked else "no Metaspace",
        )
    return Normalizer(charsmap=charsmap, merge_spaces=merged), prefix


def _prepends(step: Mapping[str, Any]) -> bool:
    return step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space") is not False


def _decoded(text: str) -> bytes:
    try:
        return check_charsmap(b64decode(text, validate=True))
    except binascii.Error as error:
        raise tokenizer_error("the precompiled_charsmap is damaged", "base64", error, CHARSMAP) from None


def parts(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the parts of a tokenizer.json that are the unigram model's, with the vocabulary."""
    assert tokenizer.scores is not None
    normalizer, texts = tokenizer.normalizer or Normalizer(), piece_texts(tokenizer)
    kinds, count = tokenizer.kinds, len(texts)
    while count and kinds[count - 1] == Kind.UNUSED:
        count -= 1
    scores = tokenizer.scores[:count].astype(np.float64)
    if (normal := tokenizer.scores[kinds == Kind.NORMAL]).size:  # else an unused token changes the unknown one's score
        scores[kinds[:count] == Kind.UNUSED] = normal.min()
    steps: list[dict[str, Any]] = []
    if normalizer.charsmap:
        text = b64encode(normalizer.charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": text})
    words: dict[str, Any] | None = METASPACE
    if not normalizer.merge_spaces:
        words = None
        steps += [*((_PREPENDED,) if tokenizer.space_prefix else ()), _MARKED]
    elif normalizer.charsmap:  # which replaces all white space
        words = WORDS
    else:
        steps.append(_MERGING)
    return {
        "model": {
            "type": "Unigram",
            "unk_id": tokenizer.special.get("unk"),
            "vocab": [[text, score] for text, score in zip(texts, scores.tolist())],
            "byte_fallback": False,
        },
        "normalizer": steps[0] if len(steps) == 1 else {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": words,
        "decoder": METASPACE if tokenizer.space_prefix else {**METASPACE, "prepend_scheme": "never"},
    }


def class_of(pieces: Pieces, name: str, options: Mapping[str, Any]) -> str | None:
    """Return the class that reads a SentencePiece model as a unigram tokenizer; None if none does."""
    stated = str(options.get("tokenizer_class") or FILES.get(name)).removesuffix("Fast")
    if stated in CLASSES and pieces.unigram:
        return stated
    if name in FILES:
        raise tokenizer_error(
            f"the vocabulary of {name} alone, of a {stated[:40]}, is not mapped",
            f"a tokenizer.json, or a unigram model of {' or '.join(CLASSES)}",
            stated if pieces.unigram else "another kind of model",
        )
    return None


def document_of(pieces: Pieces, name: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the tokenizer.json that a class of Transformers builds from a SentencePiece model, and special tokens."""
    layout = CLASSES[name]
    count = options.get("extra_ids", EXTRA_IDS) if name == "T5Tokenizer" else 0
    tail = (*layout.tail, *(f"<extra_id_{number}>" for number in range(count - 1, -1, -1)))
    own = [*zip(pieces.tokens, pieces.scores.tolist())][layout.skipped :]
    vocabulary = [*((text, 0.0) for text in layout.head), *own, *((text, 0.0) for text in tail)]
    ids = {text: number for number, (text, _) in enumerate(vocabulary)}
    kinds = dict(zip(pieces.tokens, pieces.kinds.tolist()))
    special = {text for text, kind in kinds.items() if kind == Kind.CONTROL} | {
        *layout.special.values(),
        *layout.head,
        *tail,
    }
    defined = {text for text, kind in kinds.items() if kind == Kind.USER_DEFINED}
    before, after, between = (
        [{"SpecialToken": {"id": text, "type_id": 0}} for text in texts]
        for texts in (layout.before, layout.after, layout.between)
    )
    one, other = ({"Sequence": {"id": letter, "type_id": 0}} for letter in "AB")
    charsmap = b64encode(pieces.charsmap).decode()
    document = {
        "added_tokens": [
            {"id": number, "content": text, "special": text in special}
            for text, number in ids.items()
            if text in special or text in defined
        ],
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap} if pieces.charsmap else None,
        "pre_tokenizer": WORDS,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [*before, one, *after],
            "pair": [*before, one, *between, other, *after],
        },
        "model": {
            "type": "Unigram",
            "unk_id": ids.get(layout.special["unk"]),
            "vocab": vocabulary,
            "byte_fallback": pieces.byte_fallback,
        },
    }
    return document, {f"{role}_token": text for role, text in layout.special.items()}
