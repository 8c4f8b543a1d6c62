"""The files of a folder that define its tokenizer, parsed."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from attrs import field, frozen

from squish_core.api import LazyAssets, parse_object, parse_text

from . import sentencepiece
from .sentencepiece import Pieces
from .vocabulary import tokenizer_error

PIECES = ("tokenizer.model", "sentencepiece.bpe.model", "spiece.model")
"""Files with a SentencePiece model."""
VOCABULARY_FILES = ("tokenizer.json", *PIECES, "vocab.txt", "tiktoken.model")
"""Files with a vocabulary, the one that Transformers prefers first."""
FILES = (
    *VOCABULARY_FILES,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""Files of a folder that define its tokenizer."""
MODELS = {"BPE": "bpe", "WordPiece": "wordpiece", "Unigram": "unigram"}
"""Model of a tokenizer.json -> kind of the tokenizer; a BPE with `byte_fallback` is "spm"."""
TEMPLATE_FOLDER = "additional_chat_templates/"
DEFAULT_TEMPLATE = "default"
"""The name of the default chat template among named ones."""


@frozen(kw_only=True, eq=False)
class Content:
    """What a tokenizer's files contain.

    Parameters
    ----------
    values
        The objects of the JSON files, by name.
    vocabulary
        Name and content of the file with the vocabulary that is not JSON: a SentencePiece model, or bytes.
    forms
        Names of files that are written with the same vocabulary as tokenizer.json.
    templates
        The texts of the template files, by name.
    """

    values: Mapping[str, Any] = field(factory=dict)
    vocabulary: tuple[str, Pieces | bytes] | None = None
    forms: tuple[str, ...] = ()
    templates: Mapping[str, str] = field(factory=dict)

    @property
    def pieces(self) -> Pieces | None:
        """The vocabulary of a SentencePiece model."""
        return self.vocabulary[1] if self.vocabulary is not None and isinstance(self.vocabulary[1], Pieces) else None

    @property
    def names(self) -> list[str]:
        """The files' names."""
        return [*self.values, *self.forms, *self.templates]

    def select(self, names: Container[str]) -> Content:
        """Return the content of these files alone."""
        return Content(
            values=LazyAssets((name for name in self.values if name in names), self.values.__getitem__),
            vocabulary=self.vocabulary if self.vocabulary is not None and self.vocabulary[0] in names else None,
            forms=tuple(name for name in self.forms if name in names),
            templates={name: text for name, text in self.templates.items() if name in names},
        )


def describes_tokenizer(name: str) -> bool:
    """Return whether a folder's file of this name is part of its tokenizer."""
    return name in FILES or name.startswith(TEMPLATE_FOLDER)


def parse_files(files: Mapping[str, bytes], base: Content | None = None) -> Content:
    """Parse a tokenizer's files, which replace those of the same name in `base`; other files are ignored."""
    base = base or Content()
    templates = [name for name in files if name == "chat_template.jinja" or name.startswith(TEMPLATE_FOLDER)]
    texts = {name: parse_text(files[name], name) for name in templates if name.endswith(".jinja")}
    parsed = {name: parse_object(files[name], name) for name in FILES if name.endswith(".json") and name in files}
    values = LazyAssets((*base.values, *parsed), lambda name: parsed[name] if name in parsed else base.values[name])
    return Content(
        values=values,
        vocabulary=_vocabulary(files, values) or base.vocabulary,
        templates={**base.templates, **texts},
    )


def _vocabulary(files: Mapping[str, bytes], values: Mapping[str, Any]) -> tuple[str, Pieces | bytes] | None:
    """Return name and content of a vocabulary in another file than tokenizer.json, if it adds to it."""
    if not is_sentencepiece(values):
        return None
    legal = VOCABULARY_FILES[1:2] if "tokenizer.json" in values else VOCABULARY_FILES[1:]
    name = vocabulary_name({name: files[name] for name in legal if name in files})
    if name is None:
        return None
    return name, sentencepiece.parse(files[name]) if name in PIECES else files[name]


def vocabulary_name(files: Container[str]) -> str | None:
    """Return the name of the file with the vocabulary; None if there is none."""
    return next((name for name in VOCABULARY_FILES if name in files), None)


def is_sentencepiece(values: Mapping[str, Any]) -> bool:
    """Return whether JSON files describe a SentencePiece-style tokenizer, or leave it to another file."""
    stored = values.get("tokenizer.json")
    return stored is None or kind_of(stored) == "spm"


def kind_of(document: Mapping[str, Any]) -> str:
    """Return the kind of the tokenizer in a tokenizer.json.

    Raises
    ------
    FormatError
        `tokenizer` for a model that is not mapped.
    """
    model = document.get("model") or {}
    kind = model.get("type", "BPE")
    if kind not in MODELS:
        raise tokenizer_error("this kind of tokenizer is not mapped", ", ".join(MODELS), kind)
    return "spm" if kind == "BPE" and model.get("byte_fallback") else MODELS[kind]
