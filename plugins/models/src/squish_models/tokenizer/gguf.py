"""The tokenizer among GGUF's metadata: `tokenizer.ggml.*` and chat templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
from squish_gguf.api import text_array

from squish_core.api import SquishError, Typed

from ..config.gguf_defaults import TOKENIZERS
from . import wordpiece
from .pretokenizers import named_pretokenizer
from .sampling import PREFIX as SAMPLING
from .sampling import sampling_keys, sampling_of
from .vocabulary import (
    CHARSMAP,
    END_TEXTS,
    MAX_CHARSMAP,
    MAX_MERGES,
    MAX_TOKENS,
    MERGES,
    PARTS,
    SCORES,
    TOKENS,
    Kind,
    Normalizer,
    SpecialTokens,
    Tokenizer,
    Vocabulary,
    check_charsmap,
    check_count,
    tokenizer_error,
)

PREFIX, TEMPLATE, TEMPLATES = "tokenizer.ggml.", "tokenizer.chat_template", "tokenizer.chat_templates"
IDS = {
    "bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "sep": "seperator_token_id",
    "pad": "padding_token_id", "mask": "mask_token_id", "eot": "eot_token_id", "eom": "eom_token_id",
}  # fmt: skip
PLACES = {
    **{part: f"{PREFIX}{part}" for part in ("model", *PARTS)}, **{role: f"{PREFIX}{key}" for role, key in IDS.items()},
    "chat_template": TEMPLATE,
}  # fmt: skip
"""A part of a tokenizer in errors -> its key."""
HUGGINGFACE = "tokenizer.huggingface.json"
"""The whole tokenizer.json, for engines that use it."""
GEMMA4 = "gemma4"
"""The kind of a tokenizer, also the name of its pre-tokenizer, for which GGUF has no key."""
VISIBLE = (
    "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>',
)  # fmt: skip
"""Special tokens of Gemma 4 that GGUF declares as added ones, so that llama.cpp prints them."""
UNRANKED = -1000
"""The score that llama.cpp's converter writes for tokens whose order the merges state."""
MODELS = {"gpt2": "bpe", "llama": "spm", GEMMA4: "bpe", "bert": "wordpiece", "t5": "unigram"}
NAMES = {kind: name for name, kind in reversed(MODELS.items())}
"""Kind of a tokenizer -> its usual value of `tokenizer.ggml.model`."""
REQUIRED = {"bpe": (MERGES,), "spm": (SCORES,), "unigram": (SCORES,)}
"""Kind of a tokenizer -> the arrays that it needs besides its tokens."""
SWITCHES = {"lowercase": "normalizer.lowercase", "strip_accents": "normalizer.strip_accents"}
MERGES_SPACES, TOKEN_TYPES = "remove_extra_whitespaces", "token_type_count"
NO_MODELS = ("none", "no_vocab")
"""Kinds that a GGUF without a tokenizer states."""
ADDED = ("bos", "eos", "sep")
DEFAULT_PRE = "default"
NONE = 0xFFFFFFFF
HARMONY = (frozenset(("<|return|>", "<|call|>")), frozenset(("<|calls|>", "<|flush|>")))
"""Tokens in whose presence `<|end|>` ends a message instead of a turn."""
BYTE_SPACE = "\u0120"


