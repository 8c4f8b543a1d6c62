"""The tokenizer of a Hugging Face folder: tokenizer.json, or tokenizer.model, with tokenizer_config.json beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

from squish_core.api import FormatError, LimitError, SquishError

from . import sentencepiece
from .base import MOST_TOKENS, SPACE, Kind, Tokenizer, looks_special, scores_of_merges, tokenizer_error
from .pretokenizers import find_pretokenizer, structure

FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "generation_config.json", "chat_template.jinja",
)  # fmt: skip
"""Files of a folder that define its tokenizer."""
TEMPLATE_FOLDER = "additional_chat_templates/"
_MOST_BYTES, _MOST_NODES = 64 << 20, 8 << 20
_ADDABLE = (Kind.NORMAL, Kind.CONTROL, Kind.USER_DEFINED)
_TOKEN_KEYS = {"bos": "bos_token", "eos": "eos_token", "unk": "unk_token", "sep": "sep_token", "pad": "pad_token",
               "mask": "mask_token"}  # fmt: skip


def read_huggingface(files: Mapping[str, bytes], config: Mapping[str, Any]) -> Tokenizer | None:
    """The tokenizer in a folder's files; None if there is none.

    Parameters
    ----------
    files
        Contents by file name: those of `FILES` that exist, and `additional_chat_templates/*.jinja`.
    config
        The text part of config.json: `vocab_size` and ids of special tokens.

    Raises
    ------
    FormatError
        `tokenizer` where the files contradict each other or the config, or state a pre-tokenizer or model that is not
        mapped. `json` where one is no JSON.
    LimitError
        `count` or `size` beyond what vocabularies have.
    """
    try:
        return _read(files, config)
    except SquishError as error:
        raise error.within(part="tokenizer.json" if "tokenizer.json" in files else "tokenizer.model") from None
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise tokenizer_error(
            "a value in the tokenizer's files has the wrong type",
            "text, ids, lists and objects where they belong",
            error,
        ).within(part="tokenizer.json") from None


def _read(files: Mapping[str, bytes], config: Mapping[str, Any]) -> Tokenizer | None:
    settings = {name: parse_json(files[name], name) for name in FILES if name.endswith(".json") and name in files}
    stored = settings.get("tokenizer.json")
    if stored is None and "tokenizer.model" not in files:
        return None
    options, end = settings.get("tokenizer_config.json", {}), settings.get("generation_config.json", {})
    model = "spm" if stored is None or stored.get("model", {}).get("byte_fallback") else "bpe"
    vocabulary = _Vocabulary(config.get("vocab_size"))
    common: dict[str, Any] = {"chat_templates": _templates(files, options)}
    if model == "bpe":
        assert stored is not None
        common |= _byte_level(stored, vocabulary)
    else:
        common |= _sentencepiece(files, settings, vocabulary)
    special = _special(vocabulary, config, end, options, settings.get("special_tokens_map.json", {}), stored or {})
    return Tokenizer(
        model=model, tokens=tuple(vocabulary.tokens), kinds=vocabulary.kinds, special=special,
        add=_added(stored, options, special, vocabulary), end_ids=_end_ids(vocabulary, special, config, end), **common,
    )  # fmt: skip


def parse_json(data: bytes, name: str) -> dict[str, Any]:
    """The object of a file, each key once; bounded by its size and by the number of its values."""
    if len(data) > _MOST_BYTES:
        raise LimitError(f"{name} is too large", expected=f"at most {_MOST_BYTES} bytes", found=len(data), code="size")
    nodes = data.count(b",") + data.count(b"[") + data.count(b"{")
    if nodes > _MOST_NODES:
        raise LimitError(f"{name} has too many values", expected=f"at most {_MOST_NODES}", found=nodes, code="count")
    try:
        parsed = json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{name} is not JSON", found=str(error), code="json") from None
    if not isinstance(parsed, dict):
        raise FormatError(f"{name} is not a JSON object", found=type(parsed).__name__, code="json")
    return parsed


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        keys = [key for key, _ in pairs]
        key = next(key for key in members if keys.count(key) > 1)
        raise FormatError("a key appears twice", found=repr(key[:80]), code="duplicate")
    return members


class _Vocabulary:
    """Collects tokens and kinds by id."""

    def __init__(self, size: Any) -> None:
        self.size = size if isinstance(size, int) and not isinstance(size, bool) else None
        self.tokens: list[str] = []
        self.kinds = np.empty(0, np.int32)
        self.ids: dict[str, int] = {}

    def fill(self, texts: Mapping[int, str]) -> None:
        """Add tokens by id; ids without a token are padding."""
        largest = max(texts, default=-1)
        if min(texts, default=0) < 0 or largest >= MOST_TOKENS:
            raise LimitError(
                "a token's id is out of range", expected=f"0 to {MOST_TOKENS - 1}", found=largest, code="count"
            )
        if self.size is not None and largest >= self.size:
            raise tokenizer_error(
                "the tokenizer has more tokens than the config", f"vocab_size {self.size}", largest + 1
            )
        count = self.size if self.size is not None and self.size <= MOST_TOKENS else largest + 1
        self.tokens = [texts.get(number, "") for number in range(count)]
        self.kinds = np.full(count, Kind.NORMAL, np.int32)
        if len(texts) < count:
            for number in set(range(count)).difference(texts):
                self.tokens[number], self.kinds[number] = f"[PAD{number}]", Kind.UNUSED
        self.ids = dict(zip(texts.values(), texts))

    def mark(self, token: str, kind: Kind) -> None:
        """Set the kind of a token, if the vocabulary has it."""
        if token in self.ids:
            self.kinds[self.ids[token]] = kind


def _texts(stored: Mapping[str, Any], model: Mapping[str, Any]) -> tuple[dict[int, str], list[dict[str, Any]]]:
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


def _mark_added(vocabulary: _Vocabulary, added: list[dict[str, Any]]) -> None:
    for each in added:
        token = each["content"]
        special = bool(each.get("special")) or looks_special(token)
        vocabulary.mark(token, Kind.CONTROL if special else Kind.USER_DEFINED)
        if not special:  # llama.cpp searches the raw text for these, before it replaces spaces by U+2581
            vocabulary.tokens[vocabulary.ids[token]] = token.replace(SPACE, " ")


def _merges(model: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Merges: pairs, or text separated by a space in files from before 2024."""
    merges = model.get("merges") or []
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    lists = {*map(type, pairs)} <= {list} and {*map(len, pairs)} <= {2}
    if not lists or not {*map(type, chain.from_iterable(pairs))} <= {str}:
        is_pair = [isinstance(pair, list) and [*map(type, pair)] == [str, str] for pair in pairs]
        rank = is_pair.index(False)
        raise tokenizer_error(f"merge {rank} is not a pair", "two tokens", repr(merges[rank])[:60])
    return tuple(map(tuple, pairs))


