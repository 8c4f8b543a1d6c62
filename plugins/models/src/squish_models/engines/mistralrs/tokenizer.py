"""Tokenizer files as mistral.rs reads them: each field that it knows has one type."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..folders.tokenizer_files import tokenizer_json_problems
from .types import NUMBER, SIZE, SWITCH, TEXT, U32, Either, Kind, ListOf, MapOf, Maybe, Struct

Wrong = tuple[str, str]
FLAGS = ("lstrip", "normalized", "rstrip", "single_word")
ADDED = Struct({"__type": Maybe(TEXT), "content": TEXT, **dict.fromkeys(FLAGS, SWITCH), "special": Maybe(SWITCH)})
TOKEN = Maybe(Either((TEXT, ADDED), "a text, or an object with a content and its flags"))
CONFIG: Mapping[str, Kind] = {
    **dict.fromkeys(
        ("add_bos_token", "add_eos_token", "clean_up_tokenization_spaces", "legacy", "spaces_between_special_tokens",
         "use_default_system_prompt"), Maybe(SWITCH),
    ),
    **dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), TOKEN),
    **dict.fromkeys(("device_map", "tokenizer_class", "truncation_size"), Maybe(TEXT)),
    "added_tokens_decoder": Maybe(MapOf(ADDED)), "additional_special_tokens": Maybe(ListOf(TEXT)),
    "chat_template": Maybe(Either((TEXT, ListOf(MapOf(TEXT))), "a text or a list of named templates")),
    "model_max_length": Maybe(NUMBER), "sp_model_kwargs": Maybe(MapOf(TEXT)),
}  # fmt: skip
IDS = Maybe(Either((U32, ListOf(U32)), "an id or a list of ids"))
GENERATION = Struct(
    {
        "bos_token_id": IDS,
        "eos_token_id": IDS,
        "do_sample": Maybe(SWITCH),
        "suppress_tokens": Maybe(ListOf(U32)),
        **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), Maybe(NUMBER)),
        **dict.fromkeys(("top_k", "max_new_tokens", "max_length"), Maybe(SIZE)),
    }
)
PROCESSOR = Struct(
    {
        **dict.fromkeys(("chat_template", "image_break_token", "image_end_token", "image_token"), Maybe(TEXT)),
        **dict.fromkeys(
            (
                "image_seq_len",
                "image_seq_length",
                "patch_size",
                "spatial_merge_size",
                "audio_seq_length",
                "video_max_soft_tokens",
            ),
            Maybe(SIZE),
        ),
        "pixel_shuffle_ratio": Maybe(NUMBER),
    }
)
MEMBERS = (
    "version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder",
    "model",
)  # fmt: skip
LISTED = Struct({"id": SIZE, "content": TEXT})


def config_problems(document: Any) -> Iterator[Wrong]:
    """Yield what keeps mistral.rs from reading a tokenizer_config.json."""
    yield from Struct(CONFIG).problems(document, "")


def vocabulary_problems(document: Any) -> Iterator[Wrong]:
    """Yield what keeps mistral.rs from reading a tokenizer.json."""
    if not isinstance(document, Mapping):
        yield "", "is not an object"
        return
    model = document.get("model")
    if isinstance(model, Mapping) and isinstance(model.get("vocab"), Mapping):
        yield from ListOf(LISTED).problems(document.get("added_tokens"), "added_tokens")
    unknown = next((name for name in document if name not in MEMBERS), None)
    if unknown is not None:
        yield unknown[:40], "is a member that the package tokenizers does not read"
    wrong = [*tokenizer_json_problems(document, is_rebuilt=False)]
    yield from wrong
    if not wrong and not _is_of_bytes(document.get("decoder")):
        yield "decoder", "works neither on bytes nor falls back to them, as mistral.rs expects"


def _is_of_bytes(decoder: Any) -> bool:
    steps = decoder.get("decoders") if isinstance(decoder, Mapping) and decoder.get("type") == "Sequence" else [decoder]
    return any(isinstance(step, Mapping) and step.get("type") in ("ByteLevel", "ByteFallback") for step in steps or ())


def words(document: Mapping[str, Any]) -> dict[str, int]:
    """Return every token of a tokenizer.json with its id."""
    vocabulary = document["model"].get("vocab")
    if isinstance(vocabulary, list):
        ids = {str(entry[0]): number for number, entry in enumerate(vocabulary) if entry}
    else:
        ids = dict(vocabulary or {})
    for token in document.get("added_tokens") or ():
        ids.setdefault(token["content"], token["id"])
    return ids


def spoken(token: str, decoder: Mapping[str, Any]) -> str | None:
    """Return the text that a decoder makes of one token; None if one of its steps is unknown here."""
    steps = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else [decoder]
    for step in steps:
        kind, content = step.get("type"), step.get("content", "")
        pattern = step.get("pattern")
        if kind == "ByteLevel":
            token = _bytes_of(token).decode(errors="replace")
        elif kind == "ByteFallback":
            code = re.fullmatch(r"<0x([0-9A-F]{2})>", token)
            token = bytes([int(code[1], 16)]).decode(errors="replace") if code else token
        elif kind == "Replace" and isinstance(pattern, Mapping) and "String" in pattern:
            token = token.replace(pattern["String"], content)
        elif kind == "Strip":
            leading = len(token) - len(token.lstrip(content))
            token = token[min(leading, step.get("start", 0)) :]
            trailing = len(token) - len(token.rstrip(content))
            token = token[: len(token) - min(trailing, step.get("stop", 0))]
        elif kind != "Fuse":
            return None
    return token


def _bytes_of(token: str) -> bytes:
    """Return the bytes that the characters of a byte-level token stand for."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    codes = {**{chr(byte): byte for byte in printable}, **{chr(256 + place): byte for place, byte in enumerate(others)}}
    if any(char not in codes for char in token):
        return token.encode()
    return bytes(codes[char] for char in token)


def end_problems(config: Mapping[str, Any], generation: Mapping[str, Any], document: Any) -> Iterator[Wrong]:
    """Yield end tokens that the tokenizer does not have, with which mistral.rs aborts."""
    vocabulary = words(document)
    end_token = config.get("eos_token")
    text = end_token.get("content") if isinstance(end_token, Mapping) else end_token
    if text is not None and text not in vocabulary:
        yield "eos_token", f"is {str(text)[:40]!r}, which the tokenizer does not have"
    names = {number: token for token, number in vocabulary.items()}
    ids = generation.get("eos_token_id")
    for number in ids if isinstance(ids, list) else [] if ids is None else [ids]:
        text = spoken(names[number], document["decoder"]) if number in names else ""
        if text is not None and text not in vocabulary:
            yield "eos_token_id", f"is {number}: {text[:40]!r}, which mistral.rs does not find in the tokenizer"
    if generation.get("repetition_penalty") == 0:
        yield "repetition_penalty", "is 0, by which mistral.rs divides"
