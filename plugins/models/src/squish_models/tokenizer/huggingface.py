"""The tokenizer of a Hugging Face folder: tokenizer.json, or tokenizer.model, with tokenizer_config.json beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np

from squish_core.api import LimitError, SquishError

from .base import (
    MOST_TOKENS,
    PARTS,
    ROLES,
    SPACE,
    TOKEN_KEYS,
    Kind,
    Tokenizer,
    Vocabulary,
    looks_special,
    scores_of_merges,
    tokenizer_error,
)
from .content import TEMPLATE_FOLDER, Content, is_sentencepiece, parse_files
from .pretokenizers import find_pretokenizer, structure

_ADDABLE = (Kind.NORMAL, Kind.CONTROL, Kind.USER_DEFINED)
CONFIG_KEYS = ("vocab_size", *(f"{key}_id" for key in TOKEN_KEYS.values()))
"""Settings of config.json that a tokenizer depends on."""


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
    with _typed_values("tokenizer.json" if "tokenizer.json" in files else "tokenizer.model"):
        return read_content(parse_files(files), config)


def read_content(content: Content, config: Mapping[str, Any]) -> Tokenizer | None:
    """The tokenizer in parsed files, like `read_huggingface`."""
    with _typed_values("tokenizer.json" if "tokenizer.json" in content.values else "tokenizer.model"):
        return _read(content, config)


@contextmanager
def _typed_values(part: str) -> Iterator[None]:
    """Errors that name the tokenizer's file, also for values of the wrong type."""
    try:
        yield
    except SquishError as error:
        if error.part in (*PARTS, *ROLES):
            error.part = None
        raise error.within(part=part) from None
    except (TypeError, ValueError, OverflowError, AttributeError, KeyError) as error:
        raise tokenizer_error(
            "a value in the tokenizer's files has the wrong type",
            "text, ids, lists and objects where they belong",
            error,
        ).within(part="tokenizer.json") from None


def _read(content: Content, config: Mapping[str, Any]) -> Tokenizer | None:
    settings = content.values
    stored = settings.get("tokenizer.json")
    if stored is None and content.pieces is None:
        return None
    options, end = settings.get("tokenizer_config.json", {}), settings.get("generation_config.json", {})
    table = _TokenTable(config.get("vocab_size"))
    if is_sentencepiece(settings):
        scores, space_prefix = _sentencepiece(content, table)
        rules: dict[str, Any] = {"model": "spm", "space_prefix": space_prefix}
        vocabulary = Vocabulary(tokens=tuple(table.tokens), kinds=table.kinds, scores=scores)
    else:
        merges, pre = _byte_level(settings["tokenizer.json"], table)
        rules = {"model": "bpe", "pre": pre}
        vocabulary = Vocabulary(tokens=tuple(table.tokens), kinds=table.kinds, merges=merges)
    listed = settings.get("special_tokens_map.json", {})
    special = _special(table, (options, listed), (config, end), stored or {})
    return Tokenizer(
        vocabulary=vocabulary, special=special, add=_added(stored, options, special, table), **rules,
        end_ids=_end_ids(table, special, config, end), chat_templates=_templates(content.templates, options),
    )  # fmt: skip


class _TokenTable:
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
        in_order = len(texts) == count and list(texts) == list(range(count))
        self.tokens = list(texts.values()) if in_order else [texts.get(number, "") for number in range(count)]
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


def _mark_added(table: _TokenTable, added: list[dict[str, Any]]) -> None:
    for each in added:
        token = each["content"]
        special = bool(each.get("special")) or looks_special(token)
        table.mark(token, Kind.CONTROL if special else Kind.USER_DEFINED)
        if not special:  # llama.cpp searches the raw text for these, before it replaces spaces by U+2581
            table.tokens[table.ids[token]] = token.replace(SPACE, " ")