def _byte_level(stored: Mapping[str, Any], vocabulary: _Vocabulary) -> dict[str, Any]:
    model = stored.get("model") or {}
    pretokenizer = find_pretokenizer(stored.get("pre_tokenizer"), ignore_merges=bool(model.get("ignore_merges")))
    if model.get("type", "BPE") != "BPE":
        raise tokenizer_error("this kind of tokenizer is not mapped", "BPE", model.get("type"))
    if pretokenizer is None:
        steps = "; ".join(" ".join(step) for step in structure(stored.get("pre_tokenizer"))) or "none"
        raise tokenizer_error("llama.cpp has no name for this pre-tokenizer", "one of docs/tokenizers.md", steps[:400])
    texts, added = _texts(stored, model)
    vocabulary.fill(texts)
    merges = _merges(model)
    _mark_added(vocabulary, added)
    return {"merges": merges, "pre": pretokenizer.names[0]}


def _sentencepiece(
    files: Mapping[str, bytes], settings: Mapping[str, Mapping[str, Any]], vocabulary: _Vocabulary
) -> dict[str, Any]:
    """Scores and the space prefix; from tokenizer.model if it exists, since tokenizer.json has no scores."""
    stored = settings.get("tokenizer.json", {})
    texts, added = _texts(stored, stored.get("model") or {}) if stored else ({}, _added_tokens(settings))
    prefix = _prepends_space(stored)
    if "tokenizer.model" in files:
        pieces = sentencepiece.parse(files["tokenizer.model"])
        prefix = pieces.space_prefix
        vocabulary.fill({**texts, **dict(enumerate(pieces.tokens)), **{each["id"]: each["content"] for each in added}})
        scores = np.full(len(vocabulary.tokens), -10000, np.float32)
        scores[: len(pieces.scores)] = pieces.scores
        vocabulary.kinds[: len(pieces.kinds)] = pieces.kinds
        kinds = dict(enumerate(pieces.kinds.tolist()))
        _mark_added(vocabulary, [each for each in added if kinds.get(each["id"], Kind.NORMAL) in _ADDABLE])
    else:
        vocabulary.fill(texts)
        scores = scores_of_merges(vocabulary.tokens, _merges(stored["model"]))
        for number in range(256):
            vocabulary.mark(f"<0x{number:02X}>", Kind.BYTE)
        _mark_added(vocabulary, added)
        unknown = stored["model"].get("unk_token")
        if isinstance(unknown, str):
            vocabulary.mark(unknown, Kind.UNKNOWN)
    scores[vocabulary.kinds == Kind.UNUSED] = -10000
    return {"scores": scores, "space_prefix": prefix}


