"""Tokenizer files as the package `tokenizers`, which all folder engines use, reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

MODELS = ("BPE", "WordPiece", "WordLevel", "Unigram")
MEMBERS = (
    "version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder",
    "model",
)  # fmt: skip
STEPS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_SPM_STEPS = [
    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
]  # fmt: skip
SPM_DECODERS = tuple(
    {"type": "Sequence", "decoders": [*_SPM_STEPS, *last]}
    for last in ((), ({"type": "Strip", "content": " ", "start": 1, "stop": 0},))
)
"""Decoders for which mlx-lm lists all tokens when it loads a tokenizer."""
MOST_ID = (1 << 32) - 1
Check = Callable[[Any], bool]


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_switch(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_ID


def _is_dropout(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not _is_bool(value) and 0 <= value <= 1)


FIELDS: dict[str, tuple[Check, str]] = {
    "dropout": (_is_dropout, "a number from 0 to 1"), "unk_token": (_is_text, "a text"),
    "continuing_subword_prefix": (_is_text, "a text"), "end_of_word_suffix": (_is_text, "a text"),
    "fuse_unk": (_is_switch, "true or false"), "byte_fallback": (_is_switch, "true or false"),
    "ignore_merges": (_is_switch, "true or false"),
}  # fmt: skip
"""Settings of a BPE model in tokenizer.json."""
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def tokenizer_json_problems(document: Mapping[str, Any], is_rebuilt: bool) -> Iterator[tuple[str, str]]:
    """Yield what keeps a tokenizer.json from being read: the field, and what is wrong with it.

    `is_rebuilt`: the class reads only the vocabulary, the merges and the added tokens from the file.
    """
    if document.get("version", "1.0") != "1.0":
        yield "version", f"is {str(document['version'])[:40]!r}; only '1.0' is read"
    unknown = next((name for name in document if name not in MEMBERS), None)
    if unknown is not None:
        yield unknown[:40], "is not a member that is read"
    for step in STEPS:
        value = document.get(step)
        if value is not None and not (isinstance(value, Mapping) and isinstance(value.get("type"), str)):
            yield step, "is not an object with a type"
    for name in ("truncation", "padding"):
        if document.get(name) is not None and not isinstance(document[name], Mapping):
            yield name, "is not an object"
    yield from _added_problems(document.get("added_tokens"), is_rebuilt)
    model = document.get("model")
    if not isinstance(model, Mapping):
        yield "model", "is missing or not an object"
    elif "type" in model and model["type"] not in MODELS:
        yield "model.type", f"is {str(model['type'])[:40]!r}; {', '.join(MODELS)} are read"
    elif not model:
        yield "model", "is empty"
    elif "merges" in model or model.get("type") == "BPE":
        yield from _bpe_problems(model, is_rebuilt)


def _bpe_problems(model: Mapping[str, Any], is_rebuilt: bool) -> Iterator[tuple[str, str]]:
    for name, (check, expected) in FIELDS.items():
        if name in model and not check(model[name]):
            yield f"model.{name}", f"is {str(model[name])[:40]!r}, not {expected}"
    vocabulary, merges = model.get("vocab"), model.get("merges")
    if not isinstance(vocabulary, Mapping):
        yield "model.vocab", "is not an object of tokens and ids"
        return
    wrong = next((token for token, number in vocabulary.items() if not _is_id(number)), None)
    if wrong is not None:
        yield "model.vocab", f"has {str(vocabulary[wrong])[:40]} as the id of {wrong[:40]!r}"
    if merges is None and "merges" not in model and is_rebuilt:
        return
    if not isinstance(merges, list):
        yield "model.merges", "is not a list"
        return
    prefix = "" if is_rebuilt else model.get("continuing_subword_prefix") or ""
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(each, str) for each in pair):
            yield "model.merges", f"has {str(merge)[:40]!r}, not two tokens"
            return
        left, right = pair
        parts = (left, right, _merged(left, right, prefix))
        missing = [token for token in parts if token not in vocabulary]
        if missing:
            yield "model.merges", f"has {str(missing[0])[:40]!r}, which the vocabulary does not"
            return


def _merged(left: str, right: str, prefix: str) -> str | None:
    """Return the token of a merge: the right one loses as many bytes as the prefix has; None if it has fewer."""
    size, data = len(str(prefix).encode()), right.encode()
    return left + data[size:].decode(errors="replace") if size <= len(data) else None


def _added_problems(added: Any, is_rebuilt: bool) -> Iterator[tuple[str, str]]:
    if not isinstance(added, list):
        yield "added_tokens", "is not a list"
        return
    for token in added:
        content = token.get("content", "" if is_rebuilt else None) if isinstance(token, Mapping) else None
        if not isinstance(content, str) or not _is_id(token.get("id")):
            yield "added_tokens", f"has {str(token)[:60]}, without an id and a content"
            return
        if not is_rebuilt and not all(_is_bool(token.get(flag)) for flag in FLAGS):
            yield "added_tokens", f"has {str(token)[:60]}, without its {len(FLAGS)} flags"
            return


def tokenizer_config_problems(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what keeps a tokenizer_config.json from being read: the field, and what is wrong with it."""
    for name in SPECIAL:
        value = config.get(name)
        if value is not None and not isinstance(value, str | Mapping):
            yield name, f"is {str(value)[:40]!r}, not a text"
    kind = config.get("tokenizer_class")
    if kind is not None and not isinstance(kind, str):
        yield "tokenizer_class", f"is {str(kind)[:40]!r}, not a text"
    length = config.get("model_max_length")
    if length is not None and not isinstance(length, int | float):
        yield "model_max_length", f"is {str(length)[:40]!r}, not a number"
    template = config.get("chat_template")
    if isinstance(template, list) and not all(
        isinstance(each, Mapping) and {"name", "template"} <= each.keys() for each in template
    ):
        yield "chat_template", "is a list of other things than named templates"


def gap_of(document: Mapping[str, Any]) -> int | None:
    """Return an id below the number of tokens that has no token; None without one, or if mlx-lm lists no tokens."""
    model, decoder = document.get("model"), document.get("decoder")
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    if not isinstance(vocabulary, Mapping) or decoder not in SPM_DECODERS:
        return None
    added = document.get("added_tokens")
    tokens = {
        token["content"]: token["id"]
        for token in (added if isinstance(added, list) else ())
        if isinstance(token, Mapping) and {"content", "id"} <= token.keys() and isinstance(token["content"], str)
    } | dict(vocabulary)
    numbers = set(map(repr, tokens.values()))
    return next((number for number in range(len(tokens)) if repr(number) not in numbers), None)
