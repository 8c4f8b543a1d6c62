"""The files of a folder that define its tokenizer, parsed."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from attrs import field, frozen

from squish_core.api import LazyAssets, parse_object, parse_text

from . import sentencepiece
from .sentencepiece import Pieces

FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "generation_config.json", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
"""Files of a folder that define its tokenizer."""
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
    pieces
        The vocabulary of tokenizer.model.
    templates
        The texts of the template files, by name.
    """

    values: Mapping[str, Any] = field(factory=dict)
    pieces: Pieces | None = None
    templates: Mapping[str, str] = field(factory=dict)

    @property
    def names(self) -> list[str]:
        """The files' names."""
        return [*self.values, *(("tokenizer.model",) if self.pieces is not None else ()), *self.templates]

    def select(self, names: Container[str]) -> Content:
        """Return the content of these files alone."""
        return Content(
            values=LazyAssets((name for name in self.values if name in names), self.values.__getitem__),
            pieces=self.pieces if "tokenizer.model" in names else None,
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
    pieces = base.pieces
    if "tokenizer.model" in files and is_sentencepiece(values):
        pieces = sentencepiece.parse(files["tokenizer.model"])
    return Content(values=values, pieces=pieces, templates={**base.templates, **texts})


def is_sentencepiece(values: Mapping[str, Any]) -> bool:
    """Return whether JSON files describe a SentencePiece-style tokenizer, or leave it to tokenizer.model."""
    stored = values.get("tokenizer.json")
    return stored is None or bool(stored.get("model", {}).get("byte_fallback"))
