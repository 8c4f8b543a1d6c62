"""A tokenizer as the files of a Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from squish_core.api import LazyAssets, site_page

from . import ranks, sentencepiece, unigram, wordpiece
from .content import DEFAULT_TEMPLATE, Content
from .pretokenizers import Pretokenizer, named_pretokenizer
from .sampling import SAMPLES, SUPPRESSED
from .sentencepiece import Pieces
from .vocabulary import (
    SPACE,
    TOKEN_KEYS,
    Kind,
    SpecialTokens,
    Tokenizer,
    merges_of_scores,
    piece_texts,
    tokenizer_error,
)

VERSION = {"version": "1.0"}
ONE_LINE = json.dumps(VERSION)[:-1].encode()
"""The start of a tokenizer.json that Squish writes, on one line."""
FORMS: Mapping[str, Callable[[Tokenizer], bytes]] = {
    "tokenizer.model": sentencepiece.write,
    "vocab.txt": wordpiece.write_words,
    "tiktoken.model": ranks.write,
}
"""Files with the same vocabulary as tokenizer.json."""
FORMS_OF = {"spm": ("tokenizer.model",), "wordpiece": ("vocab.txt",)}
"""Kind of a tokenizer -> those that it has."""
ADDED = {"spm": ("bos",), "wordpiece": ("bos", "eos"), "unigram": ("eos",)}
"""Kind of a tokenizer -> the tokens that llama.cpp adds to a text unless a key denies it."""
CLASSES = {
    "bpe": "PreTrainedTokenizerFast",
    "spm": "LlamaTokenizer",
    "wordpiece": "BertTokenizer",
    "unigram": "PreTrainedTokenizerFast",
}
"""Kind of a tokenizer -> its class in Transformers; that of unigram models takes all steps from tokenizer.json."""
SPELLED_DECODERS: list[dict[str, Any]] = [
    {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
]  # fmt: skip


def huggingface_files(tokenizer: Tokenizer, *, gemma: bool = False) -> dict[str, bytes]:
    """Build the files of a tokenizer: tokenizer.json, tokenizer_config.json, generation_config.json, and others.

    Parameters
    ----------
    tokenizer
        The tokenizer.
    gemma
        Whether the model is a Gemma: its merges follow the ids, and its runs of spaces are tokens with U+2581.

    Returns
    -------
    dict
        File name to content.

    Raises
    ------
    FormatError
        `tokenizer` if tokenizer.json cannot express the pre-tokenizer.
    """
    return dict(EncodedFiles(tokenizer, huggingface_content(tokenizer, gemma=gemma)))


def huggingface_content(tokenizer: Tokenizer, *, gemma: bool = False) -> Content:
    """Return the content of `huggingface_files`; JSON files are built on access."""
    documents: dict[str, Callable[[], Callable[[], dict[str, Any]]]] = {
        "bpe": lambda: partial(_merged, tokenizer, _pretokenizer(tokenizer)),
        "spm": lambda: partial(_sentencepiece, tokenizer, gemma),
        "wordpiece": lambda: partial(_wordpiece, tokenizer),
        "unigram": lambda: partial(_unigram, tokenizer),
    }
    build: dict[str, Callable[[], dict[str, Any]]] = {
        "tokenizer.json": documents[tokenizer.model](),
        "tokenizer_config.json": partial(_options, tokenizer, gemma),
        "generation_config.json": partial(_generation, tokenizer),
    }
    values = LazyAssets(build, lambda name: build[name]())
    vocabulary = None
    if tokenizer.model == "spm":
        assert tokenizer.scores is not None
        texts = tuple(piece_texts(tokenizer))
        pieces = Pieces(texts, tokenizer.scores, tokenizer.kinds, bool(tokenizer.space_prefix))
        vocabulary = "tokenizer.model", pieces
    forms = ("tiktoken.model",) if tokenizer.pre in ranks.PRETOKENIZERS.values() else ()
    return Content(values=values, vocabulary=vocabulary, forms=FORMS_OF.get(tokenizer.model, forms))


class EncodedFiles(Mapping[str, bytes]):
    """The files of a tokenizer: existing ones, and new ones, which are encoded on access."""

    def __init__(self, tokenizer: Tokenizer, content: Content, files: Mapping[str, bytes] | None = None) -> None:
        self._tokenizer, self._content = tokenizer, content
        self._files = dict(files or {})
        self._names = list(dict.fromkeys((*content.names, *self._files)))

    def __getitem__(self, name: str) -> bytes:
        if name not in self._files and name in self._names:
            self._files[name] = self._encode(name)
        return self._files[name]

    def _encode(self, name: str) -> bytes:
        if name in FORMS:
            return FORMS[name](self._tokenizer)
        content = self._content.values[name]
        indent = None if name == "tokenizer.json" else 2  # only on one line is a vocabulary written by compiled code
        return json.dumps(content, ensure_ascii=False, check_circular=False, indent=indent).encode()

    def matches(self, name: str, data: bytes) -> bool:
        """Return whether a file has these bytes; an indented tokenizer.json never has, since Squish writes one line."""
        if name == "tokenizer.json" and name not in self._files and not data.startswith(ONE_LINE):
            return False
        return self.get(name) == data

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _pretokenizer(tokenizer: Tokenizer) -> Pretokenizer:
    """Return the pre-tokenizer's object in tokenizer.json."""
    pretokenizer = named_pretokenizer(tokenizer.pre or "default")
    if pretokenizer is None:
        raise tokenizer_error(
            "this pre-tokenizer cannot be written to tokenizer.json",
            f"one of {site_page('tokenizers')}",
            tokenizer.pre,
            "tokenizer.ggml.pre",
        )
    return pretokenizer


