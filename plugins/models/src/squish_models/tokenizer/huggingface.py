"""The tokenizer of a Hugging Face folder: tokenizer.json or another vocabulary, and tokenizer_config.json."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from attrs import evolve

from squish_core.api import SquishError, site_page

from . import ranks, unigram, wordpiece
from .affixes import Affixes, adds_separator, affixes_of
from .content import (
    DEFAULT_TEMPLATE,
    MODELS,
    PIECES,
    TEMPLATE_FOLDER,
    VOCABULARY_FILES,
    Content,
    kind_of,
    parse_files,
    vocabulary_name,
)
from .pretokenizers import Pretokenizer, find_pretokenizer, structure
from .sampling import stated_sampling
from .token_table import TokenTable, mark_added, place, vocabulary_texts
from .vocabulary import (
    END_TEXTS,
    PARTS,
    ROLES,
    TOKEN_KEYS,
    Kind,
    Tokenizer,
    Vocabulary,
    check_merges,
    scores_of_merges,
    tokenizer_error,
)

_ADDABLE = (Kind.NORMAL, Kind.CONTROL, Kind.USER_DEFINED)
ADDED_SCORE, UNUSED_SCORE = -1000, -10000
"""Scores that llama.cpp's converter writes for tokens outside tokenizer.model; no engine reads them."""
CONFIG_KEYS = ("vocab_size", *(f"{key}_id" for key in TOKEN_KEYS.values()), "type_vocab_size")
"""Settings of config.json that a tokenizer depends on."""


def read_huggingface(
    files: Mapping[str, bytes], config: Mapping[str, Any], own: Sequence[Pretokenizer] = (), merging: str = ""
) -> Tokenizer | None:
    """Return the tokenizer in a folder's files; None if there is none.

    Parameters
    ----------
    files
        Contents by file name: those of `FILES` that exist, and `additional_chat_templates/*.jinja`.
    config
        The text part of config.json: `vocab_size` and ids of special tokens.
    own
        Pre-tokenizers of the family.
    merging
        The pre-tokenizer of a SentencePiece-style tokenizer whose merges GGUF stores instead of scores.

    Raises
    ------
    FormatError
        `tokenizer` if the files contradict each other or the config, or state a pre-tokenizer or model that is not
        mapped. `json` if one is not JSON.
    LimitError
        `count` or `size` beyond what vocabularies have.
    """
    with _typed_values(files):
        return read_content(parse_files(files), config, own, merging)


def read_content(
    content: Content, config: Mapping[str, Any], own: Sequence[Pretokenizer] = (), merging: str = ""
) -> Tokenizer | None:
    """Return the tokenizer in parsed files, like `read_huggingface`."""
    name = content.vocabulary[0] if content.vocabulary is not None else VOCABULARY_FILES[0]
    with _typed_values((*content.values, name)):
        document, defaults = _document(content, config)
        tokenizer = _read(content, document, config, defaults, merged=bool(merging))
        if tokenizer is None or document is None or tokenizer.model != "bpe":
            return tokenizer
        if merging and kind_of(document) == "spm":
            return evolve(tokenizer, pre=merging)
        return evolve(tokenizer, pre=_pretokenizer(document, own))


def _document(content: Content, config: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, Mapping[str, str]]:
    """Return tokenizer.json, or what Transformers builds from another vocabulary, and the class's special tokens.

    None for a SentencePiece model that merges, and if there is no vocabulary.
    """
    if "tokenizer.json" in content.values or content.vocabulary is None:
        return content.values.get("tokenizer.json"), {}
    options, pieces = content.values.get("tokenizer_config.json", {}), content.pieces
    name, data = content.vocabulary
    if pieces is not None:
        reader = unigram.class_of(pieces, name, options)
        return unigram.document_of(pieces, reader, options) if reader is not None else (None, {})
    assert isinstance(data, bytes)
    if name == "vocab.txt":
        return wordpiece.document_of(data, name, options)
    return ranks.document_of(data, options, config.get("vocab_size")), {}


