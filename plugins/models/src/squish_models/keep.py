"""Data that the target's engine ignores, stored for the way back: files inside GGUF, keys next to config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b, sha256
from typing import Any

import numpy as np
from squish_convert.api import Model
from squish_gguf.api import FILE, pack_files, pack_pair, unpack_files

from squish_core.api import FormatError, Typed

from .tokenizer import CONFIG_KEYS

NAMES, DIGEST = "squish.files", "squish.tokenizer"
"""GGUF keys for the names of all files of the source, and for a digest of its tokenizer."""
ROWS = "squish.rows."
"""The start of GGUF keys about rows that GGUF leaves out."""
KEYS_FILE = "squish.gguf.json"
"""File with the keys of a GGUF that cannot be rebuilt from config.json and the tokenizer."""
SINGLE_TYPES = (0, 1, 2, 3, 7, 8, 9, 32)
"""Numbers of `general.file_type` for files of a single type: f32, f16, q4_0, q4_1, q8_0, q5_0, q5_1, bf16."""


def kept_files(files: Mapping[str, bytes], names: Sequence[str], digest: Typed | None = None) -> dict[str, Typed]:
    """Return GGUF keys for files, for the names of all files of the source, and for the digest of its tokenizer."""
    digests = {DIGEST: digest} if digest is not None else {}
    return {**pack_files(files), NAMES: Typed("array:str", sorted(names)), **digests}


def tokenizer_digest(keys: Mapping[str, Any], files: Mapping[str, bytes], config: Mapping[str, Any]) -> Typed | None:
    """Return a digest of a tokenizer's keys, stored files and settings; None if GGUF cannot store a key.

    While the digest matches, the files describe the tokenizer in the keys, so neither needs to be parsed.
    """
    digest = blake2b(json.dumps([config.get(key) for key in CONFIG_KEYS]).encode(), digest_size=32)
    for key, value in sorted(keys.items()):
        try:
            pair = pack_pair(key, value)
        except FormatError:
            return None
        if pair is None:
            return None
        digest.update(pair)
    for name, data in sorted(files.items()):
        digest.update(f"\0{name} {len(data)}\0".encode())
        digest.update(data)
    return Typed("str", digest.hexdigest())


def restored_files(meta: Mapping[str, Any]) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the files in GGUF keys, and the names of all files of their source; FormatError if unpacking fails."""
    names = meta.get(NAMES)
    listed = names.value if isinstance(names, Typed) and names.type == "array:str" else ()
    return dict(unpack_files(meta)), tuple(map(str, listed))


def kept_keys(meta: Mapping[str, Any], rebuilt: Mapping[str, Any]) -> dict[str, bytes]:
    """Return a file with the keys that cannot be rebuilt exactly, and the order of all keys.

    Each key has a digest of the rebuilt value, so that later changes to the settings take precedence.
    """
    own = {key: value for key, value in meta.items() if not _is_kept(key) and isinstance(value, Typed)}
    lost = {}
    for key, value in own.items():
        if not same_value(rebuilt.get(key), value) and not _is_inferred(key, value):
            try:
                stored = _as_json(value.value)
            except FormatError as error:
                raise error.within(part=key) from None
            lost[key] = {"type": value.type, "value": stored, "instead_of": _digest(rebuilt.get(key))}
    added = {key: _digest(value) for key, value in rebuilt.items() if key not in own}
    if not lost and not added and list(own) == list(rebuilt):
        return {}
    stored = {"version": 1, "keys": lost, "added": added, "order": list(own)}
    return {KEYS_FILE: json.dumps(stored, ensure_ascii=False).encode()}


def restored_keys(model: Model, rebuilt: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rebuilt keys and those stored next to config.json, in the order of the original GGUF."""
    if KEYS_FILE not in model.assets:
        return dict(rebuilt)
    stored = model.config(KEYS_FILE)
    keys, added, order = stored.get("keys"), stored.get("added"), stored.get("order")
    if not isinstance(keys, dict) or not isinstance(added, dict) or not isinstance(order, list):
        raise FormatError("lacks the objects keys and added, or the list order", part=KEYS_FILE, code="kept")
    merged = {key: value for key, value in rebuilt.items() if key not in added or added[key] != _digest(value)}
    for key, entry in keys.items():
        value, instead_of = _typed(key, entry)
        if instead_of == _digest(rebuilt.get(key)):
            merged[key] = value
    first = {key: merged[key] for key in order if isinstance(key, str) and key in merged}
    return {**first, **merged}


def same_value(one: Any, other: Any) -> bool:
    """Return whether two metadata values have the same type and content."""
    if not isinstance(one, Typed) or not isinstance(other, Typed) or one.type != other.type:
        return False
    if one.value is other.value:
        return True
    if not one.type.startswith("array:"):
        return bool(one.value == other.value)
    if one.type.startswith("array:array:"):
        return bool(_as_json(one.value) == _as_json(other.value))
    if one.type[6:] in ("str", "bool"):
        return list(one.value) == list(other.value)
    return np.array_equal(np.asarray(one.value), np.asarray(other.value))


def _is_inferred(key: str, value: Any) -> bool:
    """Return whether GGUF's writer infers the value from the types of the tensors."""
    return key == "general.file_type" and value.value in SINGLE_TYPES


def _is_kept(key: str) -> bool:
    return key.startswith((FILE, ROWS)) or key in (NAMES, DIGEST)


def _digest(value: Any) -> str | None:
    if value is None:
        return None
    return sha256(repr((value.type, _as_json(value.value))).encode(errors="surrogatepass")).hexdigest()[:16]


def _as_json(value: Any) -> Any:
    """Return arrays as lists at any depth; FormatError for text that is not UTF-8, which is read as bytes."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, bytes):
        raise FormatError(
            f"is not UTF-8, so {KEYS_FILE} cannot store it",
            found=repr(value[:40]),
            code="encoding",
            hint="Remove this key from the GGUF, or keep the names with {option:rename=keep}.",
        )
    return list(map(_as_json, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _typed(key: str, stored: Any) -> tuple[Typed, str | None]:
    if (
        not isinstance(stored, dict)
        or set(stored) != {"type", "value", "instead_of"}
        or type(stored["type"]) is not str
    ):
        raise FormatError("is not a typed value", part=f"{KEYS_FILE} {key}"[:200], code="kept")
    return Typed(stored["type"], stored["value"]), stored["instead_of"]