def _merged(tokenizer: Tokenizer, pretokenizer: Pretokenizer) -> dict[str, Any]:
    """Return a tokenizer.json with merges; its tokens are byte-level, or texts with U+2581 for a space."""
    steps, spelled, unknown = [*pretokenizer.steps], [*pretokenizer.spelled], tokenizer.special.get("unk")
    model = {
        "type": "BPE", "dropout": None,
        "unk_token": tokenizer.tokens[unknown] if spelled and unknown is not None else None,
        "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": bool(spelled),
        "byte_fallback": bool(spelled), "ignore_merges": pretokenizer.ignore_merges,
        "vocab": _vocabulary(tokenizer, tokenizer.tokens), "merges": tokenizer.merges,
    }  # fmt: skip
    pre_tokenizer = steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}
    if spelled:
        return _root(
            tokenizer,
            model,
            tokenizer.tokens,
            None,
            normalizer=spelled[0] if len(spelled) == 1 else {"type": "Sequence", "normalizers": spelled},
            pre_tokenizer=pre_tokenizer,
            decoder={"type": "Sequence", "decoders": SPELLED_DECODERS},
        )
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return _root(
        tokenizer,
        model,
        tokenizer.tokens,
        byte_level,
        normalizer={"type": pretokenizer.normalizer} if pretokenizer.normalizer else None,
        pre_tokenizer=pre_tokenizer,
        decoder=byte_level,
    )


def _sentencepiece(tokenizer: Tokenizer, gemma: bool) -> dict[str, Any]:
    assert tokenizer.scores is not None
    texts = piece_texts(tokenizer)
    ranks = -np.arange(len(texts), dtype=np.float32) if gemma else tokenizer.scores
    unknown = tokenizer.special.get("unk")
    model = {
        "type": "BPE", "dropout": None, "unk_token": None if unknown is None else tokenizer.tokens[unknown],
        "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True,
        "ignore_merges": False, "vocab": _vocabulary(tokenizer, texts),
        "merges": merges_of_scores(texts, tokenizer.kinds, ranks),
    }  # fmt: skip
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    decoders = list(SPELLED_DECODERS)
    if tokenizer.space_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        normalizer: dict[str, Any] = {
            "type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": SPACE}, replace],
        }
    else:
        normalizer = replace
    words = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return _root(
        tokenizer,
        model,
        texts,
        None,
        normalizer=normalizer,
        pre_tokenizer=words if gemma else None,
        decoder={"type": "Sequence", "decoders": decoders},
    )


def _wordpiece(tokenizer: Tokenizer) -> dict[str, Any]:
    parts = wordpiece.parts(tokenizer)
    parts["model"]["vocab"] = _vocabulary(tokenizer, tokenizer.tokens)
    return _root(tokenizer, texts=tokenizer.tokens, processor=None, **parts)


def _unigram(tokenizer: Tokenizer) -> dict[str, Any]:
    return _root(tokenizer, texts=piece_texts(tokenizer), processor=None, **unigram.parts(tokenizer))


def _vocabulary(tokenizer: Tokenizer, texts: Any) -> dict[str, int]:
    """Return token -> id; ids without a text are omitted."""
    padding = {
        number for number in np.flatnonzero(tokenizer.kinds == Kind.UNUSED).tolist() if _padding(texts[number], number)
    }
    pairs = zip(texts, range(len(texts)))
    return {text: number for text, number in pairs if number not in padding} if padding else dict(pairs)