def check_huggingface(files: Mapping[str, bytes], config: Mapping[str, Any]) -> tuple[str, ...]:
    """Check the tokenizer in a folder's files that are copied unchanged; return tokens without an embedding.

    Parameters
    ----------
    files, config
        As in `read_huggingface`. Only BPE is checked, and without merges, whose check takes longer than all others:
        every engine checks them when it loads the folder.

    Raises
    ------
    FormatError, LimitError
        As in `read_huggingface`.
    """
    checked = VOCABULARY_FILES[:1] if "tokenizer.json" in files else PIECES[:1]
    names = [name for name in files if name not in VOCABULARY_FILES or name in checked]
    with _typed_values(files):
        content = parse_files({name: files[name] for name in names})
        if _is_other_kind(content):
            return ()
        tokenizer = _read(content, content.values.get("tokenizer.json"), config, ranked=False)
    return () if tokenizer is None else tokenizer.left_out


@contextmanager
def _typed_values(names: Container[str]) -> Iterator[None]:
    """Name the file with the vocabulary in errors, and raise FormatError for values of the wrong type."""
    part = vocabulary_name(names) or VOCABULARY_FILES[0]
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
        ).within(part=part) from None


def _read(
    content: Content,
    stored: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    defaults: Mapping[str, str] | None = None,
    *,
    ranked: bool = True,
    merged: bool = False,
) -> Tokenizer | None:
    """Return the tokenizer without the name of its pre-tokenizer.

    `stored` is its tokenizer.json, `defaults` are the special tokens that tokenizer_config.json may leave out. From
    tokenizer.json, merges and scores are read only if `ranked`; no scores are derived from merges if `merged`.
    """
    settings = content.values
    if stored is None and content.pieces is None:
        return None
    options, end = settings.get("tokenizer_config.json", {}), settings.get("generation_config.json", {})
    declared = _declared(options)
    table = TokenTable(config.get("vocab_size"))
    kind = "spm" if stored is None else kind_of(stored) if ranked else "bpe"
    if merged and stored is not None and kind == "spm":
        kind = "bpe"
    rules: dict[str, Any] = {}
    ranking: dict[str, Any] = {}
    if kind == "spm":
        ranking["scores"], rules["space_prefix"] = _sentencepiece(content, table)
    elif stored is not None and kind == "wordpiece":
        rules["normalizer"] = wordpiece.read(stored, declared, options, table)
    elif stored is not None and kind == "unigram":
        rules["normalizer"], rules["space_prefix"], ranking["scores"] = unigram.read(stored, declared, table)
        ranking["scores"][table.kinds == Kind.UNUSED] = UNUSED_SCORE
    elif stored is not None:
        ranking = {"merges": _byte_level(stored, declared, table, ranked), "checked_merges": True}
    vocabulary = Vocabulary(tokens=tuple(table.tokens), kinds=table.kinds, **ranking)
    listed = settings.get("special_tokens_map.json", {})
    special = _special(table, (options, listed, defaults or {}), (config, end), stored or {})
    affixes = affixes_of(stored) if stored is not None else None
    end_ids = _end_ids(table, special, config, end)
    special = _roles(special, end_ids, affixes, table)
    add = _added(affixes, options, special, table)
    if kind == "wordpiece":  # llama.cpp ends a text with it
        special["sep"], end_ids = special["eos"], ()
    elif add.get("sep") and "eos" in special:
        special = {"sep": special["eos"], **special}
    return Tokenizer(
        model=kind,
        vocabulary=vocabulary,
        special=special,
        token_types=_token_types(config),
        **rules,
        add=add,
        end_ids=end_ids,
        chat_templates=_templates(content),
        left_out=tuple(table.beyond.values()),
        lost=affixes.lost if affixes is not None else (),
        sampling=stated_sampling(end),
    )


def _token_types(config: Mapping[str, Any]) -> int | None:
    """Return the number of token types of the model."""
    count = config.get("type_vocab_size")
    return count if type(count) is int and count >= 0 else None


def _is_other_kind(content: Content) -> bool:
    """Return whether tokenizer.json has a model other than BPE, which is not checked."""
    document = content.values.get("tokenizer.json")
    if document is None or (document.get("model") or {}).get("type", "BPE") not in MODELS:
        return document is not None
    return kind_of(document) not in ("bpe", "spm")