def read_gguf(
    metadata: Mapping[str, Any], vocabulary: Vocabulary | None = None, *, checked: bool = False, ranked: bool = True
) -> Tokenizer | None:
    """Return the tokenizer in a GGUF file's metadata; None if there is none.

    Parameters
    ----------
    metadata
        The file's keys.
    vocabulary
        The vocabulary in these keys, if it has been read.
    checked
        Whether the vocabulary was checked when it was stored.
    ranked
        Whether its merges are read.

    Raises
    ------
    FormatError
        `tokenizer` if its arrays or ids contradict each other, or its model is not one of `MODELS`.
    """
    with _typed_values():
        values = _values(metadata)
        if values is None:
            return None
        model, kinds = MODELS[values[f"{PREFIX}model"]], values.get(f"{PREFIX}token_type")
        vocabulary = vocabulary or _vocabulary(values, model, checked, ranked)
        special, normalizer = _special(values), _normalizer(values, model)
        templates = {"": values[TEMPLATE]} if TEMPLATE in values else {}
        templates |= {
            str(key): values[f"{TEMPLATE}.{key}"] for key in values.get(TEMPLATES, ()) if f"{TEMPLATE}.{key}" in values
        }
        _check_texts([*templates.values()], "chat_template")
        pre = _pretokenizer(values) if model == "bpe" else None
        added = {role: bool(values[key]) for role in ADDED if (key := f"{PREFIX}add_{role}_token") in values}
        pretokenizer = named_pretokenizer(pre) if pre is not None else None
        separates = {"sep": True} if pretokenizer is not None and pretokenizer.add_sep else {}
        return Tokenizer(
            model=model,
            vocabulary=vocabulary,
            special=special,
            chat_templates=templates,
            pre=pre,
            add=_bert_added(added) if model == "wordpiece" else separates | added,
            space_prefix=_space_prefix(values, model, normalizer),
            normalizer=normalizer,
            token_types=_count(values),
            end_ids=_end_ids(vocabulary.tokens, kinds, special) if model != "wordpiece" else (),
            sampling=sampling_of(metadata),
        )


def _normalizer(values: Mapping[str, Any], model: str) -> Normalizer | None:
    """Return what llama.cpp does to a text before it looks for tokens."""
    if model == "wordpiece":
        accents = values.get(PREFIX + SWITCHES["strip_accents"])
        return Normalizer(
            lowercase=bool(values.get(PREFIX + SWITCHES["lowercase"], True)),
            strip_accents=None if accents is None else bool(accents),
        )
    if model != "unigram":
        return None
    charsmap = np.asarray(values.get(PREFIX + CHARSMAP, ()))
    if charsmap.size > MAX_CHARSMAP or not (charsmap.dtype in ("i1", "u1") or not charsmap.size):
        raise tokenizer_error(
            "the precompiled_charsmap is not one",
            f"at most {MAX_CHARSMAP} bytes",
            f"{charsmap.size} {charsmap.dtype}",
            CHARSMAP,
        )
    return Normalizer(
        charsmap=check_charsmap(charsmap.astype(np.uint8).tobytes()),
        merge_spaces=bool(values.get(PREFIX + MERGES_SPACES, False)),
    )


def _space_prefix(values: Mapping[str, Any], model: str, normalizer: Normalizer | None) -> bool | None:
    """Return whether a space is added before the text; with merged spaces, llama.cpp does so in any case."""
    if model not in ("spm", "unigram"):
        return None
    merged = normalizer is not None and normalizer.merge_spaces
    return merged or bool(values.get(f"{PREFIX}add_space_prefix", model == "spm"))


def _bert_added(added: Mapping[str, bool]) -> dict[str, bool]:
    """Return the tokens that llama.cpp adds for BERT: always one on each side, and another one only after eos."""
    return {"bos": True, "eos": True, "sep": added.get("sep", True) and added.get("eos", False)}


def _count(values: Mapping[str, Any]) -> int | None:
    """Return the number of token types."""
    count = values.get(PREFIX + TOKEN_TYPES)
    return None if count is None else int(count)


def _pretokenizer(values: Mapping[str, Any]) -> str:
    """Return the name of the pre-tokenizer of a tokenizer with merges."""
    return GEMMA4 if values[f"{PREFIX}model"] == GEMMA4 else str(values.get(f"{PREFIX}pre") or DEFAULT_PRE)


def _check_texts(texts: Sequence[str], part: str) -> None:
    """Raise FormatError for texts that are not UTF-8: no file of a folder can store them."""
    if bytes in set(map(type, texts)):
        number = next(number for number, text in enumerate(texts) if isinstance(text, bytes))
        error = tokenizer_error(
            "the tokenizer has a text that is not UTF-8, which no file of a folder can store",
            "UTF-8",
            f"{texts[number]!r:.60} at {number}",
            part,
        )
        raise error.within(hint="Write only the tensors, under their own names: {option:rename=keep}.")