def _padding(text: str, number: int) -> bool:
    return text in (f"[PAD{number}]", f"<pad_{number}>", "")


def _root(
    tokenizer: Tokenizer, model: dict[str, Any], texts: Any, processor: dict[str, Any] | None, **steps: Any
) -> dict[str, Any]:
    """Return the root object of tokenizer.json."""
    marked = np.flatnonzero(np.isin(tokenizer.kinds, (Kind.CONTROL, Kind.USER_DEFINED, Kind.UNKNOWN)))
    added = [
        {
            "id": int(number),
            "content": texts[number],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": bool(tokenizer.kinds[number] != Kind.USER_DEFINED),
        }
        for number in marked
    ]
    return {
        **VERSION,
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": steps["normalizer"],
        "pre_tokenizer": steps["pre_tokenizer"],
        "post_processor": _processor(tokenizer) or processor,
        "decoder": steps["decoder"],
        "model": model,
    }


def _processor(tokenizer: Tokenizer) -> dict[str, Any] | None:
    """Return the post-processor that adds the tokenizer's bos and eos to a text, and sep between two texts."""
    pretokenizer = named_pretokenizer(tokenizer.pre) if tokenizer.pre is not None else None
    defaults = ADDED.get(tokenizer.model, ("bos",) if pretokenizer is not None and pretokenizer.add_bos else ())
    add = {**dict.fromkeys(defaults, True), **tokenizer.add}
    present = {role: number for role, number in tokenizer.special.items() if add.get(role)}
    if not present:
        return None
    texts = {role: tokenizer.tokens[number] for role, number in present.items()}

    def special(role: str, kind: int) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": texts[role], "type_id": kind}}] if role in texts else []

    def template(letter: str, kind: int, first: str) -> list[dict[str, Any]]:
        return [*special(first, kind), {"Sequence": {"id": letter, "type_id": kind}}, *special("eos", kind)]

    tokens = {texts[role]: {"id": texts[role], "ids": [present[role]], "tokens": [texts[role]]} for role in present}
    second = "sep" if "sep" in texts else "bos" if tokenizer.model in ("bpe", "spm") else ""
    pair = [*template("A", 0, "bos"), *template("B", 1, second)]
    return {
        "type": "TemplateProcessing",
        "single": template("A", 0, "bos"),
        "pair": pair,
        "special_tokens": tokens,
    }


def _options(tokenizer: Tokenizer, gemma: bool) -> dict[str, Any]:
    """tokenizer_config.json."""
    options: dict[str, Any] = {
        "tokenizer_class": "GemmaTokenizer" if gemma and tokenizer.model == "spm" else CLASSES[tokenizer.model],
        "clean_up_tokenization_spaces": False, "model_max_length": 10**30,
    }  # fmt: skip
    options |= {f"add_{role}_token": flag for role, flag in tokenizer.add.items()}
    if tokenizer.space_prefix is not None:
        options["add_prefix_space"] = tokenizer.space_prefix
    options |= {
        key: tokenizer.tokens[tokenizer.special[role]] for role, key in TOKEN_KEYS.items() if role in tokenizer.special
    }
    if tokenizer.model == "wordpiece":  # BERT's class calls them so
        options |= wordpiece.class_options(tokenizer)
        options["cls_token"] = options.pop("bos_token", None)
        options.pop("eos_token", None)
    templates = tokenizer.chat_templates
    if [*templates] == [""]:
        options["chat_template"] = templates[""]
    elif templates:
        options["chat_template"] = [
            {"name": name or DEFAULT_TEMPLATE, "template": text} for name, text in templates.items()
        ]
    return options


def generation_config(ids: Tokenizer | SpecialTokens) -> bytes:
    """Return generation_config.json with the special ids and all ids that end a text."""
    return json.dumps(_generation(ids), ensure_ascii=False, indent=2).encode()


def _generation(ids: Tokenizer | SpecialTokens) -> dict[str, Any]:
    numbers = {f"{role}_token_id": ids.special[role] for role in ("bos", "pad") if role in ids.special}
    ends = list(ids.end_ids) or [ids.special[role] for role in ("eos",) if role in ids.special]
    samples = {**(SAMPLES if {*ids.sampling} - {SUPPRESSED} else {}), **ids.sampling}
    return numbers | ({"eos_token_id": ends[0] if len(ends) == 1 else ends} if ends else {}) | samples