def _merges(model: Mapping[str, Any]) -> Sequence[Sequence[str]]:
    """Return the unchecked merges: pairs, or texts separated by a space in files from before 2024."""
    merges = model.get("merges") or []
    if not isinstance(merges, (list, tuple)):
        raise tokenizer_error("the merges are not a list", "pairs of tokens", type(merges).__name__)
    if str in {*map(type, merges)}:
        return [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    return merges


def _byte_level(
    stored: Mapping[str, Any], declared: list[dict[str, Any]], table: TokenTable, ranked: bool
) -> Sequence[Sequence[str]]:
    """Return the merges if `ranked`, and fill the table with the tokens."""
    model = stored.get("model") or {}
    texts, ids, added = vocabulary_texts(stored, model, declared)
    table.fill(texts, ids, added)
    merges = _merges(model) if ranked else ()
    check_merges(merges, model["vocab"])
    if model.get("byte_fallback"):
        _mark_bytes(table)
    mark_added(table, added)
    return merges


def _mark_bytes(table: TokenTable) -> None:
    """Mark the tokens that stand for bytes of unknown letters."""
    for number in range(256):
        table.mark(f"<0x{number:02X}>", Kind.BYTE)


def _pretokenizer(stored: Mapping[str, Any], own: Sequence[Pretokenizer]) -> str:
    """Return llama.cpp's name of the pre-tokenizer."""
    ignores_merges = bool((stored.get("model") or {}).get("ignore_merges"))
    pretokenizer = find_pretokenizer(stored.get("pre_tokenizer"), ignore_merges=ignores_merges, own=own)
    if pretokenizer is None:
        steps = "; ".join(" ".join(step) for step in structure(stored.get("pre_tokenizer"))) or "none"
        raise tokenizer_error(
            "llama.cpp has no name for this pre-tokenizer", f"one of {site_page('tokenizers')}", steps[:400]
        )
    return pretokenizer.names[0]


def _sentencepiece(content: Content, table: TokenTable) -> tuple[np.ndarray, bool]:
    """Return scores and the space prefix; from tokenizer.model if it exists, since tokenizer.json has no scores."""
    settings, pieces = content.values, content.pieces
    stored = settings.get("tokenizer.json", {})
    texts, ids, added = (
        vocabulary_texts(stored, stored.get("model") or {}, _declared(settings.get("tokenizer_config.json", {})))
        if stored
        else ([], {}, _added_tokens(settings))
    )
    prefix = _prepends_space(stored)
    merges = _merges(stored["model"]) if stored else ()
    if merges:
        check_merges(merges, stored["model"]["vocab"])
    if pieces is not None:
        prefix = pieces.space_prefix
        texts[: len(pieces.tokens)] = pieces.tokens
        for each in added:
            place(texts, each["id"], each["content"])
        table.fill(texts, {text: number for number, text in enumerate(texts) if text is not None}, added)
        scores = np.full(len(table.tokens), ADDED_SCORE, np.float32)
        scores[: len(pieces.scores)] = pieces.scores
        table.kinds[: len(pieces.kinds)] = pieces.kinds
        kinds = dict(enumerate(pieces.kinds.tolist()))
        mark_added(table, [each for each in added if kinds.get(each["id"], Kind.NORMAL) in _ADDABLE])
    else:
        table.fill(texts, ids, added)
        scores = scores_of_merges(table.tokens, merges)
        _mark_bytes(table)
        mark_added(table, added)
        unknown = stored["model"].get("unk_token")
        if isinstance(unknown, str):
            table.mark(unknown, Kind.UNKNOWN)
    scores[table.kinds == Kind.UNUSED] = UNUSED_SCORE
    return scores, prefix


def _added_tokens(settings: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the added tokens of a folder without tokenizer.json."""
    added = _declared(settings.get("tokenizer_config.json", {}))
    listed_ids = {each["id"] for each in added}
    extra = settings.get("added_tokens.json", {}).items()
    return added + [{"id": number, "content": text} for text, number in extra if number not in listed_ids]


def _declared(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the added tokens in tokenizer_config.json, which Transformers prefers to those of tokenizer.json."""
    listed = options.get("added_tokens_decoder") or {}
    return [{"id": int(key), **value} for key, value in listed.items() if str(key).isdecimal()]


def _prepends_space(stored: Mapping[str, Any]) -> bool:
    """Return whether the normalizer or the pre-tokenizer adds a space before the text."""
    normalizer, pre = stored.get("normalizer") or {}, stored.get("pre_tokenizer") or {}
    steps = normalizer.get("normalizers", [normalizer]) if isinstance(normalizer, dict) else []
    if any(isinstance(step, dict) and step.get("type") == "Prepend" for step in steps):
        return True
    return isinstance(pre, dict) and pre.get("type") == "Metaspace" and pre.get("prepend_scheme", "always") != "never"


def _special(
    table: TokenTable,
    by_text: Iterable[Mapping[str, Any]],
    by_id: Iterable[Mapping[str, Any]],
    stored: Mapping[str, Any],
) -> dict[str, int]:
    """Return ids by role: from the texts in files of the tokenizer, else from the ids in files of the model."""
    special: dict[str, int] = {}
    for role, key in TOKEN_KEYS.items():
        values = [source.get(key) for source in by_text]
        texts = [value.get("content") if isinstance(value, dict) else value for value in values]
        numbers = [table.ids[text] for text in texts if isinstance(text, str) and text in table.ids]
        if role == "pad":  # no text contains it
            numbers = [number for number in numbers if number not in table.beyond]
        for source in by_id:
            number = source.get(f"{key}_id")
            number = number[0] if isinstance(number, list) and number else number
            if type(number) is int and number >= 0:
                numbers.append(number)
        if numbers:
            special[role] = numbers[0]
    model = stored.get("model") or {}
    unknown = model.get("unk_token")
    if "unk" not in special and isinstance(unknown, str) and unknown in table.ids:
        special["unk"] = table.ids[unknown]
    return special if model.get("unk_id") is None else {**special, "unk": model["unk_id"]}


def _end_ids(
    table: TokenTable, special: Mapping[str, int], config: Mapping[str, Any], end: Mapping[str, Any]
) -> tuple[int, ...]:
    ids = [special["eos"]] if "eos" in special else []
    for source in (config, end):
        number = source.get("eos_token_id")
        ids += [each for each in (number if isinstance(number, list) else [number]) if type(each) is int and each >= 0]
    return tuple(dict.fromkeys(ids))


def _roles(
    special: dict[str, int], end_ids: Sequence[int], affixes: Affixes | None, table: TokenTable
) -> dict[str, int]:
    """Return the ids by role that llama.cpp needs: it adds bos and eos to a text, and also stops at eot and eom.

    A token that ends a turn by its text needs no role, unless it was eos.
    """
    for role, text in (("bos", affixes.before[:1]), ("eos", affixes.after[-1:])) if affixes is not None else ():
        if text and text[0] in table.ids:
            special[role] = table.ids[text[0]]
    stops = {number: table.tokens[number] for number in end_ids if number < len(table.tokens)}
    stops.pop(special.get("eos", -1), None)
    needed = [number for number, text in stops.items() if text not in END_TEXTS or number == end_ids[0]]
    return special | dict(zip(("eot", "eom"), needed))


def _added(
    affixes: Affixes | None, options: Mapping[str, Any], special: Mapping[str, int], table: TokenTable
) -> dict[str, bool]:
    """Return whether bos and eos are added: by the post-processor, as in Transformers, otherwise by the settings."""
    if affixes is None:
        return {"bos": bool(options.get("add_bos_token", True)), "eos": bool(options.get("add_eos_token", False))}
    count = len(table.tokens)
    texts = {role: table.tokens[number] for role, number in special.items() if number < count}
    separates = adds_separator(affixes, [texts.get("sep"), texts.get("eos")])
    added = {"bos": affixes.before[:1] == (texts.get("bos"),), "eos": affixes.after[-1:] == (texts.get("eos"),)}
    return added if separates is None else {**added, "sep": separates}


def _templates(content: Content) -> dict[str, Any]:
    """Return chat templates by name, the default one as "".

    As in Transformers, their own files precede tokenizer_config.json, which precedes a processor's file.
    """
    if content.templates:
        default = {"chat_template.jinja": ""}
        return {default.get(name, name[len(TEMPLATE_FOLDER) : -6]): text for name, text in content.templates.items()}
    settings = content.values
    template = settings.get("tokenizer_config.json", {}).get("chat_template")
    if isinstance(template, list):
        entries = [each for each in template if isinstance(each, dict)]
        return {
            "" if each.get("name") == DEFAULT_TEMPLATE else str(each.get("name")): each.get("template")
            for each in entries
        }
    if template is None and isinstance(processor := settings.get("chat_template.json", {}).get("chat_template"), str):
        template = processor
    return {} if template is None else {"": template}