def _vocabulary(values: Mapping[str, Any], model: str, checked: bool, ranked: bool) -> Vocabulary:
    tokens, stored = tuple(values[f"{PREFIX}tokens"]), values.get(f"{PREFIX}token_type")
    _check_texts(tokens, TOKENS)
    kinds = np.ones(len(tokens), np.int32) if stored is None else np.asarray(stored, np.int32)
    if model == "wordpiece" and len(kinds) == len(tokens):
        tokens = wordpiece.huggingface_texts(tokens, kinds)
    merges: Sequence[Sequence[str]] = ()
    if model == "bpe" and ranked and (texts := values.get(f"{PREFIX}merges")):
        merges = _pairs(texts)
    return Vocabulary(
        tokens=tokens,
        kinds=kinds,
        scores=np.asarray(values.get(f"{PREFIX}scores"), np.float32) if SCORES in REQUIRED.get(model, ()) else None,
        merges=merges,
        checked=checked,
    )


def _kinds(values: Mapping[str, Any], kinds: np.ndarray) -> np.ndarray:
    """Return the kinds as Hugging Face's files state them."""
    if values[f"{PREFIX}model"] != GEMMA4 or len(kinds) != len(values[f"{PREFIX}tokens"]):
        return kinds
    return _marked(values[f"{PREFIX}tokens"], kinds, Kind.USER_DEFINED, Kind.CONTROL)


def _marked(tokens: Sequence[str], kinds: np.ndarray, old: Kind, new: Kind) -> np.ndarray:
    """Return the kinds with another one for the visible tokens."""
    visible = [number for number in np.flatnonzero(kinds == old).tolist() if tokens[number] in VISIBLE]
    kinds = kinds.copy()
    kinds[visible] = new
    return kinds


def read_special(metadata: Mapping[str, Any], rows: int) -> SpecialTokens | None:
    """Return the special ids of the tokenizer in a GGUF file's metadata, without its vocabulary; None if there is none.

    Parameters
    ----------
    metadata
        The file's keys.
    rows
        Number of rows of the embeddings.

    Raises
    ------
    FormatError
        `tokenizer` if an id is not in the vocabulary, the embeddings have another number of rows, or a key is
        missing or has the wrong type.
    """
    with _typed_values():
        values = _values(metadata)
        if values is None:
            return None
        tokens = values[f"{PREFIX}tokens"]
        if len(tokens) != rows:
            raise tokenizer_error(
                "the number of rows of the embeddings differs from the number of tokens", rows, len(tokens), TOKENS
            )
        special = _special(values)
        is_bert = MODELS[values[f"{PREFIX}model"]] == "wordpiece"
        ends = () if is_bert else _end_ids(tokens, values.get(f"{PREFIX}token_type"), special)
        ids = SpecialTokens(special, ends, sampling_of(metadata))
        ids.check(len(tokens))
    return ids


def is_mapped(metadata: Mapping[str, Any]) -> bool:
    """Return whether a GGUF has no tokenizer, or one of a kind that can be read."""
    model = metadata.get(f"{PREFIX}model")
    return getattr(model, "value", model) in (None, *NO_MODELS, *MODELS)


