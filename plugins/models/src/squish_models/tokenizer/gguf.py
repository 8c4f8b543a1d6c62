"""The tokenizer among GGUF's metadata: `tokenizer.ggml.*` and chat templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
from squish_gguf.api import text_array

from squish_core.api import SquishError, Typed

from .base import (
    MERGES,
    MOST_MERGES,
    MOST_TOKENS,
    PARTS,
    SCORES,
    TOKENS,
    Kind,
    SpecialTokens,
    Tokenizer,
    Vocabulary,
    check_count,
    tokenizer_error,
)
from .json_file import Merges, merges_of_texts

PREFIX, TEMPLATE, TEMPLATES = "tokenizer.ggml.", "tokenizer.chat_template", "tokenizer.chat_templates"
IDS = {
    "bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "sep": "seperator_token_id",
    "pad": "padding_token_id", "mask": "mask_token_id", "eot": "eot_token_id",
}  # fmt: skip
PLACES = {
    **{part: f"{PREFIX}{part}" for part in ("model", *PARTS)}, **{role: f"{PREFIX}{key}" for role, key in IDS.items()},
    "chat_template": TEMPLATE,
}  # fmt: skip
"""A part of a tokenizer in errors -> its key."""
HUGGINGFACE = "tokenizer.huggingface.json"
"""The whole tokenizer.json, for engines that use it."""
MODELS = {"gpt2": "bpe", "llama": "spm"}
NO_MODEL = "none"
"""What a GGUF without a tokenizer states."""
DEFAULT_IDS = {"bpe": {"bos": 11, "eos": 11}, "spm": {"bos": 1, "eos": 2, "unk": 0}}
"""Defaults of llama.cpp for absent keys."""
BYTE_SPACE = "\u0120"
END_TEXTS = frozenset((
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>",
    "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|end_of_text|>",
    "<end_of_utterance>",
))  # fmt: skip
"""Tokens at which llama.cpp stops generation, regardless of the ids."""


def read_gguf(
    metadata: Mapping[str, Any], vocabulary: Vocabulary | None = None, *, checked: bool = False, ranked: bool = True
) -> Tokenizer | None:
    """The tokenizer in a GGUF file's metadata; None if there is none.

    Parameters
    ----------
    metadata
        The file's keys.
    vocabulary
        The vocabulary in these keys, if it is read already.
    checked
        Whether the vocabulary was checked when it was stored.
    ranked
        Whether its merges are read.

    Raises
    ------
    FormatError
        `tokenizer` if its arrays or ids contradict each other, or its model is neither `gpt2` nor `llama`.
    """
    with _typed_values():
        values = _values(metadata)
        if values is None:
            return None
        model, kinds = MODELS[values[f"{PREFIX}model"]], values.get(f"{PREFIX}token_type")
        vocabulary = vocabulary or _vocabulary(values, model, checked, ranked)
        special = _special(values, model, len(vocabulary.tokens))
        templates = {"": values[TEMPLATE]} if TEMPLATE in values else {}
        templates |= {
            str(key): values[f"{TEMPLATE}.{key}"] for key in values.get(TEMPLATES, ()) if f"{TEMPLATE}.{key}" in values
        }
        _check_texts([*templates.values()], "chat_template")
        return Tokenizer(
            model=model, vocabulary=vocabulary, special=special, chat_templates=templates,
            pre=str(values.get(f"{PREFIX}pre", "default")) if model == "bpe" else None,
            add={role: bool(values[key]) for role in ("bos", "eos") if (key := f"{PREFIX}add_{role}_token") in values},
            space_prefix=bool(values.get(f"{PREFIX}add_space_prefix", True)) if model == "spm" else None,
            end_ids=_end_ids(vocabulary.tokens, kinds, special),
        )  # fmt: skip


def _check_texts(texts: Sequence[str], part: str) -> None:
    """Raise FormatError for texts that are not UTF-8: no file of a folder can store them."""
    if bytes in set(map(type, texts)):
        number = next(number for number, text in enumerate(texts) if isinstance(text, bytes))
        error = tokenizer_error(
            "the tokenizer has a text that is not UTF-8, which no file of a folder can store", "UTF-8",
            f"{texts[number]!r:.60} at {number}", part,
        )  # fmt: skip
        raise error.within(hint="Write the tensors alone, under their names: rename='keep'.")


def _vocabulary(values: Mapping[str, Any], model: str, checked: bool, ranked: bool) -> Vocabulary:
    tokens, kinds = tuple(values[f"{PREFIX}tokens"]), values.get(f"{PREFIX}token_type")
    _check_texts(tokens, TOKENS)
    merges: Sequence[Sequence[str]] = ()
    if model == "bpe" and ranked and (texts := values.get(f"{PREFIX}merges")):
        merges = merges_of_texts(texts, values[f"{PREFIX}tokens"]) or _pairs(texts)
    return Vocabulary(
        tokens=tokens, kinds=np.ones(len(tokens), np.int32) if kinds is None else np.asarray(kinds, np.int32),
        scores=np.asarray(values.get(f"{PREFIX}scores"), np.float32) if model == "spm" else None,
        merges=merges, checked=checked,
    )  # fmt: skip


def read_special(metadata: Mapping[str, Any], rows: int) -> SpecialTokens | None:
    """The special ids of the tokenizer in a GGUF file's metadata, without its vocabulary; None if there is none.

    Parameters
    ----------
    metadata
        The file's keys.
    rows
        Number of rows of the embeddings.

    Raises
    ------
    FormatError
        `tokenizer` where an id is not in the vocabulary, the embeddings have another number of rows, or a key is
        missing or has the wrong type.
    """
    with _typed_values():
        values = _values(metadata)
        if values is None:
            return None
        tokens = values[f"{PREFIX}tokens"]
        if len(tokens) != rows:
            raise tokenizer_error(
                "the embeddings have another number of rows than there are tokens", rows, len(tokens), TOKENS
            )
        special = _special(values, MODELS[values[f"{PREFIX}model"]], len(tokens))
        ids = SpecialTokens(special, _end_ids(tokens, values.get(f"{PREFIX}token_type"), special))
        ids.check(len(tokens))
    return ids


def is_mapped(metadata: Mapping[str, Any]) -> bool:
    """Whether a GGUF has no tokenizer, or one of a kind that can be read."""
    model = metadata.get(f"{PREFIX}model")
    return getattr(model, "value", model) in (None, NO_MODEL, *MODELS)


def stored_keys(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a GGUF's tokenizer, undecoded."""
    return {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}