def _merges(model: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Merges: pairs, or text separated by a space in files from before 2024."""
    merges = model.get("merges") or []
    pairs = merges
    if str in {*map(type, merges)}:
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    lists = {*map(type, pairs)} <= {list, tuple} and {*map(len, pairs)} <= {2}
    if not lists or not {*map(type, chain.from_iterable(pairs))} <= {str}:
        is_pair = [isinstance(pair, list) and [*map(type, pair)] == [str, str] for pair in pairs]
        rank = is_pair.index(False)
        raise tokenizer_error(f"merge {rank} is not a pair", "two tokens", repr(merges[rank])[:60])
    return tuple(map(tuple, pairs))


def _byte_level(stored: Mapping[str, Any], table: _TokenTable) -> tuple[tuple[tuple[str, str], ...], str]:
    """Merges and the name of the pre-tokenizer."""
    model = stored.get("model") or {}
    pretokenizer = find_pretokenizer(stored.get("pre_tokenizer"), ignore_merges=bool(model.get("ignore_merges")))
    if model.get("type", "BPE") != "BPE":
        raise tokenizer_error("this kind of tokenizer is not mapped", "BPE", model.get("type"))
    if pretokenizer is None:
        steps = "; ".join(" ".join(step) for step in structure(stored.get("pre_tokenizer"))) or "none"
        raise tokenizer_error("llama.cpp has no name for this pre-tokenizer", "one of docs/tokenizers.md", steps[:400])
    texts, added = _texts(stored, model)
    table.fill(texts)
    merges = _merges(model)
    _mark_added(table, added)
    return merges, pretokenizer.names[0]


def _sentencepiece(content: Content, table: _TokenTable) -> tuple[np.ndarray, bool]:
    """Scores and the space prefix; from tokenizer.model if it exists, since tokenizer.json has no scores."""
    settings, pieces = content.values, content.pieces
    stored = settings.get("tokenizer.json", {})
    texts, added = _texts(stored, stored.get("model") or {}) if stored else ({}, _added_tokens(settings))
    prefix = _prepends_space(stored)
    if pieces is not None:
        prefix = pieces.space_prefix
        table.fill({**texts, **dict(enumerate(pieces.tokens)), **{each["id"]: each["content"] for each in added}})
        scores = np.full(len(table.tokens), -10000, np.float32)
        scores[: len(pieces.scores)] = pieces.scores
        table.kinds[: len(pieces.kinds)] = pieces.kinds
        kinds = dict(enumerate(pieces.kinds.tolist()))
        _mark_added(table, [each for each in added if kinds.get(each["id"], Kind.NORMAL) in _ADDABLE])
    else:
        table.fill(texts)
        scores = scores_of_merges(table.tokens, _merges(stored["model"]))
        for number in range(256):
            table.mark(f"<0x{number:02X}>", Kind.BYTE)
        _mark_added(table, added)
        unknown = stored["model"].get("unk_token")
        if isinstance(unknown, str):
            table.mark(unknown, Kind.UNKNOWN)
    scores[table.kinds == Kind.UNUSED] = -10000
    return scores, prefix


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
    table: _TokenTable, by_text: Iterable[Mapping[str, Any]], by_id: Iterable[Mapping[str, Any]],
    stored: Mapping[str, Any],
) -> dict[str, int]:  # fmt: skip
    """Ids by role: from the texts in files of the tokenizer, else from the ids in files of the model."""
    special: dict[str, int] = {}
    for role, key in TOKEN_KEYS.items():
        values = [source.get(key) for source in by_text]
        texts = [value.get("content") if isinstance(value, dict) else value for value in values]
        numbers = [table.ids[text] for text in texts if isinstance(text, str) and text in table.ids]
        for source in by_id:
            number = source.get(f"{key}_id")
            number = number[0] if isinstance(number, list) and number else number
            if type(number) is int and number >= 0:
                numbers.append(number)
        if numbers:
            special[role] = numbers[0]
    unknown = (stored.get("model") or {}).get("unk_token")
    if "unk" not in special and isinstance(unknown, str) and unknown in table.ids:
        special["unk"] = table.ids[unknown]
    return special


def _end_ids(
    table: _TokenTable, special: Mapping[str, int], config: Mapping[str, Any], end: Mapping[str, Any]
) -> tuple[int, ...]:
    ids = [special["eos"]] if "eos" in special else []
    for source in (config, end):
        number = source.get("eos_token_id")
        ids += [each for each in (number if isinstance(number, list) else [number]) if type(each) is int and each >= 0]
    return tuple(dict.fromkeys(ids))


def _added(
    stored: Mapping[str, Any] | None, options: Mapping[str, Any], special: Mapping[str, int], table: _TokenTable
) -> dict[str, bool]:
    """Whether bos and eos are added: according to the post-processor, as in transformers, else to the settings."""
    if stored is None:
        return {"bos": bool(options.get("add_bos_token", True)), "eos": bool(options.get("add_eos_token", False))}
    processor = stored.get("post_processor") or {}
    steps = processor.get("processors", [processor]) if isinstance(processor, dict) else []
    template = next((step for step in steps if isinstance(step, dict) and step.get("type") == "TemplateProcessing"), {})
    single = [each.get("SpecialToken", {}).get("id") for each in template.get("single", ()) if isinstance(each, dict)]
    count = len(table.tokens)
    texts = {role: table.tokens[number] for role, number in special.items() if number < count}
    return {
        "bos": bool(single) and single[0] is not None and single[0] == texts.get("bos"),
        "eos": bool(single) and single[-1] is not None and single[-1] == texts.get("eos"),
    }


def _templates(files: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates from tokenizer_config.json, else from the template files."""
    templates: dict[str, str] = {}
    template = options.get("chat_template")
    if isinstance(template, str):
        templates[""] = template
    elif isinstance(template, list):
        pairs = [each for each in template if isinstance(each, dict) and isinstance(each.get("template"), str)]
        templates = {"" if each.get("name") == "default" else str(each.get("name")): each["template"] for each in pairs}
    if "" not in templates and "chat_template.jinja" in files:
        templates[""] = files["chat_template.jinja"]
    for name, text in files.items():
        if name.startswith(TEMPLATE_FOLDER):
            templates.setdefault(name[len(TEMPLATE_FOLDER) : -6], text)
    return templates