def stored_keys(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a GGUF's tokenizer and of its sampling defaults, undecoded."""
    return {key: value for key, value in metadata.items() if key.startswith(("tokenizer.", SAMPLING))}


def splitting_notes(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a note about a byte-level tokenizer that does not state how it splits texts."""
    values = {key: getattr(value, "value", value) for key, value in stored_keys(metadata).items()}
    pre = values.get(f"{PREFIX}pre")
    if values.get(f"{PREFIX}model") != "gpt2" or pre not in (None, "", DEFAULT_PRE):
        return ()
    stated = "is missing" if pre is None else f"is {pre!r}"
    return (f"{PREFIX}pre {stated}: texts are split as llama.cpp then does, which is seldom what the model learned",)


def stored_tokens(metadata: Mapping[str, Any]) -> Sequence[str]:
    """Return the tokens of a GGUF's tokenizer; none if it has none."""
    stored = metadata.get(f"{PREFIX}tokens")
    return tuple(getattr(stored, "value", stored) or ())


def _values(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the tokenizer's keys after a check of those that it needs; None if there is no tokenizer."""
    values = {key: getattr(value, "value", value) for key, value in stored_keys(metadata).items()}
    name = values.get(f"{PREFIX}model")
    if name in (None, *NO_MODELS):
        return None
    if name not in MODELS:
        raise tokenizer_error("this kind of tokenizer is not mapped", ", ".join(MODELS), name, "model")
    tokens, merges = values.get(f"{PREFIX}tokens"), values.get(f"{PREFIX}merges")
    if tokens is None:
        raise tokenizer_error("the tokenizer has no tokens", f"{PREFIX}tokens", "nothing", TOKENS)
    for part in REQUIRED.get(MODELS[name], ()):
        if values.get(PREFIX + part) is None:
            raise tokenizer_error(f"a tokenizer of the kind {name} needs {part}", PREFIX + part, "nothing", part)
    try:  # before any of them is decoded
        check_count("tokens", tokens, MAX_TOKENS)
        check_count("merges", merges or (), MAX_MERGES)
    except TypeError as error:
        raise tokenizer_error("a key of the tokenizer has another type", "lists of text", error) from None
    return values


@contextmanager
def _typed_values() -> Iterator[None]:
    """Name the key in errors, and raise FormatError for values of the wrong type."""
    try:
        yield
    except SquishError as error:
        error.part = PLACES.get(error.part or "", error.part)
        raise
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise tokenizer_error("a key of the tokenizer has the wrong type", "text, ids and numbers", error) from None


def _special(values: Mapping[str, Any]) -> dict[str, int]:
    """Return ids by role: those in the keys, and llama.cpp's defaults if the token has a suitable kind.

    An id outside the vocabulary counts as absent.
    """
    count, kinds, special = len(values[f"{PREFIX}tokens"]), values.get(f"{PREFIX}token_type"), {}
    kinds = () if kinds is None else kinds
    for role, key in IDS.items():
        stated, assumed = values.get(PREFIX + key), TOKENIZERS[values[f"{PREFIX}model"]].get(key)
        legal = (Kind.UNKNOWN, Kind.CONTROL) if role == "unk" else (Kind.CONTROL,)
        if stated is not None and int(stated) < count:
            special[role] = int(stated)
        elif assumed is not None and assumed < min(count, len(kinds)) and kinds[assumed] in legal:
            special[role] = assumed
    if values[f"{PREFIX}model"] == "bert" and "sep" in special:  # llama.cpp ends a text with it
        special["eos"] = special["sep"]
    return special


def ignored_ids(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return notes about ids outside the vocabulary, which llama.cpp ignores; some files write an unsigned -1."""
    values = {key: getattr(value, "value", value) for key, value in stored_keys(metadata).items()}
    tokens = values.get(f"{PREFIX}tokens")
    if tokens is None:
        return ()
    keys = {f"{PREFIX}{key}": values.get(f"{PREFIX}{key}") for key in IDS.values()}
    return tuple(
        f"{key} is {number}, beyond the {len(tokens)} tokens: ignored, as llama.cpp does"
        for key, number in keys.items()
        if type(number) is int and len(tokens) <= number != NONE
    )


def _pairs(texts: Sequence[str]) -> Sequence[Sequence[str]]:
    _check_texts(texts, MERGES)
    pairs = [text.split(" ", 1) for text in texts]
    if not {*map(len, pairs)} <= {2} or not all(chain.from_iterable(pairs)):
        wrong = next(" ".join(pair) for pair in pairs if len(pair) < 2 or not all(pair))
        raise tokenizer_error("a merge is not a pair", "two tokens and a space between", repr(wrong[:40]), MERGES)
    return pairs


def _joined(merges: Sequence[Sequence[str]]) -> list[str]:
    """Return merges as texts, with one space each: one inside a token is written as in the byte-level vocabulary."""
    texts = list(map(" ".join, merges))
    if "".join(texts).count(" ") == len(texts):
        return texts
    return [f"{left.replace(' ', BYTE_SPACE)} {right.replace(' ', BYTE_SPACE)}" for left, right in merges]


def _end_ids(tokens: Sequence[str], kinds: Any, special: Mapping[str, int]) -> tuple[int, ...]:
    """Return ids that end generation: eos, eot and eom, then those recognized by their text."""
    ids = [special[role] for role in ("eos", "eot", "eom") if role in special]
    if kinds is not None:
        marked = np.flatnonzero(np.isin(np.asarray(kinds), (Kind.CONTROL, Kind.USER_DEFINED)))
        ids += [number for number in marked.tolist() if number < len(tokens) and tokens[number] in END_TEXTS]
    texts = {number: tokens[number] for number in ids if number < len(tokens)}
    if any(pair <= {*texts.values()} for pair in HARMONY):
        ids = [number for number in ids if texts.get(number) != "<|end|>"]
    return tuple(dict.fromkeys(ids))


def gguf_keys(tokenizer: Tokenizer) -> dict[str, Typed]:
    """Return GGUF's keys for a tokenizer, in the order of llama.cpp's converter.

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
    model = GEMMA4 if tokenizer.pre == GEMMA4 else NAMES[tokenizer.model]
    keys, scores, kinds = {"model": Typed("str", model)}, tokenizer.scores, tokenizer.kinds
    if model == GEMMA4:
        scores = np.full(len(tokenizer.tokens), UNRANKED)
        kinds = _marked(tokenizer.tokens, kinds, Kind.CONTROL, Kind.USER_DEFINED)
    else:
        keys["pre"] = Typed("str", tokenizer.pre or "default")
    tokens: Sequence[str] = tokenizer.tokens
    if tokenizer.model == "wordpiece":
        tokens = wordpiece.gguf_texts(tokens, tokenizer.kinds)
    keys["tokens"] = Typed("array:str", text_array(tokens))
    if scores is not None:
        keys["scores"] = Typed("array:f32", scores.astype(np.float32))
    keys["token_type"] = Typed("array:i32", kinds.astype(np.int32))
    if bpe:
        keys["merges"] = Typed("array:str", text_array(_joined(tokenizer.merges)))
    keys |= {IDS[role]: Typed("u32", number) for role, number in tokenizer.special.items()}
    keys |= {f"add_{role}_token": Typed("bool", flag) for role, flag in tokenizer.add.items()}
    if tokenizer.space_prefix is not None or model == GEMMA4:
        keys["add_space_prefix"] = Typed("bool", bool(tokenizer.space_prefix))
    if tokenizer.normalizer is not None:
        keys |= _normalizer_keys(tokenizer.model, tokenizer.normalizer)
    if tokenizer.token_types is not None:
        keys[TOKEN_TYPES] = Typed("u32", tokenizer.token_types)
    templates = {
        f"{TEMPLATE}.{name}" if name else TEMPLATE: Typed("str", text)
        for name, text in tokenizer.chat_templates.items()
    }
    if named := [name for name in tokenizer.chat_templates if name]:
        templates[TEMPLATES] = Typed("array:str", named)
    return sampling_keys(tokenizer.sampling) | {PREFIX + key: value for key, value in keys.items()} | templates


def _normalizer_keys(model: str, normalizer: Normalizer) -> dict[str, Typed]:
    """Return GGUF's keys for what happens to a text before llama.cpp looks for tokens."""
    if model == "wordpiece":
        values = {key: getattr(normalizer, name) for name, key in SWITCHES.items()}
        return {key: Typed("bool", value) for key, value in values.items() if value is not None}
    keys = {MERGES_SPACES: Typed("bool", normalizer.merge_spaces)}
    if normalizer.charsmap:
        keys[CHARSMAP] = Typed("array:u8", np.frombuffer(normalizer.charsmap, np.uint8))
    return keys