def _values(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """The tokenizer's keys, of which none that it needs is missing or too long; None if there is no tokenizer."""
    values = {key: getattr(value, "value", value) for key, value in stored_keys(metadata).items()}
    name = values.get(f"{PREFIX}model")
    if name in (None, NO_MODEL):
        return None
    if name not in MODELS:
        raise tokenizer_error("this kind of tokenizer is not mapped", "gpt2 or llama", name, "model")
    tokens, merges = values.get(f"{PREFIX}tokens"), values.get(f"{PREFIX}merges")
    if tokens is None:
        raise tokenizer_error("the tokenizer has no tokens", f"{PREFIX}tokens", "nothing", TOKENS)
    if MODELS[name] == "spm" and values.get(f"{PREFIX}scores") is None:
        raise tokenizer_error("a tokenizer of the kind llama needs scores", f"{PREFIX}scores", "nothing", SCORES)
    if MODELS[name] == "bpe" and merges is None:
        raise tokenizer_error("a tokenizer of the kind gpt2 needs merges", f"{PREFIX}merges", "nothing", MERGES)
    try:  # before any of them is decoded
        check_count("tokens", tokens, MOST_TOKENS)
        check_count("merges", merges or (), MOST_MERGES)
    except TypeError as error:
        raise tokenizer_error("a key of the tokenizer has another type", "lists of text", error) from None
    return values


@contextmanager
def _typed_values() -> Iterator[None]:
    """Errors that name a key, also for values of the wrong type."""
    try:
        yield
    except SquishError as error:
        error.part = PLACES.get(error.part or "", error.part)
        raise
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise tokenizer_error("a key of the tokenizer has the wrong type", "text, ids and numbers", error) from None


def _special(values: Mapping[str, Any], model: str, count: int) -> dict[str, int]:
    special = {role: int(values[PREFIX + key]) for role, key in IDS.items() if PREFIX + key in values}
    # Some files store "none" as an id beyond the vocabulary (-1 without a sign).
    special = {role: number for role, number in special.items() if number != 0xFFFFFFFF}
    return {role: number for role, number in DEFAULT_IDS[model].items() if number < count} | special


def _pairs(texts: Sequence[str]) -> Sequence[Sequence[str]]:
    _check_texts(texts, MERGES)
    pairs = [text.split(" ", 1) for text in texts]
    if not {*map(len, pairs)} <= {2} or not all(chain.from_iterable(pairs)):
        wrong = next(" ".join(pair) for pair in pairs if len(pair) < 2 or not all(pair))
        raise tokenizer_error("a merge is not a pair", "two tokens and a space between", repr(wrong[:40]), MERGES)
    return pairs


def _joined(merges: Sequence[Sequence[str]]) -> list[str] | bytes:
    """Merges as texts, or encoded; a space inside a token is written as in the byte-level vocabulary, so each has one
    space."""
    if isinstance(merges, Merges):
        return merges.encoded
    texts = list(map(" ".join, merges))
    if "".join(texts).count(" ") == len(texts):
        return texts
    return [f"{left.replace(' ', BYTE_SPACE)} {right.replace(' ', BYTE_SPACE)}" for left, right in merges]


def _end_ids(tokens: Sequence[str], kinds: Any, special: Mapping[str, int]) -> tuple[int, ...]:
    """Ids that end generation: eos and eot, then those recognized by their text."""
    ids = [special[role] for role in ("eos", "eot") if role in special]
    if kinds is not None:
        marked = np.flatnonzero(np.isin(np.asarray(kinds), (Kind.CONTROL, Kind.USER_DEFINED)))
        ids += [number for number in marked.tolist() if number < len(tokens) and tokens[number] in END_TEXTS]
    return tuple(dict.fromkeys(ids))


def gguf_keys(tokenizer: Tokenizer) -> dict[str, Typed]:
    """GGUF's keys for a tokenizer, in the order of llama.cpp's converter.

    Examples
    --------
    >>> import numpy as np
    >>> from squish_models.tokenizer import Tokenizer, Vocabulary, gguf_keys
    >>> vocabulary = Vocabulary(tokens=("a", "b", "ab"), kinds=np.ones(3, np.int32), merges=(("a", "b"),))
    >>> tiny = Tokenizer(model="bpe", vocabulary=vocabulary, pre="gpt-2", special={"eos": 2})
    >>> list(gguf_keys(tiny)["tokenizer.ggml.merges"].value)
    ['a b']
    """
    bpe = tokenizer.model == "bpe"
    keys = {"model": Typed("str", "gpt2" if bpe else "llama"), "pre": Typed("str", tokenizer.pre or "default")}
    tokens, encoded = tokenizer.tokens, tokenizer.vocabulary.encoded
    keys["tokens"] = Typed("array:str", text_array(tokens) if encoded is None else text_array(encoded, tokens))
    if tokenizer.scores is not None:
        keys["scores"] = Typed("array:f32", tokenizer.scores.astype(np.float32))
    keys["token_type"] = Typed("array:i32", tokenizer.kinds.astype(np.int32))
    if bpe:
        keys["merges"] = Typed("array:str", text_array(_joined(tokenizer.merges)))
    keys |= {IDS[role]: Typed("u32", number) for role, number in tokenizer.special.items()}
    keys |= {f"add_{role}_token": Typed("bool", flag) for role, flag in tokenizer.add.items()}
    if tokenizer.space_prefix is not None:
        keys["add_space_prefix"] = Typed("bool", tokenizer.space_prefix)
    templates = {f"{TEMPLATE}.{name}" if name else TEMPLATE: Typed("str", text)
                 for name, text in tokenizer.chat_templates.items()}  # fmt: skip
    if named := [name for name in tokenizer.chat_templates if name]:
        templates[TEMPLATES] = Typed("array:str", named)
    return {PREFIX + key: value for key, value in keys.items()} | templates
