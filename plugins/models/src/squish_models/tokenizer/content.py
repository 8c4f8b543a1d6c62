"""The files of a folder that define its tokenizer, parsed."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from typing import Any

from attrs import field, frozen

from squish_core.api import FormatError, LimitError

from . import sentencepiece
from .sentencepiece import Pieces

FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "generation_config.json", "chat_template.jinja",
)  # fmt: skip
"""Files of a folder that define its tokenizer."""
TEMPLATE_FOLDER = "additional_chat_templates/"
_MOST_BYTES, _MOST_NODES = 64 << 20, 8 << 20


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
        """The content of these files alone."""
        return Content(
            values={name: value for name, value in self.values.items() if name in names},
            pieces=self.pieces if "tokenizer.model" in names else None,
            templates={name: text for name, text in self.templates.items() if name in names},
        )


def describes_tokenizer(name: str) -> bool:
    """Whether a folder's file of this name is part of its tokenizer."""
    return name in FILES or name.startswith(TEMPLATE_FOLDER)


def parse_files(files: Mapping[str, bytes], base: Content | None = None) -> Content:
    """Parse a tokenizer's files, which replace those of the same name in `base`; other files are ignored."""
    base = base or Content()
    templates = [name for name in files if name == "chat_template.jinja" or name.startswith(TEMPLATE_FOLDER)]
    texts = {name: _text(files[name], name) for name in templates if name.endswith(".jinja")}
    parsed = {name: parse_json(files[name], name) for name in FILES if name.endswith(".json") and name in files}
    values, pieces = {**base.values, **parsed}, base.pieces
    if "tokenizer.model" in files and is_sentencepiece(values):
        pieces = sentencepiece.parse(files["tokenizer.model"])
    return Content(values=values, pieces=pieces, templates={**base.templates, **texts})


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FormatError("a chat template is not UTF-8", part=name, found=str(error), code="encoding") from None


def is_sentencepiece(values: Mapping[str, Any]) -> bool:
    """Whether JSON files describe a SentencePiece-style tokenizer, or leave it to tokenizer.model."""
    stored = values.get("tokenizer.json")
    return stored is None or bool(stored.get("model", {}).get("byte_fallback"))


def parse_json(data: bytes, name: str) -> dict[str, Any]:
    """The object of a file, each key once; bounded by its size and by the number of its values."""
    if len(data) > _MOST_BYTES:
        raise LimitError(
            "is too large", part=name, expected=f"at most {_MOST_BYTES} bytes", found=len(data), code="size"
        )
    nodes = data.count(b",") + data.count(b"[") + data.count(b"{")
    if nodes > _MOST_NODES:
        raise LimitError("has too many values", part=name, expected=f"at most {_MOST_NODES}", found=nodes, code="count")
    try:
        parsed = json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise error.within(part=name) from None
        raise FormatError("is not JSON", part=name, found=str(error), code="json") from None
    if not isinstance(parsed, dict):
        raise FormatError("is not a JSON object", part=name, found=type(parsed).__name__, code="json")
    return parsed


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        keys = [key for key, _ in pairs]
        key = next(key for key in members if keys.count(key) > 1)
        raise FormatError("a key appears twice", found=repr(key[:80]), code="duplicate")
    return members