def _added_tokens(settings: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Added tokens of a folder without tokenizer.json."""
    listed = settings.get("tokenizer_config.json", {}).get("added_tokens_decoder") or {}
    added = [{"id": int(key), **value} for key, value in listed.items() if str(key).isdecimal()]
    listed_ids = {each["id"] for each in added}
    extra = settings.get("added_tokens.json", {}).items()
    return added + [{"id": number, "content": text} for text, number in extra if number not in listed_ids]


def _prepends_space(stored: Mapping[str, Any]) -> bool:
    """Whether the normalizer or the pre-tokenizer puts a space before the text."""
    normalizer, pre = stored.get("normalizer") or {}, stored.get("pre_tokenizer") or {}
    steps = normalizer.get("normalizers", [normalizer]) if isinstance(normalizer, dict) else []
    if any(isinstance(step, dict) and step.get("type") == "Prepend" for step in steps):
        return True
    return isinstance(pre, dict) and pre.get("type") == "Metaspace" and pre.get("prepend_scheme", "always") != "never"


def _special(
    vocabulary: _Vocabulary, config: Mapping[str, Any], end: Mapping[str, Any], *named: Mapping[str, Any]
) -> dict[str, int]:
    """Ids by role: from texts in the tokenizer's files, else from numbers in config.json and generation_config.json."""
    options, listed, stored = named
    special: dict[str, int] = {}
    for role, key in _TOKEN_KEYS.items():
        texts = [value.get("content") if isinstance(value, dict) else value
                 for value in (options.get(key), listed.get(key))]  # fmt: skip
        numbers = [vocabulary.ids[text] for text in texts if isinstance(text, str) and text in vocabulary.ids]
        for source in (config, end):
            number = source.get(f"{key}_id")
            number = number[0] if isinstance(number, list) and number else number
            if type(number) is int and number >= 0:
                numbers.append(number)
        if numbers:
            special[role] = numbers[0]
    unknown = (stored.get("model") or {}).get("unk_token")
    if "unk" not in special and isinstance(unknown, str) and unknown in vocabulary.ids:
        special["unk"] = vocabulary.ids[unknown]
    return special


def _end_ids(
    vocabulary: _Vocabulary, special: Mapping[str, int], config: Mapping[str, Any], end: Mapping[str, Any]
) -> tuple[int, ...]:
    ids = [special["eos"]] if "eos" in special else []
    for source in (config, end):
        number = source.get("eos_token_id")
        ids += [each for each in (number if isinstance(number, list) else [number]) if type(each) is int and each >= 0]
    return tuple(dict.fromkeys(ids))


def _added(
    stored: Mapping[str, Any] | None, options: Mapping[str, Any], special: Mapping[str, int], vocabulary: _Vocabulary
) -> dict[str, bool]:
    """Whether bos and eos are added: according to the post-processor, as in transformers, else to the settings."""
    if stored is None:
        return {"bos": bool(options.get("add_bos_token", True)), "eos": bool(options.get("add_eos_token", False))}
    processor = stored.get("post_processor") or {}
    steps = processor.get("processors", [processor]) if isinstance(processor, dict) else []
    template = next((step for step in steps if isinstance(step, dict) and step.get("type") == "TemplateProcessing"), {})
    single = [each.get("SpecialToken", {}).get("id") for each in template.get("single", ()) if isinstance(each, dict)]
    count = len(vocabulary.tokens)
    texts = {role: vocabulary.tokens[number] for role, number in special.items() if number < count}
    return {
        "bos": bool(single) and single[0] is not None and single[0] == texts.get("bos"),
        "eos": bool(single) and single[-1] is not None and single[-1] == texts.get("eos"),
    }


def _templates(files: Mapping[str, bytes], options: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates from tokenizer_config.json, else from the template files."""
    templates: dict[str, str] = {}
    template = options.get("chat_template")
    if isinstance(template, str):
        templates[""] = template
    elif isinstance(template, list):
        pairs = [each for each in template if isinstance(each, dict) and isinstance(each.get("template"), str)]
        templates = {"" if each.get("name") == "default" else str(each.get("name")): each["template"] for each in pairs}
    try:
        if "" not in templates and "chat_template.jinja" in files:
            templates[""] = files["chat_template.jinja"].decode()
        for name, data in files.items():
            if name.startswith(TEMPLATE_FOLDER) and name.endswith(".jinja"):
                templates.setdefault(name[len(TEMPLATE_FOLDER) : -6], data.decode())
    except UnicodeDecodeError as error:
        raise FormatError("a chat template is not UTF-8", found=str(error), code="encoding") from None
    return templates
